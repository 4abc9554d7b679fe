"""The landscape and three losses on it: mixtures, grids, lines, barriers, curvature and the price of a descent."""

from types import SimpleNamespace

import pytest
import torch

from attacks import bilevel, starts
from conftest import chapter_functions, drawn, slope
from evaluation import evaluate
from experiments import mixtures, three_losses
from training import images, stationary
from utils import networks
from utils.kernels import naive
from utils.kernels.layers import unflatten

AFFINE, MIXED = networks.affine(1e-2), mixtures.shares(3)
NAMES = "landscape-losses", "stalls"
losses, stalls = (SimpleNamespace(**chapter_functions(name)) for name in NAMES)


@pytest.fixture(scope="module")
def sets(toy):
    """What three axes begin at: secret images, others and noise, each (10, 192)."""
    return toy.secret.images, toy.held_out.images, starts.random(10, 192, 1)


@pytest.fixture(scope="module")
def target(toy, sets):
    """A small network for DecoReco."""
    recipe = networks.perceptron("signed", 12, 12)._replace(epochs=200)
    victim = stationary.train(toy.secret, recipe)
    basis = mixtures.random_axes(*(part - victim.mean for part in sets))
    return mixtures.Target(victim.released, victim.mean, basis)


def test_a_grid_begins_at_mixtures_knows_distances_and_may_come_in_slices(target, toy, sets):
    attack = mixtures.adam_attack(target, 60, 0.003, torch.float64)
    found, slices = (
        mixtures.explore(attack, sets, MIXED, toy.shape, at_once) for at_once in (9, 2)
    )
    one, two = (share[:, None, None] for share in MIXED)
    expected = two * (one * sets[0] + (1 - one) * sets[1]) + (1 - two) * sets[2]
    assert torch.allclose(found.start, expected, atol=1e-9)
    pictures = found.end[4]
    near = evaluate.nearest(pictures, sets[1], toy.shape)
    assert torch.allclose(found.distance[4, 1], (pictures - sets[1][near]).norm(dim=1).mean())
    assert not torch.allclose(found.early_distance[4], found.distance[4])
    assert torch.allclose(found.end, slices.end, atol=1e-6)
    assert (found.end[[3, 6]] == found.end[0]).all()  # λ₂ = 0: noise is attacked once


def test_both_optimisers_lower_the_loss_in_the_span(target, sets):
    start = mixtures.mixture(*sets, *MIXED)[[4, 0]]
    for attack in (mixtures.adam_attack(target, 200, 0.003), mixtures.lbfgs_attack(target, 50)):
        early, found, first, last = attack(start)
        assert (last < first).all() and (early != found).any()
        step = found - start
        assert (step - networks.within(step, target.basis)).norm() <= 1e-5 * step.norm()


def test_barriers_are_as_high_as_stated():
    t = torch.linspace(0, 1, 200).double()
    waves = (6 * torch.pi * t).cos()  # from one top to another, with two between
    assert losses.barriers((0.04 * waves).exp()) == 0  # not by a tenth
    assert losses.barriers((0.06 * waves).exp()) == 2
    assert losses.barriers((t - 0.3).square() + 0.01) == losses.barriers(1 - t) == 0


def hessian(gradient, x):
    """The matrix ∇²l at x by central differences, row after row (md, md)."""
    ways = torch.eye(x.numel()).to(x).view(-1, *x.shape)
    return torch.stack([slope(gradient, x, way).flatten() for way in ways])


def gradients(released):
    """The gradients of l_bi and l_st as functions of x."""
    scale = networks.flatten(released.network).square().sum() / 2
    upper = lambda x: bilevel.hypergradient(released, x).gradient / scale  # noqa: E731
    return upper, lambda x: three_losses.stationarity_loss(x, released)[1]


def small(m, d, recipe):
    """A few small images, and what a victim of them released."""
    x = starts.random(m, d, 0)
    return x, stationary.train(images.Part(x, (torch.arange(m) >= m / 2).double()), recipe).released


@pytest.mark.parametrize(
    "m, d, recipe, ends", [(6, 12, AFFINE, [0, -1]), (4, 9, networks.one_hidden(3, 1e-2), [])]
)
def test_exact_spectra_are_those_of_the_hessians(m, d, recipe, ends):
    x, released = small(m, d, recipe)
    hidden, released = bool(recipe.hidden), bilevel.merge_neurons(released)
    scale = 2 / networks.flatten(released.network).square().sum()
    pairs = list(zip(three_losses.spectra(x, released), gradients(released)))
    for exact, gradient in pairs[hidden:]:
        values = torch.linalg.eigvalsh(hessian(gradient, x))[-d - 1 :]  # rising
        exact = scale * exact[-3 * hidden :]
        assert torch.allclose(values[ends], exact[ends], rtol=1e-3)
        assert all((values / one - 1).abs().min() < 1e-3 for one in exact)


def test_free_coefficients_curve_all_directions_alike():
    x, released = small(6, 12, AFFINE)
    values = torch.linalg.eigvalsh(hessian(lambda x: three_losses.free_loss(x, released)[1], x))
    values = values[values > 1e-4 * values[-1]]
    assert len(values) == 12 + 1 - 6  # d + 1 directions less the row space of six images
    assert torch.allclose(values[1:], values[-1], rtol=1e-4)
    assert (values[-1] / values[0]).item() == pytest.approx(three_losses.free_condition(x), 1e-3)


def test_the_free_loss_is_the_distance_to_the_span_of_the_gradients():
    x, released = small(4, 6, networks.one_hidden(3, 1e-2))
    y, way, theta = x.flip(1), drawn(4, 6), networks.flatten(released.network)

    def outputs(theta):
        return naive.logits(y, unflatten(theta, released.network), 10.0)

    basis = torch.linalg.qr(torch.func.jacrev(outputs)(theta).mT)[0]
    missed = (theta - basis @ (basis.mT @ theta)).square().sum() / theta.square().sum()
    value, gradient = three_losses.free_loss(y, released)
    assert torch.allclose(value, missed)
    change = slope(lambda y: three_losses.free_loss(y, released)[0], y, way, 1e-6)
    assert torch.allclose(change, (gradient * way).sum(), rtol=1e-4)


def test_descents_are_charged_by_products(toy, sets):
    released = stationary.train(toy.secret, AFFINE).released
    costs = {
        loss: three_losses.descent(loss, sets[2], released, 10_000)
        for loss in ("stationarity", "bilevel")
    }
    for stop in three_losses.STOPS:
        spent, asked = costs["stationarity"][stop]
        assert spent == 3 * asked < costs["bilevel"][stop][0]
    value, product = three_losses.energy_terms(sets[2], released)
    v, u = drawn(2, 193)
    assert torch.allclose(slope(lambda v: value(v)[1], v, u), product(v)(u), atol=1e-6)
    assert abs(three_losses.bilevel_value(sets[0], released)) < 1e-12


# ---- No local minimum above zero: points that are critical, built as the proof says ----


@pytest.mark.parametrize(
    "lowest, pull, rests",
    [(0, 0, True), (-1, 0, False), (0, 1, False)],
    ids=["a valley", "a saddle", "a slope"],
)
def test_a_local_minimum_is_at_rest_and_curves_nowhere_down(lowest, pull, rests):
    turn = torch.linalg.qr(drawn(3, 3))[0]
    matrix, there = (
        turn @ torch.tensor([2.0, 1, lowest]).double().diag() @ turn.mT,
        drawn(3, seed=1),
    )

    def loss(x):
        moved = x - there
        return 0.5 + moved @ matrix @ moved / 2 + pull * moved.sum(), matrix @ moved + pull

    assert stalls.at_minimum(loss, there) == rests
