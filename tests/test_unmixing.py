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
from utils.kernels.similarity import ncc, planes
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
    """The same release with other first weights, and as many biases."""
    first, last = released.network
    weight = change(first.weight)
    return released._replace(network=(Layer(weight, first.bias[: len(weight)]), last))


@pytest.mark.parametrize("centred", [False, True])
def test_the_count_the_span_lengths_and_signs_are_read(pictures, centred):
    x = pictures - pictures.mean(0) * centred
    released = layered(x, centred)
    count, basis, mixing = unmixing.read(released)
    assert count == 12 and basis.shape == (3072, 12 - centred)
    torch.testing.assert_close(basis.T @ basis, torch.eye(basis.shape[1], dtype=basis.dtype))
    torch.testing.assert_close(x @ basis @ basis.T, x)
    torch.testing.assert_close(mixing @ basis.T, released.network[0].weight)
    half = networks.change(released.network, torch.Tensor.half)  # changes weights by 5e-4
    assert unmixing.read(released._replace(network=half))[0] == 12
    # of rows that unmix exactly, the relation undoes wrong lengths and signs
    factors = torch.linspace(0.2, 3, 12, dtype=torch.float64) * (-1) ** torch.arange(12)
    scaled = factors * unmixing.relation(
        factors[:, None] * x @ basis, mixing, released.network[0].bias
    )
    torch.testing.assert_close(scaled / scaled[0], torch.ones(12, dtype=torch.float64))
    assert centred or abs(scaled[0] - 1) < 1e-6


@pytest.mark.parametrize(
    "change, message",
    [
        (torch.rand_like, "no gap"),
        (lambda w: w[:10], "no gap"),
        (lambda w: torch.cat([w[:10], 0 * w[10:]]), "too few"),
        (lambda w: w[:1], "no gap"),
        (lambda w: torch.full_like(w, torch.nan), "NaN"),
    ],
)
def test_nothing_is_read_where_there_is_nothing(pictures, change, message):
    released = changed(layered(pictures), change)
    assert message in refused(unmixing.read, released._replace(network=released.network[:1]))


def test_an_attempt_takes_the_count_that_it_is_told_and_says_what_was_refused(pictures):
    clear, x = layered(pictures), drawn(40, 3072, seed=1)
    attempt = unmixing.attempt(clear, SHAPE, 15)
    assert attempt.details.count == len(attempt.images) == 12 and attempt.refusals == ()
    attempt = unmixing.attempt(changed(clear, lambda w: w + 0.1 * w.std() * x), SHAPE, 13)
    assert (
        attempt.details.count is None
        and len(attempt.images) == 13
        and "no gap" in attempt.refusals[0]
    )
    attempt = unmixing.attempt(changed(clear, lambda w: x), SHAPE, 40)
    assert attempt.details.count is attempt.images is None and len(attempt.refusals) == 2
    released = layered(pictures)  # a first layer that is no matrix, or of other images, is refused
    kernels = Layer(
        torch.ones(40, 3, 3, 3, dtype=torch.float64), torch.zeros(40, dtype=torch.float64)
    )
    assert "do not follow" in refused(
        unmixing.read, released._replace(network=(kernels, released.network[1]))
    )
    assert "3072 values" in refused(unmixing.attack, released, (16, 16, 3))


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
    found, white = contrast.whiten(contrast.features(pictures, SHAPE))
    flat = found.flatten(1)
    torch.testing.assert_close(flat @ flat.T / flat.shape[1], torch.eye(12, dtype=torch.float64))
    assert white.shape == (12, 12) and found.shape == (12, 3, 8, 30, 30)


@pytest.mark.parametrize("rows, free", [(12, slice(None)), (13, slice(None)), (12, [2, 5, 6])])
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
    some = torch.tensor([1, 3])
    found = contrast.precondition(slope[:, some], curvature[:, some], some)
    others = [0, 2, 4]
    torch.testing.assert_close((curvature[:, some] * found)[others], slope[:, some][others])


def test_rows_that_are_not_free_are_added_to_none(pictures):
    found = contrast.whiten(contrast.features(pictures, SHAPE))[0]
    begun, free = normalize(drawn(12, 12)), torch.tensor([2, 5, 6])
    matrix, history = contrast.minimise(begun, found, 0.1, 3, 10, free)
    assert history == sorted(history, reverse=True) and history[-1] < history[0] - 0.1
    added = matrix @ torch.linalg.inv(begun)
    added = added / added.diagonal()[:, None]
    assert (
        added[:, [0, 1, 3]].fill_diagonal_(0)[[2, 4, 5]].abs().max()
        < 1e-9
        < added[:, free].abs().max()
    )


def test_images_are_unmixed_up_to_one_sign_each_and_the_global_sign_is_that_of_most_neurons():
    """Of a layer that is nothing but a mixture, counted by the truth, which no attacker has."""
    x = images.split(images.load("photos"), 30, 30).secret.images
    x = x - x.mean(0)
    found = unmixing.attack(layered(x, True, consistent(x, 60)), SHAPE)
    likeness = ncc(x, found.images)
    best = likeness.gather(1, likeness.abs().argmax(1, keepdim=True))
    assert len(found.images) == 30 and (best.abs() > 0.7).sum() >= 28 and found.stopped == "even"
    assert (best > 0.7).sum() >= 25  # against the fewest neurons, it would be few
    assert (
        found.history[-1] < found.history[0] - 10
        and found.images.std(dim=1).sub(0.22).abs().max() < 1e-9
    )
    span = torch.linalg.svd(x, full_matrices=False)[2][:29]
    assert (ncc(x, span).abs().amax(1) > 0.9).sum() <= 2  # singular vectors are not images


@pytest.mark.parametrize("bias", [True, False])
def test_activity_tells_the_signs(pictures, bias):
    """B is zero where a neuron is not active: the layer is consistent with itself."""
    x = (pictures - pictures.mean(0))[:, :200]
    mixed = consistent(x, 40, bias)
    basis = torch.linalg.svd(x, full_matrices=False)[2][:11].T
    signals = unmixing.read_signals(
        x @ basis, mixed @ x @ basis, mixed.sum(1) if bias else None, bias
    )
    signs = torch.ones(12, dtype=torch.float64)
    shares = [unmixing.agreement(signals, sign * signs)[1] for sign in (1, -1)]
    assert shares[0] > (0.99 if bias else 0.6) > shares[1]
    if bias:
        some = torch.where(torch.arange(12) % 5 == 0, -signs, signs)
        assert unmixing.agreement(signals, some)[1] < shares[0] - 0.01
        torch.testing.assert_close(unmixing.flip_signs(signals, some, range(12), clear=0.0), signs)
        torch.testing.assert_close(
            unmixing.flip_signs(signals, some, range(5), clear=0.0)[5:], some[5:]
        )
        torch.testing.assert_close(
            unmixing.flip_signs(signals, some, range(12)), some
        )  # nothing is clear here
