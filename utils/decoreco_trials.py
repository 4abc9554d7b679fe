"""One experiment of section 4.4: train a victim, attack it by stationarity, count what came back.

The attack gets the weights, a rule, labels for its candidates and a start. Everything that looks at the secret images
afterwards is here and in `evaluate`.
"""

import time
from typing import NamedTuple

import torch

from utils import decoreco, evaluate, images, mlp, report
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


def adversary(trial):
    """evaluate.as_adversary: the mean is guessed from the images that the attacker knows."""
    guess = trial.data.known.images.mean(0)
    return evaluate.as_adversary(trial.attack.images, secret(trial), trial.victim.mean, guess, trial.data.shape)


def strangers(trial):
    """The published evaluation of photographs that were never near the victim: what chance gives."""
    known = trial.data.known.images
    return published(trial, known - known.mean(0))


def good(matches):
    """How many training images were matched with an SSIM above 0.4."""
    return (matches.ssim > evaluate.GOOD).sum().item()


def ranked(trial):
    """Order reconstructions by their half_ncc to the nearest training image, best first: (order, nearest), each (n,)."""
    table = evaluate.half_ncc(trial.attack.images, secret(trial), trial.data.shape)
    similarity, nearest = table.max(1)
    order = similarity.argsort(descending=True)
    return order, nearest[order]


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


def table(groups):
    """Show counts and losses, one line per named group of trials, as mean ± sd over seeds."""
    lines = []
    for name, trials in groups.items():
        lines.append(
            [
                name,
                report.mean_sd(trial.attack.history[0].item() for trial in trials),
                report.mean_sd(trial.attack.loss.total.item() for trial in trials),
                report.mean_sd(good(published(trial)) for trial in trials),
                report.mean_sd(good(adversary(trial)) for trial in trials),
                report.mean_sd(good(published(trial, trial.start)) for trial in trials),
                report.mean_sd(good(strangers(trial)) for trial in trials),
            ]
        )
    header = [
        "",
        "loss, start",
        "loss, end",
        "good, as published",
        "good, as an adversary",
        "good: the start",
        "good: strangers",
    ]
    return report.table(header, *lines)
