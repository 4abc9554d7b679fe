"""One hidden layer against plain softplus networks and differences, and the bilevel attack on it."""

import math

import pytest
import torch

from attacks import bilevel, starts
from conftest import drawn, refused, slope
from experiments import truncated
from training import images, stationary
from utils import networks
from utils.kernels import naive, one_hidden
from utils.kernels.layers import flatten
from utils.networks import Released

MU = 1e-2
WIDTH = 6
RECIPE = networks.one_hidden(WIDTH, MU)


def weights(seed, recipe=RECIPE):
    """The kernel's weights of a θ⁰."""
    return one_hidden.weights(networks.initial(recipe, 30, seed), recipe.sharpness)


@pytest.fixture
def problem(x, y):
    victim = stationary.train(images.Part(x, y), RECIPE, 0)
    assert victim.gradient_norm <= 1e-9
    theta0 = networks.initial(RECIPE, 30, 0)
    return starts.random(12, 30, 1), victim.released, theta0


@pytest.mark.parametrize("sharpness", [1.0, 10.0, math.inf])
def test_energy_and_gradient_are_those_of_autograd(x, y, sharpness):
    network = networks.initial(RECIPE, 30, 1)
    value, gradient = one_hidden.energy(flatten(network), x, y, MU, sharpness)
    assert abs(value - naive.energy(x, y, network, MU, sharpness)) <= 1e-12
    assert torch.allclose(gradient, naive.gradient(x, y, network, MU, sharpness), atol=1e-12)


def test_without_decay_training_stops_at_the_tolerance(x, y):
    network = stationary.train_without_decay(images.Part(x, y), RECIPE, gradient_tolerance=1e-5)
    assert naive.gradient(x, y, network, 0.0, RECIPE.sharpness).norm() <= 1.01e-5


def test_equal_neurons_are_one(x, y):
    net, copies = weights(1), [0, 1, 1, 2, 0, 0, 3, 4, 5]
    several = net._replace(first=net.first[copies], second=net.second[[*copies, -1]])
    few = one_hidden.merge_neurons(several)
    assert len(few.first) == WIDTH and few.sharpness.min().item() == pytest.approx(10 / 3**0.5)
    both = [one_hidden.solve(x, y, MU, one).weights for one in (several, few)]
    values = [one_hidden.energy(one_hidden.pack(w), x, y, MU, w.sharpness)[0] for w in both]
    assert abs(values[0] - values[1]) <= 1e-12
    squares = [one_hidden.square_norm(w).item() for w in both]
    assert squares[0] == pytest.approx(squares[1], rel=1e-9)


@pytest.mark.parametrize("sharpness", [1.0, 10.0])
def test_hessian_product_is_the_derivative_of_the_gradient(x, y, sharpness):
    v, u = one_hidden.pack(weights(1)), drawn(WIDTH * 32 + 1)
    found = one_hidden.hessian(v, x, y, MU, sharpness)[0](u)
    change = slope(lambda v: one_hidden.energy(v, x, y, MU, sharpness)[1], v, u, 1e-6)
    assert (found - change).norm() <= 1e-7 * found.norm()
    y = torch.sigmoid(one_hidden.logits(x, weights(1)._replace(sharpness=sharpness)))
    product, precondition = one_hidden.hessian(v, x, y, MU, sharpness)  # ℓ' = 0: Gauss–Newton alone
    assert (precondition(product(u)) - u).norm() <= 1e-9 * u.norm()


def test_every_training_of_a_batch_ends_at_a_stationary_point_of_the_full_energy(x, y):
    batch = torch.stack([x, starts.random(12, 30, 1)])
    solved = one_hidden.solve(batch, y, MU, weights(0))
    assert solved.converged.all() and (solved.gradient_norm <= 1e-9).all()
    for k in range(2):
        network = networks.change(one_hidden.network(solved.weights), lambda part: part[k])  # noqa: B023
        assert naive.gradient(batch[k], y, network, MU, 10.0).norm() <= 1e-8


def test_hypergradient_is_the_derivative(problem):
    x, released, theta0 = problem
    target = one_hidden.weights(released.network, 10.0)
    h = bilevel.hypergradient(released, x, initial=theta0)

    def loss(x):
        solved = one_hidden.solve(x, released.labels, MU, h.solved.weights, tolerance=1e-13)
        return one_hidden.square_distance(solved.weights, target) / 2

    way = drawn(12, 30)
    apart = one_hidden.square_distance(h.solved.weights, target) / 2
    assert h.sound and abs(h.loss - apart) <= 1e-10
    assert abs((h.gradient * way).sum() - slope(loss, x, way)) <= 1e-5 * h.gradient.norm()
    assert "needs an initial network" in refused(bilevel.hypergradient, released, x)


@pytest.mark.parametrize("inner_start", ["warm", "cold"])
def test_attack_from_the_weights_themselves_comes_near(problem, inner_start):
    x, released, _ = problem
    settings = {"initial": released.network, "inner_start": inner_start}
    found = bilevel.attack(released, x, iterations=30, **settings)
    assert found.history.shape == found.details.sound.shape
    assert found.history[-1] < 0.5 * found.history[0]
    assert abs(networks.distance(found.network, released.network) - found.history[-1]) <= 1e-6


def test_an_attack_ends_with_its_budget(toy):
    recipe = networks.one_hidden(16, MU, initial="uniform")
    released = stationary.train(toy.secret, recipe, 0).released
    settings = {"initial": networks.initial(recipe, 192, 1), "iterations": 40}
    found = bilevel.attack(released, toy.held_out.images, **settings, inner_budget=10)
    assert found.stopped == "budget"


# ---- Training that is cut short: its derivative, and the attack on it ----


@pytest.mark.parametrize("sharpness", [10.0, math.inf])
def test_steps_in_the_span_are_steps_of_the_whole_network(x, y, sharpness):
    start = weights(0, RECIPE._replace(sharpness=sharpness))

    def energy(v):
        return one_hidden.energy(v, x, y, MU, sharpness)

    v = one_hidden.pack(start)
    for _ in range(4):
        v = v - 0.3 * energy(v)[1]
    found = truncated.trained(x, y, MU, start, 4, "descent", 0.3)
    torch.testing.assert_close(one_hidden.pack(found), v, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("method", ["descent", "quasi-Newton"])
def test_the_hypergradient_agrees_with_differences(x, y, method):
    released = Released(networks.initial(RECIPE, 30, 3), y, networks.one_hidden(WIDTH, 0.1))
    objective = truncated.objective_of(
        bilevel.lower_level(released), x.shape, weights(0), truncated.Training(5, method, 0.2)
    )
    way = drawn(x.numel())
    expected = slope(lambda flat: objective(flat)[0], x.flatten(), way)
    assert torch.isclose(objective(x.flatten())[1] @ way, expected, rtol=1e-5)


@pytest.mark.parametrize("fixed", [True, False])
def test_the_attack_lowers_every_distance_and_tells_it(x, y, fixed):
    theta0 = networks.initial(RECIPE, 30, 0)
    target = truncated.trained(x, y, MU, weights(0), 10)
    released = Released(one_hidden.network(target), y, RECIPE)
    given = torch.stack([x, starts.random(12, 30, 4)]), theta0
    inner = truncated.Training(10, "descent", 1e-2)
    found, before, after = truncated.attack(released, *given, inner, iterations=5, fixed=fixed)
    assert before[0] < 1e-20 and after[1] < before[1]
    again = truncated.trained(found[1], y, MU, weights(0), 10)
    assert torch.isclose(one_hidden.square_distance(again, target), after[1], atol=1e-15)
