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
often, seldom = settings(max_examples=30), settings(max_examples=4)  # what is slow


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


def per_label(kkt):
    """Σλ of both labels."""
    return torch.stack([kkt.multipliers[kkt.signs == sign].sum() for sign in (1, -1)])


def members(kkt):
    """The points of every cell: lists of their numbers."""
    cell = kkt_sets.cells(kkt)
    return [(cell == k).nonzero()[:, 0].tolist() for k in cell.unique()]


def assert_kept(kkt, made):
    """Pairs in place of points change neither residual nor margins."""
    assert exact_sets.residual_change(made, kkt) < 1e-10
    assert torch.allclose(kkt_sets.margins(made), kkt_sets.margins(kkt).repeat(2), atol=1e-9)


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
    assert torch.allclose(per_label(again), per_label(kkt), rtol=1e-7)
    assert torch.allclose(flatten(again.network), flatten(kkt.network), rtol=1e-10)


@often
@given(DRAWS)
def test_budget_is_the_first_change_of_a_neuron(seed):
    kkt, way = rough(seed % 50), drawn(9, seed=seed)
    active = kkt_sets.preactivations(kkt.network, kkt.points) > 0
    for side in (way, -way):
        reach = kkt_sets.budget(kkt, side)
        for factor in (0.999, 1.001):
            moved = kkt.points + factor * reach.clamp_max(1e12)[:, None] * side
            same = ((kkt_sets.preactivations(kkt.network, moved) > 0) == active).all(1)
            assert same.all() if factor < 1 else not same[reach < 1e12].any()


@often
@given(DRAWS, st.booleans(), st.floats(0.01, 100.0))
def test_derived_bound_holds(seed, trained, scale):
    kkt = rough(seed % 50) if trained else exact(seed)
    if not trained:  # the same picture in other units
        kkt = exact_sets.exact_set(scale * kkt.points, kkt.signs, 2, bias=False)
    for index in range(0, len(kkt.points), 3):
        way = kkt_sets.tangent(kkt, index, drawn(9, seed=seed))
        bound = kkt_sets.bounds(kkt, index, way).derived
        assert kkt_sets.reach(kkt, index, way) >= bound * (1 - 1e-9)


@often
@given(DRAWS, st.floats(1e-3, 1e5), st.booleans())
def test_planted_and_faraway_sets_keep_residual_and_margins(seed, distance, trained):
    kkt = rough(seed % 20, dimensions=30) if trained else exact(seed, dimensions=16)
    far = kkt_sets.faraway(kkt, distance, seed)
    assert len(far.points) == 2 * len(kkt.points) and l2(far.points, kkt.points).min() > distance
    assert exact_sets.residual_change(far, kkt) < 1e-14 * max(1.0, distance) * 1e3
    assert (kkt_sets.margins(far) > 1 - 1e-8).all()
    free = kkt_sets.unseen(kkt, drawn(*kkt.points.shape, seed=seed))
    assert_kept(kkt, kkt_sets.paired(kkt, free))
    assert (free @ torch.cat([kkt.points, kkt.network[0].weight]).mT).abs().max() < 1e-10
    assert torch.allclose(kkt_sets.unseen(kkt, free), free, atol=1e-10)


@often
@given(DRAWS, st.booleans())
def test_sets_that_explain_a_network_exactly_as_well(seed, trained):
    kkt = rough(seed % 20, dimensions=30) if trained else exact(seed, dimensions=16)
    used = [cell for cell in members(kkt) if kkt.multipliers[cell].sum() > 0]
    condensed = kkt_sets.merge_cells(kkt)
    assert len(condensed.points) == len(used)
    assert kkt_sets.alone(condensed).all()
    for made in (condensed, kkt_sets.straight_split(kkt, 5.0)):
        assert exact_sets.residual_change(made, kkt) < 1e-9
        assert torch.allclose(per_label(made), per_label(kkt), rtol=1e-12)
        assert kkt_sets.margins(made).min() > 1 - 1e-8


@often
@given(DRAWS)
def test_a_straight_split_moves_what_is_needed_both_ways(seed):
    kkt = rough(seed % 20)
    made, needed = kkt_sets.straight_split(kkt, 0.01), kkt.points[kkt.multipliers > 0].flip(0)
    pairs = made.points[-2 * len(needed) :].view(-1, 2, needed.shape[1])
    assert torch.allclose(pairs.mean(1), needed, atol=1e-12)
    assert (pairs.diff(dim=1).norm(dim=2) <= 0.02 + 1e-12).all()


@seldom
@given(DRAWS)
def test_both_halves_of_a_split_keep_cells_and_none_nearby_is_nearer(seed):
    kkt, photographs = rough(seed % 50), drawn(12, 9, seed=seed)
    u = certificates.halves(kkt.network, kkt.points, photographs)
    made = kkt_sets.paired(kkt, u)
    assert_kept(kkt, made)
    single = kkt_sets.alone(kkt)
    assert torch.allclose(kkt_sets.centres(made)[: len(u)][single], kkt.points[single], atol=1e-10)
    network, x, u, weight = kkt.network, kkt.points, u / 0.99, kkt.network[0].weight
    bends = kkt_sets.to_hyperplanes(network, x) < certificates.NEAR
    rooms = kkt_sets.preactivations(network, x).abs()
    for i, slope in enumerate(kkt_sets.input_gradients(network, x)):
        others = u[i] + drawn(20, 9, seed=seed) / torch.logspace(0, 4, 20)[:, None]
        fixed = networks.span_of(torch.cat([slope[None], weight[bends[i]]]))
        others = others - networks.within(others, fixed)
        reach = ((others @ weight.mT).abs() / rooms[i])[:, ~bends[i]].amax(1, keepdim=True)
        others = others / reach.clamp_min(1)  # so that it leaves no cell
        nearest = (x[i] + others - photographs[i]).norm(dim=1).min()
        assert nearest >= (x[i] + u[i] - photographs[i]).norm() - 1e-8


def test_the_best_slopes_at_kinks_only_help():
    for kkt in map(rough, range(3)):
        assert certificates.at_kinks(kkt) <= kkt_sets.conditions(kkt).stationarity + 1e-6


def test_what_cannot_be_is_refused_in_a_sentence():
    kkt, (points, signs), first = exact(0), clusters(0, 4), torch.eye(4).double()[0]
    beside, beyond = points - 3 * torch.outer(signs, first), points + 4 * first
    for named, function, *what in (
        ("No hyperplane parts class", exact_sets.two_groups, beside, signs, 1, False),
        ("No hyperplane parts class -1", exact_sets.compatible, points[:6], signs[:6]),
        ("raise NEURONS", exact_sets.two_groups, points, signs, 0),
        ("points of the other class", exact_sets.two_groups, beyond, signs, 1, False),
        ("is misjudged", certificates.fitted, kkt.network, kkt.points, -kkt.signs),
    ):
        assert named in refused(function, *what)
