"""The stationarity attack: what it may see, how it steps and stops, what it refuses; and the victims it attacks."""

import math

import pytest
import torch

from attacks import decoreco, starts
from conftest import refused
from training import images, stationary
from utils import networks
from utils.kernels import naive
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


@pytest.mark.parametrize("rule, also", [("signed", True), ("margin", False), ("multiclass", True)])
def test_training_in_coordinates_is_the_same_descent_in_all_weights(x, rule, also):
    """With later biases and centred images, and without."""
    outputs = 3 if rule == "multiclass" else 1
    labels = (torch.arange(12) % max(outputs, 2)).double()
    recipe = networks.perceptron(rule, 9, 8)
    recipe = recipe._replace(
        epochs=40, stages=0, initial=0.1, dtype=torch.float64, biases=also, centred=also
    )
    network = networks.initial(recipe, 30, 3, outputs)

    def objective(theta):
        theta = theta.clone().requires_grad_()
        z = forward(unflatten(theta, network), x - x.mean(0) * also)[1][-1]
        value = (
            LOSSES[recipe.loss].value(z, labels).mean()
            + recipe.weight_decay / 2 * theta.square().sum()
        )
        return value.detach(), *torch.autograd.grad(value, theta)

    ours = flatten(stationary.train(images.Part(x, labels), recipe, 3).released.network)
    assert (
        ours - stationary.descend(objective, flatten(network), recipe)
    ).norm() <= 1e-8 * ours.norm()


@pytest.mark.parametrize("optimiser", decoreco.SETTINGS)
def test_the_attack_on_a_module_is_that_on_its_layers(victim, start, optimiser):
    """Two sets of candidates, of which autograd differentiates one after the other."""
    settings = {"optimiser": optimiser, "iterations": 12, "dtype": torch.float64, "rule": "margin"}
    both, module = torch.stack([start, start.flip(0)]), naive.module_of(victim.released.network)
    ours, theirs = (
        decoreco.attack(victim.released._replace(network=network), both, **settings)
        for network in (victim.released.network, module.requires_grad_(False))
    )
    assert torch.allclose(ours.images, theirs.images, rtol=1e-9, atol=1e-12)
    assert torch.allclose(ours.history, theirs.history, rtol=1e-9)
    assert torch.allclose(ours.details.share, theirs.details.share, rtol=1e-6, atol=1e-12)


@pytest.mark.parametrize("rule, outputs", [("signed", 1), ("multiclass", 3)])
def test_a_module_with_a_convolution_is_attacked(start, rule, outputs):
    module = torch.nn.Sequential(
        torch.nn.Unflatten(1, (3, 8, 8)), torch.nn.Conv2d(3, 4, 3), torch.nn.BatchNorm2d(4),
        torch.nn.ReLU(inplace=True), torch.nn.Flatten(), torch.nn.Linear(144, outputs),
    )  # fmt: skip
    labels = decoreco.balanced_labels(20, max(outputs, 2))
    assert labels.tolist() == sorted(labels) and labels.long().bincount().tolist() in (
        [10, 10],
        [7, 7, 6],
    )
    released = Released(module, labels, networks.perceptron("signed"))
    found = decoreco.attack(released, start, rule=rule, iterations=30)
    assert (
        found.loss < found.history[0]
        and found.images.isfinite().all()
        and not found.images.requires_grad
    )
    assert module.training and module[2].num_batches_tracked == 0  # the given module is left alone
    said = refused(decoreco.attack, released, start, basis=torch.eye(192)[:, :5])
    assert "A module is attacked in pixels: give no basis" in said


def test_an_attack_in_a_basis_is_the_attack_on_coordinates_with_longer_steps(victim, start):
    basis = networks.span(victim.released.network)
    settings = {"iterations": 20, "range_weight": 0.0, "dtype": torch.float64}
    ours = decoreco.attack(victim.released, start, basis=basis, learning_rate=0.01, **settings)
    reduced = victim.released._replace(network=networks.in_span(victim.released.network, basis))
    rate = 0.01 * math.sqrt(192 / basis.shape[1])
    theirs = decoreco.attack(reduced, start @ basis, learning_rate=rate, **settings)
    assert torch.allclose(ours.images, theirs.images @ basis.T, atol=1e-9)


@pytest.mark.parametrize("bound", [0.0, 0.3, -math.inf])
def test_no_coefficients_above_the_bound_have_a_smaller_residual(victim, bound):
    x = starts.normal(12, 192, 1.0, 0)
    rule = Signed() if bound < 0 else Margin(torch.tensor([-1.0, 1.0]).repeat(6).double())
    objective = decoreco.Objective(victim.released.network, rule, 30.0, bound, 0.0)
    h, b = objective.stationarity.quadratic(x)
    ours = objective.best_coefficients(x)
    gradient = (h + 1e-6 * h.diagonal().mean() * torch.eye(12)) @ ours - b
    free = ours > bound
    assert (ours >= bound).all() and free.any() and (bound < 0 or not free.all())
    assert (gradient[free].abs() <= 1e-8 * b.norm()).all() and (
        gradient[~free] >= -1e-8 * b.norm()
    ).all()
    both = objective.best_coefficients(torch.stack([x, x.flip(0)]))
    assert torch.allclose(both[0], ours, rtol=1e-9) and both.shape == (2, 12)


def test_projection_keeps_the_bound_also_where_candidates_are_blank(toy, start):
    trained = stationary.train(
        toy.secret, networks.perceptron("margin", 40, 40)._replace(epochs=200)
    )
    settings = {"rule": "margin", "optimiser": "projection", "iterations": 20}
    found = decoreco.attack(trained.released, start, **settings)
    assert (found.coefficients >= 0.3 - 1e-6).all() and found.details.feasibility == 0
    dark = tuple(layer._replace(bias=None) for layer in trained.released.network)
    blank = decoreco.attack(trained.released._replace(network=dark), 0 * start, **settings)
    assert blank.coefficients.isfinite().all()


def test_a_batch_of_restarts_equals_its_members(victim):
    batch = torch.stack([starts.normal(20, 192, 0.02, seed) for seed in range(3)])
    settings = {"iterations": 25, "dtype": torch.float64}
    together = decoreco.attack(victim.released, batch, **settings)
    drawn = decoreco.draw(Signed(), batch, 0)
    assert together.stopped == ["iterations"] * 3 and together.details.stationarity.shape == (3, 3)
    for k in range(3):
        alone = decoreco.attack(victim.released, batch[k], coefficients=drawn[k], **settings)
        assert torch.allclose(together.images[k], alone.images, rtol=1e-9, atol=1e-12)
        assert torch.allclose(together.history[:, k], alone.history, rtol=1e-9)


@pytest.mark.parametrize("optimiser", decoreco.SETTINGS)
def test_one_diverging_restart_leaves_the_others_alone(victim, start, optimiser):
    batch = torch.stack([start, torch.full((20, 192), 1e30, dtype=torch.float64)])
    settings = {"optimiser": optimiser, "iterations": 20}
    found = decoreco.attack(victim.released, batch, **settings)
    assert (
        found.stopped == ["iterations", "diverged"] and found.history[-1, 0] < found.history[0, 0]
    )
    assert found.images[0].isfinite().all()
    said = refused(decoreco.attack, victim.released, batch[1], **settings)
    assert said.startswith("The attack diverged: ") and "smaller learning_rate" in said


def test_a_loss_below_the_tolerance_ends_the_attack(victim, start):
    found = decoreco.attack(victim.released, start, tolerance=1e9, sharpness=30.0)
    assert found.stopped == "converged" and len(found.history) == 1
    both = torch.stack([start, 5 * start])
    first, second = decoreco.attack(victim.released, both, iterations=0).loss.tolist()
    found = decoreco.attack(victim.released, both, iterations=0, tolerance=(first + second) / 2)
    assert sorted(found.stopped) == ["converged", "iterations"]
    assert (found.stopped[0] == "converged") == (first < second)


def test_the_surrogate_sharpens_and_the_best_of_the_last_alpha_is_kept(victim, start):
    settings = decoreco.SETTINGS["adam"]
    alphas = [settings.alpha(k, 10) for k in range(11)]
    assert (
        alphas[0] == settings.softest
        and alphas[8:] == [settings.sharpness] * 3
        and sorted(alphas) == alphas
    )
    found = decoreco.attack(
        victim.released, start, iterations=10, learning_rate=0.1, dtype=torch.float64
    )
    assert (
        torch.isclose(found.loss, found.history[8:].min())
        and found.history.min() < 0.9 * found.loss
    )
    assert found.loss == found.details.total and found.history.shape == (11,)
    assert found.images.shape == start.shape and found.coefficients.shape == (20,)
    assert decoreco.SETTINGS["sgd"].alpha(0, 10) == decoreco.SETTINGS["sgd"].sharpness
    swung = decoreco.attack(
        victim.released, start, optimiser="sgd", iterations=10, dtype=torch.float64
    )
    assert torch.isclose(swung.loss, swung.history.min()) and swung.loss < 0.95 * swung.history[-1]


def test_penalties_are_the_published_ones():
    net = networks.initial(networks.Recipe((3,), "square", 0.1, initial=1.0, biases=False), 4, 0)
    objective = decoreco.Objective(net, Margin(torch.tensor([1.0, -1.0])), 5.0, 0.5, 1.0)
    x = torch.tensor([[2.0, 0, -1.5, 0.5], [0, 0, 0, 0]]).double()
    c = torch.tensor([0.2, 0.7]).double()
    parts, *gradients = objective(x, c)
    assert torch.allclose(parts.range * objective.scale, torch.tensor(1.25).double())
    assert torch.allclose(parts.feasibility * objective.scale, torch.tensor(5 * 0.09).double())
    ours = (total - part for total, part in zip(gradients, objective.stationarity(x, c)[2:]))
    for found, slopes in zip(ours, ([2.0, 0, -1, 0, 0, 0, 0, 0], [-3.0, 0])):
        assert torch.allclose(found.flatten(), torch.tensor(slopes).double())


HALVES, SMOOTH = torch.tensor([0.0] * 10 + [1.0] * 10).double(), networks.one_hidden(5, 0.01)
SOFT = Released(networks.initial(SMOOTH, 192, 0), HALVES, SMOOTH)
FREE = Released(networks.initial(SIGNED, 192, 0), HALVES, SIGNED._replace(weight_decay=0.0))
WRONG = [
    ({"rule": "best"}, "RULE is 'best', but it must be one of 'signed'"),
    (
        {"rule": "multiclass"},
        "needs a network with several outputs, but this one has 1: use signed or margin",
    ),
    ({"rule": "margin", "labels": HALVES + 1}, "needs labels from 0 to 1, but has [1.0, 2.0]"),
    ({"lambda_min": -1.0}, "LAMBDA_MIN is -1; it cannot be negative"),
    ({"range_weight": -1.0}, "RANGE_WEIGHT is -1; it cannot be negative"),
    ({"iterations": -1}, "STEPS is -1; it cannot be negative"),
    ({"sharpness": -1.0}, "it must be larger than 0"),
    (
        {"rule": "tied", "optimiser": "projection"},
        "OPTIMISER is 'projection', but it must be one of 'sgd', 'adam'.",
    ),
    (
        {"optimiser": "newton"},
        "OPTIMISER is 'newton', but it must be one of 'sgd', 'adam', 'projection'",
    ),
    ({"start": torch.zeros(20, 7)}, "but there are (20,) labels and 192 inputs"),
    ({"released": SOFT}, "needs a ReLU network, and this one has a softplus"),
    ({"released": FREE, "rule": "tied"}, "The tied rule divides by the weight decay, which is 0"),
    (
        {"start": torch.zeros(1, 192)},
        "There are 1 candidates for 2 classes: make CANDIDATES larger",
    ),
]


@pytest.mark.parametrize("given, sentence", WRONG, ids=lambda value: str(value)[:30])
def test_mistakes_are_told_in_one_sentence(victim, start, given, sentence):
    assert sentence in refused(
        decoreco.attack, **{"released": victim.released, "start": start, **given}
    )


@pytest.mark.parametrize("optimiser", ["adam", "sgd", "projection"])
def test_an_attack_that_stops_on_its_way_goes_on_as_if_it_had_not(toy, victim, optimiser):
    start, settings = starts.normal(20, 192, 0.1, 0), {"iterations": 12, "optimiser": optimiser}
    whole, state = decoreco.attack(victim.released, start, **settings), None
    for until in (3, 10, 11, 12):
        found = decoreco.attack(victim.released, start, **settings, until=until, state=state)
        state = found.details.state
        assert state.step == until + (until == 12) and found.loss.isfinite()
    for part in ("images", "coefficients", "loss", "history"):
        assert torch.equal(getattr(found, part), getattr(whole, part)), part


def test_an_attacker_of_the_same_seed_draws_none_of_the_trainers_numbers():
    def numbers(drawn):
        return set(drawn.flatten().tolist())

    normal, uniform = SIGNED._replace(initial=1.0), networks.one_hidden(40, 1e-2, 10.0, "uniform")
    noise = starts.normal(40, 30, 1.0, 3)
    coefficients = decoreco.draw(Signed(), noise, 3)
    assert not numbers(networks.initial(normal, 30, 3)[0].weight) & (
        numbers(noise) | numbers(coefficients)
    )
    assert not numbers(networks.initial(uniform, 30, 3)[0].weight) & numbers(
        starts.random(40, 30, 3)
    )
    assert coefficients.shape == (40,) and not numbers(coefficients) & numbers(noise)
