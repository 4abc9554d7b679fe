"""Path matching: every piece against its definition, and two images back from a small network."""

import math
from functools import partial

import pytest
import torch
from torch import nn

from conftest import drawn
from utils.attacks import path
from utils.errors import InputError
from utils.training import deep

LABELS = torch.tensor([0, 1])


def network():
    """A convolution and a fully connected layer for images of 6 × 6, in double precision."""

    def made():
        return nn.Sequential(nn.Conv2d(3, 8, 3), nn.GELU(), nn.Flatten(), nn.Linear(128, 2))

    return deep.drawn(made, 0).double()


@pytest.fixture(scope="module")
def victim():
    """Two images, the network's weights before and after eight steps on them, at a rate of 0.1."""
    net, x = network(), drawn(2, 3, 6, 6, seed=1)
    start = path.flat(net)
    deep.train(net, x, LABELS, "plain", 0.1, 8)
    return x, start, path.flat(net)


def test_slopes_are_those_of_differences(victim):
    x, start, end = victim
    net, step = network(), 1e-5 * torch.eye(216, dtype=torch.float64).view(216, 2, 3, 6, 6)
    toward, guess = end - start, path.line(start, end, 2)
    weights = torch.tensor([0.5, 2.0], dtype=torch.float64)

    def along(z):
        return sum(w * path.gradient(net, a, z, LABELS) for w, a in zip(weights, guess.anchors)) @ toward

    wanted = torch.stack([along(x + s) - along(x - s) for s in step]).view_as(x) / 2e-5
    found = path.pull(net, guess, weights, x, LABELS, toward, 1e-3 * toward.norm())
    assert torch.allclose(found, wanted, rtol=1e-4, atol=1e-7 * wanted.abs().max())
    by_weights = path.gradient(net, start, x, LABELS)
    some = torch.randperm(len(start), generator=torch.Generator().manual_seed(0))[:20]
    for k in some:
        moved = [path.error(net, start + s * 1e-5 * torch.eye(len(start))[k], x, LABELS) for s in (1, -1)]
        assert by_weights[k] == pytest.approx(((moved[0] - moved[1]) / 2e-5).item(), abs=1e-7)


def test_the_metric_is_the_root_of_the_inverse():
    gradients = drawn(4, 9, seed=3)
    values = torch.linalg.eigvalsh(gradients @ gradients.mT)
    whole = torch.eye(9).double() + gradients.mT @ gradients / (path.PUBLIC * values.median())
    metric = path.whitening(gradients)(torch.eye(9).double())
    assert torch.allclose(metric @ metric @ whole, torch.eye(9).double(), atol=1e-10)


def test_shares_are_the_best_that_are_not_negative():
    gradients, change = drawn(3, 7, seed=4), drawn(7, seed=5)
    found = path.shares(gradients, change)
    rest = change - found @ gradients
    assert (found >= 0).all() and (gradients @ rest < 1e-9).all() and (found * (gradients @ rest)).abs().max() < 1e-9
    assert torch.equal(path.shares(change[None], -change), torch.ones(1).double())  # none is better: all alike


def test_a_descent_on_the_images_finds_the_rate_and_ends_where_training_did(victim):
    x, start, end = victim
    places, rate = path.retrace(network(), start, end, x, LABELS, [0.05, 0.1, 0.13])
    assert rate == 0.1 and len(places) == 9 and torch.allclose(places[-1], end)
    guess = path.bend(network(), places, end, x, LABELS)
    g = torch.stack([path.gradient(network(), a, x, LABELS) for a in guess.anchors])
    assert guess.gap < 1e-6 and guess.weights.sum() == 8
    assert torch.allclose(0.1 * (guess.weights @ g + guess.rest), start - end)


def test_two_images_come_back_and_no_held_out_one(victim):
    x, start, end = victim
    net, public, held_out = network(), drawn(8, 3, 6, 6, seed=7), drawn(2, 3, 6, 6, seed=8)
    metric = path.whitening(torch.stack([path.gradient(net, start, z[None], LABELS[:1]) for z in public]))
    found = path.attack(net, start, end, LABELS, x.shape[1:], metric, steps=200)
    like = [torch.cosine_similarity(z.flatten(1), found.images.flatten(1)) for z in (x, held_out)]
    assert found.gap < 0.1 and found.losses[-1] < found.losses[0]
    assert like[0].min() > 0.8 and like[1].max() < 0.4, like


def test_a_softened_relu_is_a_softplus():
    z = torch.linspace(-2, 2, 9)
    with path.Softened(3.0):
        soft = nn.ReLU()(z)
    assert torch.allclose(soft, torch.log1p((3 * z).exp()) / 3) and torch.equal(nn.ReLU()(z), z.clamp_min(0))
    assert math.isclose(nn.ReLU(inplace=True)(z.clone()).min(), 0.0)


def test_what_cannot_be_attacked_is_said(victim):
    _, start, end = victim
    ask = partial(path.attack, network(), shape=(3, 6, 6), metric=None)
    for words, wrong in {
        "module has": (start[1:], end, LABELS),
        "NaN": (start, end * math.nan, LABELS),
        "nothing was trained": (start, start, LABELS),
        "whole numbers": (start, end, LABELS.double()),
    }.items():
        with pytest.raises(InputError, match=words):
            ask(*wrong)
    for layer in (nn.Dropout(), nn.BatchNorm2d(3)):
        net = nn.Sequential(layer, network())
        size = len(path.flat(net))
        with pytest.raises(InputError, match="is in training mode"):
            path.attack(net.train(), torch.zeros(size), torch.ones(size), LABELS, (3, 6, 6), None)
