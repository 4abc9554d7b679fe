"""Unmixing: the count and the span that a first layer tells, the objective, the signs, and what it refuses."""

import pytest
import torch
from torch.nn.functional import normalize

from attacks import starts, unmixing
from conftest import chapter_functions, drawn, refused
from training import images
from utils import networks
from utils.kernels import contrast
from utils.kernels.layers import Layer
from utils.kernels.similarity import match, planes
from utils.networks import Released

CHAPTER = chapter_functions("unmixing-the-first-layer")
SHAPE = (32, 32, 3)


@pytest.fixture(scope="module")
def pictures():
    """Twelve photographs (12, 3072), with their mean."""
    return images.split(images.load("photos"), 12, 12).secret.images


def layered(x, centred=False, mixed=None):
    """A network whose first layer is W₁ = BX, b₁ = B1, by default with half of B zero."""
    mixed = drawn(40, len(x)).clamp_min(0) if mixed is None else mixed
    network = Layer(mixed @ x, mixed.sum(1)), Layer(torch.ones(1, len(mixed), dtype=x.dtype), None)
    recipe = networks.perceptron("signed", len(mixed))._replace(centred=centred)
    return Released(network, torch.zeros(len(x)), recipe)


def consistent(x, neurons, bias=True):
    """B (neurons, m) that is zero where a neuron of the layer BX, B1 is not active at an image."""
    mixed = starts.random(neurons, len(x), 0)
    for _ in range(200):
        active = (mixed @ x) @ x.T + bias * mixed.sum(1)[:, None] > 0
        mixed = torch.where(active, mixed.clamp_min(1e-3), 0.0)
    return mixed


def changed(released, change):
    """Its first layer alone, with other weights and as many biases."""
    weight, bias = released.network[0]
    weight = change(weight)
    return released._replace(network=(Layer(weight, bias[: len(weight)]),))


@pytest.mark.parametrize("centred", [False, True])
def test_the_count_the_span_lengths_and_signs_are_read(pictures, centred):
    x = pictures - pictures.mean(0) * centred
    released = layered(x, centred)
    count, basis, mixing = unmixing.read(released)
    assert count == 12 and basis.shape == (3072, 12 - centred)
    torch.testing.assert_close(x @ basis @ basis.T, x)
    torch.testing.assert_close(mixing @ basis.T, released.network[0].weight)
    half = networks.change(released.network, torch.Tensor.half)  # changes weights by 5e-4
    assert unmixing.read(released._replace(network=half))[0] == 12
    # of rows that unmix exactly, wrong lengths and signs are undone
    wrong = torch.linspace(0.2, 3, 12).double() * (-1) ** torch.arange(12)
    rows = wrong[:, None] * x @ basis
    scaled = wrong * unmixing.solve_factors(rows, mixing, released.network[0].bias)
    torch.testing.assert_close(scaled / scaled[0], torch.ones(12).double())
    assert centred or abs(scaled[0] - 1) < 1e-6


def test_an_attempt_takes_the_count_that_it_is_told_and_says_what_was_refused(pictures):
    clear, noise = layered(pictures), drawn(40, 3072, seed=1)
    found = unmixing.attempt(clear, SHAPE, 15)
    assert found.details.count == len(found.images) == 12 and found.refusals == ()
    found = unmixing.attempt(changed(clear, lambda w: w + 0.1 * w.std() * noise), SHAPE, 13)
    assert found.details.count is None and len(found.images) == 13
    assert len(found.refusals) == 1 and "no gap" in found.refusals[0]
    found = unmixing.attempt(changed(clear, lambda w: noise), SHAPE, 40)
    assert found.details.count is found.images is None and len(found.refusals) == 2
    assert "no gap" in refused(unmixing.read, changed(clear, lambda w: w[:10]))
    zero = changed(clear, lambda w: torch.cat([w[:10], 0 * w[10:]]))
    assert "too few" in refused(unmixing.read, zero)
    assert "NaN" in refused(unmixing.read, changed(clear, lambda w: w * torch.nan))


def test_the_fast_features_and_objective_are_the_plain_ones_and_features_are_whitened(pictures):
    grey = planes(pictures, SHAPE).mean(1)
    plain = torch.stack([CHAPTER["features"](picture) for picture in grey])
    plain = plain / plain.square().mean((0, 2, 3), keepdim=True).sqrt()
    torch.testing.assert_close(contrast.features(grey.flatten(1), (32, 32, 1))[:, 0], plain)
    found = contrast.whiten(contrast.features(pictures, SHAPE, 1.7, together=True))[0]
    rows = normalize(drawn(13, 12))
    for floor, window in ((1.0, 3), (0.01, 5), (0.1, 1)):
        ours = contrast.objective(rows, found, floor, window)
        torch.testing.assert_close(ours, CHAPTER["objective"](rows, found[:, 0], floor, window))
    found = contrast.whiten(contrast.features(pictures, SHAPE))[0]
    flat = found.flatten(1)
    torch.testing.assert_close(flat @ flat.T / flat.shape[1], torch.eye(12, dtype=torch.float64))


@pytest.mark.parametrize("rows, free", [(13, slice(None)), (12, [2, 5, 6])])
def test_the_slopes_of_a_step_are_those_of_the_objective(pictures, rows, free):
    found = contrast.whiten(contrast.features(pictures, SHAPE))[0]
    matrix = normalize(drawn(rows, 12))
    index = torch.arange(rows)[free]
    step = torch.zeros(rows, len(index), dtype=torch.float64, requires_grad=True)
    value = contrast.objective(normalize(matrix + step @ matrix[index]), found, 0.03, 5)
    slope = torch.autograd.grad(value, step)[0]
    slope[index, range(len(index))] = 0
    ours = contrast.relative_derivatives(matrix, contrast.mix(matrix, found), 0.03, 5, free)
    torch.testing.assert_close(ours.value, value.detach())
    torch.testing.assert_close(ours.slope, slope)


def test_the_preconditioner_solves_its_blocks():
    curvature, slope = 2 + drawn(5, 5).square(), drawn(5, 5).fill_diagonal_(0)
    found = contrast.precondition(slope, curvature)
    torch.testing.assert_close(curvature * found + found.mT, slope)


def test_images_are_unmixed_up_to_one_sign_each_and_the_global_sign_is_that_of_most_neurons():
    """Of a layer that is nothing but a mixture, counted by the truth, which no attacker has."""
    x = images.split(images.load("photos"), 30, 30).secret.images
    x = x - x.mean(0)
    found = unmixing.attack(layered(x, True, consistent(x, 60)), SHAPE)
    matched = match(x, found.images)
    assert len(found.images) == 30 and matched.some >= 28 and found.stopped == "even"
    assert (matched.signed > 0.7).sum() >= 25  # against the fewest neurons, it would be few
    assert found.history[-1] < found.history[0] - 10
    torch.testing.assert_close(found.images.std(dim=1), torch.full((30,), 0.22).double())
    span = torch.linalg.svd(x, full_matrices=False)[2][:29]
    assert match(x, span).strong <= 2  # singular vectors are not images


@pytest.mark.parametrize("bias", [True, False])
def test_activity_tells_the_signs(pictures, bias):
    """B is zero where a neuron is not active: the layer is consistent with itself."""
    x = (pictures - pictures.mean(0))[:, :200]
    b = consistent(x, 40, bias)
    basis = torch.linalg.svd(x, full_matrices=False)[2][:11].T
    signals = unmixing.read_signals(x @ basis, b @ x @ basis, b.sum(1) if bias else None, bias)
    signs = torch.ones(12).double()
    right, wrong = (unmixing.agreement(signals, sign * signs)[1] for sign in (1, -1))
    assert right > (0.99 if bias else 0.6) > wrong
    if bias:
        some = torch.where(torch.arange(12) % 5 == 0, -signs, signs)
        assert torch.equal(unmixing.flip_signs(signals, some, range(12), clear=0.0), signs)
        # nothing is clear here
        assert torch.equal(unmixing.flip_signs(signals, some, range(12)), some)
