"""One experiment of section 4.4: train a victim, attack it by stationarity, count what came back.

The attack gets the weights, a rule, labels for its candidates and a start. Everything that looks at the secret images
afterwards is here and in `evaluate`.
"""

import time
from typing import NamedTuple

import torch

from utils import decoreco, evaluate, figures, images, mlp, report
from utils.errors import InputError

RECIPE = {"signed": "regression", "tied": "regression", "margin": "two_classes", "multiclass": "many_classes"}


class Trial(NamedTuple):
    """One attack on one victim, with all that the evaluation needs."""

    rule: str
    seed: int
    data: images.Split
    victim: mlp.Victim
    start: torch.Tensor  # x₀ (n, d), without a mean, as the attack began
    attack: decoreco.Attack
    seconds: float
    basis: torch.Tensor | None = None  # (d, r), if the attack searched the row space


def split(labelled, most, seed, device="cpu"):
    """Draw at most `most` images for the attacker and half as many secret ones, balanced over the classes."""
    kinds = int(labelled.labels.max()) + 1
    if most < 2 * kinds:
        raise InputError(
            f"IMAGES is {most}, but the {kinds} classes of the stationarity attack need at least {2 * kinds}."
        )
    m, n = (size // kinds * kinds for size in (most // 2, most))
    return images.split(labelled, m, n, seed, device)


def count(data, rule):
    """How many candidates an attack moves: as many as the attacker has images; for tied coefficients, m."""
    return len(data.secret.labels if rule == "tied" else data.known.labels)


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
    seconds = time.perf_counter() - begun
    return Trial(rule, seed, data, victim, within(start, basis), found, seconds, basis)


def within(x, basis):
    """Project images onto the row space, if there is a basis."""
    return x if basis is None else x @ basis @ basis.T


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
    """As many other photographs as there are candidates, without their mean, and projected as the candidates are."""
    known = trial.data.known.images
    return within((known - known.mean(0))[: len(trial.start)], trial.basis)


def blank(trial):
    """One candidate of zeros, so that only the mean is left of it."""
    return torch.zeros_like(trial.start[:1])


# What can be handed in without any attack.
BASELINES = {"strangers": strangers, "start": lambda trial: trial.start, "blank": blank}


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


def true(trial, candidates=None):
    """Which reconstructions, or other candidates, correlate with a training image: (n,) booleans."""
    candidates = trial.attack.images if candidates is None else candidates
    return evaluate.half_ncc(candidates, secret(trial), trial.data.shape).max(1).values > TRUE


def area(score, mask):
    """The area under the ROC curve with which a score (n,) tells those in the mask (n,) from the others.

    None if all are in the mask or none is.
    """
    above = score[mask][:, None] - score[~mask]  # every one in the mask against every other
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
    return figures.image_rows(stacked, trial.data.shape, labels, frames, scale=0.5)


def best_baseline(trial, evaluated, measure):
    """The largest value of a measure that a baseline reaches."""
    return max(measure(evaluated(trial, baseline(trial))) for baseline in BASELINES.values())


def beats_chance(trials, evaluated):
    """Whether in every trial the attack has more good matches than the best of the baselines."""
    return all(good(evaluated(t)) > best_baseline(t, evaluated, good) for t in trials)


def mean_ssim(matches):
    """The mean SSIM over the training images."""
    return matches.ssim.mean().item()


def rows(trial, start_name):
    """Return the trial's numbers as rows for RESULTS; the baseline is the best of BASELINES, or the loss of the start."""
    prefix = f"decoreco/{trial.rule}/{start_name}"
    evaluations = {
        "good_reconstructions": (published, good),
        "good_as_adversary": (adversary, good),
        "mean_ssim": (published, mean_ssim),
    }
    listed = [
        report.Row(
            f"{prefix}/{name}",
            trial.seed,
            float(measure(evaluated(trial))),
            baseline=float(best_baseline(trial, evaluated, measure)),
        )
        for name, (evaluated, measure) in evaluations.items()
    ]
    first, last = trial.attack.history[0].item(), trial.attack.loss.total.item()
    listed.append(report.Row(f"{prefix}/attack_loss", trial.seed, last, baseline=first))
    return [*listed, report.Row(f"{prefix}/seconds", trial.seed, trial.seconds)]


def counted(values):
    """Print a count, or several."""
    return ", ".join(f"{value:.0f}" for value in values)


def losses(groups):
    """Show the attacker's loss, one line per named group of trials."""
    lines = []
    for name, trials in groups.items():
        ends = [[t.attack.history[0].item() for t in trials], [t.attack.loss.total.item() for t in trials]]
        lines.append([name, *(report.number(loss[0]) if len(loss) == 1 else report.mean_sd(loss) for loss in ends)])
    return report.table(["", "loss, start", "loss, end"], *lines)


def counts(groups, evaluated):
    """Show how many matches are good, one line per group, one number per seed, beside the same for the baselines."""
    lines = [
        [
            name,
            counted(good(evaluated(t)) for t in trials),
            *(counted(good(evaluated(t, baseline(t))) for t in trials) for baseline in BASELINES.values()),
        ]
        for name, trials in groups.items()
    ]
    return report.table(["", "attack", *BASELINES], *lines)
