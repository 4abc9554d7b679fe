"""Radii, shifts and distances to a KKT point: what chapter 10 and its two appendices are about."""

import math
from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from attacks import decoreco, starts
from conftest import refused
from experiments import margin, shift, spheres
from training import stationary
from utils import networks
from utils.kernels.layers import Layer, flatten, unflatten
from utils.kernels.losses import LOSSES
from utils.networks import Released

at_kinks = partial(margin.kkt_distance, near=1e-3)
RECIPE = networks.perceptron("margin", 20)._replace(centred=False, epochs=60, initial=1e-8)


def rows(x, s):
    """X̄: images with their mean at s·1, and a one attached."""
    return torch.cat([x - x.mean(0) + s, torch.ones(len(x), 1).double()], 1)


def exact():
    """A KKT point of two neurons and two points: W = λv x̄ and v = λσ(w·x̄), for v² = ‖w̄‖² and w̄ ∥ x̄."""
    x, scale = torch.tensor([[0.6, 0.8]]).double(), torch.tensor(2.0).double() ** -0.5  # ‖x̄‖² = 2
    one = torch.ones(1).double()
    points, labels = torch.cat([x, -x]), torch.tensor([1.0, 0.0]).double()  # the second is inactive
    return (Layer(scale * x, scale * one), Layer(one[None], None)), points, labels


def test_descent_ends_below_its_target_and_keeps_what_the_points_do_not_see():
    part = spheres.labelled(8, 20, 0)
    initial = networks.initial(RECIPE._replace(initial=0.3), 20, 0)
    victim, pace = stationary.train_to(part, RECIPE, initial, 1e-2)
    network = victim.released.network
    assert victim.loss == pace.losses[-1] < 1e-2 and pace.losses[:0:-1] == sorted(pace.losses[1:])
    assert pace.loss_at(1e9) == victim.loss and pace.loss_at(0.0) == math.inf

    def objective(theta):
        return stationary.mean_loss(unflatten(theta, initial), *part, LOSSES["logistic"])[:2]

    direct, _ = stationary.descend_to(objective, flatten(initial), 1e-2, 60_000)
    assert torch.allclose(direct, flatten(network), atol=1e-9)
    assert "raise LOSS" in refused(stationary.train_to, part, RECIPE, initial, 1e-9, most=20)


@pytest.mark.parametrize("distance", [margin.kkt_distance, at_kinks])
def test_the_distance_is_zero_at_a_kkt_point_and_not_elsewhere(distance):
    network, points, labels = exact()
    turned = (network[0]._replace(weight=network[0].weight.flip(1)), network[1])
    assert distance(network, points, labels) < 1e-6 and distance(turned, points, labels) > 1e-2
    longer = networks.change(turned, lambda p: 1e3 * p)  # the length of θ changes nothing
    assert distance(longer, points, labels) == pytest.approx(distance(turned, points, labels), 1e-5)
    assert abs(margin.slackness(network, points[:1], labels[:1])) < 1e-12


def test_slopes_at_kinks_explain_what_slopes_of_zero_and_one_do_not():
    """A neuron that bends at x₂ = (−2, 0): W̄ = k(x̄₁ + x̄₂/5) is stationary for λ₁ = k, and any λ₂s₂ = k/5."""
    x, k, one = torch.tensor([[1.0, 0.0], [-2.0, 0.0]]).double(), 1.8**-0.5, torch.ones(1).double()
    first = Layer(torch.tensor([[0.6 * k, 0.0]], dtype=x.dtype), (1.2 * k - 1e-12) * one)
    network, labels = (first, Layer(one[None], None)), torch.ones(2).double()
    printed, free = (d(network, x, labels) for d in (margin.kkt_distance, at_kinks))
    assert free < 1e-3 and printed > 0.2


def test_the_smallest_residual_is_the_square_of_the_distance():
    x, labels = spheres.labelled(10, 8, 2)
    network = spheres.first_weights(RECIPE._replace(initial=0.3), 8, 2)
    value, multipliers = margin.smallest_residual(network, x, labels)
    assert (multipliers >= 0).all() and multipliers.max() > 0
    distance = margin.kkt_distance(network, x, labels)
    assert distance * flatten(network).norm() == pytest.approx(value**0.5, 1e-9)


@settings(max_examples=20)
@given(s=st.floats(-5, 5, allow_subnormal=False), seed=st.integers(0, 100))
def test_a_full_row_space_gives_the_shift_away_and_tells_centred_images(s, seed):
    x, mixing = starts.normal(6, 30, 1.0, seed), starts.normal(9, 6, 1.0, seed + 1)
    layer = mixing @ rows(x, s)
    assert shift.estimate(layer) == pytest.approx((s, s), abs=1e-6)
    first = networks.parted(layer)
    released = Released((first, Layer(torch.ones(1, 9).double(), None)), torch.zeros(6), RECIPE)
    centred = shift.subtracted(released, s)
    assert torch.allclose(centred.network[0].weight, mixing @ (x - x.mean(0)), atol=1e-9)
    assert centred.recipe.centred and torch.equal(centred.network[0].bias, first.bias)


def test_where_every_shift_fits_none_is_told():
    orthogonal = torch.tensor([[1.0, -1.0, 0.0]]).double()  # Q(1, 0) = (1, 1, 0)
    for layer in (starts.normal(20, 6, 1.0, 0), orthogonal):
        assert shift.estimate(layer) == (0.0, 0.0)


def test_growth_tells_a_mean_of_two_from_one_and_points_share_neurons():
    points, eye = starts.normal(5, 9, 1.0, 0), torch.eye(2).double()
    assert shift.mean_pair_gain(3 * points, points) < 0
    assert shift.mean_pair_gain(points[:1] + points[3:4], points) > 0
    x = torch.tensor([[1.0, 1], [1, -1], [1, -2]]).double()
    assert math.isclose(margin.same_side([Layer(eye, None)], x), (0.5 + 0.5 + 1) / 3)


def test_an_attacker_takes_the_learning_rate_with_the_smallest_loss():
    x, labels = spheres.labelled(8, 12, 3)
    released = Released(spheres.first_weights(RECIPE._replace(initial=0.3), 12, 3), labels, RECIPE)
    settings, rates = decoreco.ADAM._replace(rule="margin", iterations=5), (1e-4, 1e-2)
    losses = [
        decoreco.attack(released, x, settings._replace(learning_rate=rate)).loss for rate in rates
    ]
    assert decoreco.by_rate(released, x, rates, settings).attack.loss == min(losses)
