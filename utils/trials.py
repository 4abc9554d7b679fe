"""One experiment of section 4.3: train a victim, attack it from a start, compare the result with the secret.

The attack gets the weights, the labels and a start. Everything that looks at the secret images afterwards is here and
in `evaluate`.
"""

from typing import NamedTuple

import torch

from utils import affine, bilevel, evaluate, hidden, images, report

MEANINGS = {
    "relative_distance": "‖θ − θ*‖²/‖θ*‖²",
    "mean_square_distance": "‖θ − θ*‖² per weight",
    "nearest_training_l2": "L2 to the nearest training image",
    "nearest_start_l2": "L2 to the nearest image of the start",
}
SOLVED = {"affine": 1e-12, "one_hidden": 1e-6}  # relative distance below which an attack counts as solved
INNER_BUDGET = 5_000  # steps of the inner solver that an attack on a network may take


class Trial(NamedTuple):
    """One attack on one victim, with all that the evaluation needs."""

    name: str  # affine, one_hidden/known_theta0 or one_hidden/unknown_theta0, as in report.NAMES
    seed: int
    data: images.Split
    victim: affine.Trained | hidden.Trained
    start: torch.Tensor  # x₀ (m, d)
    attack: bilevel.Attack
    theta0: hidden.Network | None = None  # where the attacker's inner solves began


def bilevel_affine(data, seed, choose_start, weight_decay, **settings):
    """Train the affine victim on the secret part, attack it from `choose_start(data, seed)`, return the Trial."""
    victim = affine.train(*data.secret, weight_decay)
    start = choose_start(data, seed)
    attack = bilevel.attack(victim.weights, data.secret.labels, start, weight_decay=weight_decay, **settings)
    return Trial("affine", seed, data, victim, start, attack)


def bilevel_one_hidden(data, seed, choose_start, weight_decay, width, kind, sharpness, **settings):
    """The same for the network: two Trials, for an attacker who knows the trainer's θ⁰ and one who does not.

    Trainer and attacker draw θ⁰ from the same distribution `kind`; one who does not know it draws another.
    """
    known, unknown = (theta0(data, width, draw, kind, sharpness) for draw in (2 * seed, 2 * seed + 1))
    victim = hidden.train(*data.secret, weight_decay, known)
    start, labels = choose_start(data, seed), data.secret.labels
    settings = {"weight_decay": weight_decay, "inner_budget": INNER_BUDGET, **settings}
    trials = []
    for name, theta in (("known", known), ("unknown", unknown)):
        attack = bilevel.attack(victim.weights, labels, start, theta_start=theta, **settings)
        trials.append(Trial(f"one_hidden/{name}_theta0", seed, data, victim, start, attack, theta))
    return trials


def theta0(data, width, draw, kind, sharpness):
    """Draw a θ⁰ for images like these."""
    x = data.secret.images
    return hidden.initial_weights(x.shape[1], width, draw, kind, sharpness, x.device)


def relative(trial):
    """‖θ − θ*‖²/‖θ*‖² after the attack."""
    return evaluate.relative_distance(trial.attack.weights, trial.victim.weights)


def solved(trial):
    """Whether the attack returned the victim's weights."""
    return relative(trial) <= SOLVED[trial.name.split("/")[0]]


def measure(trial, relative, reconstructions):
    """The four quantities that RESULTS holds, from a relative distance of weights and from images.

    The L2 distances are Euclidean, per image, averaged over the reconstructions.
    """
    target = evaluate.parts(trial.victim.weights)
    mean_square = sum(part.square().sum().item() for part in target) / sum(part.numel() for part in target)
    return {
        "relative_distance": relative,
        "mean_square_distance": relative * mean_square,
        "nearest_training_l2": evaluate.l2(reconstructions, trial.data.secret.images).min(1).values.mean().item(),
        "nearest_start_l2": evaluate.l2(reconstructions, trial.start).min(1).values.mean().item(),
    }


def rows(trial, start_name):
    """Return the trial's numbers as rows for RESULTS; the baseline is the start as it is, before any attack."""
    model, _, knowledge = trial.name.partition("/")
    prefix = "/".join(["bilevel", model, start_name, *([knowledge] if knowledge else [])])
    ours = measure(trial, relative(trial), trial.attack.images)
    untouched = measure(trial, trial.attack.history[0].item(), trial.start)
    listed = [
        report.Row(
            f"{prefix}/{name}",
            trial.seed,
            ours[name],
            paper=report.TABLE_1[model][start_name] if name == "mean_square_distance" else None,
            baseline=untouched[name],
            verdict=report.verdict(solved(trial)) if name.endswith("_distance") else None,
        )
        for name in MEANINGS
    ]
    if knowledge:
        listed.append(report.Row(f"{prefix}/inner_gradient_norm", trial.seed, trial.attack.gradient_norm.item()))
        listed.append(report.Row(f"{prefix}/outer_converged", trial.seed, float(solved(trial))))
    return listed


def convergence_table(*groups):
    """Show whether the inner and the outer problem converged, one line per group of trials."""
    lines = []
    for trials in groups:
        lines.append(
            [
                trials[0].name.split("/")[-1].replace("_theta0", " θ⁰"),
                report.number(max(trial.victim.gradient_norm.item() for trial in trials), 1e-7),
                report.number(max(trial.attack.gradient_norm.item() for trial in trials), 1e-7),
                f"{sum(trial.attack.sound.double().mean().item() for trial in trials) / len(trials):.0%}",
                ", ".join(sorted({trial.attack.stopped for trial in trials})),
                f"{sum(map(solved, trials))} of {len(trials)}",
            ]
        )
    header = ["attacker", "victim's ‖∇E‖", "attack's ‖∇E‖", "sound hypergradients", "outer loop stopped as", "solved"]
    return report.table(header, *lines)


def table_1(trials, start_name):
    """Show one cell of Table 1: the paper's value, ours as mean ± sd over seeds, and two baselines."""
    listed = [row for trial in trials for row in rows(trial, start_name)]
    zero = [measure(trial, 1.0, trial.start) for trial in trials]  # ‖0 − θ*‖²/‖θ*‖² = 1
    lines = []
    for name, meaning in MEANINGS.items():
        mine = [row for row in listed if row.name.endswith("/" + name)]
        of_weights = name.endswith("_distance")
        lines.append(
            [
                meaning,
                report.number(mine[0].paper) if mine[0].paper else "–",
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
