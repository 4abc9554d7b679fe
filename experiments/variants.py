"""Variants of one training: optimisers, losses, starts, augmentation, defences; every step is that of torch.

The optimiser moves A and c of `kernels.layers`, for a basis Q of all versions of the images, which is much faster
than moving W₁. Adam scales every pixel by itself, so Q is the identity there.
"""

import itertools
import math
from functools import partial
from typing import NamedTuple

import torch
from torch.func import functional_call, grad, vmap
from torch.nn.functional import cross_entropy, mse_loss

from training import Victim, stationary
from training.ordinary import fit, layers_of, logistic, mirror
from utils import networks
from utils.errors import InputError, choose
from utils.kernels import layers, losses, naive
from utils.networks import Released

LOSSES = {
    "square": lambda z, y: mse_loss(z[:, 0], 2 * y - 1) / 2,
    "logistic": logistic,
    "cross_entropy": lambda z, y: cross_entropy(z, y.long()),
}
# The rule that an attacker takes.
RULE_OF_LOSS = {"square": "signed", "logistic": "margin", "cross_entropy": "multiclass"}


class Settings(NamedTuple):
    """How a victim is trained, and what is changed before its weights are released."""

    layers: int = 2  # 2 or 3, of weights
    neurons: int = 500  # of each hidden layer
    loss: str = "square"  # one of LOSSES
    decay: float = 7.5e-4  # μ
    initial: str | float = 1e-4  # θ⁰, as in networks.Recipe
    optimiser: str = "SGD"  # SGD, Adam or AdamW of torch
    rate: float = 0.1
    momentum: float = 0.9
    steps: int = 8000
    batch: int = 0  # images in a step; 0 is all
    augment: str = "none"  # none, flips or shifts
    centred: bool = True  # whether the trainer subtracts the mean of the images
    biases: bool = True  # whether the first layer has biases
    clip: float = 0.0  # largest length of an image's gradient; 0 is none
    private: float = 0.0  # noise in the gradients, in units of `clip`
    frozen: bool = False  # whether the first layer stays as it was drawn
    noise: float = 0.0  # on the released weights, in units of their root mean square
    bits: int = 0  # of a released weight; 0 is all
    pruned: float = 0.0  # share of the released weights that is set to zero
    polished: bool = False  # by `stationary.train` to a stationary point instead


PRIVATE = {"clip": 1.0, "momentum": 0.0, "rate": 0.5, "steps": 300}
SLOW = {"rate": 0.01, "momentum": 0.98, "steps": 12000}
VICTIMS: dict[str, dict] = {
    "base": {},
    "polished": {"polished": True},
    "polished, three layers": {"polished": True, "layers": 3},
    "three layers": {"layers": 3},
    "100 neurons": {"neurons": 100},
    "40 neurons": {"neurons": 40},
    "logistic loss": {"loss": "logistic"},
    "ten classes": {"loss": "cross_entropy"},
    "no first bias": {"biases": False},
    "mean kept": {"centred": False, "initial": 1e-3} | SLOW,
    "no momentum": {"momentum": 0.0, "rate": 0.1, "steps": 40000},
    "batches of 10": {"batch": 10, "rate": 0.03, "steps": 15000},
    "no decay": {"decay": 0.0},
    "ten times the decay": {"decay": 7.5e-3, "steps": 2000},
    "a tenth of the steps": {"steps": 800},
    "a hundredth of the steps": {"steps": 80},
    "start 1e-2": {"initial": 1e-2},
    "standard start": {"initial": "standard"},
    "standard start, few steps": {"initial": "standard", "steps": 800},
    "standard start, no decay": {"initial": "standard", "decay": 0.0},
    "Adam": {"optimiser": "Adam", "rate": 1e-4, "steps": 1500},
    "AdamW": {"optimiser": "AdamW", "rate": 1e-4, "steps": 1500, "decay": 1.0},
    "flips": {"augment": "flips", "rate": 0.05},
    "shifts": {"augment": "shifts", "rate": 0.05},
    "half precision": {"bits": 16},
    "noise of 10 %": {"noise": 0.1},
    "noise of 100 %": {"noise": 1.0},
    "8 bits": {"bits": 8},
    "4 bits": {"bits": 4},
    "half of the weights": {"pruned": 0.5},
    "a tenth of the weights": {"pruned": 0.9},
    "frozen first layer": {"frozen": True, "initial": "standard"},
    "clipped": PRIVATE,
    "private, noise 1": {**PRIVATE, "private": 1.0},
    "private, noise 0.1": {**PRIVATE, "private": 0.1},
}  # the settings in which each victim differs from the first one
WORDS = {  # a setting in words; below, one that is 0 or none
    "layers": "{} layers of weights",
    "neurons": "{} neurons",
    "loss": "{} loss",
    "decay": "weight decay {:g}",
    "initial": "first weights: {}",
    "optimiser": "{}",
    "rate": "rate {:g}",
    "momentum": "momentum {:g}",
    "steps": "{:,} steps",
    "batch": "{} images in a step",
    "augment": "with {}",
    "centred": "mean subtracted",
    "biases": "with biases",
    "clip": "gradients clipped to length {:g}",
    "private": "noise of {:g} times this length",
    "frozen": "first layer never trained",
    "noise": "noise of {:.0%} on the weights",
    "bits": "{} bits for a weight",
    "pruned": "{:.0%} of the weights set to zero",
    "polished": "polished",
}
WITHOUT = {
    "batch": "all images in every step",
    "decay": "no weight decay",
    "momentum": "no momentum",
    "centred": "mean kept",
    "biases": "no biases in the first layer",
}


def settings(name, neurons):
    """The Settings of a victim in VICTIMS, with so many neurons unless the victim has its own number."""
    return Settings(neurons=neurons)._replace(**VICTIMS[choose("VICTIM", name, VICTIMS)])


def in_words(changes):
    """Settings {name: value} in one line, such as weight decay 0.0075, 2,000 steps."""
    words = (
        WITHOUT.get(k, "") if v in (0, "none") else WORDS[k].format(v) for k, v in changes.items()
    )
    return ", ".join(filter(None, words)).replace("cross_entropy", "cross-entropy")


def versions(x, shape, augment):
    """The images (m, d) in all versions that augmentation makes of them: (k, m, d)."""
    pictures = x.view(-1, *shape)
    moves = itertools.product((-2, 0, 2), repeat=2) if augment == "shifts" else []
    shifted = [pictures.roll(move, (1, 2)).flatten(1) for move in moves]
    return torch.stack(shifted or ([x, mirror(x, shape)] if augment == "flips" else [x]))


def private_gradients(net, x, y, o, noise):
    """∂ℓ/∂θ of each image clipped to length C, with normal noise of deviation σC on their sum, and averaged."""
    names, parameters = zip(*net.named_parameters())

    def of_one(values, image, label):
        return LOSSES[o.loss](
            functional_call(net, dict(zip(names, values)), image[None]), label[None]
        )

    each = vmap(grad(of_one), (None, 0, 0))(parameters, x, y)
    lengths = sum(part.flatten(1).square().sum(1) for part in each).sqrt()
    factors = (o.clip / lengths).clamp(max=1)
    totals = [torch.einsum("m,m...->...", factors, part) for part in each]
    drawn = [torch.randn(t.shape, generator=noise).to(t) for t in totals]
    return [(t + o.private * o.clip * d) / len(x) for t, d in zip(totals, drawn)]


def epsilon(o, delta=1e-5):
    """ε of (ε, δ)-differential privacy of a private trainer, by Rényi's divergence; infinite without noise."""
    if not o.private:
        return math.inf
    return o.steps / (2 * o.private**2) + (2 * o.steps * math.log(1 / delta)) ** 0.5 / o.private


def initialise(x, outputs, o, seed):
    """A module of θ⁰ with W₁ in the basis Q; Q (d, r) of versions x (k, m, d); and N (h, d)."""
    drawn = networks.Recipe((o.neurons,) * (o.layers - 1), "square", 0.0, initial=o.initial)
    (first, bias), *upper = networks.initial(drawn, x.shape[-1], seed, outputs, x.device)
    every_pixel = torch.eye(x.shape[-1]).to(x)
    basis = networks.span_of(x.flatten(0, 1)) if o.optimiser == "SGD" else every_pixel
    inside, orthogonal = layers.split(first, basis)
    inner = networks.Layer(inside, bias * o.biases), *upper
    return naive.module_of(inner).float(), basis, orthogonal


def optimiser_of(o, net, factors):
    """The optimiser of a module and of c, what is left of N, which no image touches: it decays alone."""
    first, bias, *upper = net.parameters()
    moved = upper if o.frozen else [first, *[bias] * o.biases, *upper, factors]
    factors.grad = torch.zeros_like(factors)
    momentum = {"momentum": o.momentum} if o.optimiser == "SGD" else {}
    return getattr(torch.optim, o.optimiser)(moved, lr=o.rate, weight_decay=o.decay, **momentum)


def train_in_coordinates(x, y, outputs, o, seed):
    """Train as the Settings o say: the network, from versions x (k, m, d) and labels y (m,)."""
    net, basis, orthogonal = initialise(x, outputs, o, seed)
    factor = torch.ones((), device=x.device)
    chance = torch.Generator().manual_seed(seed)
    coordinates = (x @ basis).float()
    y = y.float()

    def batches():
        for _ in range(o.steps):
            rows = torch.randperm(len(y), generator=chance)[: o.batch or len(y)]
            which = torch.randint(len(coordinates), rows.shape, generator=chance)
            yield coordinates[which, rows], y[rows]

    gradients = partial(private_gradients, o=o, noise=chance) if o.clip else None
    fit(net, optimiser_of(o, net, factor), batches(), LOSSES[o.loss], gradients)
    (first, bias), *upper = layers_of(net)
    first = layers.join(first, basis, orthogonal, factor.double())
    # What a private trainer's noise adds to W₁ outside of the images, in all steps.
    sizes = sum((1 - o.rate * o.decay) ** (2 * k) for k in range(o.steps))
    size = o.rate * o.private * o.clip / len(y) * sizes**0.5
    drawn = torch.randn(orthogonal.shape, dtype=torch.float64, generator=chance).to(basis)
    return networks.Layer(first + size * (drawn - networks.within(drawn, basis)), bias), *upper


class Together(torch.nn.Module):
    """N networks of the same widths, which are run at once on N sets of images (N, m, d)."""

    def __init__(self, nets):
        super().__init__()
        same = zip(*(net.parameters() for net in nets))
        self.stacked = torch.nn.ParameterList(torch.stack(p).detach() for p in same)

    def layers(self):
        """The Layers of all networks, (N, …) each."""
        return [networks.Layer(*pair) for pair in zip(self.stacked[::2], self.stacked[1::2])]

    def forward(self, x):
        """Images (N, m, d) to outputs (N·m, K)."""
        return layers.forward(self.layers(), x)[1][-1].flatten(0, 1)


def train_together(several, labels, outputs, o, seeds):
    """The networks that `train_in_coordinates` gives of images x (m, d), labels (m,) and seeds, N of each, all at once.

    Every step takes all images, by SGD; the images of all sets span equally many dimensions.
    """
    nets, bases, orthogonal = zip(
        *(initialise(x[None], outputs, o, seed) for x, seed in zip(several, seeds))
    )
    net = Together(nets)
    factors = torch.ones(len(nets), device=several[0].device)
    x = torch.stack([x @ basis for x, basis in zip(several, bases)]).float()
    batch = x, torch.cat(labels).float()
    optimiser = optimiser_of(o, net, factors)
    fit(net, optimiser, [batch] * o.steps, lambda z, y: len(nets) * LOSSES[o.loss](z, y))
    trained = []
    for k, (basis, rest, factor) in enumerate(zip(bases, orthogonal, factors.double())):
        (first, bias), *upper = networks.change(net.layers(), lambda p, k=k: p[k].detach().double())
        trained.append((networks.Layer(layers.join(first, basis, rest, factor), bias), *upper))
    return trained


def alter(weight, o, noise):
    """The weights of a layer as the trainer gives them away: with noise, in few bits, or the largest alone."""
    size = weight.square().mean().sqrt()
    drawn = torch.randn(weight.shape, dtype=weight.dtype, generator=noise).to(weight)
    weight = weight + o.noise * size * drawn
    if o.bits == 16:
        weight = weight.half().double()
    elif o.bits:
        step = weight.abs().max() / (2 ** (o.bits - 1) - 1)
        weight = (weight / step).round() * step
    if o.pruned:
        least = weight.abs().flatten().kthvalue(int(o.pruned * weight.numel())).values
        weight = weight * (weight.abs() > least)
    return weight


def release(secret, shape, o, seed):
    """Train on a Part as the Settings o say, and release the changed weights: Victim; InputError if it diverges."""
    pictures = versions(secret.images, shape, o.augment)
    outputs = 1
    mean = pictures.mean((0, 1)) * o.centred
    noise = torch.Generator().manual_seed(seed + 1)
    if o.loss == "cross_entropy":
        outputs = int(secret.labels.max()) + 1
    if o.polished:
        polished = networks.perceptron("signed", *[o.neurons] * (o.layers - 1))
        network = stationary.train(secret, polished, seed).released.network
    else:
        network = train_in_coordinates(pictures - mean, secret.labels, outputs, o, seed)
    network = tuple(networks.Layer(alter(weight, o, noise), bias) for weight, bias in network)
    if not networks.flatten(network).isfinite().all():
        raise InputError("The training of this VICTIM diverged: make its rate smaller.")
    how = networks.perceptron(RULE_OF_LOSS[o.loss], *(len(layer.weight) for layer in network[:-1]))
    released = Released(
        network, secret.labels, how._replace(centred=o.centred, weight_decay=o.decay)
    )
    z = networks.forward(network, secret.images - mean)[1][-1]
    loss = losses.LOSSES[o.loss].value(z, secret.labels).mean().item()
    return Victim(released, mean, loss, pictures.shape[0] * pictures.shape[1])
