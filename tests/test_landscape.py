"""Chapter 08: mixtures, coordinates, grids, lines, curvature and minima."""

from types import SimpleNamespace

import pytest
import torch
from conftest import chapter_functions

from utils import evaluate, images, networks, victims
from utils.attacks import bilevel, decoreco, starts
from utils.errors import InputError

AFFINE = networks.affine(1e-2)


@pytest.fixture
def names():
    """What the chapter defines, as a dictionary of its own for every test."""
    return chapter_functions("08-landscape")


@pytest.fixture
def landscape(names):
    return SimpleNamespace(**names)


@pytest.fixture(scope="module")
def data(toy_npz):
    return images.split(images.load(str(toy_npz)), 10, 10)


@pytest.fixture(scope="module")
def sets(data):
    noise = starts.random(10, data.secret.images.shape[1], 0)
    return data.secret.images, data.known.images, noise


@pytest.fixture(scope="module")
def released(data):
    return victims.train(data.secret, AFFINE).released


@pytest.fixture(scope="module")
def mixed():
    values = torch.tensor([0.0, 0.5, 1.0]).double()
    return torch.cartesian_prod(values, values).T


def test_mixtures_are_equation_10(landscape, sets, mixed):
    x = landscape.mixture(*sets, *mixed)
    assert x.shape == (9, 10, 192)
    for start, one, two in zip(x, *mixed):
        expected = two * (one * sets[0] + (1 - one) * sets[1]) + (1 - two) * sets[2]
        assert torch.allclose(start, expected, atol=1e-15)
    assert torch.equal(x[8], sets[0]) and torch.equal(x[2], sets[1]) and torch.equal(x[0], sets[2])


def test_each_start_of_a_grid_is_attacked_as_if_it_were_alone(landscape, released, sets, mixed):
    x = landscape.mixture(*sets, *mixed)
    together = bilevel.attack(released, x, iterations=15).images
    for k in (0, 4, 8):
        alone = bilevel.attack(released, x[k], iterations=15).images
        assert (alone - together[k]).norm() <= 1e-8 * alone.norm()


@pytest.fixture(scope="module")
def explored(data, sets, mixed):
    """The chapter's `explore`, with a short DecoReco attack on a small network."""
    recipe = networks.perceptron("signed", 12, 12)._replace(epochs=200)
    victim = victims.train(data.secret, recipe)
    rows = networks.span(victim.released.network).mT

    def attack(start, basis):
        settings = {"iterations": 10, "range_weight": 0.0, "coefficients": torch.ones(10)}
        found = decoreco.attack(victim.released, start, basis=basis, **settings)
        return found.images, found.loss

    return lambda names: names["explore"](attack, sets, rows, mixed, data.shape, victim.mean)


def test_a_grid_knows_the_distances_of_its_starts(landscape, names, explored, data, sets, mixed):
    found = explored(names)
    assert torch.allclose(found.pictures(found.start), landscape.mixture(*sets, *mixed), atol=1e-9)
    for place, k in ((8, 0), (2, 1), (0, 2)):
        assert found.start_distance[place, k] <= 1e-9
    pictures = found.pictures(found.found[4])
    near = evaluate.nearest(pictures, sets[1], data.shape).index
    assert torch.allclose(found.distance[4, 1], (pictures - sets[1][near]).norm(dim=1).mean())


def test_a_grid_too_large_for_memory_is_attacked_in_parts(names, explored):
    whole = explored(names)
    names["MEMORY"] = 2 * (50 * whole.start[0].numel() + 10 * 10 * 192)  # two starts at once
    assert torch.allclose(whole.found, explored(names).found, atol=1e-4)
    names["MEMORY"] = 100
    with pytest.raises(InputError, match="is too large for this memory: choose fewer IMAGES"):
        explored(names)


def test_lines_and_planes_go_through_their_points(landscape, sets):
    a, b, c = sets
    t, x = landscape.line(a, b, 5)
    assert torch.allclose(t, torch.tensor([-0.5, 0, 0.5, 1, 1.5]).double())
    assert torch.allclose(x[1], a) and torch.allclose(x[3], b)
    s, x, (along, across) = landscape.plane(a, b, c, 9)
    assert torch.allclose(s[[2, 6]], torch.tensor([0.0, 1.0]).double())
    assert torch.allclose(x[2 * 9 + 2], a) and torch.allclose(x[6 * 9 + 2], b)
    u, v = b - a, x[2 * 9 + 6] - a
    assert abs((u * v).sum()) <= 1e-9 and torch.allclose(u.norm(), v.norm())
    assert torch.allclose(a + along * u + across * v, c)


def test_turned_axes_span_the_same(landscape, sets):
    basis = networks.span_of(sets[0])
    other = landscape.turned(basis)
    assert torch.allclose(other.mT @ other, torch.eye(10).double(), atol=1e-12)
    assert torch.allclose(other @ other.mT, basis @ basis.mT, atol=1e-12)
    assert (other.mT @ basis).abs().max() < 0.95


def test_dips_of_a_sampled_curve(landscape):
    t = torch.linspace(0, 1, 200)
    assert landscape.dips((6 * torch.pi * t).cos()) == 3
    assert landscape.dips(t) == 0 and landscape.dips(torch.ones(9)) == 0


def test_lanczos_finds_the_spectrum(landscape):
    generator = torch.Generator().manual_seed(0)
    q = torch.linalg.qr(torch.randn(60, 60, dtype=torch.float64, generator=generator))[0]
    spectrum = torch.cat([torch.zeros(50), torch.arange(1.0, 11.0)]).double()
    matrix = q @ torch.diag(spectrum) @ q.mT
    like = torch.zeros(6, 10).double()
    values, weights = landscape.lanczos(lambda v: (matrix @ v.flatten()).view(v.shape), like, 30)
    assert len(values) == 11  # eleven different eigenvalues, then there is nothing more to find
    assert torch.allclose(values, torch.arange(11.0).double(), atol=1e-8)
    assert torch.allclose(weights.sum(), torch.tensor(1.0).double())
    assert abs(weights[0] - 50 / 60) < 0.15


def hessian(landscape, loss, x, known):
    """The matrix ∇²l at x, column after column (md, md)."""
    product = landscape.curvature(lambda x: loss(x, known)[1], x)
    unit = torch.eye(x.numel()).to(x).view(-1, *x.shape)
    return torch.stack([product(v).flatten() for v in unit])


def test_curvature_is_the_hessian_of_the_bilevel_loss(landscape, data):
    x, y = data.secret.images[:4, :6], torch.tensor([0.0, 0.0, 1.0, 1.0]).double()
    known = victims.train(images.Part(x + 0.1 * x.flip(0), y), AFFINE).released
    matrix = hessian(landscape, landscape.bilevel_loss, x, known)
    assert torch.allclose(matrix, matrix.mT, atol=1e-6 * matrix.abs().max())
    v = torch.randn(4, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    loss = [landscape.bilevel_loss(x + h * v, known)[0] for h in (-1e-4, 0.0, 1e-4)]
    second = (loss[0] - 2 * loss[1] + loss[2]) / 1e-8
    assert torch.allclose(v.flatten() @ matrix @ v.flatten(), second, rtol=1e-3)


def test_two_losses_are_curved_where_the_chapter_says(landscape):
    x = torch.rand(6, 12, generator=torch.Generator().manual_seed(0)).double()
    known = victims.train(images.Part(x, torch.tensor([0, 0, 0, 1, 1, 1]).double()), AFFINE).released
    upper = hessian(landscape, landscape.bilevel_loss, x, known)
    more = hessian(landscape, landscape.stationarity_loss, x, known) - upper
    more = (more + more.mT) / 2
    assert torch.linalg.matrix_rank(upper, rtol=1e-6, hermitian=True) == 13  # d + 1 of 72 directions
    assert torch.linalg.matrix_rank(more, rtol=1e-6, hermitian=True) == 6  # m of them
    assert torch.linalg.eigvalsh(more).min() >= -1e-6 * more.norm()


def test_distance_of_sets_ignores_their_order(landscape, sets):
    a = sets[0]
    assert landscape.apart(a, a.flip(0)) <= 1e-12
    assert landscape.apart(a, a + 1) == pytest.approx(192**0.5)
    stacked = torch.stack([a, a.flip(0), a + 1, a + 1 + 1e-6])
    assert landscape.distinct(stacked, 1e-3) == 2 and landscape.distinct(stacked, 1e-9) == 3
