"""Lower bounds of ε from one network: how many guesses of who was trained on are right, and how many a promise allows.

Each of n pictures was trained on or not by the toss of a coin. A guesser who sees the network says of some on which
side they are. The more of these guesses are right, the larger ε must be: the tests of Steinke, Nasr and Jagielski
(2023) for any training, and of Mahloujifar, Melis and Chaudhuri (2025) for one as private as normal noise.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import torch
from scipy.special import expit, ndtr, ndtri
from scipy.stats import binom

from training.private import epsilon_of

MOST = 50.0  # the largest ε or μ that is looked for
STEPS = 25  # of a bisection


class Guesses(NamedTuple):
    """How a guesser did."""

    pictures: int  # n
    made: int  # guesses, at most one for each picture
    right: int  # of these


def guess(sides: Sequence[torch.Tensor], made: int, seed: int) -> Guesses:
    """So many Guesses by a score, larger for a member, of the values of both sides, training ones (m,) and others (m,).

    The pictures with the highest scores are said to be members, as many with the lowest not to be. Equal scores are
    put in an order by lot, which knows no side.
    """
    scores = torch.cat([*sides]).double().numpy()
    lot = np.random.default_rng(seed).permutation(len(scores))
    order = lot[scores[lot].argsort(kind="stable")]
    is_member = order < len(sides[0])
    half = made // 2
    right = is_member[len(order) - half :].sum() + (~is_member[:half]).sum()
    return Guesses(len(order), 2 * half, int(right))


def p_value(guesses: Guesses, epsilon: float, delta: float) -> float:
    """The largest chance of so many right Guesses after any (ε, δ)-private training.

    Each guess is right with a chance of at most q = exp(ε)/(1 + exp(ε)), whatever the others were, so their number is
    at most binomial. Where the promise may fail with a chance of δ for each picture, the best that a training can do is
    to push the number up by some i (Steinke, Nasr and Jagielski, 2023, Theorem 5.2).
    """
    count, made, right = guesses
    tail = binom.sf(np.arange(right, -1, -1) - 1, made, expit(epsilon))  # of right, right − 1, …, 0
    gains = (tail[1:] - tail[0]) / np.arange(1, right + 1)
    return min(1.0, float(tail[0] + 2 * count * delta * gains.max(initial=0.0)))


def is_too_good(guesses: Guesses, mu: float, level: float) -> bool:
    """Whether a chance of `level` of so many right Guesses is more than a μ-Gaussian private training allows.

    Let r and h be the chances that a random picture is guessed right, or wrong, and at least j guesses are right in
    all. To toss one picture's coin again changes j by one, so r at j is at most Φ(Φ⁻¹(h) + μ) for h at j − 1. From the
    claimed tail down to j = 0 this forces more and more mass upon h, and may come to more than all guesses
    (Mahloujifar, Melis and Chaudhuri, 2025).
    """
    count, made, right = guesses
    r = level * right / count
    h = level * (made - right) / count
    for j in range(right - 1, -1, -1):
        least = max(h, float(ndtr(ndtri(r) - mu)))
        r += j / (made - j) * (least - h)
        h = least
    return r + h > made / count


def largest(excludes: Callable[[float], bool]) -> float:
    """The largest number up to MOST that a test `excludes`, with all smaller ones; 0 if it excludes none."""
    low = 0.0
    high = MOST
    for _ in range(STEPS):
        middle = (low + high) / 2
        low, high = (middle, high) if excludes(middle) else (low, middle)
    return low


def pure_bound(guesses: Guesses, delta: float, level: float) -> float:
    """The ε below which no (ε, δ)-private training makes such Guesses likelier than a level, whatever it is."""
    return largest(lambda epsilon: p_value(guesses, epsilon, delta) < level)


def gaussian_bound(guesses: Guesses, delta: float, level: float) -> float:
    """The same if the training is as private as normal noise: the ε at δ of the largest μ that is excluded."""
    return epsilon_of(largest(lambda mu: is_too_good(guesses, mu, level)), delta)
