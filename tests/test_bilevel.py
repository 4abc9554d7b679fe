"""The bilevel attack, and the kernel of the affine model below it."""

import pytest
import torch

from attacks import bilevel, starts
from conftest import chapter_functions, drawn, refused, slope
from training import stationary
from training.images import Part
from utils import networks
from utils.kernels import affine, naive, one_hidden, solvers
from utils.networks import Layer, Released

MU = 1e-2
CHAPTER = chapter_functions("inside-the-solver")
PLAIN = chapter_functions("bilevel-attack")
INVERSES = {"exact": None, "cg": CHAPTER["cg"]}


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


@pytest.mark.parametrize("decay", [1e-4, 1.0])
def test_training_is_stationary_from_every_start(photos, decay):
    x, y = photos[0].secret
    theta0 = networks.flatten(networks.initial(networks.affine(MU, "uniform"), x.shape[1], 1))
    solved = affine.solve(x, y, decay, theta0)
    assert affine.energy_gradient(x, y, solved.weights, decay).norm() <= 2e-12
    assert torch.allclose(solved.logits, affine.logits(x, solved.weights), atol=1e-9)
    other = affine.solve(x, y, decay).weights
    assert torch.allclose(solved.weights, other, atol=1e-6 * solved.weights.norm())


@pytest.mark.parametrize("inverse", ["exact", "cg"])
def test_hypergradient_is_the_derivative(problem, inverse):
    x, released = problem
    h = bilevel.hypergradient(released, x, INVERSES[inverse])
    way = drawn(12, 30)
    expected = slope(lambda x: bilevel.hypergradient(released, x).loss, x, way)
    assert abs((h.gradient * way).sum() - expected) <= 1e-6 * h.gradient.norm()


@pytest.mark.parametrize("name, inner_start", [("random", "warm"), ("partition", "cold")])
def test_attack_reaches_the_weights(photos, name, inner_start):
    data, network = photos
    released = Released(network, data.secret.labels, networks.affine(MU))
    start = starts.random(100, 3072, 5) if name == "random" else starts.partition(data.known, 100)
    found = bilevel.attack(released, start, inner_start=inner_start)
    again = stationary.train(Part(found.images, released.labels), released.recipe).released
    assert found.stopped == "converged" and networks.distance(again.network, network) <= 1e-12


@pytest.mark.parametrize(
    "recipe", [networks.affine(MU, "uniform"), networks.one_hidden(8, MU, initial="uniform")]
)
def test_the_truth_and_the_trainers_start_repeat_the_training_to_the_last_bit(views, recipe):
    theta0, x = networks.initial(recipe, 3072, 0), views.secret.images
    released = stationary.train(views.secret, recipe, initial=theta0).released
    found = bilevel.attack(released, x, initial=theta0)
    assert found.history[0] <= 1e-25 and len(found.history) == 1 and torch.equal(found.images, x)


def test_several_starts_in_one_call(problem):
    x, released = problem
    batch = torch.stack([x, starts.random(12, 30, 2)])
    together = bilevel.attack(released, batch)
    assert (together.history[-1] <= 1e-13).all() and together.stopped == ["converged"] * 2
    alone = bilevel.attack(released, batch[1])
    assert torch.allclose(together.images[1], alone.images, atol=1e-3)
    batch[1] = x[0]  # repeated images, with a singular Gram matrix, train too
    assert affine.solve(batch, released.labels, MU).gradient_norm.max() <= 1e-12


def layer(inputs, outputs):
    return Layer(torch.zeros(1, inputs), torch.zeros(outputs))


WRONG = {
    "12 labels and 30 inputs": {"network": (layer(29, 1),)},
    "(11,) labels": {"labels": torch.zeros(11)},
    "weight decay": {"recipe": networks.affine(0.0)},
    "square loss": {"recipe": networks.perceptron("signed", 5, 5)},
    "INNER_START": {"inner_start": "hot"},
    "inner budget of 0": {"inner_budget": 0},
    "initial network": {"initial": (layer(31, 1),)},
    "NaN or infinite": {"start": torch.full((12, 30), torch.inf)},
}


@pytest.mark.parametrize("named", WRONG)
def test_bad_input_is_told_in_a_sentence(problem, named):
    x, released = problem
    given = {"start": x, **WRONG[named]}
    changed = {name: given.pop(name) for name in released._fields if name in given}
    assert named in refused(bilevel.attack, released._replace(**changed), **given)


# ---- The plain functions of the attack's chapter, on few coordinates and few neurons ----


@pytest.mark.parametrize("recipe", [networks.affine(MU), networks.one_hidden(8, MU)])
def test_the_plain_loop_in_few_coordinates_and_neurons_is_the_attack(monkeypatch, x, y, recipe):
    released = stationary.train(Part(x, y), recipe).released
    small, start = bilevel.merge_neurons(released), x + 0.01 * drawn(12, 30)
    basis = networks.span_of(start, small.network[0].weight)
    inside, z = networks.in_span(small.network, basis), start @ basis
    for name, value in {"y": y, "sharpness": small.sharpness, "WEIGHT_DECAY": MU}.items():
        monkeypatch.setitem(PLAIN, name, value)
    if recipe.hidden:
        model = PLAIN["network_model"]
        theta = one_hidden.pack(one_hidden.weights(inside, small.sharpness))
    else:
        model, theta = PLAIN["affine_model"], networks.flatten(inside)

    def objective(flat):
        found = PLAIN["train"](flat.view_as(z), theta, model)
        slope = PLAIN["hypergradient"](flat.view_as(z), found, theta, model)
        return (found - theta).square().sum() / 2, slope.flatten()

    losses = []
    solvers.lbfgs(objective, z.flatten(), iterations=3, each=lambda flat, loss: losses.append(loss))
    fast = bilevel.attack(released, start, iterations=3).history
    assert torch.allclose(2 * torch.stack(losses) / theta.square().sum(), fast, rtol=1e-3)
