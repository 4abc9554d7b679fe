import math

import pytest
import torch
from torch.nn.functional import binary_cross_entropy_with_logits

from utils import images, networks
from utils.attacks import bilevel
from utils.errors import InputError
from utils.kernels import one_hidden
from utils.training import stationary

MU = 1e-2
WIDTH = 6


def plain_energy(x, y, first, second, sharpness, weight_decay=MU):
    """E in all d coordinates, as eqs. (4) and (9) write it."""
    s = x @ first[:, :-1].T + first[:, -1]
    active = s.clamp_min(0) if math.isinf(sharpness) else torch.log1p(torch.exp(sharpness * s)) / sharpness
    losses = binary_cross_entropy_with_logits(active @ second[:-1] + second[-1], y)
    return losses + weight_decay / 2 * (first.square().sum() + second.square().sum())


RECIPE = networks.one_hidden(WIDTH, MU)


def drawn(seed, inputs=30, recipe=RECIPE):
    """The kernel's weights of a θ⁰."""
    return one_hidden.weights(networks.initial(recipe, inputs, seed), recipe.sharpness)


@pytest.fixture
def problem(small):
    x, y, generator = small
    victim = stationary.train(images.Part(x, y), RECIPE, 0)
    assert victim.gradient_norm <= 1e-9
    theta0 = networks.initial(RECIPE, 30, 0)
    return torch.rand(12, 30, dtype=torch.float64, generator=generator), victim.released, theta0, generator


@pytest.mark.parametrize("sharpness", [1.0, 10.0, math.inf])
def test_energy_and_gradient_are_those_of_autograd(small, sharpness):
    x, y, _ = small
    net = drawn(1)._replace(sharpness=sharpness)
    value, gradient = one_hidden.energy(one_hidden.pack(net), x, y, MU, sharpness)
    parts = [part.requires_grad_() for part in net[:2]]
    expected = plain_energy(x, y, *parts, sharpness)
    full = one_hidden.Weights(*torch.autograd.grad(expected, parts), sharpness)
    assert abs(value - expected) <= 1e-12
    assert torch.allclose(gradient, one_hidden.pack(full), atol=1e-12)


def test_training_in_the_span_of_the_images_is_training(small):
    x, y, _ = small
    x, net = x[:, :20] @ torch.ones(20, 30).double().tril(), drawn(1)
    basis = networks.span_of(x)
    few = one_hidden.weights(networks.in_span(one_hidden.network(net), basis), 10.0)
    plain, fast = one_hidden.solve(x, y, MU, net).weights, one_hidden.solve(x @ basis, y, MU, few).weights
    assert basis.shape == (30, 12)
    assert networks.distance(networks.in_span(one_hidden.network(fast), basis.T), one_hidden.network(plain)) <= 1e-12


def test_equal_neurons_are_one(small):
    x, y, _ = small
    net = drawn(1)
    copies = [0, 1, 1, 2, 0, 0, 3, 4, 5]
    several = net._replace(first=net.first[copies], second=net.second[[*copies, -1]])
    few = one_hidden.merged(several)
    assert len(few.first) == WIDTH and sorted(few.sharpness.tolist())[0] == pytest.approx(10 / 3**0.5)
    terms = (x, y, MU)
    one, other = (one_hidden.energy(one_hidden.pack(w), *terms, w.sharpness) for w in (several, few))
    assert abs(one[0] - other[0]) <= 1e-12 and abs(one[1].norm() - other[1].norm()) <= 1e-12
    ends = [one_hidden.solve(*terms, weights).weights for weights in (several, few)]
    assert one_hidden.square_norm(ends[0]) == pytest.approx(one_hidden.square_norm(ends[1]).item(), rel=1e-9)
    reduced = one_hidden.merged(ends[0], 1e-5)
    assert torch.allclose(one_hidden.logits(x, reduced), one_hidden.logits(x, ends[1]), atol=1e-7)


@pytest.mark.parametrize("sharpness", [1.0, 10.0])
def test_hessian_product_is_the_derivative_of_the_gradient(small, sharpness):
    x, y, generator = small
    v = one_hidden.pack(drawn(1))
    product, precondition = one_hidden.hessian(v, x, y, MU, sharpness)
    for _ in range(3):
        u = torch.randn(v.shape, dtype=v.dtype, generator=generator)
        ahead, behind = (one_hidden.energy(v + t * u, x, y, MU, sharpness)[1] for t in (1e-6, -1e-6))
        assert (product(u) - (ahead - behind) / 2e-6).norm() <= 1e-7 * product(u).norm()
        assert (u * precondition(u)).sum() > 0


def test_preconditioner_inverts_the_hessian_where_residuals_vanish(small):
    x, _, generator = small
    v = one_hidden.pack(drawn(1))
    y = torch.sigmoid(one_hidden.logits(x, drawn(1)))  # ℓ' = 0: only the Gauss–Newton part is left
    product, precondition = one_hidden.hessian(v, x, y, MU, 10.0)
    u = torch.randn(v.shape, dtype=v.dtype, generator=generator)
    assert (precondition(product(u)) - u).norm() <= 1e-9 * u.norm()


@pytest.mark.parametrize("kind", ["uniform", "standard"])
def test_every_training_of_a_batch_ends_at_a_stationary_point_of_the_full_energy(small, kind):
    x, y, generator = small
    batch = torch.stack([x, torch.rand(x.shape, dtype=x.dtype, generator=generator)])
    solved = one_hidden.solve(batch, y, MU, drawn(0, recipe=RECIPE._replace(start=kind)))
    assert solved.converged.all() and (solved.gradient_norm <= 1e-9).all()
    for k in range(2):
        first, second = (part[k].clone().requires_grad_() for part in solved.weights[:2])
        gradients = torch.autograd.grad(plain_energy(batch[k], y, first, second, 10.0), (first, second))
        assert all(gradient.norm() <= 1e-8 for gradient in gradients)


def test_relu_is_reported_as_not_converged(small):
    solved = one_hidden.solve(*small[:2], MU, drawn(0, recipe=networks.one_hidden(16, MU, math.inf)))
    assert not solved.converged and solved.gradient_norm > 1e-7


def test_single_precision_reaches_its_own_tolerance(small):
    x, y, _ = small
    theta0 = drawn(0)
    theta0 = one_hidden.Weights(theta0.first.float(), theta0.second.float(), 10.0)
    solved = one_hidden.solve(x.float(), y.float(), MU, theta0)
    assert solved.weights.first.dtype == torch.float32 and solved.gradient_norm <= 1e-6


def test_hypergradient_is_the_derivative(problem):
    x, released, theta0, generator = problem
    target = one_hidden.weights(released.network, 10.0)
    h = bilevel.hypergradient(released, x, start=theta0)

    def half_square(weights):
        return sum((a - b).square().sum() for a, b in zip(weights[:2], target[:2])) / 2

    assert h.sound and abs(h.loss - half_square(h.solved.weights)) <= 1e-10
    for _ in range(5):
        direction = torch.randn(x.shape, dtype=x.dtype, generator=generator)

        def loss(step, direction=direction):
            moved = one_hidden.solve(x + step * direction, released.labels, MU, h.solved.weights, tolerance=1e-13)
            return half_square(moved.weights)

        slope = (loss(1e-5) - loss(-1e-5)) / 2e-5
        assert abs((h.gradient * direction).sum() - slope) <= 1e-5 * h.gradient.norm()


@pytest.mark.parametrize("inner_start", ["warm", "cold", None])
def test_attack_from_the_weights_themselves_comes_near(problem, inner_start):
    x, released, _, _ = problem
    settings = {"theta_start": released.network, "inner_start": inner_start} if inner_start else {}
    found = bilevel.attack(released, x, iterations=30, **settings)
    assert found.history.shape == found.details.sound.shape
    assert found.history[-1] < 0.5 * found.history[0]
    target = released if inner_start else bilevel.condensed(released)
    assert abs(networks.distance(found.network, target.network) - found.history[-1]) <= 1e-6


def test_an_attack_that_leaves_the_pixel_range_or_its_budget_ends():
    data = images.split(images.load("photos"), 20, 20)
    recipe = networks.one_hidden(16, MU, start="uniform")
    released = stationary.train(data.secret, recipe, 0).released
    settings = {"theta_start": networks.initial(recipe, 3072, 1), "iterations": 40}
    found = bilevel.attack(released, data.known.images, **settings, inner_budget=3_000)
    moved = (found.images - data.known.images).square().mean().sqrt()
    assert (found.stopped == "left") == (moved > 1)
    assert networks.distance(found.network, released.network) > 0.1
    short = bilevel.attack(released, data.known.images, **settings, inner_budget=10)
    assert short.stopped == "budget" and torch.allclose(short.images, data.known.images)


def test_bad_input_is_told_in_a_sentence(problem):
    x, released, theta0, _ = problem
    with pytest.raises(InputError, match="needs theta_start, a network"):
        bilevel.hypergradient(released, x)
    with pytest.raises(InputError, match="needs 12 labels and 29 inputs"):
        bilevel.attack(released, x[:, 1:], theta_start=theta0)
