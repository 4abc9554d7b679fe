"""One experiment of section 4.4: train a victim, attack it by stationarity, count what came back.

The attack gets the weights, a rule, labels for its candidates and a start. Everything that looks at the secret images
afterwards is here and in `evaluate`.
"""

import statistics
import time
from typing import NamedTuple

import torch

from utils import decoreco, evaluate, figures, images, mlp, report
from utils.errors import InputError

RECIPE = {"signed": "regression", "tied": "regression", "margin": "two_classes", "multiclass": "many_classes"}
QUANTITIES = ("good_reconstructions", "mean_ssim", "attack_loss", "seconds")


class Trial(NamedTuple):
    """One attack on one victim, with all that the evaluation needs."""

    rule: str
    seed: int
    data: images.Split
    victim: mlp.Victim
    start: torch.Tensor  # x₀ (n, d), without a mean
    attack: decoreco.Attack
    seconds: float


def train(data, rule, width, seed):
    """Train the victim for which a rule is meant, on the secret part."""
    return mlp.victim(*data.secret, mlp.RECIPES[RECIPE[rule]], width, seed=seed)


def labels(n, kinds, device="cpu"):
    """Balanced labels (n,) for candidates, class 0 first; the attacker's choice."""
    if n < kinds:
        raise InputError(f"There are {n} candidates for {kinds} classes: make CANDIDATES larger.")
    return (torch.arange(n, device=device) * kinds // n).double()


def attack(data, victim, rule, seed, start, space="pixels", **settings):
    """Attack from `start` (n, d): among all `pixels`, or in the `span` of what the first layer sees."""
    if rule == "tied":
        recipe = mlp.RECIPES[RECIPE[rule]]
        settings = {"weight_decay": recipe.weight_decay, "loss": recipe.loss, **settings}
    basis = decoreco.span(victim.weights) if space == "span" else None
    kinds = int(data.known.labels.max()) + 1
    begun = time.perf_counter()
    found = decoreco.attack(
        victim.weights, labels(len(start), kinds, start.device), start, rule=rule, basis=basis, seed=seed, **settings
    )
    if found.stopped == "diverged":
        raise InputError("The attack diverged: its loss is not finite. Choose a smaller LEARNING_RATE.")
    return Trial(rule, seed, data, victim, start, found, time.perf_counter() - begun)


def secret(trial):
    """The training images without their mean, as the victim saw them."""
    return trial.data.secret.images - trial.victim.mean


def published(trial, candidates=None):
    """evaluate.as_published for the trial's reconstructions, or for other candidates."""
    candidates = trial.attack.images if candidates is None else candidates
    return evaluate.as_published(candidates, secret(trial), trial.victim.mean, trial.data.shape)


def adversary(trial, candidates=None):
    """evaluate.as_adversary for the same: the mean is guessed from the images that the attacker knows."""
    candidates = trial.attack.images if candidates is None else candidates
    guess = trial.data.known.images.mean(0)
    return evaluate.as_adversary(candidates, secret(trial), trial.victim.mean, guess, trial.data.shape)


def strangers(trial):
    """Photographs that were never near the victim, without their mean, as if they were reconstructions: chance."""
    return trial.data.known.images - trial.data.known.images.mean(0)


def blank(trial):
    """One candidate of zeros: no attack at all, so that only the mean is left of it."""
    return torch.zeros_like(trial.start[:1])


def good(matches):
    """How many training images were matched with an SSIM above 0.4."""
    return (matches.ssim > evaluate.GOOD).sum().item()


def ranked(trial):
    """Order reconstructions by their half_ncc to the nearest training image, best first: (order, nearest), each (n,)."""
    table = evaluate.half_ncc(trial.attack.images, secret(trial), trial.data.shape)
    similarity, nearest = table.max(1)
    order = similarity.argsort(descending=True)
    return order, nearest[order]


TRUE = 0.7  # half_ncc with a training image above which a reconstruction counts as true


def true(trial):
    """Which reconstructions correlate with a training image: (n,) booleans."""
    return evaluate.half_ncc(trial.attack.images, secret(trial), trial.data.shape).max(1).values > TRUE


def area(trial):
    """The area under the ROC curve with which the attacker's |λ| tells true reconstructions from others.

    None if all are true or none is.
    """
    size, mask = trial.attack.coefficients.abs(), true(trial)
    above = size[mask][:, None] - size[~mask]  # every true one against every other
    return ((above > 0).double() + (above == 0) / 2).mean().item() if above.numel() else None


def pictures(trial, rows):
    """Some reconstructions as the sources show them: with the training mean, stretched to [0, 1]."""
    return evaluate.stretch(trial.attack.images[rows] + trial.victim.mean)


def ranked_pairs(trial, first, last, columns=10):
    """Draw the reconstructions of ranks first+1 … last above their nearest training images, in rows of `columns`."""
    order, nearest = ranked(trial)
    found, near = pictures(trial, order[first:last]), trial.data.secret.images[nearest[first:last]]
    stacked = [part for pair in zip(found.split(columns), near.split(columns)) for part in pair]
    labels = [f"{first + 1 + k * columns // 2}–" if k % 2 == 0 else "" for k in range(len(stacked))]
    frames = [figures.BLACK, figures.GREY] * (len(stacked) // 2)
    return figures.image_rows(stacked, trial.data.shape, labels, frames, scale=0.42)


def rows(trial, start_name):
    """Return the trial's numbers as rows for RESULTS; the baseline is the start, before any attack."""
    ours, untouched = published(trial), published(trial, trial.start)
    values = {
        "good_reconstructions": (float(good(ours)), float(good(untouched))),
        "mean_ssim": (ours.ssim.mean().item(), untouched.ssim.mean().item()),
        "attack_loss": (trial.attack.loss.total.item(), trial.attack.history[0].item()),
        "seconds": (trial.seconds, None),
    }
    prefix = f"decoreco/{trial.rule}/{start_name}"
    return [report.Row(f"{prefix}/{name}", trial.seed, *pair[:1], baseline=pair[1]) for name, pair in values.items()]


def counted(values):
    """Print a count, or the mean ± standard deviation of several."""
    values = list(values)
    spread = f" ± {statistics.stdev(values):.0f}" if len(values) > 1 else ""
    return report.typeset(f"{statistics.mean(values):.0f}{spread}")


def table(groups):
    """Show losses and counts, one line per named group of trials, over seeds; each count beside its two baselines."""
    lines = []
    for name, trials in groups.items():
        line = [name]
        for loss in ([t.attack.history[0].item() for t in trials], [t.attack.loss.total.item() for t in trials]):
            line.append(report.number(loss[0]) if len(loss) == 1 else report.mean_sd(loss))
        for evaluated in (published, adversary):
            line.append(counted(good(evaluated(t)) for t in trials))
            line.append(
                ", ".join(counted(good(evaluated(t, other(t))) for t in trials) for other in (strangers, blank))
            )
        lines.append(line)
    header = ["", "loss, start", "loss, end", "good, as published", "strangers, blank"]
    return report.table([*header, "good, as an adversary", "strangers, blank"], *lines)
