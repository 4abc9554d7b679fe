"""Lower bounds of ε: as rarely too high as they say, and what a slow programme finds."""

import numpy as np
import pytest
import torch
from scipy.optimize import linprog
from scipy.stats import binom, norm

from evaluation import epsilon
from evaluation.epsilon import Guesses
from training.private import delta_of, epsilon_of

LEVEL = 0.05
TRIALS = 300
ALLOWED = binom.ppf(0.999, TRIALS, LEVEL)  # of them may be too high
PICTURES = 80


def told(draw, epsilon, delta):
    """Randomised response: each side is told with a chance of exp(ε)/(1 + exp(ε)), and for certain with one of δ."""
    right = draw.random(PICTURES) < 1 / (1 + np.exp(-epsilon))
    certain = draw.random(PICTURES) < delta
    return Guesses(PICTURES, PICTURES, int((right | certain).sum()))


@pytest.mark.parametrize("true, delta", [(0.0, 0.0), (1.0, 0.0), (3.0, 0.0), (1.0, 0.02)])
def test_the_bound_of_any_training_is_as_rarely_too_high_as_it_says(true, delta):
    draw = np.random.default_rng(0)
    high = sum(epsilon.p_value(told(draw, true, delta), true, delta) < LEVEL for _ in range(TRIALS))
    assert high <= ALLOWED
    assert high > 0 or delta  # it is no empty promise


@pytest.mark.parametrize("part", [1.0, 0.5, 0.25])
@pytest.mark.parametrize("mu", [0.0, 1.0, 2.0])
def test_the_bound_of_normal_noise_is_as_rarely_too_high_as_it_says(mu, part):
    noise = torch.Generator().manual_seed(1)
    high = 0
    for trial in range(TRIALS):
        ours, theirs = torch.randn(2, PICTURES // 2, generator=noise)
        guesses = epsilon.guess([ours + mu, theirs], round(part * PICTURES), trial)
        high += epsilon.is_too_good(guesses, mu, LEVEL)
    assert high <= ALLOWED


def largest_chance(guesses, mu):
    """The largest chance of so many right guesses, by a linear programme over how many are right."""
    count, made, right = guesses
    k = np.arange(made + 1)
    rows, bounds = [], []
    for z in np.linspace(-8, 8, 400):  # tangents of Φ(Φ⁻¹(h) + μ)
        h, slope = norm.cdf(z), norm.pdf(z + mu) / norm.pdf(z)
        for j in range(1, made + 1):
            rows.append(((k >= j) * k - slope * (k >= j - 1) * (made - k)) / count)
            bounds.append(norm.cdf(z + mu) - slope * h)
    one = np.ones((1, made + 1))
    return -linprog(-(k >= right).astype(float), rows, bounds, one, [1]).fun


@pytest.mark.parametrize(
    "guesses, mu", [((12, 12, 11), 0.5), ((12, 12, 9), 1.0), ((16, 8, 7), 0.7), ((10, 10, 10), 1.5)]
)
def test_what_normal_noise_allows_is_what_a_linear_programme_finds(guesses, mu):
    guesses = Guesses(*guesses)
    most = largest_chance(guesses, mu)
    assert 0.01 < most < 0.99
    assert epsilon.is_too_good(guesses, mu, 1.01 * most)
    assert not epsilon.is_too_good(guesses, mu, 0.99 * most)


def test_a_perfect_guesser_gives_the_bounds_that_can_be_worked_out():
    perfect = Guesses(100, 100, 100)
    share = LEVEL ** (1 / 100)
    assert epsilon.pure_bound(perfect, 0.0, LEVEL) == pytest.approx(
        np.log(share / (1 - share)), abs=1e-3
    )
    assert epsilon.pure_bound(Guesses(100, 100, 50), 1e-5, LEVEL) == 0
    assert epsilon.gaussian_bound(Guesses(100, 100, 50), 1e-5, LEVEL) == 0
    assert delta_of(1.3, epsilon_of(1.3, 1e-5)) == pytest.approx(1e-5, rel=1e-6)


def test_equal_scores_tell_no_side():
    """A guesser that knows nothing is right in half of all guesses, also where scores are equal."""
    same = torch.zeros(400)
    right = [epsilon.guess([same, same], 400, seed).right for seed in range(20)]
    assert np.mean(right) == pytest.approx(200, abs=15)
    assert epsilon.guess([same + 1, same], 400, 0) == Guesses(800, 400, 400)
