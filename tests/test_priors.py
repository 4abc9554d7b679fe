"""Radii, shifts and distances to a KKT point."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from utils import decoreco, mlp, priors, rules, starts
from utils.errors import InputError

RECIPE = mlp.RECIPES["two_classes"]._replace(centred=False, epochs=60, small=1e-8)


def trained(x, labels, recipe=RECIPE, width=20):
    start = mlp.initial_weights([x.shape[1], width, 1], 0, recipe.small)
    return start, mlp.train(start, x, labels, recipe)


def test_labels_are_the_sign_of_the_first_coordinate():
    x, labels = priors.labelled_sphere(9, 5, 3)
    assert torch.allclose(x.norm(dim=1), torch.ones(9).double())
    assert torch.equal(labels, (x[:, 0] > 0).double()) and torch.equal(labels, labels.sort().values)
    assert 0 < labels.sum() < 9
    with pytest.raises(InputError, match="POINTS and DIMENSIONS must be 2 or larger"):
        priors.labelled_sphere(1, 5, 0)


@settings(deadline=None, max_examples=20, derandomize=True)
@given(norm=st.floats(1e-2, 1e2), seed=st.integers(0, 100))
def test_the_length_of_theta_changes_no_relative_residual(norm, seed):
    network = mlp.initial_weights([8, 6, 1], seed, 0.3)
    x, labels = priors.labelled_sphere(10, 8, seed)
    coefficients = torch.rand(10, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))

    def loss(weights):
        objective = decoreco.Objective(weights, rules.make("margin", labels, 1), math.inf, 0.0, 0.0)
        return objective(x, coefficients)[0].stationarity

    scaled = priors.normalised(network, norm)
    assert torch.allclose(mlp.flatten(scaled).norm(), torch.tensor(norm).double())
    assert torch.allclose(loss(scaled), loss(network), rtol=1e-9)


def test_without_centring_the_mean_is_zero_and_training_sees_the_shift():
    x, labels = priors.labelled_sphere(12, 30, 0)
    start, victim = trained(x + 0.5, labels)
    assert not victim.mean.any()
    moved = torch.cat(
        [victim.weights[0].weight - start[0].weight, (victim.weights[0].bias - start[0].bias)[:, None]], 1
    )
    basis = torch.linalg.qr(torch.cat([x + 0.5, torch.ones(12, 1).double()], 1).T)[0]
    assert (moved - moved @ basis @ basis.T).norm() <= 1e-10 * moved.norm()


@settings(deadline=None, max_examples=20, derandomize=True)
@given(shift=st.floats(-5, 5), seed=st.integers(0, 100))
def test_a_full_row_space_gives_the_shift_away(shift, seed):
    x = starts.normal(6, 30, 1.0, seed)
    rows = torch.cat([x - x.mean(0) + shift, torch.ones(6, 1).double()], 1)
    layer = starts.normal(9, 6, 1.0, seed + 1) @ rows  # nine mixtures of (x_i, 1)
    read = priors.estimate_shift(mlp.Layer(layer[:, :-1], layer[:, -1]))
    assert all(math.isclose(s, shift, abs_tol=1e-6) for s in read)


def test_a_shift_cannot_be_read_where_every_shift_fits():
    layer = mlp.Layer(starts.normal(20, 5, 1.0, 0), starts.normal(20, 1, 1.0, 1)[:, 0])
    assert all(map(math.isnan, priors.estimate_shift(layer)))


def test_orthogonal_residuals_have_no_reverse_estimate():
    layer = mlp.Layer(torch.tensor([[1.0, -1.0]]).double(), torch.zeros(1).double())
    diluted, reverse = priors.estimate_shift(layer)  # Q(1, 0) = (1, 1, 0) and Q(0, 1) = (0, 0, 1)
    assert diluted == 0 and math.isnan(reverse)


def test_first_weights_dilute_one_estimate_and_not_the_other():
    read = []
    for seed in range(20):
        x = starts.normal(6, 60, 1.0, seed)
        rows = torch.cat([x - x.mean(0) + 2.0, torch.ones(6, 1).double()], 1)
        layer = starts.normal(9, 6, 1.0, seed + 1) @ rows + starts.normal(9, 61, 0.2, seed + 2)
        read.append(priors.estimate_shift(mlp.Layer(layer[:, :-1], layer[:, -1])))
        assert 0 < read[-1].diluted < read[-1].reverse
    diluted, reverse = torch.tensor(read).mean(0)
    assert diluted < 2 - 0.02 and diluted < reverse


def test_kkt_distance_is_zero_at_a_combination_of_gradients():
    """One neuron and one point: W = λ v x̄ and v = λ σ(w·x̄) hold for v² = ‖w̄‖², w̄ ∥ x̄."""
    x, one = torch.tensor([[0.6, 0.8]]).double(), torch.ones(1).double()
    x, labels = torch.cat([x, -x]), torch.tensor([1.0, 0.0]).double()  # the second is inactive
    scale = torch.tensor(2.0).double() ** -0.5  # ‖x̄‖² = 2
    network = (mlp.Layer(scale * x[:1], scale * one), mlp.Layer(one[None], None))
    assert priors.kkt_distance(network, x, labels) <= 1e-6
    other = (mlp.Layer(scale * x[:1].flip(1), scale * one), mlp.Layer(one[None], None))
    assert priors.kkt_distance(other, x, labels) > 1e-2


def test_closeness_takes_the_best_five_and_the_cosine_no_length():
    points = torch.eye(6).double()
    candidates = torch.cat([points + 0.1 * points, -7 * points])
    near = priors.closeness(candidates, points)
    assert math.isclose(near.distance, 0.1, rel_tol=1e-9) and math.isclose(near.cosine, 1.0)
    assert priors.closeness(3 * candidates, points).cosine == near.cosine
    assert priors.found(candidates, points) == 6 and priors.found(-points, points) == 0


def test_blends_tell_a_mean_of_two_from_one():
    points = starts.normal(5, 9, 1.0, 0)
    one, two = priors.blends(3 * points, points)
    assert math.isclose(one, 1.0) and two < 1
    one, two = priors.blends(points[:1] + points[3:4], points)
    assert math.isclose(two, 1.0) and one < 1


def test_an_attack_that_reaches_the_tolerance_is_left_alone():
    x, labels = priors.labelled_sphere(10, 8, 0)
    victim = trained(x, labels, RECIPE._replace(small=0.1))[1]
    begin = torch.stack([priors.sphere(20, 8, radius, 1) for radius in (0.1, 1.0, 10.0)])
    free = priors.attack(victim.weights, begin, iterations=60)
    level = free.loss.total.max().item() * 1.001
    held = priors.attack(victim.weights, begin, iterations=60, tolerance=level)
    first = (free.history <= level).double().argmax(0)
    assert torch.allclose(held.loss.total, free.history[first, range(3)], rtol=1e-3)
    assert (held.loss.total <= level).all() and (held.loss.total >= free.loss.total * 0.999).all()
