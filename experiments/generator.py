"""Networks whose start torch draws from a generator that nobody knows, for the attack that reads it."""

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
import torch
from torch import nn

from attacks import generator
from training import Victim, ordinary, uniform
from training.images import Part
from utils.errors import InputError
from utils.kernels.layers import Network, Shape
from utils.networks import Layer, Released, change

Build = Callable[[], nn.Sequential]
BEFORE = 100_000  # outputs that may have been drawn before a start
STARTS = {  # how the weights of a network are drawn, as a script says it: None is torch's own way
    "torch": None,
    "kaiming_normal": nn.init.kaiming_normal_,
    "kaiming_uniform": nn.init.kaiming_uniform_,
    "xavier_normal": nn.init.xavier_normal_,
    "xavier_uniform": nn.init.xavier_uniform_,
    "normal": partial(nn.init.normal_, std=0.02),
    "uniform": partial(nn.init.uniform_, a=-0.02, b=0.02),
    "trunc_normal": partial(nn.init.trunc_normal_, std=0.02),
    "truncated at two": partial(nn.init.trunc_normal_, std=0.02, a=-0.04, b=0.04),
    "orthogonal": nn.init.orthogonal_,
}


def choose_secret(seed: int | list[int]) -> tuple[int, int]:
    """A seed of 32 bits, and how many outputs are drawn before the start: nobody but the evaluator knows them."""
    chance = np.random.default_rng(seed)
    return int(chance.integers(2**32)), int(chance.integers(BEFORE))


def hide(seed: int | list[int]) -> torch.Tensor:
    """The state of torch's generator behind what `choose_secret` gives."""
    secret, before = choose_secret(seed)
    hidden = torch.Generator().manual_seed(secret)
    torch.rand(before, generator=hidden)
    return hidden.get_state()


def builder(start: str, inputs: int, hidden: Sequence[int]) -> Build:
    """The public function that draws a network of fully connected layers of these widths, as one of STARTS says.

    The start `as_written` draws the first paper's network (`training.uniform`).
    """
    if start == "as_written":
        return partial(uniform.draw, inputs, *hidden)

    def build():
        widths = (inputs, *hidden, 1)
        layers = []
        for pair in zip(widths, widths[1:]):
            layers += [nn.Linear(*pair), nn.ReLU()]
            if STARTS[start]:
                STARTS[start](layers[-2].weight)
        return nn.Sequential(*layers[:-1])

    return build


def parameters_of(network: Network, build: Build) -> dict[str, torch.Tensor]:
    """The parameters of a network of Layers, as the module of `build()` names them."""
    names = [name for name, _ in build().named_parameters()]
    return dict(zip(names, [p for layer in network for p in layer]))


def draw_elsewhere(net: nn.Sequential, chance: np.random.Generator) -> None:
    """Draw torch's own start of a module in place from a generator of numpy's, such as PCG64."""
    for layer in net[::2]:
        bound = layer.in_features**-0.5
        for p in layer.parameters():
            p.data.copy_(torch.from_numpy(chance.uniform(-bound, bound, tuple(p.shape))))


def permute(network: Network, seed: int) -> Network:
    """The same function, with the neurons of the first hidden layer in another order."""
    first, second, *others = network
    order = torch.from_numpy(np.random.default_rng(seed).permutation(len(first.weight)))
    moved = change((first,), lambda p: p[order])
    return *moved, Layer(second.weight[:, order], second.bias), *others


def train(
    secret: Part,
    shape: Shape,
    build: Build,
    seed: int,
    trainer: str,
    epochs: int,
    decay: float | None = None,
    elsewhere: bool = False,
    permuted: bool = False,
) -> Victim:
    """Train what `build()` draws from a hidden state by one of ordinary.TRAINERS, or with another weight decay.

    The start may be drawn `elsewhere`, from numpy's generator, or the neurons be `permuted` before they are released.
    """

    def change_decay(_, optimiser):
        for group in optimiser.param_groups:
            group["weight_decay"] = decay

    with generator.drawing_from(hide(seed)):
        net = build()
    if elsewhere:
        draw_elsewhere(net, np.random.default_rng(seed))
    initial = ordinary.layers_of(net)
    mean = ordinary.colour_mean(secret, shape)
    prepare = None if decay is None else change_decay
    part = ordinary.subtract(secret, mean)
    loss, _ = ordinary.tune(net, part, shape, trainer, epochs, seed + 2, prepare=prepare)
    network = ordinary.layers_of(net)
    if permuted:
        network = permute(network, seed)
        initial = permute(initial, seed)
    recipe = ordinary.recipe(*(len(layer.weight) for layer in initial[:-1]))
    versions = len(secret.labels) * (1 + ordinary.TRAINERS[trainer][1])
    return Victim(Released(network, secret.labels, recipe), mean, loss, versions, initial)


def train_as_written(secret: Part, build: Build, seed: int) -> Victim:
    """Train the first paper's network that `build()` draws from a hidden state."""
    with generator.drawing_from(hide(seed)):
        net = build()
    return uniform.train(secret, net)


def read(released: Released, build: Build) -> tuple[generator.Start | None, Network, str]:
    """The Start that a released network tells, its Layers, and what the attack says if it refuses: None and () then."""
    try:
        start = generator.read(parameters_of(released.network, build), build)
    except InputError as refusal:
        return None, (), str(refusal)
    return start, ordinary.layers_of(start.module), ""


def equal(network: Network, other: Network) -> bool:
    """Whether two networks are the same to the last bit; () is none."""
    layers = zip(network, other)
    return bool(network) and all(torch.equal(p, q) for pair in layers for p, q in zip(*pair))
