"""KKT sets: exact constructions, and sets that must keep what the derivations say they keep."""

from functools import cache

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from conftest import drawn, refused
from experiments import certificates, exact_sets, kkt_sets
from training import images, stationary
from utils import networks
from utils.kernels import naive
from utils.kernels.similarity import l2
from utils.networks import change, flatten

DRAWS = st.integers(0, 10**6)
often = settings(max_examples=30)


def clusters(seed, dimensions, n=6, spread=0.35, distance=3.0):
    """Two clusters on opposite sides of the origin, n points each."""
    noise = drawn(2 * n, dimensions, seed=seed)
    signs = torch.tensor([1.0, -1.0]).double().repeat_interleave(n)
    noise[:, 0] += distance / spread * signs
    return spread * noise, signs


@cache
def exact(seed, dimensions=9, neurons=3, bias=True):
    """A KKT set at rounding level; only those points that the construction allows."""
    return exact_sets.exact_set(*clusters(seed, dimensions), neurons, bias, seed)


@cache
def rough(seed, dimensions=9):
    """A trained network's set, with ε and δ larger than zero."""
    points, signs = clusters(seed, dimensions, spread=0.6)
    recipe = networks.perceptron("margin", 12)._replace(epochs=60, initial=0.01, centred=False)
    victim = stationary.train(images.Part(points, (signs + 1) / 2), recipe, seed)
    return kkt_sets.KKTSet(*certificates.fitted(victim.released.network, points, signs))


@often
@given(DRAWS, st.integers(2, 9), st.integers(1, 4), st.booleans())
def test_two_groups_are_a_kkt_point_to_rounding(seed, dimensions, neurons, bias):
    kkt = exact(seed, dimensions, neurons, bias)
    assert max(kkt_sets.conditions(kkt)) < 1e-11
    theta = flatten(kkt.network)
    assert torch.allclose(theta @ theta, 2 * kkt.multipliers.sum(), rtol=1e-10)  # Euler's identity
    first = networks.joint(kkt.network[0]) if bias else kkt.network[0].weight
    assert torch.allclose(first.norm(dim=1), kkt.network[1].weight[0].abs(), rtol=1e-10)


@pytest.mark.parametrize("seed", range(3))
def test_residual_equals_autograd(seed):
    kkt, x = rough(seed), rough(seed).points.clone().requires_grad_()
    module, weighted = naive.module_of(kkt.network), lambda z, c: (c * kkt.signs * z[:, 0]).sum()
    value, *_ = naive.residual(module, x, kkt.multipliers, combined=weighted)
    assert torch.allclose(kkt_sets.residual(kkt).square().sum(), value, rtol=1e-9)
    (in_x,) = torch.autograd.grad(module(x).sum(), x)
    assert torch.allclose(kkt_sets.input_gradients(kkt.network, kkt.points), in_x, rtol=1e-12)


def test_conditions_tell_what_is_wrong_and_the_multipliers_are_found_again_at_any_scale():
    kkt = exact(1)
    assert kkt_sets.conditions(kkt._replace(multipliers=-kkt.multipliers)).negativity > 0.01
    shrunk = kkt._replace(network=change(kkt.network, lambda p: 0.9 * p))
    assert kkt_sets.conditions(shrunk).violation == pytest.approx(1 - 0.81)
    moved = kkt_sets.conditions(kkt._replace(points=2 * kkt.points))
    assert moved.slackness > 0.1 and moved.stationarity > 0.1
    again = certificates.fitted(change(kkt.network, lambda p: 7 * p), kkt.points, kkt.signs)
    assert kkt_sets.conditions(again).stationarity < 1e-7
    assert torch.allclose(flatten(again.network), flatten(kkt.network), rtol=1e-10)


@often
@given(DRAWS, st.floats(1e-3, 1e5), st.booleans())
def test_planted_and_faraway_sets_keep_residual_and_margins(seed, distance, trained):
    kkt = rough(seed % 20, dimensions=30) if trained else exact(seed, dimensions=16)
    far = kkt_sets.faraway(kkt, distance, seed)
    assert len(far.points) == 2 * len(kkt.points) and l2(far.points, kkt.points).min() > distance
    assert exact_sets.residual_change(far, kkt) < 1e-14 * max(1.0, distance) * 1e3
    assert (kkt_sets.margins(far) > 1 - 1e-8).all()
    free = kkt_sets.unseen(kkt, drawn(*kkt.points.shape, seed=seed))
    made = kkt_sets.paired(kkt, free)
    assert exact_sets.residual_change(made, kkt) < 1e-10
    assert torch.allclose(kkt_sets.margins(made), kkt_sets.margins(kkt).repeat(2), atol=1e-9)
    assert (free @ torch.cat([kkt.points, kkt.network[0].weight]).mT).abs().max() < 1e-10


def test_what_cannot_be_is_refused_in_a_sentence():
    kkt, (points, signs), first = exact(0), clusters(0, 4), torch.eye(4).double()[0]
    beside, beyond = points - 3 * torch.outer(signs, first), points + 4 * first
    for named, function, *what in (
        ("No hyperplane parts class", exact_sets.two_groups, beside, signs, 1, False),
        ("raise NEURONS", exact_sets.two_groups, points, signs, 0),
        ("points of the other class", exact_sets.two_groups, beyond, signs, 1, False),
        ("is misjudged", certificates.fitted, kkt.network, kkt.points, -kkt.signs),
    ):
        assert named in refused(function, *what)
