"""Ordinary training, as a practitioner writes it: torch's own layers and optimisers, in shuffled mini-batches.

Nothing is arranged for an attacker or a proof: images in [0, 1] lose one mean per colour, the initial weights are
torch's default or those of a network that was trained on other images, and training ends after a number of epochs.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch.nn.functional import binary_cross_entropy_with_logits

from training import Victim
from training.images import Part
from utils import networks
from utils.errors import InputError, choose
from utils.kernels import naive
from utils.kernels.layers import Network, Shape
from utils.networks import Checkpoint, Recipe, Released

BATCHES = 5  # in an epoch, whatever the number of images
SGD = partial(torch.optim.SGD, lr=0.05, momentum=0.9)
ADAM = partial(torch.optim.Adam, lr=1e-3)
TRAINERS = {  # name: optimiser, and whether every image is mirrored by chance each time that it is seen
    "sgd": (SGD, False),
    "sgd_decay": (partial(SGD, weight_decay=5e-4), False),
    "sgd_flips": (SGD, True),
    "adam": (ADAM, False),
    "adamw": (partial(torch.optim.AdamW, lr=1e-3, weight_decay=1e-2), False),
    "adam_flips": (ADAM, True),
}


def perceptron(inputs: int, hidden: Sequence[int], seed: int) -> torch.nn.Sequential:
    """A ReLU network with hidden layers of these widths, with torch's default initial weights."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        widths = (inputs, *hidden)
        layers = []
        for pair in zip(widths, widths[1:]):
            layers += [torch.nn.Linear(*pair), torch.nn.ReLU()]
        return torch.nn.Sequential(*layers, torch.nn.Linear(widths[-1], 1))


def fit(
    net: torch.nn.Sequential, part: Part, mean: torch.Tensor, shape: Shape, trainer: str, epochs: int, seed: int,
    rate: float = 1.0, batches: int = BATCHES, last: bool = False,
    prepare: Callable[[torch.nn.Sequential, torch.optim.Optimizer], object] | None = None,
    each: Callable[[int, torch.nn.Sequential, torch.optim.Optimizer], object] | None = None,
) -> float:  # fmt: skip
    """Train a module in place on a Part's images minus a mean (d,) by one of TRAINERS: its loss at the end.

    The optimiser's rate is taken `rate` times, an epoch has so many `batches`, and `last` trains the last layer alone.
    `prepare` is called with the module and the optimiser before the first step, to change settings or add hooks, and
    `each` with the number of every epoch and these two, behind it.
    """
    x = (part.images - mean).float()
    y = part.labels.float()
    optimiser, flips = TRAINERS[choose("TRAINER", trainer, TRAINERS)]
    optimiser = optimiser((net[-1] if last else net).parameters())
    chance = torch.Generator().manual_seed(seed)
    if prepare:
        prepare(net, optimiser)
    for group in optimiser.param_groups:
        group["lr"] *= rate
    for epoch in range(epochs):
        for rows in torch.randperm(len(x), generator=chance).chunk(batches):
            inputs = x[rows]
            if flips:
                heads = torch.rand(len(rows), generator=chance).to(x.device) < 0.5
                inputs = torch.where(heads[:, None], mirror(inputs, shape), inputs)
            optimiser.zero_grad()
            binary_cross_entropy_with_logits(net(inputs)[:, 0], y[rows]).backward()
            optimiser.step()
        if each:
            each(epoch + 1, net, optimiser)
    loss = binary_cross_entropy_with_logits(net(x)[:, 0], y).item()
    if not loss < float("inf"):
        raise InputError(
            f"TRAINER={trainer!r} diverged: its loss is {loss}. Try another SEED or a lower rate."
        )
    return loss


def mirror(x: torch.Tensor, shape: Shape) -> torch.Tensor:
    """Images (n, d) of a shape (H, W, C), left and right exchanged."""
    return x.view(-1, *shape).flip(2).flatten(1)


def layers_of(net: torch.nn.Sequential) -> Network:
    """A module's fully connected layers, as a network in double precision."""
    linear = [layer for layer in net if isinstance(layer, torch.nn.Linear)]
    return tuple(
        networks.Layer(*(p.detach().double().clone() for p in (l.weight, l.bias))) for l in linear
    )


def recipe(*hidden: int) -> Recipe:
    """The Recipe of such a training, of a network with hidden layers of these widths."""
    return networks.perceptron("margin", *hidden)._replace(
        initial="standard", biases=True, centred=False
    )


def checkpoint(net: torch.nn.Sequential, optimiser: torch.optim.Optimizer) -> Checkpoint:
    """What a file holds from which the training of a module's layers goes on: Checkpoint."""
    states = [optimiser.state.get(p, {}) for p in net.parameters()]

    def moment(*names):
        there = [
            state[name].double().clone() for state in states for name in names if name in state
        ]
        return tuple(map(networks.Layer, there[::2], there[1::2]))

    return Checkpoint(layers_of(net), moment("momentum_buffer", "exp_avg"), moment("exp_avg_sq"))


def train(
    secret: Part, others: Part | None, shape: Shape, trainer: str, hidden: Sequence[int] = (500, 500),
    epochs: int = 60, seed: int = 0, keep: Sequence[int] = (), **settings: Any,
) -> Victim:  # fmt: skip
    """Train on a Part from torch's initial weights, or first on the Part `others` if there is one: Victim.

    `others` are public images. SGD trains on them for a third of the epochs, what comes out is fine-tuned on the Part,
    and it is their mean that all images lose. Checkpoints are released of the epochs in `keep`. `settings` are those of
    `fit`.
    """
    device = secret.images.device
    mean = colour_mean(secret if others is None else others, shape)
    net = perceptron(secret.images.shape[1], hidden, seed).to(device)
    if others is not None:
        fit(net, others, mean, shape, "sgd", epochs // 3, seed + 1)
    initial = layers_of(net)
    kept: list = []

    def each(epoch, *trained):
        if epoch in keep:
            kept.append(checkpoint(*trained))

    loss = fit(net, secret, mean, shape, trainer, epochs, seed + 2, each=each, **settings)
    released = Released(layers_of(net), secret.labels, recipe(*hidden), checkpoints=tuple(kept))
    return Victim(released, mean, loss, len(secret.labels) * (1 + TRAINERS[trainer][1]), initial)


def later(initial: Network, part: Part, mean: torch.Tensor, shape: Shape, seed: int) -> Network:
    """A network as its next release would be: after one more epoch of plain SGD on a Part."""
    net = naive.module_of(initial).float()
    fit(net, part, mean, shape, "sgd", 1, seed)
    return layers_of(net)


def colour_mean(part: Part, shape: Shape) -> torch.Tensor:
    """The mean of every colour over a Part's images and pixels, as an image (d,)."""
    return part.images.view(-1, *shape).mean((0, 1, 2)).expand(shape).flatten()
