"""The bilevel attack, and the kernel of the affine model below it."""

import pytest
import torch

from attacks import bilevel, starts
from conftest import chapter_functions, drawn, refused, slope
from training import stationary
from training.images import Part
from utils import networks
from utils.kernels import affine, naive, one_hidden, solvers
from utils.networks import Released

MU = 1e-2
CHAPTER = chapter_functions("inside-the-solver")
PLAIN = chapter_functions("bilevel-attack")
INVERSES = {"exact": None, "cg": CHAPTER["cg"], "quasi-Newton": CHAPTER["quasi_newton"]}


@pytest.fixture
def problem(x, y):
    released = stationary.train(Part(x, y), networks.affine(MU)).released
    return starts.random(12, 30, 1), released


def plain_energy(x, y, theta):
    return naive.energy(x, y, affine.network(theta), MU, 1.0)


def test_derivatives_are_those_of_autograd(x, y):
    theta = drawn(31)
    expected = torch.func.grad(plain_energy, argnums=2)(x, y, theta)
    assert torch.allclose(affine.energy(x, y, theta, MU), plain_energy(x, y, theta), rtol=1e-14)
    assert torch.allclose(affine.energy_gradient(x, y, theta, MU), expected, atol=1e-15)
    far = affine.square_norm(affine.solve(x, y, MU).weights - theta) / 2
    assert 0 < far <= affine.majoriser(x, y, theta, MU)
    theta[-1] = 0  # where images are blank all is decay, and the bound is reached
    assert torch.isclose(affine.majoriser(0 * x, y, theta, MU), affine.square_norm(theta) / 2)


@pytest.mark.parametrize(
    "weight_decay, kind", [(1e-4, "zero"), (1e-2, "uniform"), (1.0, "standard")]
)
def test_training_is_stationary_from_every_start(photos, weight_decay, kind):
    x, y = photos[0].secret
    initial = (
        None
        if kind == "zero"
        else networks.flatten(networks.initial(networks.affine(MU, kind), x.shape[1], 1))
    )
    solved = affine.solve(x, y, weight_decay, initial)
    gradient = affine.energy_gradient(x, y, solved.weights, weight_decay).norm()
    assert gradient <= 2e-12 and solved.gradient_norm <= 1e-12
    assert torch.allclose(solved.logits, affine.logits(x, solved.weights), atol=1e-9)
    assert torch.allclose(
        solved.weights, affine.solve(x, y, weight_decay).weights, atol=1e-6 * solved.weights.norm()
    )


@pytest.mark.parametrize("inverse", ["exact", "cg"])
def test_hypergradient_is_the_derivative(problem, inverse):
    x, released = problem
    h = bilevel.hypergradient(released, x, INVERSES[inverse])
    way = drawn(12, 30)
    expected = slope(lambda x: bilevel.hypergradient(released, x).loss, x, way)
    assert abs((h.gradient * way).sum() - expected) <= 1e-6 * h.gradient.norm()
    theta0 = networks.initial(networks.affine(MU, "uniform"), 30, 0)
    approximate = bilevel.hypergradient(released, x, INVERSES["quasi-Newton"], theta0).gradient
    assert (h.gradient * approximate).sum() > 0


@pytest.mark.parametrize("name, inner_start", [("random", "warm"), ("partition", "cold")])
def test_attack_reaches_the_weights(photos, name, inner_start):
    data, network = photos
    released = Released(network, data.secret.labels, networks.affine(MU))
    start = starts.random(100, 3072, 5) if name == "random" else starts.partition(data.known, 100)
    found = bilevel.attack(released, start, inner_start=inner_start)
    assert found.stopped == "converged"
    retrained = stationary.train(
        Part(found.images, released.labels), released.recipe
    ).released.network
    assert networks.distance(retrained, network) <= 1e-12
    assert networks.distance(found.network, network) <= 1e-12


@pytest.mark.parametrize(
    "recipe", [networks.affine(MU, "uniform"), networks.one_hidden(8, MU, initial="uniform")]
)
def test_the_truth_and_the_trainers_start_repeat_the_training_to_the_last_bit(views, recipe):
    theta0 = networks.initial(recipe, 3072, 0)
    released = stationary.train(views.secret, recipe, initial=theta0).released
    found = bilevel.attack(released, views.secret.images, initial=theta0)
    assert (
        found.history[0] <= 1e-25
        and len(found.history) == 1
        and torch.equal(found.images, views.secret.images)
    )


def test_several_starts_in_one_call(problem):
    x, released = problem
    batch = torch.stack([x, starts.random(12, 30, 2)])
    together = bilevel.attack(released, batch)
    assert (together.history[-1] <= 1e-13).all() and together.stopped == ["converged"] * 2
    for k in range(2):
        alone = bilevel.attack(released, batch[k])
        assert torch.allclose(together.images[k], alone.images, atol=1e-3)
    batch[1] = x[0]  # repeated images, with a singular Gram matrix, train too
    solved = affine.solve(batch, released.labels, MU)
    assert solved.gradient_norm.max() <= 1e-12
    assert torch.allclose(
        solved.weights[0], affine.solve(x, released.labels, MU).weights, atol=1e-10
    )


@pytest.mark.parametrize(
    "change, settings, sentence",
    [
        (
            {"network": (networks.Layer(torch.zeros(1, 29), torch.zeros(1)),)},
            {},
            "needs 12 labels and 30 inputs",
        ),
        (
            {"network": (networks.Layer(torch.zeros(1, 30), torch.zeros(2)),)},
            {},
            "do not follow each other",
        ),
        (
            {"network": 2 * (networks.Layer(torch.zeros(1, 30), None),)},
            {},
            "do not follow each other",
        ),
        ({"labels": torch.zeros(11)}, {}, "there are (11,) labels"),
        ({}, {"inner_start": "hot"}, "INNER_START is 'hot'"),
        ({}, {"inner_budget": 0}, "give at least 0 iterations and 1 inner step"),
        ({}, {"iterations": -1}, "give at least 0 iterations and 1 inner step"),
        (
            {},
            {"initial": networks.initial(networks.affine(MU), 31, 0)},
            "The initial network has other shapes",
        ),
        ({"recipe": networks.affine(0.0)}, {}, "trained on the logistic loss with weight decay"),
        ({"recipe": networks.perceptron("signed", 5, 5)}, {}, "the square loss"),
        ({}, {"start": torch.full((12, 30), torch.inf)}, "NaN or infinite"),
    ],
)
def test_bad_input_is_told_in_a_sentence(problem, change, settings, sentence):
    x, released = problem
    assert sentence in refused(
        bilevel.attack, released._replace(**change), **{"start": x, **settings}
    )


def test_the_attack_in_the_span_is_the_attack_on_pixels(problem):
    x, released = problem

    def objective(flat):
        h = bilevel.hypergradient(released, flat.view(x.shape))
        return h.loss, h.gradient.flatten()

    watched, plain = [], solvers.lbfgs(objective, x.flatten(), iterations=10)
    found = bilevel.attack(
        released, x, iterations=10, watch=lambda x, loss: watched.append((x, loss))
    )
    assert (plain.x.view(x.shape) - found.images).norm() <= 1e-9 * plain.x.norm()
    scale = networks.flatten(released.network).square().sum() / 2
    assert found.loss * scale == pytest.approx(plain.value.item(), rel=1e-6)
    assert torch.allclose(torch.stack([loss for _, loss in watched]), found.history * scale)
    assert torch.allclose(watched[0][0], x) and torch.allclose(watched[-1][0], found.images)


# ---- The plain functions of the attack's chapter, on few coordinates and few neurons ----


@pytest.mark.parametrize(
    "recipe", [networks.affine(MU), networks.one_hidden(8, MU)], ids=["affine", "network"]
)
def test_the_plain_loop_in_few_coordinates_and_neurons_is_the_attack(monkeypatch, x, y, recipe):
    released = stationary.train(Part(x, y), recipe).released
    small, start = bilevel.merge_neurons(released), x + 0.01 * drawn(12, 30)
    basis = networks.span_of(start, small.network[0].weight)
    inside, z = networks.in_span(small.network, basis), start @ basis
    sharpness = small.sharpness if recipe.hidden else None
    for name, value in {"y": y, "sharpness": sharpness, "WEIGHT_DECAY": MU}.items():
        monkeypatch.setitem(PLAIN, name, value)
    model = PLAIN["network_model" if recipe.hidden else "affine_model"]
    theta = (
        one_hidden.pack(one_hidden.weights(inside, sharpness))
        if recipe.hidden
        else networks.flatten(inside)
    )
    whole = naive.energy(start, y, released.network, MU, recipe.sharpness)
    assert torch.isclose(PLAIN["energy"](z, theta, model), whole, rtol=1e-9)

    def objective(flat):
        found = PLAIN["train"](flat.view_as(z), theta, model)
        slope = PLAIN["hypergradient"](flat.view_as(z), found, theta, model)
        return (found - theta).square().sum() / 2, slope.flatten()

    losses = []
    solvers.lbfgs(objective, z.flatten(), iterations=3, each=lambda flat, loss: losses.append(loss))
    fast = bilevel.attack(released, start, iterations=3).history
    assert torch.allclose(2 * torch.stack(losses) / theta.square().sum(), fast, rtol=1e-3)
