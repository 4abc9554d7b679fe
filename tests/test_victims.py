"""Trained networks: what is said of them is true, where they begin, and how stationary they are."""

import pytest
import torch

from conftest import refused
from training import images, stationary
from training.polish import relative_gradients
from utils import networks
from utils.kernels import layers
from utils.kernels.losses import LOSSES

MU = 1e-2
RECIPES = {
    "affine": networks.affine(MU),
    "one hidden": networks.one_hidden(6, MU),
    "signed": networks.perceptron("signed", 8, 7)._replace(epochs=200),
    "multiclass": networks.perceptron("multiclass", 8, 7)._replace(epochs=200),
}


@pytest.mark.parametrize("name", RECIPES)
def test_what_is_said_of_a_victim_is_true(x, y, name):
    recipe = RECIPES[name]
    labels = torch.arange(12).to(y) % 3 if name == "multiclass" else y
    victim = stationary.train(images.Part(x, labels), recipe, 1)
    assert torch.equal(victim.mean, x.mean(0) * recipe.centred)
    network = layers.change(victim.released.network, lambda p: p.requires_grad_())
    outputs = victim.released.outputs(x - victim.mean)
    loss = LOSSES[recipe.loss].value(outputs, labels).mean()
    energy = loss + recipe.weight_decay / 2 * layers.square_norm(network)
    slopes = torch.autograd.grad(energy, [p for layer in network for p in layer if p is not None])
    norm = torch.cat([slope.flatten() for slope in slopes]).norm().item()
    assert victim.gradient_norm == pytest.approx(norm, rel=1e-5, abs=1e-8)
    assert victim.loss == pytest.approx(loss.item(), abs=1e-9)
    if name in ("affine", "one hidden"):
        assert norm <= 1e-9 and networks.accuracy(outputs, labels) == 1


def test_descent_never_raises_the_energy_and_its_rate_grows():
    seen, steep = [], torch.tensor([1.0, 50.0])  # a valley along the first axis

    def objective(theta):
        seen.append(theta)
        return (steep * theta * theta).sum() / 2, steep * theta

    recipe = networks.perceptron("margin")._replace(learning_rate=0.01, growth=1.1, epochs=3)
    stationary.descend(objective, torch.tensor([1.0, 0.0]), recipe)
    rates = [1 - (after / before)[0].item() for before, after in zip(seen, seen[1:])]
    assert rates == pytest.approx([0.01, 0.011, 0.0121], rel=1e-4)
    bold = [recipe._replace(learning_rate=1.0, epochs=k) for k in range(40)]
    values = [objective(stationary.descend(objective, torch.ones(2), one))[0] for one in bold]
    assert values == sorted(values, reverse=True) and values[-1] < 1e-2 * values[0]


SOFT = networks.one_hidden(3, MU)
WRONG = [  # a recipe, the smaller label, and what is said
    (networks.affine(0.0), 0, "WEIGHT_DECAY is 0.0"),
    (SOFT._replace(sharpness=-1.0), 0, "SHARPNESS is -1.0"),
    (SOFT._replace(hidden=(3, 3)), 0, "one hidden layer"),
    (networks.perceptron("margin", 3)._replace(stages=1), 0, "A polish needs"),
    (networks.affine(MU)._replace(loss="hinge"), 0, "loss is 'hinge'"),
    (networks.affine(MU), 1, "needs labels 0 and 1, but they reach from 1.0 to 2.0"),
]


@pytest.mark.parametrize("recipe, least, sentence", WRONG)
def test_recipes_and_labels_that_cannot_be_followed(x, y, recipe, least, sentence):
    assert sentence in refused(stationary.train, images.Part(x, y + least), recipe)


def test_starts_are_what_their_names_say():
    uniform, standard = (
        networks.flatten(networks.initial(networks.affine(MU, name), 999, 0))
        for name in ("uniform", "standard")
    )
    assert uniform.min() >= 0 and uniform.max() <= 1
    torch.testing.assert_close(standard, (2 * uniform - 1) / 999**0.5)
    first, second = networks.initial(networks.perceptron("signed", 500), 400, 0)
    assert first.weight.std() == pytest.approx(1e-4, rel=0.02)
    assert first.bias.std() == pytest.approx(1e-4, rel=0.1) and second.bias is None
    assert 0.5 * 500**-0.5 < second.weight.std() < second.weight.abs().max() <= 500**-0.5


def test_a_stationary_point_on_a_kink():
    # E = ((vw − 1)² + (v·relu(b) + 1)²)/2 + μ(w² + b² + v²)/2 at w = v = √(1 − μ), b = 0: a slope μ makes ∂E/∂b vanish
    w = torch.full((1, 1), (1 - MU) ** 0.5, dtype=torch.float64)
    network = layers.Layer(w, 0 * w[0]), layers.Layer(w, None)
    x, y = torch.tensor([[1.0], [0.0]]).double(), torch.tensor([1.0, 0.0]).double()
    found = relative_gradients(network, x, y, LOSSES["square"], MU)
    assert found.printed.tolist() == pytest.approx([1, 0], abs=1e-12) and found.on_kink == 0.5
    assert found.smallest.max() < 1e-6
    assert found.slopes[0].flatten().tolist() == pytest.approx([1, MU], abs=1e-7)


def test_the_smallest_generalised_gradient_is_one(x, y):
    recipe = networks.perceptron("signed", 8, 7)._replace(initial=0.1)
    network = networks.initial(recipe, 30, 1)
    found = relative_gradients(network, x, y, LOSSES["square"], MU, tolerance=0.3)
    theta = layers.change(network, lambda p: p.clone().requires_grad_())
    a = x
    for (weight, bias), slope in zip(theta, found.slopes):
        assert slope.min() >= 0 and slope.max() <= 1 and ((slope > 0.01) & (slope < 0.99)).any()
        z = a @ weight.T + (0 if bias is None else bias)
        # the value of a ReLU, and the slope that is said
        a = slope * z + (z.clamp_min(0) - slope * z).detach()
    loss = LOSSES["square"].value(a @ theta[-1].weight.T, y).mean()
    (loss + MU / 2 * layers.square_norm(theta)).backward()
    slopes = layers.change(theta, lambda p: p.grad)
    sizes = [torch.stack([layers.flatten([l]).norm() for l in one]) for one in (slopes, network)]
    torch.testing.assert_close(found.smallest, sizes[0] / (MU * sizes[1]), rtol=1e-9, atol=0)
    assert found.smallest.norm() < 0.9 * found.printed.norm()


def test_a_polish_leaves_the_span_of_the_images_alone(x, y):
    recipe = networks.perceptron("signed", 40, 40)._replace(epochs=300, stages=3)
    recipes = recipe, recipe._replace(epochs=600, stages=0)
    ours, other = (stationary.train(images.Part(x, y), one).released.network for one in recipes)
    polished, plain = networks.gap(ours), networks.gap(other)
    assert polished.count == 11 and polished.ratio > 100
    assert polished.values[11] < 1e-12 < 1e-8 < plain.values[11]
    centred = x - x.mean(0)
    torch.testing.assert_close(
        networks.within(centred, networks.span(ours)), centred, atol=1e-6, rtol=0
    )


GAPS = [  # singular values, and how many are above the gap
    ((1.0, 0.05, 0.03, 1e-4, 9e-5), 3),
    ((1.0, 0.05, 0.03, 1e-9, 1e-17), 3),
    ((1.0, 0.5, 1e-3, 5e-4, 2e-5, 1e-17), 5),  # not the largest, but into rounding
    ((1.0, 0.05, 0.015, 0.009, 0.006, 0.004), None),  # by 20, but by less than 2 to the end
]


@pytest.mark.parametrize("values, count", GAPS)
def test_the_gap_is_found_where_there_is_one(values, count):
    network = (layers.Layer(torch.diag(torch.tensor(values, dtype=torch.float64)), None),)
    assert networks.gap(network).count == count
    if count is None:
        assert networks.span(network).shape == (6, 6)
        assert networks.span(network, 0.01).shape == (6, 3)


# ---- Networks that others published, measured like our own ----


def test_a_published_victim_says_what_the_trainer_would_say_of_it(x, y):
    part = images.Part(x, torch.arange(12).to(y) % 3)
    recipe = networks.perceptron("multiclass", 7, 6)._replace(biases=True, stages=0)
    *inner, last = networks.initial(recipe, 30, 0, 3)
    network = *inner, last._replace(bias=None)
    ours = stationary.victim_of_published(network, part, networks.perceptron("multiclass", 99))
    assert ours.released.recipe == recipe
    # a training that ends where it starts
    still = recipe._replace(epochs=0, dtype=torch.float64)
    theirs = stationary.train(part, still, initial=network)
    assert torch.equal(ours.mean, theirs.mean)
    assert ours.gradient_norm == pytest.approx(theirs.gradient_norm, rel=1e-9)
    binary = images.Part(x, y), networks.perceptron("signed")
    said = refused(stationary.victim_of_published, network, *binary)
    assert "has K = 3 outputs" in said and "need K = 1" in said
