"""Weights that others published: read into our layers, and measured like our own."""

import re

import pytest
import torch

from audit import weights
from utils import images, networks
from utils.attacks import bilevel, decoreco
from utils.attacks.contract import Released
from utils.errors import InputError
from utils.kernels import layers
from utils.training import stationary

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
    ours = stationary.published(weights.read(path, SHAPE).layers, secret, recipe)
    assert ours.released.recipe == recipe._replace(hidden=(7, 6), biases=True, stages=0)
    still = ours.released.recipe._replace(epochs=0, dtype=torch.float64)  # a training that ends where it starts
    theirs = stationary.train(secret, still, start=ours.released.network)
    assert torch.equal(ours.mean, theirs.mean)
    assert torch.equal(ours.released.labels, secret.labels)
    assert [ours.loss, ours.gradient_norm] == pytest.approx([theirs.loss, theirs.gradient_norm], rel=1e-9)
    found = decoreco.attack(ours.released, secret.images - ours.mean, rule=rule, labels=secret.labels, iterations=2)
    assert found.images.shape == (12, 60)


def test_a_published_network_can_be_attacked_like_a_relu_network_whatever_the_recipe_says(tmp_path):
    path = saved(tmp_path / "weights.pth", perceptron((60, 7, 1), (True, True)))
    secret = images.Part(pictures()[1], LABELS["signed"].double())
    network = weights.read(path, SHAPE).layers
    recipe = stationary.published(network, secret, networks.one_hidden(99, 0.1)).released.recipe
    assert recipe.hidden == (7,) and recipe.sharpness == float("inf") and recipe.weight_decay == 0.1


@pytest.mark.parametrize(
    "outputs, rule, labels, sentence",
    [
        (2, "signed", "signed", "has K = 2 outputs, but these labels and the square loss need K = 1"),
        (1, "multiclass", "multiclass", "has K = 1 outputs, but these labels and the cross_entropy loss need K = 3"),
        (1, "margin", "multiclass", "The logistic loss needs labels 0 and 1, but they reach from 0.0 to 2.0"),
    ],
)
def test_labels_and_recipe_must_fit_to_the_outputs(tmp_path, outputs, rule, labels, sentence):
    path = saved(tmp_path / "weights.pth", perceptron((60, 7, outputs), (True, False)))
    secret = images.Part(pictures()[1], LABELS[labels].double())
    with pytest.raises(InputError, match=re.escape(sentence)):
        stationary.published(weights.read(path, SHAPE).layers, secret, networks.perceptron(rule))


@pytest.mark.parametrize("attack", [bilevel.attack, decoreco.attack])
def test_attacks_refuse_layers_that_do_not_follow_each_other(attack):
    recipe = networks.one_hidden(7, 0.1) if attack is bilevel.attack else networks.perceptron("signed", 7)
    labels, start = torch.tensor([0.0, 1.0]), torch.rand(2, 60).double()
    first, last = networks.initial(recipe._replace(biases=True), 60, 0)
    for wrong in ((first, layers.Layer(last.weight[:, 1:], last.bias)), (first._replace(bias=first.bias[1:]), last)):
        with pytest.raises(InputError, match="they do not follow each other: take those of one network"):
            attack(Released(wrong, labels, recipe), start)
