"""Trained networks: what is said of them is true, where they begin, and how stationary they are."""

import pytest
import torch

from audit import weights
from utils import images, networks
from utils.attacks import bilevel, decoreco
from utils.attacks.contract import Released
from utils.errors import InputError
from utils.kernels import layers
from utils.kernels.kinks import relative_gradients
from utils.kernels.losses import LOSSES
from utils.training import stationary

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
    assert torch.equal(victim.mean, x.mean(0) * recipe.centred) and torch.equal(victim.released.labels, labels)
    network = layers.change(victim.released.network, lambda p: p.requires_grad_())
    loss, weights = LOSSES[recipe.loss].value(victim.released.outputs(seen), labels).mean(), layers.flatten(network)
    parts = [p for layer in network for p in layer if p is not None]
    slopes = torch.autograd.grad(loss + recipe.weight_decay / 2 * weights.square().sum(), parts)
    norm = torch.cat([slope.flatten() for slope in slopes]).norm().item()
    assert victim.gradient_norm == pytest.approx(norm, rel=1e-5, abs=1e-8)
    assert victim.loss == pytest.approx(loss.item(), abs=1e-9)
    if name in ("affine", "one hidden"):
        assert victim.gradient_norm <= 1e-9 and networks.accuracy(victim.released.outputs(seen), labels) == 1


def test_descent_starts_where_it_is_told(x, y):
    recipe = RECIPES["margin"]
    part, theta0 = images.Part(x, y), networks.initial(recipe, 30, 5)
    drawn, given = stationary.train(part, recipe, 5), stationary.train(part, recipe, 0, theta0)
    assert torch.equal(layers.flatten(drawn.released.network), layers.flatten(given.released.network))
    still = stationary.train(part, recipe._replace(epochs=0), 5)
    assert torch.allclose(layers.flatten(still.released.network), layers.flatten(theta0), atol=1e-14)


def test_descent_never_raises_the_energy_and_its_rate_grows():
    seen = []

    def objective(theta):  # a valley along the first axis, steep along the second
        seen.append(theta)
        return (theta * theta * torch.tensor([1.0, 50.0])).sum() / 2, theta * torch.tensor([1.0, 50.0])

    recipe = networks.perceptron("margin")._replace(learning_rate=0.01, growth=1.1, epochs=3)
    theta = stationary.descend(objective, torch.tensor([1.0, 0.0]), recipe)
    rates = [(a - b)[0] / a[0] for a, b in zip(seen, seen[1:])]
    assert torch.allclose(torch.stack(rates), torch.tensor([0.01, 0.011, 0.0121])) and torch.equal(theta, seen[-1])
    bold = recipe._replace(learning_rate=1.0, epochs=40)
    values = [objective(stationary.descend(objective, torch.ones(2), bold._replace(epochs=k)))[0] for k in range(40)]
    assert all(after <= before for before, after in zip(values, values[1:])) and values[-1] < 1e-2 * values[0]


WRONG = [
    (lambda: networks.affine(0.0), 0, "WEIGHT_DECAY is 0.0; without a positive one"),
    (lambda: networks.one_hidden(3, MU, -1.0), 0, "SHARPNESS is -1.0"),
    (lambda: networks.one_hidden(3, MU)._replace(hidden=(3, 3)), 0, "one hidden layer"),
    (lambda: networks.perceptron("margin", 3)._replace(stages=1), 0, "A polish needs"),
    (lambda: networks.affine(MU)._replace(loss="hinge"), 0, "loss is 'hinge', but it must be one of"),
    (lambda: networks.one_hidden(3, MU, start="zeros"), 0, "THETA_START is 'zeros', but it must be one of 'uniform'"),
    (lambda: networks.perceptron("best", 3), 0, "RULE is 'best'"),
    (lambda: networks.affine(MU), 1, "needs labels 0 and 1, but they reach from 1.0 to 2.0"),
]


@pytest.mark.parametrize("recipe, more, sentence", WRONG)
def test_recipes_and_labels_that_cannot_be_followed(x, y, recipe, more, sentence):
    with pytest.raises(InputError, match=sentence):
        stationary.train(images.Part(x, y + more), recipe())


def test_starts_are_what_their_names_say():
    uniform = networks.flatten(networks.initial(networks.affine(MU, "uniform"), 999, 0))
    standard = networks.flatten(networks.initial(networks.affine(MU, "standard"), 999, 0))
    assert uniform.min() >= 0 and uniform.max() <= 1 and torch.allclose(standard, (2 * uniform - 1) / 999**0.5)
    first, second = networks.initial(networks.perceptron("signed", 500), 400, 0)
    assert first.weight.std() == pytest.approx(1e-4, rel=0.02) and first.bias.std() == pytest.approx(1e-4, rel=0.1)
    assert second.bias is None and second.weight.abs().max() <= 500**-0.5 and second.weight.std() > 0.5 * 500**-0.5


def test_a_stationary_point_on_a_kink():
    # E = ((vw − 1)² + (v·relu(b) + 1)²)/2 + μ(w² + b² + v²)/2 at w = v = √(1 − μ), b = 0: a slope μ makes ∂E/∂b vanish
    w = torch.full((1, 1), (1 - MU) ** 0.5, dtype=torch.float64)
    network = layers.Layer(w, 0 * w[0]), layers.Layer(w, None)
    x, y = torch.tensor([[1.0], [0.0]]).double(), torch.tensor([1.0, 0.0]).double()
    found = relative_gradients(network, x, y, LOSSES["square"], MU)
    assert torch.allclose(found.printed, torch.tensor([1.0, 0.0]).double(), atol=1e-12) and found.on_kink == 0.5
    assert found.smallest.max() < 1e-6 and found.slopes[0].flatten().tolist() == pytest.approx([1, MU], abs=1e-7)


def test_the_smallest_generalised_gradient_is_one(x, y):
    recipe = networks.perceptron("signed", 8, 7)._replace(start=0.1)
    network = networks.initial(recipe, 30, 1)
    found = relative_gradients(network, x, y, LOSSES["square"], MU, tolerance=0.3)
    theta, a = layers.change(network, lambda p: p.clone().requires_grad_()), x
    for layer, slope in zip(theta, found.slopes):
        z = a @ layer.weight.T + (0 if layer.bias is None else layer.bias)
        a = slope * z + (z.clamp_min(0) - slope * z).detach()  # the value of a ReLU, and the slope that is said
        assert slope.min() >= 0 and slope.max() <= 1 and ((slope > 0.01) & (slope < 0.99)).any()
    energy = LOSSES["square"].value(a @ theta[-1].weight.T, y).mean() + MU / 2 * layers.square_norm(theta)
    energy.backward()
    for layer, ratio in zip(theta, found.smallest):
        slope, own = layers.flatten(layers.change([layer], lambda p: p.grad)), layers.flatten([layer])
        assert ratio == pytest.approx((slope.norm() / (MU * own.norm())).item(), rel=1e-9)
    scales = MU * torch.stack([layers.flatten([layer]).norm() for layer in network])
    assert (found.smallest * scales).norm() < 0.9 * (found.printed * scales).norm()


def test_a_polish_leaves_the_span_of_the_images_alone(x, y):
    recipe = networks.perceptron("signed", 40, 40)._replace(epochs=300, stages=3)
    polished, plain = (stationary.train(images.Part(x, y), r) for r in (recipe, recipe._replace(epochs=600, stages=0)))
    trained = [victim.released.network for victim in (polished, plain)]
    gaps = [networks.gap(network) for network in trained]
    assert gaps[0].count == 11 and gaps[0].ratio > 100 and gaps[0].values[11] < 1e-12 < 1e-8 < gaps[1].values[11]
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
    assert networks.gap(network(1.0, 0.5, 1e-3, 5e-4, 2e-5, 1e-17)).count == 5  # not the largest, but into rounding
    none = network(1.0, 0.05, 0.015, 0.009, 0.006, 0.004)  # by 20 among the largest, and by less than 2 to the end
    assert networks.gap(none).count is None and networks.span(none).shape == (6, 6)
    assert networks.span(none, 0.01).shape == (6, 3)


# ---- Weights that others published: read into our layers, and measured like our own ----

SHAPE = (5, 4, 3)  # (H, W, C)


def perceptron(widths, biases):
    """The network of Haim et al. (2022) and Buzaglo et al. (2023), who say which layers have a bias."""
    parts = [torch.nn.Flatten()]
    for inputs, outputs, bias in zip(widths, widths[1:], biases):
        parts += [torch.nn.Linear(inputs, outputs, bias=bias), torch.nn.ReLU()]
    return torch.nn.Sequential(*parts[:-1])


def saved(path, model, wrapped=True, stem="layers"):
    """Write a network as the two repositories do: with the epoch, or the parameters alone, as older torches did."""
    linear = [layer for layer in model if isinstance(layer, torch.nn.Linear)]
    state = {f"{stem}.{k}.{name}": part for k, layer in enumerate(linear) for name, part in layer.named_parameters()}
    content = {"batch": None, "epoch": 3, "state_dict": state} if wrapped else state
    torch.save(content, path, _use_new_zipfile_serialization=wrapped)
    return path


def pictures(n=12):
    """Images (n, C, H, W) as torchvision gives them, and the same ones as our rows (n, HWC)."""
    x = torch.rand(n, 3, 5, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    return x, x.permute(0, 2, 3, 1).flatten(1)


@pytest.mark.parametrize("wrapped, stem, dtype", [(True, "layers", torch.float32), (False, "convnet", torch.float64)])
@pytest.mark.parametrize("widths, biases", [((60, 7, 6, 10), (True, True, True)), ((60, 7, 6, 1), (False, True, False)),
                                            ((60, 7, 6, 1), (True, False, False)), ((60, 1), (True,))])  # fmt: skip
def test_a_network_read_from_a_file_is_that_network(tmp_path, wrapped, stem, dtype, widths, biases):
    model = perceptron(widths, biases).to(dtype)
    network = weights.read(saved(tmp_path / "weights.pth", model, wrapped, stem), SHAPE).layers
    theirs, ours = pictures()
    assert torch.allclose(layers.forward(network, ours)[1][-1], model.double()(theirs), rtol=1e-12)
    assert [layer.bias is not None for layer in network] == list(biases)
    assert all(p.dtype == torch.float64 and not p.requires_grad for layer in network for p in layer if p is not None)


LABELS = {"signed": torch.arange(12) % 2, "margin": torch.arange(12) % 2, "multiclass": torch.arange(12) % 3}


@pytest.mark.parametrize("rule", LABELS)
def test_a_published_victim_says_what_the_trainer_would_say_of_it(tmp_path, rule):
    outputs = 3 if rule == "multiclass" else 1
    path = saved(tmp_path / "weights.pth", perceptron((60, 7, 6, outputs), (True, True, False)))
    secret, recipe = images.Part(pictures()[1], LABELS[rule].double()), networks.perceptron(rule)
    network = weights.read(path, SHAPE).layers
    smooth = stationary.published(network, secret, recipe._replace(hidden=(99,), sharpness=10.0)).released.recipe
    ours = stationary.published(network, secret, recipe)
    assert ours.released.recipe == smooth == recipe._replace(hidden=(7, 6), biases=True, stages=0)
    still = ours.released.recipe._replace(epochs=0, dtype=torch.float64)  # a training that ends where it starts
    theirs = stationary.train(secret, still, start=ours.released.network)
    assert torch.equal(ours.mean, theirs.mean)
    assert torch.equal(ours.released.labels, secret.labels)
    assert [ours.loss, ours.gradient_norm] == pytest.approx([theirs.loss, theirs.gradient_norm], rel=1e-9)
    found = decoreco.attack(ours.released, secret.images - ours.mean, rule=rule, labels=secret.labels, iterations=2)
    assert found.images.shape == (12, 60)


def test_labels_and_recipe_must_fit_to_the_outputs(tmp_path):
    for outputs, rule, sentence in (
        (2, "signed", "has K = 2 outputs, but these labels and the square loss need K = 1"),
        (1, "multiclass", "has K = 1 outputs, but these labels and the cross_entropy loss need K = 3"),
    ):
        path = saved(tmp_path / "weights.pth", perceptron((60, 7, outputs), (True, False)))
        secret = images.Part(pictures()[1], LABELS[rule].double())
        with pytest.raises(InputError, match=sentence):
            stationary.published(weights.read(path, SHAPE).layers, secret, networks.perceptron(rule))


def test_attacks_refuse_layers_that_do_not_follow_each_other():
    recipe = networks.one_hidden(7, 0.1)
    labels, start = torch.tensor([0.0, 1.0]), torch.rand(2, 60).double()
    first, last = networks.initial(recipe, 60, 0)
    for wrong in ((first, layers.Layer(last.weight[:, 1:], last.bias)), (first._replace(bias=first.bias[1:]), last)):
        with pytest.raises(InputError, match="they do not follow each other: take those of one network"):
            bilevel.attack(Released(wrong, labels, recipe), start)
