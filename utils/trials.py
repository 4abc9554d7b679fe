"""One experiment of section 4.3: train a victim, attack it from a start, compare the result with the secret.

The attack gets the weights, the labels and a start. Everything that looks at the secret images afterwards is here and
in `evaluate`.
"""

from typing import NamedTuple

import torch

from utils import affine, bilevel, evaluate, images, report

QUANTITIES = {
    "relative_distance": "‖θ − θ*‖²/‖θ*‖²",
    "mean_square_distance": "‖θ − θ*‖² per weight",
    "nearest_training_l2": "L2 to the nearest training image",
    "nearest_start_l2": "L2 to the nearest image of the start",
}


class Trial(NamedTuple):
    """One attack on one victim, with all that the evaluation needs."""

    seed: int
    data: images.Split
    victim: affine.Trained
    start: torch.Tensor  # x₀ (m, d)
    untouched: torch.Tensor  # θ(x₀) (d+1,): training on the start itself, a baseline
    attack: bilevel.Attack


def bilevel_affine(data, seed, choose_start, weight_decay, **settings):
    """Train the affine victim on the secret part, attack it from `choose_start(data, seed)`, return the Trial."""
    victim = affine.train(*data.secret, weight_decay)
    start = choose_start(data, seed)
    labels = data.secret.labels
    attack = bilevel.attack(victim.weights, labels, start, weight_decay=weight_decay, **settings)
    return Trial(seed, data, victim, start, affine.train(start, labels, weight_decay).weights, attack)


def measure(trial, weights, reconstructions):
    """Evaluate weights and images against the victim's: the four quantities that RESULTS holds.

    The L2 distances are Euclidean, per image, averaged over the reconstructions.
    """
    target, secret = trial.victim.weights, trial.data.secret.images
    return {
        "relative_distance": evaluate.relative_distance(weights, target),
        "mean_square_distance": evaluate.mean_square_distance(weights, target),
        "nearest_training_l2": evaluate.l2(reconstructions, secret).min(1).values.mean().item(),
        "nearest_start_l2": evaluate.l2(reconstructions, trial.start).min(1).values.mean().item(),
    }


def rows(trial, start_name):
    """Return the trial's numbers as rows for RESULTS; the baseline is the start as it is, before any attack."""
    ours = measure(trial, trial.attack.weights, trial.attack.images)
    baseline = measure(trial, trial.untouched, trial.start)
    paper = {"mean_square_distance": report.TABLE_1[start_name]}
    small = {name: ours[name] <= 1e-12 for name in ("relative_distance", "mean_square_distance")}
    return [
        report.Row(
            f"bilevel/affine/{start_name}/{name}",
            trial.seed,
            ours[name],
            paper=paper.get(name),
            baseline=baseline[name],
            verdict=report.verdict(small[name]) if name in small else None,
        )
        for name in QUANTITIES
    ]


def table_1(trials, start_name):
    """Show Table 1's affine column: the paper's value, ours as mean ± sd over seeds, and two baselines."""
    listed = [row for trial in trials for row in rows(trial, start_name)]
    zero = [measure(trial, torch.zeros_like(trial.untouched), trial.start) for trial in trials]
    lines = []
    for name, meaning in QUANTITIES.items():
        mine = [row for row in listed if row.name.endswith(name)]
        of_weights = name.endswith("_distance")
        lines.append(
            [
                meaning,
                report.number(report.TABLE_1[start_name]) if mine[0].paper else "–",
                report.mean_sd(row.value for row in mine),
                report.mean_sd(row.baseline for row in mine),
                report.mean_sd(values[name] for values in zero) if of_weights else "–",
            ]
        )
    return report.table(["quantity", "paper", "ours", "baseline: the start x₀", "baseline: θ = 0"], *lines)


def outside(trial):
    """Return the share of the reconstructions' pixels that lie outside [0, 1]; figures clip them."""
    x = trial.attack.images
    return ((x < 0) | (x > 1)).double().mean().item()


COMPARISONS = {
    "reconstruction to training": lambda trial: (trial.attack.images, trial.data.secret.images),
    "start to training": lambda trial: (trial.start, trial.data.secret.images),
    "reconstruction to start": lambda trial: (trial.attack.images, trial.start),
}


def similarity(trial, comparison, by):
    """Return the mean over images of the similarity to the nearest neighbour; `comparison` is one of COMPARISONS."""
    images, references = COMPARISONS[comparison](trial)
    return evaluate.nearest(images, references, trial.data.shape, by).similarity.mean().item()


def similarity_table(trials):
    """Show the similarity to the nearest neighbour by SSIM, NCC and L2, as mean ± sd over seeds."""
    lines = []
    for by, better in (("ssim", "higher is nearer"), ("ncc", "higher is nearer"), ("l2", "lower is nearer")):
        columns = (report.mean_sd(similarity(trial, name, by) for trial in trials) for name in COMPARISONS)
        lines.append([f"{by.upper()}, {better}", *columns])
    return report.table(["nearest by", *COMPARISONS], *lines)
