import math

import pytest
import torch

from utils import images, kept, networks, victims
from utils.errors import InputError
from utils.kernels import layers
from utils.kernels.losses import LOSSES

MU = 1e-2


def plain_energy(network, x, labels, recipe):
    """E as eq. (4) writes it, differentiable in the weights."""
    for layer in network[:-1]:
        s = x @ layer.weight.T + (0 if layer.bias is None else layer.bias)
        x = s.clamp_min(0) if math.isinf(recipe.sharpness) else (recipe.sharpness * s).exp().log1p() / recipe.sharpness
    z = x @ network[-1].weight.T + (0 if network[-1].bias is None else network[-1].bias)
    return LOSSES[recipe.loss].value(z, labels).mean() + recipe.weight_decay / 2 * layers.flatten(network).square().sum()


RECIPES = {
    "affine": networks.affine(MU),
    "one hidden": networks.one_hidden(6, MU),
    "signed": networks.perceptron("signed", 8, 7)._replace(epochs=200),
    "margin": networks.perceptron("margin", 8)._replace(epochs=200),
    "multiclass": networks.perceptron("multiclass", 8, 7)._replace(epochs=200),
}


@pytest.mark.parametrize("name", RECIPES)
def test_what_is_said_of_a_victim_is_true(small, name):
    x, y, _ = small
    recipe = RECIPES[name]
    labels = torch.arange(12).to(y) % 3 if name == "multiclass" else y
    victim = victims.train(images.Part(x, labels), recipe, 1)
    seen = x - victim.mean
    assert torch.equal(victim.mean, x.mean(0) * recipe.centred) and torch.equal(victim.released.labels, labels)
    network = layers.change(victim.released.network, lambda p: p.clone().requires_grad_())
    energy = plain_energy(network, seen, labels, recipe)
    weights = [p for layer in network for p in layer if p is not None]
    norm = torch.cat([g.flatten() for g in torch.autograd.grad(energy, weights)]).norm().item()
    assert victim.gradient_norm == pytest.approx(norm, rel=1e-5, abs=1e-8)
    decay = recipe.weight_decay / 2 * layers.flatten(network).square().sum().item()
    assert victim.loss == pytest.approx(energy.item() - decay, abs=1e-9)
    if name in ("affine", "one hidden"):
        assert victim.gradient_norm <= 1e-9 and victim.accuracy == 1


def test_descent_starts_where_it_is_told(small):
    x, y, _ = small
    recipe = RECIPES["margin"]
    part, theta0 = images.Part(x, y), networks.initial(recipe, 30, 5)
    drawn, given = victims.train(part, recipe, 5), victims.train(part, recipe, 0, theta0)
    assert torch.equal(layers.flatten(drawn.released.network), layers.flatten(given.released.network))
    still = victims.train(part, recipe._replace(epochs=0), 5)
    assert torch.allclose(layers.flatten(still.released.network), layers.flatten(theta0), atol=1e-14)


def test_descent_never_raises_the_energy_and_its_rate_grows():
    seen = []

    def objective(theta):  # a valley along the first axis, steep along the second
        seen.append(theta)
        return (theta * theta * torch.tensor([1.0, 50.0])).sum() / 2, theta * torch.tensor([1.0, 50.0])

    recipe = networks.perceptron("margin")._replace(learning_rate=0.01, growth=1.1, epochs=3)
    theta = victims.descend(objective, torch.tensor([1.0, 0.0]), recipe)
    rates = [(a - b)[0] / a[0] for a, b in zip(seen, seen[1:])]
    assert torch.allclose(torch.stack(rates), torch.tensor([0.01, 0.011, 0.0121])) and torch.equal(theta, seen[-1])
    bold = recipe._replace(learning_rate=1.0, epochs=40)
    values = [objective(victims.descend(objective, torch.tensor([1.0, 1.0]), bold._replace(epochs=k)))[0] for k in range(40)]
    assert all(after <= before for before, after in zip(values, values[1:])) and values[-1] < 1e-2 * values[0]


@pytest.mark.parametrize(
    "recipe, sentence",
    [
        (networks.affine(0.0), "WEIGHT_DECAY is 0.0; without a positive one"),
        (networks.one_hidden(3, MU, -1.0), "SHARPNESS is -1.0"),
        (networks.one_hidden(3, MU)._replace(hidden=(3, 3)), "one hidden layer"),
        (networks.affine(MU)._replace(loss="hinge"), "loss is 'hinge', but it must be one of"),
    ],
)
def test_recipes_that_cannot_be_followed(small, recipe, sentence):
    with pytest.raises(InputError, match=sentence):
        victims.train(images.Part(*small[:2]), recipe)


def test_names_of_recipes_and_labels_are_checked(small):
    x, y, _ = small
    with pytest.raises(InputError, match="THETA_START is 'zeros', but it must be one of 'uniform', 'standard'"):
        networks.one_hidden(3, MU, start="zeros")
    with pytest.raises(InputError, match="RULE is 'best'"):
        networks.perceptron("best", 3)
    with pytest.raises(InputError, match="needs labels 0 and 1, but they reach from 1.0 to 2.0"):
        victims.train(images.Part(x, y + 1), networks.affine(MU))


def test_starts_are_what_their_names_say():
    uniform = networks.vector(networks.initial(networks.affine(MU, "uniform"), 999, 0))
    standard = networks.vector(networks.initial(networks.affine(MU, "standard"), 999, 0))
    assert 0 <= uniform.min() and uniform.max() <= 1 and torch.allclose(standard, (2 * uniform - 1) / 999**0.5)
    first, second = networks.initial(networks.perceptron("signed", 500), 400, 0)
    assert first.weight.std() == pytest.approx(1e-4, rel=0.02) and first.bias.std() == pytest.approx(1e-4, rel=0.1)
    assert second.bias is None and second.weight.abs().max() <= 500**-0.5 and second.weight.std() > 0.5 * 500**-0.5


def test_results_are_kept_under_all_that_they_depend_on(small, tmp_path, monkeypatch):
    monkeypatch.setattr(kept, "FOLDER", tmp_path)
    monkeypatch.setattr(kept, "SECONDS", 0.0)
    calls = []

    @kept.kept
    def slow(x, scale=1.0, progress=False, watch=None):
        calls.append(scale)
        return x * scale

    x = small[0]
    for arguments, named in (((x,), {}), ((x, 1.0), {"progress": True}), ((x.clone(),), {"scale": 1.0})):
        assert torch.equal(slow(*arguments, **named), x)
    assert calls == [1.0] and len(list(tmp_path.iterdir())) == 1
    slow(x, 2.0), slow(x + 1e-12), slow(x[:1]), slow(x.float())
    assert len(calls) == 5
    slow(x, watch=print)
    assert len(calls) == 6
    for path in tmp_path.iterdir():
        path.write_bytes(b"torn")
    assert torch.equal(slow(x), x) and len(calls) == 7
    monkeypatch.setattr(kept.source, "function_fingerprint", lambda function: "other code")
    slow(x)
    assert len(calls) == 8
