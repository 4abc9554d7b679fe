"""The first paper's attacks on its own network agree with training and gradients as autograd makes them."""

import pytest
import torch

from experiments import as_written
from training import ordinary, uniform
from training.images import Part
from utils import networks
from utils.kernels import naive
from utils.networks import Layer, Released

RATE = 1e-3


@pytest.fixture
def victim():
    """A small network of eq. (9), trained to fit, and its images."""
    torch.manual_seed(0)
    part = Part(torch.rand(6, 12).double(), torch.arange(6).double() % 2)
    return part, uniform.train(part, uniform.draw(12, 8), rate=RATE, steps=3000)


def test_the_distance_is_that_of_ten_steps_of_training(victim):
    (_, y), trained = victim
    others = torch.rand(6, 12, dtype=torch.float64)
    net = naive.module_of(trained.initial)
    optimiser = torch.optim.SGD(net.parameters(), lr=RATE)
    ordinary.fit(net, optimiser, [(others, y)] * as_written.INNER)
    theta = trained.released.network
    relative = networks.distance(ordinary.layers_of(net), theta)
    found = as_written.square_distance(others, trained.released, trained.initial)
    assert found / networks.square_norm(theta) == pytest.approx(float(relative), rel=1e-9)


@pytest.mark.parametrize("hidden", [True, False])
def test_the_gradient_is_that_of_the_energy(victim, hidden):
    (x, y), trained = victim
    layer = Layer(torch.rand(1, 12).double(), torch.rand(1).double())
    released = trained.released if hidden else Released((layer,), y, networks.affine(0.1))
    leaves = networks.change(released.network, lambda p: p.clone().requires_grad_())
    energy = ordinary.logistic(networks.forward(leaves, x)[1][-1], y)
    energy = energy + released.recipe.weight_decay / 2 * networks.square_norm(leaves)
    slopes = torch.autograd.grad(energy, [p for layer in leaves for p in layer])
    found = as_written.square_gradient(x, released)
    torch.testing.assert_close(found, sum(p.square().sum() for p in slopes))


def test_the_attacks_lower_their_loss(victim):
    _, trained = victim
    begun = torch.rand(6, 12, dtype=torch.float64)
    for images, before, after in (
        as_written.solve_bilevel(trained.released, begun, trained.initial, 20),
        as_written.descend_with_momentum(trained.released, begun, 40),
    ):
        assert after < before and images.shape == begun.shape


def test_images_beyond_the_range_of_a_pixel_do_not_count(victim, monkeypatch):
    """A first step of nine pixel ranges leads there, and lowers this loss."""
    _, trained = victim
    monkeypatch.setattr(as_written, "SIZES", (90.0,))
    monkeypatch.setattr(as_written, "square_gradient", lambda x, _: (x - 100).square().sum())
    begun = torch.rand(6, 12, dtype=torch.float64)
    images, before, after = as_written.descend_with_momentum(trained.released, begun, 1)
    assert torch.equal(images, begun) and after == before


def test_the_network_is_affine_where_all_of_its_first_weights_are_positive(victim):
    secret, trained = victim
    said = as_written.describe(secret, trained)
    assert said["start/always"] == 1 and said["start/active"] == 1 and said["accuracy"] == 1
    weakened = networks.change(trained.initial, lambda p: p - 0.9)
    weaker = trained._replace(initial=weakened)
    assert as_written.describe(secret, weaker)["start/always"] < 1
    assert ordinary.layers_of(uniform.draw(12, 8))[0].weight.min() >= 0
