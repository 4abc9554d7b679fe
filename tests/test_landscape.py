"""The landscape and three losses on it: mixtures, grids, lines, barriers, curvature and the price of a descent."""

import math
from types import SimpleNamespace

import pytest
import torch

from conftest import chapter_functions, drawn
from experiments import evaluate, landscape, mixtures
from utils import images, networks
from utils.attacks import bilevel, starts
from utils.kernels import naive
from utils.kernels.layers import unflatten
from utils.training import stationary

NAMES = "landscape", "landscape-losses", "stalls"
AFFINE = networks.affine(1e-2)
grids, losses, stalls = (SimpleNamespace(**chapter_functions(name)) for name in NAMES)


@pytest.fixture(scope="module")
def data(toy_npz):
    return images.split(images.load(str(toy_npz)), 10, 10)


@pytest.fixture(scope="module")
def sets(data):
    noise = starts.random(10, data.secret.images.shape[1], 1)
    return data.secret.images, data.known.images, noise


@pytest.fixture(scope="module")
def released(data):
    return stationary.train(data.secret, AFFINE).released


@pytest.fixture(scope="module")
def mixed():
    values = torch.tensor([0.0, 0.5, 1.0]).double()
    return torch.cartesian_prod(values, values).T


def test_mixtures_are_equation_10(sets, mixed):
    x = mixtures.mixture(*sets, *mixed)
    assert x.shape == (9, 10, 192)
    for start, one, two in zip(x, *mixed):
        expected = two * (one * sets[0] + (1 - one) * sets[1]) + (1 - two) * sets[2]
        assert torch.allclose(start, expected, atol=1e-15)
    assert torch.equal(x[8], sets[0]) and torch.equal(x[2], sets[1]) and torch.equal(x[0], sets[2])


@pytest.fixture(scope="module")
def victim(data):
    return stationary.train(data.secret, networks.perceptron("signed", 12, 12)._replace(epochs=200))


@pytest.fixture(scope="module")
def explored(victim, data, sets, mixed):
    """`explore` with DecoReco on a small network."""
    basis = mixtures.random_axes(*(part - victim.mean for part in sets))
    attack = mixtures.adam_attack(mixtures.Target(victim.released, victim.mean, basis), 60, 0.003, torch.float64)
    return lambda at_once: mixtures.explore(attack, sets, mixed, data.shape, at_once)


def test_a_grid_knows_the_distances_of_its_starts(explored, data, sets, mixed):
    found = explored(9)
    assert torch.allclose(found.start, mixtures.mixture(*sets, *mixed), atol=1e-9)
    for place, k in ((8, 0), (2, 1), (0, 2)):
        assert found.start_distance[place, k] <= 1e-9
    pictures = found.found[4]
    near = evaluate.nearest(pictures, sets[1], data.shape).index
    assert torch.allclose(found.distance[4, 1], (pictures - sets[1][near]).norm(dim=1).mean())
    assert not torch.allclose(found.early_distance[4], found.distance[4])
    assert torch.allclose(found.early_distance[0, 2], (found.early[0] - sets[2]).norm(dim=1).mean())


def test_a_grid_in_slices_is_the_same_and_attacks_noise_once(explored):
    whole, slices = explored(9), explored(2)
    assert torch.allclose(whole.found, slices.found, atol=1e-6)
    for place in (3, 6):  # λ₂ = 0
        assert torch.equal(whole.found[place], whole.found[0])


def test_lines_go_through_their_points(sets):
    a, b, _ = sets
    t, x = landscape.line(a, b, 5)
    assert torch.allclose(t, torch.tensor([-0.5, 0, 0.5, 1, 1.5]).double())
    assert torch.allclose(x[1], a) and torch.allclose(x[3], b)


def test_random_axes_span_the_rows_and_no_more(sets):
    basis = networks.span_of(sets[0])
    rows = torch.cat([sets[0], sets[0][:3] - sets[0][3:6]])  # thirteen rows of rank ten
    other = mixtures.random_axes(rows, sets[0])
    assert other.shape == (192, 10)
    assert torch.allclose(other.mT @ other, torch.eye(10).double(), atol=1e-12)
    assert torch.allclose(other @ other.mT, basis @ basis.mT, atol=1e-9)
    assert (other.mT @ basis).abs().max() < 0.95


def test_both_optimisers_lower_the_loss_in_the_span(victim, sets, mixed):
    basis = mixtures.random_axes(*(part - victim.mean for part in sets))
    start = mixtures.mixture(*sets, *mixed)[[2, 0]]
    setting = mixtures.Target(victim.released, victim.mean, basis)
    for attack in (mixtures.adam_attack(setting, 200, 0.003), grids.lbfgs_attack(setting, 200)):
        early, found, first, last = attack(start)
        assert (last < first).all() and (early != found).any()
        step = found - start
        assert (step - networks.within(step, basis)).norm() <= 1e-5 * step.norm()


def test_barriers_are_as_high_as_stated():
    t = torch.linspace(0, 1, 200).double()
    waves = (6 * torch.pi * t).cos()  # from one top to another, with two between
    assert losses.barriers(waves.exp()) == 2
    assert losses.barriers((0.04 * waves).exp()) == 0  # not by a tenth
    assert losses.barriers((0.06 * waves).exp()) == 2
    for quasiconvex in (t, 1 - t, torch.ones(9), (t - 0.3).square() + 0.01):
        assert losses.barriers(quasiconvex) == 0


def hessian(gradient, x, step=1e-5):
    """The matrix ∇²l at x by central differences, row after row (md, md)."""
    steps = step * torch.eye(x.numel()).to(x).view(-1, *x.shape)
    return torch.stack([(gradient(x + v) - gradient(x - v)).flatten() for v in steps]) / (2 * step)


def gradients(known):
    """The gradients of l_bi and l_st as functions of x."""
    scale = networks.flatten(known.network).square().sum() / 2
    upper = lambda x: bilevel.hypergradient(known, x).gradient / scale  # noqa: E731
    return upper, lambda x: landscape.stationarity_loss(x, known)[1]


@pytest.fixture(scope="module")
def six():
    """Six images of twelve pixels, and what an affine victim of them released."""
    x = torch.rand(6, 12, generator=torch.Generator().manual_seed(0)).double()
    y = torch.tensor([0, 0, 0, 1, 1, 1]).double()
    return x, stationary.train(images.Part(x, y), AFFINE).released


def test_exact_spectra_are_those_of_the_hessians(six):
    x, known = six
    scale = 2 / networks.flatten(known.network).square().sum()
    for exact, gradient in zip(landscape.spectra(x, known), gradients(known)):
        values = torch.linalg.eigvalsh(hessian(gradient, x))[-13:]  # rising
        exact = scale * exact
        assert torch.allclose(values[[0, -1]], exact[[0, -1]], rtol=1e-3)
        assert all((values / one - 1).abs().min() < 1e-3 for one in exact)


def test_free_coefficients_curve_all_directions_alike(six):
    x, known = six
    values = torch.linalg.eigvalsh(hessian(lambda x: landscape.free_gradient(x, known)[1], x))
    values = values[values > 1e-4 * values[-1]]
    assert len(values) == 12 + 1 - 6  # d + 1 directions less the row space of six images
    assert torch.allclose(values[1:], values[-1], rtol=1e-4)
    assert math.isclose((values[-1] / values[0]).item(), landscape.free_condition(x), rel_tol=1e-3)


def test_the_free_loss_is_the_distance_to_the_span_of_the_gradients(data):
    x = data.secret.images[:4, :6]
    known = stationary.train(images.Part(x, torch.tensor([0, 0, 1, 1]).double()), networks.one_hidden(3, 1e-2)).released
    assert landscape.free_loss(x, known) <= 1e-12  # its own training images explain it
    y = x.flip(1)
    theta = networks.flatten(known.network)

    def outputs(theta):
        return naive.logits(y, unflatten(theta, known.network), 10.0)

    basis = torch.linalg.qr(torch.func.jacrev(outputs)(theta).mT)[0]
    missed = (theta - basis @ (basis.mT @ theta)).square().sum() / theta.square().sum()
    assert torch.allclose(landscape.free_loss(y, known), missed)
    step = 1e-6 * drawn(4, 6)
    change = landscape.free_loss(y + step, known) - landscape.free_loss(y - step, known)
    assert torch.allclose(change / 2, (landscape.free_gradient(y, known)[1] * step).sum(), rtol=1e-4)


def test_exact_spectra_of_a_hidden_layer_are_those_of_the_hessian():
    x = torch.rand(4, 9, generator=torch.Generator().manual_seed(0)).double()
    secret = images.Part(x, torch.tensor([0, 0, 1, 1]).double())
    known = bilevel.condensed(stationary.train(secret, networks.one_hidden(3, 1e-2)).released)
    scale = 2 / networks.flatten(known.network).square().sum()
    values = torch.linalg.eigvalsh(hessian(gradients(known)[1], x))
    top = scale * landscape.spectra(x, known)[1][-3:]
    assert all((values / one - 1).abs().min() < 1e-3 for one in top)


def test_descents_are_charged_by_products(released, sets):
    costs = {loss: losses.descent(loss, sets[2], released) for loss in landscape.LOSSES}
    for stop in losses.STOPS:
        assert costs["stationarity"][stop][0] == 3 * costs["stationarity"][stop][1] < costs["bilevel"][stop][0]
    value, product = losses.energy_terms(sets[2], released)
    v, u = drawn(2, 193)
    change = [value(v + h * u)[1] for h in (-1e-5, 1e-5)]
    assert torch.allclose((change[1] - change[0]) / 2e-5, product(v)(u), atol=1e-6)
    assert math.isclose(landscape.bilevel_loss(sets[0], released).item(), 0, abs_tol=1e-12)


# ---- No local minimum above zero: points that are critical, built as the proof says ----


@pytest.mark.parametrize(
    "curvature, pull, rests",
    [((2, 1, 0), 0, True), ((2, 1, -1), 0, False), ((2, 1, 0), 1, False)],
    ids=["a valley", "a saddle", "a slope"],
)
def test_a_local_minimum_is_at_rest_and_curves_nowhere_down(curvature, pull, rests):
    turn = torch.linalg.qr(drawn(3, 3))[0]
    matrix, there = turn @ torch.diag(torch.tensor(curvature).double()) @ turn.mT, drawn(3, seed=1)

    def loss(x):
        moved = x - there
        return 0.5 + moved @ matrix @ moved / 2 + pull * moved.sum(), matrix @ moved + pull

    assert stalls.at_minimum(loss, there) == rests


def test_a_descent_arrives_or_stops_at_a_minimum():
    def bowl(height):
        return lambda x: (height + x.square().sum(), 2 * x)

    start = drawn(3)
    assert stalls.descended(bowl(0), start)[0] == "arrived"
    assert stalls.descended(bowl(0.1), start)[0] == "minimum"
