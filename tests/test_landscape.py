"""Mixtures, coordinates, grids, lines, curvature and minima."""

import pytest
import torch

from utils import affine, bilevel, decoreco, evaluate, hidden, images, landscape, mlp, starts
from utils.errors import InputError

DECAY = 1e-2


@pytest.fixture(scope="module")
def data(toy_npz):
    return images.split(images.load(str(toy_npz)), 10, 10)


@pytest.fixture(scope="module")
def sets(data):
    noise = starts.random(10, data.secret.images.shape[1], 0)
    return data.secret.images, data.known.images, noise


@pytest.fixture(scope="module")
def grid():
    return landscape.pairs([0.0, 0.5, 1.0])


def test_mixtures_are_equation_10(sets, grid):
    x = starts.mixture(*sets, *grid)
    assert x.shape == (9, 10, 192)
    for start, one, two in zip(x, *grid):
        expected = two * (one * sets[0] + (1 - one) * sets[1]) + (1 - two) * sets[2]
        assert torch.allclose(start, expected, atol=1e-15)
    assert torch.equal(x[8], sets[0]) and torch.equal(x[2], sets[1]) and torch.equal(x[0], sets[2])


@pytest.mark.parametrize("wrong", [[-0.1], [1.5], [float("nan")], []])
@pytest.mark.parametrize("place", [0, 1])
def test_weights_outside_of_0_and_1_are_refused(sets, wrong, place):
    weights = [torch.tensor([0.5] * max(1, len(wrong)))] * 2
    weights[place] = torch.tensor(wrong)
    sentence = "must lie between 0 and 1" if wrong else "give at least one value from 0 to 1"
    with pytest.raises(InputError, match=sentence):
        starts.mixture(*sets, *weights)


def test_an_affine_attack_in_coordinates_is_the_attack(data, sets, grid):
    target = affine.train(*data.secret, DECAY).weights
    x = starts.mixture(*sets, *grid)
    basis = landscape.reachable(*sets, target[:-1])
    settings = {"weight_decay": DECAY, "iterations": 15}
    plain = bilevel.attack(target, data.secret.labels, x, **settings)
    fast = bilevel.attack(target, data.secret.labels, x, basis=basis, **settings)
    assert (plain.images - fast.images).norm() <= 1e-8 * plain.images.norm()
    assert (plain.weights - fast.weights).norm() <= 1e-8 * plain.weights.norm()
    each = landscape.reachable(x, target[:-1])  # a basis for every start
    own = bilevel.attack(target, data.secret.labels, x, basis=each, **settings)
    assert each.shape == (9, 192, 11)
    assert (plain.images - own.images).norm() <= 1e-8 * plain.images.norm()
    for k in (0, 4, 8):  # each start of the batch as if it were alone
        single = bilevel.attack(target, data.secret.labels, x[k], basis=basis, **settings)
        assert (single.images - fast.images[k]).norm() <= 1e-8 * single.images.norm()


def test_the_attack_on_a_network_in_coordinates_is_the_attack(data, sets):
    theta0 = hidden.initial_weights(192, 5, 0)
    target = hidden.train(*data.secret, DECAY, theta0).weights
    basis = landscape.reachable(sets[1], target.first[:, :-1])
    settings = {"weight_decay": DECAY, "iterations": 4, "theta_start": theta0}
    plain = bilevel.attack(target, data.secret.labels, sets[1], **settings)
    fast = bilevel.attack(target, data.secret.labels, sets[1], basis=basis, **settings)
    assert (plain.images - fast.images).norm() <= 1e-6 * plain.images.norm()
    assert fast.weights.first.shape == target.first.shape


def test_a_basis_that_misses_something_is_refused(data, sets):
    target = affine.train(*data.secret, DECAY).weights
    for rows, name in (((sets[1],), "weights"), ((sets[0], target[:-1]), "start")):
        with pytest.raises(InputError, match=f"The {name} do not lie in the span of the basis"):
            basis = landscape.reachable(*rows)[:, :11]
            bilevel.attack(target, data.secret.labels, sets[1], weight_decay=DECAY, basis=basis)


def explore(data, sets, grid):
    victim = mlp.victim(*data.secret, mlp.RECIPES["regression"]._replace(epochs=200), 12)

    def attack(start, basis):
        settings = {"iterations": 10, "basis": basis, "range_weight": 0.0, "coefficients": torch.ones(10)}
        found = decoreco.attack(victim.weights, data.secret.labels, start, **settings)
        return found.images, found.loss.total

    rows = decoreco.span(victim.weights).mT
    return landscape.explore(attack, sets, rows, *grid, data.shape, victim.mean)


def test_a_grid_knows_the_distances_of_its_starts(data, sets, grid):
    found = explore(data, sets, grid)
    x = starts.mixture(*sets, *grid)
    assert torch.allclose(found.pictures(found.start), x, atol=1e-9)
    for place, k in ((8, 0), (2, 1), (0, 2)):
        assert found.start_distance[place, k] <= 1e-9
    near = evaluate.nearest(found.pictures(found.found[4]), sets[1], data.shape).index
    expected = (found.pictures(found.found[4]) - sets[1][near]).norm(dim=1).mean()
    assert torch.allclose(found.distance[4, 1], expected)


def test_a_grid_too_large_for_memory_is_attacked_in_parts(data, sets, grid, monkeypatch):
    whole = explore(data, sets, grid)
    monkeypatch.setattr(landscape, "MEMORY", 2 * (50 * whole.start[0].numel() + 10 * 10 * 192))  # two starts at once
    parts = explore(data, sets, grid)
    assert torch.allclose(whole.found, parts.found, atol=1e-4)
    monkeypatch.setattr(landscape, "MEMORY", 100)
    with pytest.raises(InputError, match="is too large for this memory: choose fewer IMAGES"):
        explore(data, sets, grid)


def test_lines_and_planes_go_through_their_points(sets):
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


def test_turned_axes_span_the_same(sets):
    basis = landscape.reachable(sets[0])
    other = landscape.turned(basis)
    assert torch.allclose(other.mT @ other, torch.eye(10).double(), atol=1e-12)
    assert torch.allclose(other @ other.mT, basis @ basis.mT, atol=1e-12)
    assert (other.mT @ basis).abs().max() < 0.95


def test_dips_of_a_sampled_curve():
    t = torch.linspace(0, 1, 200)
    assert landscape.dips((6 * torch.pi * t).cos()) == 3
    assert landscape.dips(t) == 0 and landscape.dips(torch.ones(9)) == 0


def test_lanczos_finds_the_spectrum():
    generator = torch.Generator().manual_seed(0)
    q = torch.linalg.qr(torch.randn(60, 60, dtype=torch.float64, generator=generator))[0]
    values = torch.cat([torch.zeros(50), torch.arange(1.0, 11.0)]).double()
    matrix = q @ torch.diag(values) @ q.mT
    found = landscape.lanczos(lambda v: (matrix @ v.flatten()).view(v.shape), torch.zeros(6, 10).double(), 30)
    assert len(found.values) == 11  # eleven different eigenvalues, then there is nothing more to find
    assert torch.allclose(found.values, torch.arange(11.0).double(), atol=1e-8)
    assert torch.allclose(found.weights.sum(), torch.tensor(1.0).double())
    assert abs(found.weights[0] - 50 / 60) < 0.15


def test_curvature_is_the_hessian_of_the_bilevel_loss(data):
    x, y = data.secret.images[:4, :6], torch.tensor([0.0, 0.0, 1.0, 1.0]).double()
    target = affine.train(x + 0.1 * x.flip(0), y, DECAY).weights

    def gradient(x):
        return bilevel.hypergradient(x, y, target, DECAY).gradient

    product = landscape.curvature(gradient, x)
    columns = torch.stack([product(v.view(4, 6)).flatten() for v in torch.eye(24).double()])
    assert torch.allclose(columns, columns.mT, atol=1e-6 * columns.abs().max())
    v = torch.randn(4, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    loss = [bilevel.hypergradient(x + h * v, y, target, DECAY).loss for h in (-1e-4, 0.0, 1e-4)]
    second = (loss[0] - 2 * loss[1] + loss[2]) / 1e-8
    assert torch.allclose((product(v) * v).sum(), second, rtol=1e-3)


def test_distance_of_sets_ignores_their_order(sets):
    a = sets[0]
    assert landscape.apart(a, a.flip(0)) <= 1e-12
    assert landscape.apart(a, a + 1) == pytest.approx(192**0.5)
    stacked = torch.stack([a, a.flip(0), a + 1, a + 1 + 1e-6])
    assert landscape.distinct(stacked, 1e-3) == 2 and landscape.distinct(stacked, 1e-9) == 3
