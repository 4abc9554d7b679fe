"""Unmixing: the count and the span that a first layer tells, the objective, the signs, and what it refuses."""

import pytest
import torch
from conftest import chapter_functions
from torch.nn.functional import normalize

from utils import images, networks
from utils.errors import InputError
from utils.kernels.layers import Layer
from utils.kernels.similarity import ncc

CHAPTER = chapter_functions("11-what-the-weights-leak")
SHAPE = (32, 32, 3)


@pytest.fixture(scope="module")
def views():
    """Twelve photographs (12, 3072), with their mean."""
    return images.split(images.load("photos"), 12, 12).secret.images


def layered(x, neurons=40, seed=0):
    """A network whose first layer is W₁ = BX, b₁ = B1 with half of B zero."""
    generator = torch.Generator().manual_seed(seed)
    mixed = torch.randn(neurons, len(x), dtype=torch.float64, generator=generator).clamp_min(0)
    return (Layer(mixed @ x, mixed.sum(1)), Layer(torch.ones(1, neurons, dtype=x.dtype), None)), mixed


@pytest.mark.parametrize("centred", [False, True])
def test_the_count_and_the_span_are_read_from_the_layer(views, centred):
    x = views - views.mean(0) * centred
    network, _ = layered(x)
    count, basis = CHAPTER["read"](network)
    assert count == 12 and len(basis) == 12 - centred
    torch.testing.assert_close(basis @ basis.T, torch.eye(len(basis), dtype=basis.dtype))
    torch.testing.assert_close(x @ basis.T @ basis, x)


@pytest.mark.parametrize(
    "change, message",
    [
        (lambda w: torch.rand_like(w), "no gap"),
        (lambda w: w[:10], "no gap"),
        (lambda w: torch.cat([w[:10], 0 * w[10:]]), "behind all neurons"),
        (lambda w: w[:1], "no gap"),
        (lambda w: torch.full_like(w, torch.nan), "NaN"),
    ],
)
def test_nothing_is_read_where_there_is_nothing(views, change, message):
    (first, last), _ = layered(views)
    weight = change(first.weight)
    with pytest.raises(InputError, match=message):
        CHAPTER["read"]((Layer(weight, first.bias[: len(weight)]), last))


def test_half_precision_hides_no_count(views):
    """float16 moves every weight by 5e-4 of itself: a gap that is left is the right one."""
    network, _ = layered(views)
    rounded = networks.change(network, lambda part: part.half().double())
    assert CHAPTER["read"](rounded)[0] == 12


@pytest.mark.parametrize("count", [11, 12])
def test_the_closed_form_is_the_gradient_of_the_objective(views, count):
    basis = torch.linalg.svd(views, full_matrices=False)[2][:11]
    found = CHAPTER["whitened"](CHAPTER["details"](basis, SHAPE))[0]
    rows = CHAPTER["drawn_rows"](count, 11, 0).requires_grad_()
    for floor, window in ((1.0, 3), (0.01, 5), (0.1, 1)):
        value = CHAPTER["plain"](rows, found, floor, window)
        ours, slope = CHAPTER["fast"](rows.detach(), found, floor, window)
        torch.testing.assert_close(ours, value.detach())
        torch.testing.assert_close(slope, torch.autograd.grad(value, rows)[0])


def test_details_are_blind_to_flat_pictures_and_white_after_whitening(views):
    flat, half = torch.ones(1, 3072, dtype=torch.float64), views[:1].clone()
    half.view(1, *SHAPE)[:, :16] = 0.5  # flat above
    found = CHAPTER["details"](torch.cat([flat, half]), SHAPE)
    assert found[0].abs().max() < 1e-9 and found[1, :, :14].abs().max() < 1e-9 < found[1, :, 15:].abs().max()
    found, white = CHAPTER["whitened"](CHAPTER["details"](views, SHAPE))
    flat = found.flatten(1)
    torch.testing.assert_close(flat @ flat.T / flat.shape[1], torch.eye(12, dtype=torch.float64))
    assert white.shape == (12, 12)


def test_a_round_lowers_the_objective_and_keeps_rows_of_length_one(views):
    basis = torch.linalg.svd(views - views.mean(0), full_matrices=False)[2][:11]
    found = CHAPTER["whitened"](CHAPTER["details"](basis, SHAPE))[0]
    rows = CHAPTER["drawn_rows"](12, 11, 0)
    new, value = CHAPTER["improved"](rows, found, 0.1, 3)
    assert value < CHAPTER["plain"](rows, found, 0.1, 3) - 1
    torch.testing.assert_close(new.norm(dim=1), torch.ones(12, dtype=torch.float64))
    torch.testing.assert_close(CHAPTER["plain"](new, found, 0.1, 3).item(), value)


@pytest.mark.parametrize("centred", [False, True])
def test_the_relation_finds_lengths_and_signs(views, centred):
    """Rows that unmix exactly, with wrong lengths and signs: the relation undoes both, up to one factor if centred."""
    x = views - views.mean(0) * centred
    network, _ = layered(x)
    _, basis = CHAPTER["read"](network)
    factors = torch.linspace(0.2, 3, 12, dtype=torch.float64) * (-1) ** torch.arange(12)
    matrix = factors[:, None] * x @ basis.T
    scaled = factors * CHAPTER["relation"](network, basis, matrix)
    torch.testing.assert_close(scaled / scaled[0], torch.ones(12, dtype=torch.float64))
    assert centred or abs(scaled[0] - 1) < 1e-6


def test_images_are_unmixed_from_a_layer_that_is_nothing_but_a_mixture():
    """Counted by the truth, which no attacker has; the mixture is random, so that signs cannot be told from B."""
    x = images.split(images.load("photos"), 30, 30).secret.images
    x = x - x.mean(0)
    mixture = torch.randn(60, 30, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    network = Layer(mixture @ x, mixture.sum(1)), Layer(torch.ones(1, 60, dtype=torch.float64), None)
    found, uneven = CHAPTER["candidates"](network, SHAPE)
    best = ncc(x, found).abs().amax(1)
    assert len(found) == 30 and (best > 0.7).sum() >= 28 and uneven < CHAPTER["EVEN"]
    span = normalize(torch.linalg.svd(x, full_matrices=False)[2][:29])
    assert (ncc(x, span).abs().amax(1) > 0.9).sum() <= 2  # singular vectors are not images


def test_agreement_tells_the_sign_that_all_images_share(views):
    """B is zero where a neuron is not active, by construction of a layer that is consistent with itself."""
    x = (views - views.mean(0))[:, :200]
    generator = torch.Generator().manual_seed(0)
    mixed = torch.rand(40, 12, dtype=torch.float64, generator=generator)
    for _ in range(200):  # neurons that keep what they see
        active = (mixed @ x) @ x.T + mixed.sum(1)[:, None] > 0
        mixed = torch.where(active, mixed.clamp_min(1e-3), 0.0)
    network = Layer(mixed @ x, mixed.sum(1)), Layer(torch.ones(1, 40, dtype=torch.float64), None)
    assert CHAPTER["agreement"](network, x) > 0.99 > CHAPTER["agreement"](network, -x)
