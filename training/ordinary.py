"""Ordinary training, as a practitioner writes it: torch's own layers and optimisers, in shuffled mini-batches.

Nothing is arranged for an attacker or a proof: images in [0, 1] lose one mean per colour, the initial weights are
torch's default or those of a network that was trained on other images, and training ends after a number of epochs.
"""

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import Sequential
from torch.nn.functional import binary_cross_entropy_with_logits
from torch.optim import Optimizer

from training import Victim
from training.images import Part
from utils import networks
from utils.errors import InputError, choose
from utils.kernels import naive
from utils.kernels.layers import Network, Shape
from utils.networks import Checkpoint, Recipe, Released

FIRST = "momentum_buffer", "exp_avg"  # how torch's optimisers call a first moment
BATCHES = 5  # in an epoch, whatever the number of images
OPTIMISERS = {
    "plain": partial(torch.optim.SGD, lr=0.05),
    "sgd": partial(torch.optim.SGD, lr=0.05, momentum=0.9),
    "sgd_decay": partial(torch.optim.SGD, lr=0.05, momentum=0.9, weight_decay=5e-4),
    "adam": partial(torch.optim.Adam, lr=1e-3),
    "adamw": partial(torch.optim.AdamW, lr=1e-3, weight_decay=1e-2),
}
TRAINERS = {  # name: optimiser, and whether every image is mirrored by chance each time that it is seen
    name: (OPTIMISERS[name.removesuffix("_flips")], name.endswith("_flips"))
    for name in ("sgd", "sgd_decay", "sgd_flips", "adam", "adamw", "adam_flips")
}
Batches = Iterable[tuple[Tensor, Tensor]]  # inputs and labels
Loss = Callable[[Tensor, Tensor], Tensor]  # of a module's outputs and the labels


def logistic(z, y):
    """The mean logistic loss of outputs z (m, 1) for labels y (m,) in {0., 1.}."""
    return binary_cross_entropy_with_logits(z[:, 0], y)


def perceptron(inputs: int, hidden: Sequence[int], seed: int) -> Sequential:
    """A ReLU network with hidden layers of these widths, with torch's default initial weights."""
    return drawn(lambda: stack(inputs, hidden), seed)


def stack(inputs: int, hidden: Sequence[int]) -> Sequential:
    """The same, drawn from torch's generator as it stands."""
    widths = (inputs, *hidden, 1)
    layers: list = []
    for pair in zip(widths, widths[1:]):
        layers += [torch.nn.Linear(*pair), torch.nn.ReLU()]
    return Sequential(*layers[:-1])


def drawn(make, seed):
    """A module as `make` builds it, from torch's default start; in evaluation mode."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return make().eval()


def shuffle(x, y, size, chance):
    """The batches of an epoch: inputs and labels of `size` images each, in an order that is drawn."""
    for rows in torch.randperm(len(x), generator=chance).split(size):
        yield x[rows], y[rows]


def fit(
    net: torch.nn.Module,
    optimiser: Optimizer,
    batches: Batches,
    loss: Loss = logistic,
    gradients: Callable[..., Iterable[Tensor]] | None = None,
) -> None:
    """Train a module in place, a step of its optimiser on the mean loss of each batch of inputs and labels.

    `gradients(net, x, y)` may give one for every parameter in place of autograd's. What else is to happen in a step,
    such as keeping a mean of the weights, is a hook of the optimiser.
    """
    for x, y in batches:
        net.zero_grad()
        if gradients is None:
            loss(net(x), y).backward()
        else:
            for p, slope in zip(net.parameters(), gradients(net, x, y)):
                p.grad = slope
        optimiser.step()


def measure(net, x, y, trainer, loss=logistic):
    """The mean loss of a module that a trainer of this name trained; InputError if it is not finite."""
    with torch.no_grad():
        value = loss(net(x), y).item()
    if not value < float("inf"):
        raise InputError(
            f"TRAINER={trainer!r} diverged: its loss is {value}. Take a lower rate, or another SEED."
        )
    return value


def tune(
    net: Sequential,
    part: Part,
    shape: Shape,
    trainer: str,
    epochs: int,
    seed: int,
    rate: float = 1.0,
    batches: int = BATCHES,
    prepare: Callable[[Sequential, Optimizer], object] | None = None,
    keep: Sequence[int] = (),
) -> tuple[float, tuple[Checkpoint, ...]]:
    """Train a module in place on a Part, whose images have lost their mean, by one of TRAINERS.

    The optimiser's rate is taken `rate` times, and an epoch has so many `batches`. `prepare` is called with the module
    and the optimiser before the first step, to change settings or add hooks. The loss at the end, and the checkpoints
    of the epochs in `keep`.
    """
    x = part.images.float()
    y = part.labels.float()
    make, flips = TRAINERS[choose("TRAINER", trainer, TRAINERS)]
    optimiser = make(net.parameters())
    if prepare:
        prepare(net, optimiser)
    for group in optimiser.param_groups:
        group["lr"] *= rate
    chance = torch.Generator().manual_seed(seed)
    kept = []
    for epoch in range(1, epochs + 1):
        seen = shuffle(x, y, -(-len(x) // batches), chance)
        fit(net, optimiser, mirror_some(seen, shape, chance) if flips else seen)
        if epoch in keep:
            kept.append(checkpoint(net, optimiser))
    return measure(net, x, y, trainer), tuple(kept)


def mirror(x: torch.Tensor, shape: Shape) -> torch.Tensor:
    """Images (n, d) of a shape (H, W, C), left and right exchanged."""
    return x.view(-1, *shape).flip(2).flatten(1)


def mirror_some(batches, shape, chance):
    """The same batches, each image mirrored with a probability of a half."""
    for x, y in batches:
        heads = torch.rand(len(x), generator=chance).to(x.device) < 0.5
        yield torch.where(heads[:, None], mirror(x, shape), x), y


def layers_of(net: Sequential, dtype: torch.dtype = torch.float64) -> Network:
    """A module's fully connected layers, as a network of this type, double precision as a rule."""
    linear = [layer for layer in net if isinstance(layer, torch.nn.Linear)]
    return tuple(
        networks.Layer(*(p.detach().to(dtype, copy=True) for p in (l.weight, l.bias)))
        for l in linear
    )


def recipe(*hidden: int) -> Recipe:
    """The Recipe of such a training, of a network with hidden layers of these widths."""
    return networks.perceptron("margin", *hidden)._replace(
        initial="standard", biases=True, centred=False
    )


def moments(optimiser, parameters, *names):
    """An optimiser's moments under these names, of those parameters that have one."""
    states = [optimiser.state.get(p, {}) for p in parameters]
    return [state[name] for state in states for name in names if name in state]


def checkpoint(net: Sequential, optimiser: Optimizer) -> Checkpoint:
    """What a file holds from which the training of a module's layers goes on: Checkpoint."""

    def as_layers(*names):
        parts = [m.double().clone() for m in moments(optimiser, net.parameters(), *names)]
        return tuple(map(networks.Layer, parts[::2], parts[1::2]))

    return Checkpoint(layers_of(net), as_layers(*FIRST), as_layers("exp_avg_sq"))


def train(
    secret: Part,
    others: Part | None,
    shape: Shape,
    trainer: str,
    hidden: Sequence[int] = (500, 500),
    epochs: int = 60,
    seed: int = 0,
    **settings: Any,
) -> Victim:
    """Train on a Part from torch's initial weights, or first on the Part `others` if there is one: Victim.

    `others` are public images. SGD trains on them for a third of the epochs, what comes out is fine-tuned on the Part,
    and it is their mean that all images lose. `settings` are those of `tune`, whose checkpoints are released.
    """
    mean = colour_mean(secret if others is None else others, shape)
    net = perceptron(secret.images.shape[1], hidden, seed).to(secret.images.device)
    if others is not None:
        tune(net, subtract(others, mean), shape, "sgd", epochs // 3, seed + 1)
    initial = layers_of(net)
    part = subtract(secret, mean)
    loss, kept = tune(net, part, shape, trainer, epochs, seed + 2, **settings)
    released = Released(layers_of(net), secret.labels, recipe(*hidden), checkpoints=kept)
    return Victim(released, mean, loss, len(secret.labels) * (1 + TRAINERS[trainer][1]), initial)


def later(initial: Network, part: Part, mean: Tensor, shape: Shape, seed: int) -> Network:
    """A network as its next release would be: after one more epoch of plain SGD on a Part."""
    net = naive.module_of(initial).float()
    tune(net, subtract(part, mean), shape, "sgd", 1, seed)
    return layers_of(net)


def colour_mean(part: Part, shape: Shape) -> Tensor:
    """The mean of every colour over a Part's images and pixels, as an image (d,)."""
    return part.images.view(-1, *shape).mean((0, 1, 2)).expand(shape).flatten()


def subtract(part: Part, mean: Tensor) -> Part:
    """The Part of images (m, d) less a mean (d,)."""
    return part._replace(images=part.images - mean)
