"""A promised (ε, δ): how private a training was at most, and whether that refutes its promise. Nothing confirms one."""

from typing import NamedTuple

import torch

from audit.judge import Scored
from evaluation import epsilon
from evaluation.notation import number

SHARE = 0.2  # of the pictures that choose by which score, and of how many others, sides are guessed
PARTS = 1.0, 0.5, 0.25  # of the others that may be guessed
BOUNDS = epsilon.pure_bound, epsilon.gaussian_bound
BY_LOT = "That holds where a coin was tossed for each picture, whether to train on it."
DIFFER = "The two sides differ by more than a lot makes them, and so no ε can be tested"
READABLE = (
    "The generator that drew the start can be read from the weights; if it drew the noise, too, anybody who knows the "
    "training takes that away, and no ε holds."
)


class Tested(NamedTuple):
    """What was asked of a promise, and what is known of ε at its δ, at a confidence."""

    epsilon: float  # promised
    delta: float
    refuted: bool | None  # None: there is no answer
    said: str
    confidence: float
    score: str | None = None  # by which sides were guessed
    pictures: int = 0  # whose sides could be guessed
    guesses: int = 0
    right: int = 0
    at_least: float = 0.0  # ε, whatever the training was
    at_least_gaussian: float = 0.0  # ε, where it is as private as normal noise


def test(
    promised: tuple[float, float], level: float, scores: dict[str, Scored], seed: int, differ: bool
) -> Tested:
    """Test a promised (ε, δ) by the scores of membership, {name: Scored}, at a confidence 1 − level.

    Some pictures choose the score, and how many of the others are guessed; these give the bounds. There is no answer
    without a score, or where the two sides `differ` in another way than by lot.
    """
    if differ or not scores:
        why = DIFFER if differ else "No score of membership was measured, and so no ε can be tested"
        return Tested(*promised, refuted=None, said=f"{why}.", confidence=1 - level)
    name, guesses = guessed(scores, promised[1], level, seed)
    pure, gaussian = (bound(guesses, promised[1], level) for bound in BOUNDS)
    return Tested(
        *promised,
        refuted=max(pure, gaussian) > promised[0],
        said=sentence(promised, name, guesses, (pure, gaussian), level),
        confidence=1 - level,
        score=name,
        pictures=guesses.pictures,
        guesses=guesses.made,
        right=guesses.right,
        at_least=pure,
        at_least_gaussian=gaussian,
    )


def guessed(scores, delta, level, seed):
    """The name of the score by which sides are guessed, and the Guesses by it, of pictures that did not choose it.

    The choice is what promises the largest bound, and of equal ones the score with the widest gap between the sides.
    """
    found = []
    for name, score in scores.items():
        choosing, others = halves(score, seed)
        count = sum(map(len, others))
        for part in PARTS:
            made = round(part * count)
            tried = epsilon.guess(choosing, round(part * sum(map(len, choosing))), seed)
            share = (tried.right + 0.5) / (tried.made + 1)
            likely = epsilon.Guesses(count, made, round(made * share))
            bound = epsilon.gaussian_bound(likely, delta, level)
            found.append((bound, apart(choosing), name, others, made))
    *_, name, others, made = max(found, key=lambda one: one[:2])
    return name, epsilon.guess(others, made, seed)


def apart(sides):
    """How far the lowest training picture of a score is above the highest other one, in deviations of all."""
    gap = sides[0].min() - sides[1].max()
    return float(gap / torch.cat([*sides]).std().clamp_min(1e-30))


def halves(score, seed):
    """A score's values of as many pictures of either side, drawn by lot: of those that choose, and of the others."""
    size = min(len(score.training), len(score.held_out))
    lot = torch.Generator().manual_seed(seed)
    sides = [
        side[torch.randperm(len(side), generator=lot)[:size]]
        for side in (score.training, score.held_out)
    ]
    first = round(SHARE * size)
    return tuple(side[:first] for side in sides), tuple(side[first:] for side in sides)


def sentence(promised, name, guesses, bounds, level):
    """What Guesses by the score of a name say of a promise: the bounds of ε, of any training and of a Gaussian one."""
    pure, gaussian = (f"ε is above {bound:.1f}" for bound in bounds)
    found = f"The promise of ε = {promised[0]:g} at δ = {number(promised[1])} is "
    if bounds[0] > promised[0]:
        found += "refuted, whatever the training was"
    elif bounds[1] > promised[0]:
        found += "refuted, if normal noise made the training private"
    else:
        found += "not refuted, which does not confirm it"
    found += f": {guesses.right} of {guesses.made} guesses are right ({name}). So {pure}, at a confidence"
    found += f" of {1 - level:.0%}; if normal noise made the training private, {gaussian}."
    if max(bounds) <= promised[0]:
        perfect = epsilon.Guesses(guesses.pictures, guesses.pictures, guesses.pictures)
        most, normal = (bound(perfect, promised[1], level) for bound in BOUNDS)
        found += f" With all guesses right, so few pictures refute no ε above {most:.1f}, or {normal:.1f} with noise."
    return f"{found} {BY_LOT}"
