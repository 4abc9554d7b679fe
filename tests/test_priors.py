"""Radii, shifts and distances to a KKT point: what chapter 10 defines."""

import math
from types import SimpleNamespace

import pytest
import torch
from conftest import chapter_functions
from hypothesis import given, settings
from hypothesis import strategies as st

from utils import images, networks, victims
from utils.attacks import decoreco, starts
from utils.attacks.contract import Released
from utils.errors import InputError
from utils.networks import Layer

chapter = SimpleNamespace(**chapter_functions("10-no-prior-no-leakage"))
RECIPE = networks.perceptron("margin", 20)._replace(centred=False, epochs=60, start=1e-8)


def rows(x, shift):
    """X̄: images with their mean at shift·1, and a one attached."""
    return torch.cat([x - x.mean(0) + shift, torch.ones(len(x), 1).double()], 1)


def test_labels_are_the_sign_of_the_first_coordinate():
    x, labels = chapter.labelled_sphere(9, 5, 3)
    assert torch.allclose(x.norm(dim=1), torch.ones(9).double())
    assert torch.equal(labels, (x[:, 0] > 0).double()) and torch.equal(labels, labels.sort().values)
    assert 0 < labels.sum() < 9
    with pytest.raises(InputError, match="POINTS and DIMENSIONS must be 2 or larger"):
        chapter.labelled_sphere(1, 5, 0)


@settings(deadline=None, max_examples=20, derandomize=True)
@given(norm=st.floats(1e-2, 1e2), seed=st.integers(0, 100))
def test_the_length_of_theta_changes_no_relative_residual(norm, seed):
    network = networks.initial(RECIPE._replace(hidden=(6,), start=0.3), 8, seed)
    x, labels = chapter.labelled_sphere(10, 8, seed)
    coefficients = torch.rand(10, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    scaled = chapter.scaled_to(network, norm)
    assert torch.allclose(networks.flatten(scaled).norm(), torch.tensor(norm).double())
    before, after = (chapter.stationarity(net, labels)(x, coefficients)[0] for net in (network, scaled))
    assert torch.allclose(after.stationarity, before.stationarity, rtol=1e-9)


def test_a_length_is_seen_by_biases_alone():
    layer, top = networks.initial(RECIPE._replace(start=0.3), 8, 0)
    x, labels = chapter.labelled_sphere(10, 8, 0)
    coefficients = torch.full_like(labels, 0.7)
    for network, blind in (((layer, top), False), ((layer._replace(bias=None), top), True)):
        loss = chapter.stationarity(network, labels)
        near, far = (loss(t * x, coefficients / t)[0].total.item() for t in (1.0, 3.0))
        assert math.isclose(near, far, rel_tol=1e-9) == blind


def test_without_centring_the_mean_is_zero_and_training_sees_the_shift():
    x, labels = chapter.labelled_sphere(12, 30, 0)
    victim = victims.train(images.Part(x + 0.5, labels), RECIPE)
    assert not victim.mean.any()
    after, before = (networks.joint(net[0]) for net in (victim.released.network, networks.initial(RECIPE, 30, 0)))
    basis = networks.span_of(torch.cat([x + 0.5, torch.ones(12, 1).double()], 1))
    assert (after - before - networks.within(after - before, basis)).norm() <= 1e-10 * (after - before).norm()


@settings(deadline=None, max_examples=20, derandomize=True)
@given(shift=st.floats(-5, 5, allow_subnormal=False), seed=st.integers(0, 100))
def test_a_full_row_space_gives_the_shift_away(shift, seed):
    mixtures = starts.normal(9, 6, 1.0, seed + 1) @ rows(starts.normal(6, 30, 1.0, seed), shift)  # nine, of (x_i, 1)
    assert all(math.isclose(s, shift, abs_tol=1e-6) for s in chapter.estimate_shift(mixtures))


def test_a_shift_cannot_be_read_where_every_shift_fits():
    assert all(map(math.isnan, chapter.estimate_shift(starts.normal(20, 6, 1.0, 0))))


def test_orthogonal_residuals_have_no_reverse_estimate():
    diluted, reverse = chapter.estimate_shift(torch.tensor([[1.0, -1.0, 0.0]]).double())  # Q(1, 0) = (1, 1, 0)
    assert diluted == 0 and math.isnan(reverse)


def test_first_weights_dilute_one_estimate_and_not_the_other():
    read = []
    for seed in range(20):
        mixtures = starts.normal(9, 6, 1.0, seed + 1) @ rows(starts.normal(6, 60, 1.0, seed), 2.0)
        read.append(chapter.estimate_shift(mixtures + starts.normal(9, 61, 0.2, seed + 2)))
        assert 0 < read[-1].diluted < read[-1].reverse
    diluted, reverse = torch.tensor(read).mean(0)
    assert diluted < 2 - 0.02 and diluted < reverse


def test_kkt_distance_is_zero_at_a_combination_of_gradients():
    """One neuron and one point: W = λ v x̄ and v = λ σ(w·x̄) hold for v² = ‖w̄‖², w̄ ∥ x̄."""
    x, one = torch.tensor([[0.6, 0.8]]).double(), torch.ones(1).double()
    scale = torch.tensor(2.0).double() ** -0.5  # ‖x̄‖² = 2
    points, labels = torch.cat([x, -x]), torch.tensor([1.0, 0.0]).double()  # the second is inactive
    at, off = (
        chapter.kkt_distance((Layer(scale * w, scale * one), Layer(one[None], None)), points, labels)
        for w in (x, x.flip(1))
    )
    assert at <= 1e-6 and off > 1e-2


def test_closeness_takes_the_best_five_and_the_cosine_no_length():
    points = torch.eye(6).double()
    candidates = torch.cat([points + 0.1 * points, -7 * points])
    near = chapter.closeness(candidates, points)
    assert math.isclose(near.distance, 0.1, rel_tol=1e-9) and math.isclose(near.cosine, 1.0)
    assert chapter.closeness(3 * candidates, points).cosine == near.cosine
    assert chapter.points_found(candidates, points) == 6 and chapter.points_found(-points, points) == 0


def test_blends_tell_a_mean_of_two_from_one():
    points = starts.normal(5, 9, 1.0, 0)
    one, two = chapter.blends(3 * points, points)
    assert math.isclose(one, 1.0) and two < 1
    one, two = chapter.blends(points[:1] + points[3:4], points)
    assert math.isclose(two, 1.0) and one < 1


def test_an_attack_that_reaches_the_tolerance_is_left_alone():
    points = chapter.labelled_sphere(10, 8, 0)
    released = victims.train(points, RECIPE._replace(start=0.1)).released
    begin = torch.stack([chapter.sphere(20, 8, radius, 1) for radius in (0.1, 1.0, 10.0)])
    free = chapter.attack(released, begin, 0, iterations=60)
    level = free.loss.max().item() * 1.001
    held = chapter.attack(released, begin, 0, iterations=60, tolerance=level)
    first = (free.history <= level).double().argmax(0)
    assert torch.allclose(held.loss, free.history[first, range(3)], rtol=1e-3)
    assert (held.loss <= level).all() and (held.loss >= free.loss * 0.999).all()


def test_steps_in_units_of_the_start_do_the_same_without_biases():
    """R(tx, λ/t) = R(x, λ); the surrogate of the ReLU has a length of its own, and λ stays away from its bound."""
    (layer, top), begin = networks.initial(RECIPE._replace(start=0.3), 8, 0), chapter.sphere(20, 8, 1.0, 1)
    released = Released((layer._replace(bias=None), top), torch.zeros(0), RECIPE)
    fixed = {"rule": "margin", "range_weight": 0.0, "iterations": 4, "dtype": torch.float64}
    ends = []
    for t in (1.0, 4.0):
        units = {**chapter.in_units(t, 20, 0), "coefficients": torch.full((20,), 1 / t), "lambda_min": 0.0}
        ends.append(decoreco.attack(released, t * begin, sharpness=100 / t, **units, **fixed).images)
    assert torch.allclose(ends[1] / 4, ends[0], rtol=1e-6) and not torch.allclose(ends[0], begin)
