import math

import pytest
import torch
from torch.nn.functional import binary_cross_entropy_with_logits

from utils import bilevel, evaluate, hidden
from utils.errors import InputError

MU = 1e-2
WIDTH = 6


def plain_energy(x, y, first, second, sharpness, weight_decay=MU):
    """E in all d coordinates, as eqs. (4) and (9) write it."""
    s = x @ first[:, :-1].T + first[:, -1]
    active = s.clamp_min(0) if math.isinf(sharpness) else torch.log1p(torch.exp(sharpness * s)) / sharpness
    losses = binary_cross_entropy_with_logits(active @ second[:-1] + second[-1], y)
    return losses + weight_decay / 2 * (first.square().sum() + second.square().sum())


@pytest.fixture
def problem(small):
    x, y, generator = small
    theta0 = hidden.initial_weights(30, WIDTH, 0)
    target = hidden.train(x, y, MU, theta0)
    assert target.converged
    return torch.rand(12, 30, dtype=torch.float64, generator=generator), y, target.weights, theta0, generator


@pytest.mark.parametrize("sharpness", [1.0, 10.0, math.inf])
def test_energy_in_coordinates_equals_energy_in_full(small, sharpness):
    x, y, _ = small
    net = hidden.initial_weights(30, WIDTH, 1, sharpness=sharpness)
    at = hidden.coordinates(x)
    inside = net._replace(first=net.first @ at.basis @ at.basis.T).first.requires_grad_()
    second = net.second.requires_grad_()
    value, gradient = hidden.energy(hidden.project(net, at), at, y, MU, sharpness)
    expected = plain_energy(x, y, inside, second, sharpness)
    full = torch.autograd.grad(expected, (inside, second))
    assert abs(value - expected) <= 1e-12
    assert torch.allclose(gradient, hidden.project(hidden.Network(*full, sharpness), at), atol=1e-12)


@pytest.mark.parametrize("sharpness", [1.0, 10.0])
def test_hessian_product_is_the_derivative_of_the_gradient(small, sharpness):
    x, y, generator = small
    at = hidden.coordinates(x)
    v = hidden.project(hidden.initial_weights(30, WIDTH, 1), at)
    product, precondition = hidden.hessian(v, at, y, MU, sharpness)
    for _ in range(3):
        u = torch.randn(v.shape, dtype=v.dtype, generator=generator)
        ahead, behind = (hidden.energy(v + t * u, at, y, MU, sharpness)[1] for t in (1e-6, -1e-6))
        assert (product(u) - (ahead - behind) / 2e-6).norm() <= 1e-7 * product(u).norm()
        assert (u * precondition(u)).sum() > 0


def test_preconditioner_inverts_the_hessian_where_residuals_vanish(small):
    x, _, generator = small
    at = hidden.coordinates(x)
    v = hidden.project(hidden.initial_weights(30, WIDTH, 1), at)
    y = torch.sigmoid(hidden.forward(v, at, 10.0).logits)  # ℓ' = 0: only the Gauss–Newton part is left
    product, precondition = hidden.hessian(v, at, y, MU, 10.0)
    u = torch.randn(v.shape, dtype=v.dtype, generator=generator)
    assert (precondition(product(u)) - u).norm() <= 1e-9 * u.norm()


@pytest.mark.parametrize("kind", ["uniform", "standard"])
def test_training_ends_at_a_stationary_point_of_the_full_energy(small, kind):
    x, y, _ = small
    trained = hidden.train(x, y, MU, hidden.initial_weights(30, WIDTH, 0, kind))
    assert trained.converged and trained.gradient_norm <= 1e-9
    first, second = (part.clone().requires_grad_() for part in trained.weights[:2])
    gradients = torch.autograd.grad(plain_energy(x, y, first, second, 10.0), (first, second))
    assert all(gradient.norm() <= 1e-8 for gradient in gradients)


def test_training_on_photographs_is_stationary(photos):
    data, _ = photos
    trained = hidden.train(*data.secret, MU, hidden.initial_weights(3072, 32, 0, "uniform"))
    assert trained.gradient_norm <= 1e-7
    size = trained.weights.first.norm(dim=1) * trained.weights.second[:-1].abs()
    assert (size > 1e-3 * size.max()).sum() < 16  # most neurons have died


def test_a_batch_equals_its_members(problem):
    x, y, _, theta0, generator = problem
    batch = torch.stack([x, torch.rand(x.shape, dtype=x.dtype, generator=generator)])
    together = hidden.train(batch, y, MU, theta0)
    assert together.converged.all()
    for k in range(2):
        weights = hidden.Network(together.weights.first[k], together.weights.second[k], 10.0)
        first, second = (part.clone().requires_grad_() for part in weights[:2])
        gradients = torch.autograd.grad(plain_energy(batch[k], y, first, second, 10.0), (first, second))
        assert all(gradient.norm() <= 1e-8 for gradient in gradients)


def test_relu_is_reported_as_not_converged(photos):
    data, _ = photos
    trained = hidden.train(*data.secret, MU, hidden.initial_weights(3072, 16, 0, sharpness=math.inf))
    assert not trained.converged and trained.gradient_norm > 1e-7


def test_single_precision_reaches_its_own_tolerance(small):
    x, y, _ = small
    theta0 = hidden.initial_weights(30, WIDTH, 0)
    theta0 = hidden.Network(theta0.first.float(), theta0.second.float(), 10.0)
    trained = hidden.train(x.float(), y.float(), MU, theta0)
    assert trained.inside.dtype == torch.float32 and trained.gradient_norm <= 1e-6


def test_hypergradient_is_the_derivative(problem):
    x, y, target, theta0, generator = problem
    h = bilevel.hypergradient(x, y, target, MU, "cg", theta0)
    assert h.sound
    assert abs(h.loss - evaluate.square_distance(h.trained.weights, target) / 2) <= 1e-10
    for _ in range(5):
        direction = torch.randn(x.shape, dtype=x.dtype, generator=generator)

        def loss(step):
            weights = hidden.train(x + step * direction, y, MU, h.trained, tolerance=1e-13).weights
            return evaluate.square_distance(weights, target) / 2

        slope = (loss(1e-5) - loss(-1e-5)) / 2e-5
        assert abs((h.gradient * direction).sum() - slope) <= 1e-5 * h.gradient.norm()


def test_hypergradient_equals_differentiating_through_training(small):
    x, y, generator = small
    decay, theta0 = 0.1, hidden.initial_weights(30, 3, 0)
    target = hidden.train(x, y, decay, theta0).weights
    x = torch.rand(12, 30, dtype=x.dtype, generator=generator)
    h = bilevel.hypergradient(x, y, target, decay, "cg", theta0)
    x = x.clone().requires_grad_()
    first, second = (part.clone().requires_grad_() for part in h.trained.weights[:2])
    for _ in range(4000):  # plain gradient descent from θ(x); every step stays in the graph
        steps = torch.autograd.grad(plain_energy(x, y, first, second, 10.0, decay), (first, second), create_graph=True)
        first, second = first - 0.1 * steps[0], second - 0.1 * steps[1]
    loss = ((first - target.first).square().sum() + (second - target.second).square().sum()) / 2
    (through,) = torch.autograd.grad(loss, x)
    assert (through - h.gradient).norm() <= 1e-6 * h.gradient.norm()


def test_quasi_newton_gradient_descends(problem):
    x, y, target, theta0, _ = problem
    true = bilevel.hypergradient(x, y, target, MU, "cg", theta0)
    approximate = bilevel.hypergradient(x, y, target, MU, "lbfgs", theta0)
    assert approximate.sound and (true.gradient * approximate.gradient).sum() > 0


@pytest.mark.parametrize("inner_start", ["warm", "cold"])
def test_attack_from_the_weights_themselves_comes_near(problem, inner_start):
    x, y, target, _, _ = problem
    found = bilevel.attack(target, y, x, weight_decay=MU, theta_start=target, inner_start=inner_start, iterations=60)
    assert found.history.shape == found.sound.shape
    assert found.history[-1] < 0.5 * found.history[0]
    assert abs(evaluate.relative_distance(found.weights, target) - found.history[-1]) <= 1e-6


def test_the_truth_with_known_theta0_needs_no_step(small):
    x, y, _ = small
    theta0 = hidden.initial_weights(30, WIDTH, 0)
    target = hidden.train(x, y, MU, theta0).weights
    found = bilevel.attack(target, y, x, weight_decay=MU, theta_start=theta0)
    assert found.stopped == "converged" and len(found.history) == 1 and torch.equal(found.images, x)


def test_an_attack_that_leaves_the_pixel_range_or_its_budget_ends(photos):
    data, _ = photos
    theta0, other = (hidden.initial_weights(3072, 16, seed, "uniform") for seed in (0, 1))
    target = hidden.train(*data.secret, MU, theta0).weights
    settings = {"weight_decay": MU, "theta_start": other, "iterations": 40}
    found = bilevel.attack(target, data.secret.labels, data.known.images, **settings, inner_budget=20_000)
    assert found.stopped in ("left", "stalled", "iterations", "budget")
    moved = (found.images - data.known.images).square().mean().sqrt()
    assert (found.stopped == "left") == (moved > 1)
    assert evaluate.relative_distance(found.weights, target) > 0.1
    short = bilevel.attack(target, data.secret.labels, data.known.images, **settings, inner_budget=10)
    assert short.stopped == "budget" and torch.equal(short.images, data.known.images)


def test_matched_distance_ignores_the_order_of_neurons(problem):
    _, _, target, theta0, generator = problem
    order = torch.randperm(WIDTH, generator=generator)
    second = torch.cat([target.second[:-1][order], target.second[-1:]])
    shuffled = target._replace(first=target.first[order], second=second)
    assert evaluate.relative_distance(shuffled, target) > 0.1
    assert evaluate.matched_distance(shuffled, target) <= 1e-28
    assert evaluate.matched_distance(theta0, target) <= evaluate.relative_distance(theta0, target)


def test_bad_input_is_told_in_a_sentence(problem):
    x, y, target, theta0, _ = problem
    with pytest.raises(InputError, match="needs a Network as theta_start"):
        bilevel.attack(target, y, x, weight_decay=MU)
    with pytest.raises(InputError, match="INVERSE is 'exact', but it must be one of 'cg', 'lbfgs'"):
        bilevel.attack(target, y, x, weight_decay=MU, theta_start=theta0, inverse="exact")
    with pytest.raises(InputError, match="needs 12 labels and 30 weights in every neuron"):
        bilevel.attack(target, y, x[:, 1:], weight_decay=MU, theta_start=theta0)
    with pytest.raises(InputError, match="SHARPNESS is -1.0"):
        hidden.train(x, y, MU, theta0._replace(sharpness=-1.0))
    with pytest.raises(InputError, match=r"WEIGHT_DECAY is 0.0; without a positive one the weights grow"):
        hidden.train(x, y, 0.0, theta0)
    with pytest.raises(InputError, match="THETA_START is 'zeros', but it must be one of 'uniform', 'standard'"):
        hidden.initial_weights(30, WIDTH, 0, "zeros")
