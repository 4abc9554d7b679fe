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
    "margin": networks.perceptron("margin", 8)._replace(epochs=200),
    "multiclass": networks.perceptron("multiclass", 8, 7)._replace(epochs=200),
}


@pytest.mark.parametrize("name", RECIPES)
def test_what_is_said_of_a_victim_is_true(x, y, name):
    recipe = RECIPES[name]
    labels = torch.arange(12).to(y) % 3 if name == "multiclass" else y
    victim = stationary.train(images.Part(x, labels), recipe, 1)
    seen = x - victim.mean
    assert torch.equal(victim.mean, x.mean(0) * recipe.centred) and torch.equal(
        victim.released.labels, labels
    )
    network = layers.change(victim.released.network, lambda p: p.requires_grad_())
    loss = LOSSES[recipe.loss].value(victim.released.outputs(seen), labels).mean()
    weights = layers.flatten(network)
    parts = [p for layer in network for p in layer if p is not None]
    slopes = torch.autograd.grad(loss + recipe.weight_decay / 2 * weights.square().sum(), parts)
    norm = torch.cat([slope.flatten() for slope in slopes]).norm().item()
    assert victim.gradient_norm == pytest.approx(norm, rel=1e-5, abs=1e-8)
    assert victim.loss == pytest.approx(loss.item(), abs=1e-9)
    if name in ("affine", "one hidden"):
        assert (
            victim.gradient_norm <= 1e-9
            and networks.accuracy(victim.released.outputs(seen), labels) == 1
        )


def test_descent_never_raises_the_energy_and_its_rate_grows():
    seen = []

    def objective(theta):  # a valley along the first axis, steep along the second
        seen.append(theta)
        return (theta * theta * torch.tensor([1.0, 50.0])).sum() / 2, theta * torch.tensor(
            [1.0, 50.0]
        )

    recipe = networks.perceptron("margin")._replace(learning_rate=0.01, growth=1.1, epochs=3)
    theta = stationary.descend(objective, torch.tensor([1.0, 0.0]), recipe)
    rates = [(a - b)[0] / a[0] for a, b in zip(seen, seen[1:])]
    assert torch.allclose(torch.stack(rates), torch.tensor([0.01, 0.011, 0.0121])) and torch.equal(
        theta, seen[-1]
    )
    bold = recipe._replace(learning_rate=1.0, epochs=40)
    values = [
        objective(stationary.descend(objective, torch.ones(2), bold._replace(epochs=k)))[0]
        for k in range(40)
    ]
    assert (
        all(after <= before for before, after in zip(values, values[1:]))
        and values[-1] < 1e-2 * values[0]
    )


WRONG = [
    (lambda: networks.affine(0.0), 0, "WEIGHT_DECAY is 0.0; without a positive one"),
    (lambda: networks.one_hidden(3, MU, -1.0), 0, "SHARPNESS is -1.0"),
    (lambda: networks.one_hidden(3, MU)._replace(hidden=(3, 3)), 0, "one hidden layer"),
    (lambda: networks.perceptron("margin", 3)._replace(stages=1), 0, "A polish needs"),
    (
        lambda: networks.affine(MU)._replace(loss="hinge"),
        0,
        "loss is 'hinge', but it must be one of",
    ),
    (
        lambda: networks.one_hidden(3, MU, initial="zeros"),
        0,
        "THETA_START is 'zeros', but it must be one of 'uniform'",
    ),
    (lambda: networks.perceptron("best", 3), 0, "RULE is 'best'"),
    (lambda: networks.affine(MU), 1, "needs labels 0 and 1, but they reach from 1.0 to 2.0"),
]


@pytest.mark.parametrize("recipe, more, sentence", WRONG)
def test_recipes_and_labels_that_cannot_be_followed(x, y, recipe, more, sentence):
    assert sentence in refused(lambda: stationary.train(images.Part(x, y + more), recipe()))


def test_starts_are_what_their_names_say():
    uniform = networks.flatten(networks.initial(networks.affine(MU, "uniform"), 999, 0))
    standard = networks.flatten(networks.initial(networks.affine(MU, "standard"), 999, 0))
    assert (
        uniform.min() >= 0
        and uniform.max() <= 1
        and torch.allclose(standard, (2 * uniform - 1) / 999**0.5)
    )
    first, second = networks.initial(networks.perceptron("signed", 500), 400, 0)
    assert first.weight.std() == pytest.approx(
        1e-4, rel=0.02
    ) and first.bias.std() == pytest.approx(1e-4, rel=0.1)
    assert (
        second.bias is None
        and second.weight.abs().max() <= 500**-0.5
        and second.weight.std() > 0.5 * 500**-0.5
    )


def test_a_stationary_point_on_a_kink():
    # E = ((vw − 1)² + (v·relu(b) + 1)²)/2 + μ(w² + b² + v²)/2 at w = v = √(1 − μ), b = 0: a slope μ makes ∂E/∂b vanish
    w = torch.full((1, 1), (1 - MU) ** 0.5, dtype=torch.float64)
    network = layers.Layer(w, 0 * w[0]), layers.Layer(w, None)
    x, y = torch.tensor([[1.0], [0.0]]).double(), torch.tensor([1.0, 0.0]).double()
    found = relative_gradients(network, x, y, LOSSES["square"], MU)
    assert (
        torch.allclose(found.printed, torch.tensor([1.0, 0.0]).double(), atol=1e-12)
        and found.on_kink == 0.5
    )
    assert found.smallest.max() < 1e-6 and found.slopes[0].flatten().tolist() == pytest.approx(
        [1, MU], abs=1e-7
    )


def test_the_smallest_generalised_gradient_is_one(x, y):
    recipe = networks.perceptron("signed", 8, 7)._replace(initial=0.1)
    network = networks.initial(recipe, 30, 1)
    found = relative_gradients(network, x, y, LOSSES["square"], MU, tolerance=0.3)
    theta, a = layers.change(network, lambda p: p.clone().requires_grad_()), x
    for layer, slope in zip(theta, found.slopes):
        z = a @ layer.weight.T + (0 if layer.bias is None else layer.bias)
        a = (
            slope * z + (z.clamp_min(0) - slope * z).detach()
        )  # the value of a ReLU, and the slope that is said
        assert slope.min() >= 0 and slope.max() <= 1 and ((slope > 0.01) & (slope < 0.99)).any()
    energy = LOSSES["square"].value(a @ theta[-1].weight.T, y).mean() + MU / 2 * layers.square_norm(
        theta
    )
    energy.backward()
    for layer, ratio in zip(theta, found.smallest):
        slope = layers.flatten(layers.change([layer], lambda p: p.grad))
        own = layers.flatten([layer])
        assert ratio == pytest.approx((slope.norm() / (MU * own.norm())).item(), rel=1e-9)
    scales = MU * torch.stack([layers.flatten([layer]).norm() for layer in network])
    assert (found.smallest * scales).norm() < 0.9 * (found.printed * scales).norm()


def test_a_polish_leaves_the_span_of_the_images_alone(x, y):
    recipe = networks.perceptron("signed", 40, 40)._replace(epochs=300, stages=3)
    polished, plain = (
        stationary.train(images.Part(x, y), r)
        for r in (recipe, recipe._replace(epochs=600, stages=0))
    )
    trained = [victim.released.network for victim in (polished, plain)]
    gaps = [networks.gap(network) for network in trained]
    assert (
        gaps[0].count == 11
        and gaps[0].ratio > 100
        and gaps[0].values[11] < 1e-12 < 1e-8 < gaps[1].values[11]
    )
    mu, loss = recipe.weight_decay, LOSSES[recipe.loss]
    found = [relative_gradients(n, x - polished.mean, y, loss, mu, 1e-3).smallest for n in trained]
    assert 2 * found[0].max() < found[1].max()
    basis = networks.span(trained[0])
    assert torch.allclose(networks.within(x - x.mean(0), basis), x - x.mean(0), atol=1e-6)


def test_the_gap_is_found_where_there_is_one():
    def network(*values):
        return (layers.Layer(torch.diag(torch.tensor(values, dtype=torch.float64)), None),)

    assert networks.gap(network(1.0, 0.05, 0.03, 1e-4, 9e-5))[1:] == (3, pytest.approx(300))
    assert networks.gap(network(1.0, 0.05, 0.03, 1e-9, 1e-17))[1:] == (3, pytest.approx(3e4))
    assert (
        networks.gap(network(1.0, 0.5, 1e-3, 5e-4, 2e-5, 1e-17)).count == 5
    )  # not the largest, but into rounding
    none = network(
        1.0, 0.05, 0.015, 0.009, 0.006, 0.004
    )  # by 20 among the largest, and by less than 2 to the end
    assert networks.gap(none).count is None and networks.span(none).shape == (6, 6)
    assert networks.span(none, 0.01).shape == (6, 3)


# ---- Networks that others published, measured like our own ----

LABELS = {
    "signed": torch.arange(12) % 2,
    "margin": torch.arange(12) % 2,
    "multiclass": torch.arange(12) % 3,
}


def published(x, rule, outputs, recipe):
    """The Victim that is a network of others, with biases in all layers but the last, and its network."""
    network = networks.initial(
        networks.perceptron(rule, 7, 6)._replace(biases=True), 30, 0, outputs
    )
    network = *network[:2], network[2]._replace(bias=None)
    return stationary.victim_of_published(
        network, images.Part(x, LABELS[rule].double()), recipe
    ), network


@pytest.mark.parametrize("rule", LABELS)
def test_a_published_victim_says_what_the_trainer_would_say_of_it(x, rule):
    outputs, recipe = 3 if rule == "multiclass" else 1, networks.perceptron(rule)
    ours, network = published(x, rule, outputs, recipe)
    smooth, _ = published(x, rule, outputs, recipe._replace(hidden=(99,), sharpness=10.0))
    assert (
        ours.released.recipe
        == smooth.released.recipe
        == recipe._replace(hidden=(7, 6), biases=True, stages=0)
    )
    still = ours.released.recipe._replace(
        epochs=0, dtype=torch.float64
    )  # a training that ends where it starts
    theirs = stationary.train(images.Part(x, ours.released.labels), still, initial=network)
    assert torch.equal(ours.mean, theirs.mean) and torch.equal(
        ours.released.labels, LABELS[rule].double()
    )
    assert [ours.loss, ours.gradient_norm] == pytest.approx(
        [theirs.loss, theirs.gradient_norm], rel=1e-9
    )


@pytest.mark.parametrize("outputs, rule, needed", [(2, "signed", 1), (1, "multiclass", 3)])
def test_labels_and_recipe_must_fit_to_the_outputs(x, outputs, rule, needed):
    said = refused(published, x, rule, outputs, networks.perceptron(rule))
    assert (
        f"has K = {outputs} outputs, but these labels and the" in said
        and f"loss need K = {needed}" in said
    )
