"""The stationarity attack: how it steps and stops, what it refuses; and the victims it attacks."""

import math

import pytest
import torch

from attacks import decoreco, starts
from conftest import refused
from training import images, stationary
from utils import networks
from utils.kernels.coefficients import Margin, Signed
from utils.kernels.layers import flatten, forward, unflatten
from utils.kernels.losses import LOSSES
from utils.networks import Released

SIGNED = networks.perceptron("signed", 40, 40)._replace(epochs=500)


@pytest.fixture(scope="module")
def victim(toy):
    return stationary.train(toy.secret, SIGNED)


@pytest.fixture(scope="module")
def start():
    return starts.normal(20, 192, 0.02, 0)


@pytest.fixture(scope="module")
def attack(victim, start):
    """The attack on the victim, in double precision, with settings that differ from an optimiser's."""

    def attacked(x=start, optimiser="adam", released=victim.released, given=(), **changed):
        settings = decoreco.SETTINGS[optimiser]._replace(**{"dtype": torch.float64} | changed)
        return decoreco.attack(released, x, settings, **dict(given))

    return attacked


def assert_same(ours, theirs, where=...):
    torch.testing.assert_close(ours.images[where], theirs.images, rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(ours.history[:, where], theirs.history, rtol=1e-9, atol=0)


@pytest.mark.parametrize("rule, also", [("signed", True), ("margin", False), ("multiclass", True)])
def test_training_in_coordinates_is_the_same_descent_in_all_weights(x, rule, also):
    """With later biases and centred images, and without."""
    outputs = 3 if rule == "multiclass" else 1
    labels = (torch.arange(12) % max(outputs, 2)).double()
    recipe = networks.perceptron(rule, 9, 8)._replace(
        epochs=40, stages=0, initial=0.1, dtype=torch.float64, biases=also, centred=also
    )
    network = networks.initial(recipe, 30, 3, outputs)

    def energy(theta):
        z = forward(unflatten(theta, network), x - x.mean(0) * also)[1][-1]
        loss = LOSSES[recipe.loss].value(z, labels).mean()
        return loss + recipe.weight_decay / 2 * theta.square().sum()

    def objective(theta):
        return reversed(torch.func.grad_and_value(energy)(theta))

    ours = flatten(stationary.train(images.Part(x, labels), recipe, 3).released.network)
    theirs = stationary.descend(objective, flatten(network), recipe)
    assert (ours - theirs).norm() <= 1e-8 * ours.norm()


def test_an_attack_in_a_basis_is_the_attack_on_coordinates_with_longer_steps(attack, victim, start):
    basis = networks.span(victim.released.network)
    settings = {"iterations": 20, "range_weight": 0.0}
    ours = attack(given={"basis": basis}, learning_rate=0.01, **settings)
    reduced = victim.released._replace(network=networks.in_span(victim.released.network, basis))
    longer = 0.01 * math.sqrt(192 / basis.shape[1])
    theirs = attack(start @ basis, released=reduced, learning_rate=longer, **settings)
    assert torch.allclose(ours.images, theirs.images @ basis.T, atol=1e-9)


@pytest.mark.parametrize("bound", [0.0, 0.3, -math.inf])
def test_no_coefficients_above_the_bound_have_a_smaller_residual(victim, bound):
    x = starts.normal(12, 192, 1.0, 0)
    rule = Signed() if bound < 0 else Margin(torch.tensor([-1.0, 1.0]).repeat(6).double())
    objective = decoreco.Objective(victim.released.network, rule, 30.0, bound, 0.0)
    h, b = objective.stationarity.quadratic(x)
    ours = objective.best_coefficients(torch.stack([x, x.flip(0)]))[0]
    gradient = (h + 1e-6 * h.diagonal().mean() * torch.eye(12)) @ ours - b
    free = ours > bound
    assert (ours >= bound).all() and free.any() and (bound < 0 or not free.all())
    small = 1e-8 * b.norm()
    assert (gradient[free].abs() <= small).all() and (gradient[~free] >= -small).all()


def test_projection_keeps_the_bound_also_where_candidates_are_blank(attack, toy, start):
    recipe = networks.perceptron("margin", 40, 40)._replace(epochs=200)
    released = stationary.train(toy.secret, recipe).released
    how = {"released": released, "optimiser": "projection", "rule": "margin", "iterations": 20}
    for x in (start, 0 * start):
        found = attack(x, **how)
        assert (found.coefficients >= 0.3 - 1e-6).all() and found.details.feasibility == 0


def test_a_batch_of_restarts_equals_its_members(attack):
    batch = torch.stack([starts.normal(20, 192, 0.02, seed) for seed in range(3)])
    together, drawn = attack(batch, iterations=25), decoreco.draw(Signed(), batch, 0)
    assert together.stopped == ["iterations"] * 3 and together.details.stationarity.shape == (3, 3)
    for k in range(3):
        alone = attack(batch[k], iterations=25, given={"coefficients": drawn[k]})
        assert_same(together, alone, k)


@pytest.mark.parametrize("optimiser", decoreco.SETTINGS)
def test_one_diverging_restart_leaves_the_others_alone(attack, start, optimiser):
    batch = torch.stack([start, torch.full_like(start, 1e30)])
    how = {"optimiser": optimiser, "iterations": 20, "dtype": torch.float32}
    found = attack(batch, **how)
    assert found.stopped == ["iterations", "diverged"] and found.images[0].isfinite().all()
    assert found.history[-1, 0] < found.history[0, 0]
    assert "smaller learning_rate" in refused(attack, batch[1], **how)


def test_a_loss_below_the_tolerance_ends_the_attack(attack, start):
    found = attack(tolerance=1e9, softest=100.0)
    assert found.stopped == "converged" and len(found.history) == 1


def test_the_surrogate_sharpens():
    alphas = [decoreco.ADAM._replace(iterations=10).alpha(k) for k in range(11)]
    assert alphas[0] == 10 and alphas[8:] == [100] * 3 and sorted(alphas) == alphas


def test_penalties_are_the_published_ones_and_a_share_is_what_a_candidate_explains():
    net = networks.initial(networks.Recipe((3,), "square", 0.1, initial=1.0, biases=False), 4, 0)
    objective = decoreco.Objective(net, Margin(torch.tensor([1.0, -1.0])), 5.0, 0.5, 1.0)
    x = torch.tensor([[2.0, 0, -1.5, 0.5], [0, 0, 0, 0]]).double()
    c = torch.tensor([0.2, 0.7]).double()
    parts, *gradients = objective(x, c)
    without = torch.stack([objective(x, c * k)[0].stationarity.sum() for k in 1 - torch.eye(2)])
    assert torch.allclose(objective.share(x, c), without - parts.stationarity.sum())
    penalties = torch.stack([parts.range, parts.feasibility]) * objective.scale
    assert torch.allclose(penalties, torch.tensor([1.25, 5 * 0.09]).double())
    ours = (total - part for total, part in zip(gradients, objective.stationarity(x, c)[2:]))
    for found, slopes in zip(ours, ([2.0, 0, -1, 0, 0, 0, 0, 0], [-3.0, 0])):
        assert torch.allclose(found.flatten(), torch.tensor(slopes).double())


HALVES, SMOOTH = torch.tensor([0.0] * 10 + [1.0] * 10).double(), networks.one_hidden(5, 0.01)
SOFT = Released(networks.initial(SMOOTH, 192, 0), HALVES, SMOOTH)
FREE = Released(networks.initial(SIGNED, 192, 0), HALVES, SIGNED._replace(weight_decay=0.0))
WRONG = {
    "RULE is 'best'": {"rule": "best"},
    "several outputs": {"rule": "multiclass"},
    "needs labels from 0 to 1": {"rule": "margin", "given": {"labels": HALVES + 1}},
    "LAMBDA_MIN": {"lambda_min": -1.0},
    "STEPS": {"iterations": -1},
    "OPTIMISER is 'projection'": {"rule": "tied", "optimiser": "projection"},
    "(20,) labels and 192 inputs": {"x": torch.zeros(20, 7)},
    "needs a ReLU network": {"released": SOFT},
    "weight decay": {"released": FREE, "rule": "tied"},
    "make CANDIDATES larger": {"x": torch.zeros(1, 192)},
}


@pytest.mark.parametrize("named", WRONG)
def test_mistakes_are_told_in_one_sentence(attack, named):
    assert named in refused(attack, **WRONG[named])


@pytest.mark.parametrize("optimiser", decoreco.SETTINGS)
def test_what_is_watched_is_the_attack_of_as_many_steps(attack, optimiser):
    """Before the last α its last candidates, whose loss comes next; behind it the best of those that count."""
    start, seen = starts.normal(20, 192, 0.1, 0), {}
    watch = {"watch": lambda step, result: seen.update({step: result()})}
    found = attack(start, optimiser, iterations=12, given=watch)
    assert_same(attack(start, optimiser, iterations=12), found)
    assert found.loss == found.details.total
    assert list(seen) == list(range(1, 14)) and torch.equal(seen[13].images, found.images)
    rising = 10 if optimiser == "adam" else 0  # steps before the last α
    for k, one in seen.items():
        loss = found.history[rising:k].min() if k > rising else found.history[k]
        assert torch.isclose(one.loss, loss, rtol=1e-5)


def test_an_attacker_of_the_same_seed_draws_none_of_the_trainers_numbers():
    noise = starts.normal(40, 30, 1.0, 3)
    normal, uniform = SIGNED._replace(initial=1.0), networks.one_hidden(40, 1e-2, 10.0, "uniform")
    drawn = noise, starts.random(40, 30, 3), decoreco.draw(Signed(), noise, 3)
    weights = (networks.initial(recipe, 30, 3)[0].weight for recipe in (normal, uniform))
    numbers = [set(some.flatten().tolist()) for some in (*drawn, *weights)]
    assert len(set.union(*numbers)) == sum(map(len, numbers))
