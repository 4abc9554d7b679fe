"""The seed that a network began from is found by trying, and a wrong one is not taken for it."""

import numpy as np
import pytest
import torch

from attacks import seeds
from conftest import refused

TRUE = 3 * 2**16 + 12_345  # in the fourth share of 2¹⁶


def first_layer():
    """The first 4,000 weights of a layer that the true seed draws, and noise of their size."""
    torch.manual_seed(TRUE)
    drawn = torch.nn.Linear(3072, 30).weight.detach().flatten()[:4000].double().numpy()
    return drawn + drawn.std() * np.random.default_rng(1).standard_normal(4000)


def scored(some, draw, values):
    """The (z, seed) of some seeds."""
    return ((seeds.score(seed, draw, values), seed) for seed in some)


def test_signs_are_those_of_the_generator():
    """At the ends of 32 bits, and for every draw that no twisted word enters."""
    draws = np.arange(227)[::-1]
    some = np.array([0, 1, 5489, TRUE, 2**32 - 1], np.uint32)
    for found, seed in zip(seeds.signs(draws, some).T, some.tolist()):
        drawn = torch.rand(227, generator=torch.Generator().manual_seed(seed)).numpy()
        assert np.array_equal(found, drawn[draws] >= 0.5)


def test_a_usual_seed_is_told_behind_other_draws_and_by_another_fill():
    def draw(generator):
        torch.rand(100, generator=generator)
        return torch.randn(400, generator=generator)

    usual, values = seeds.common(), draw(torch.Generator().manual_seed(31337))
    assert seeds.choose(scored(usual[:5000], draw, values)) == (pytest.approx(20), 31337)
    cannot_both_be_right = [(50.0, 1), (49.0, 2)]
    for wrong in (scored(usual[:10], draw, values), cannot_both_be_right):
        assert "No seed is told" in refused(seeds.choose, wrong)


@pytest.mark.parametrize("jobs, fill", [(1, "uniform"), (2, "normal")])
def test_a_search_of_all_seeds_ends_at_the_true_one(monkeypatch, jobs, fill):
    monkeypatch.setattr(seeds, "SHARE", 2**16)
    draws, values = np.arange(4000), first_layer()
    if fill == "normal":  # its sines
        draws = draws[draws % 16 >= 8]
        values = -torch.randn(4000, generator=torch.Generator().manual_seed(TRUE)).numpy()[draws]
    assert "No seed is told" in refused(seeds.search, draws, values, 2**17, jobs)
    assert seeds.search(draws, values, jobs=jobs)[1] == TRUE
    assert "40 of them" in refused(seeds.search, draws + 227, values)
