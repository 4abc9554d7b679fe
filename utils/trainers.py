"""Trainers in many settings: optimisers, losses, starts, augmentation, defences; every step is that of torch.

A step of gradient descent adds combinations of training images to the rows of the first layer, and shrinks what was
there. So at any time W₁ = AQᵀ + cN, with an orthonormal basis Q (d, r) of all versions of the images, a small matrix A
(h, r) that is trained, and the part N (h, d) of the start that no image touches; the number c begins at 1 and decays.
The optimiser moves A and c, which is much faster than moving W₁. Adam scales every pixel by itself, so Q is the
identity there. `victims` trains to a stationary point instead.
"""

import itertools
import math
from typing import NamedTuple

import torch
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy, linear, mse_loss, relu

from utils import networks, victims
from utils.attacks.contract import Released
from utils.errors import InputError, choose

LOSSES = {
    "square": lambda z, y: mse_loss(z[:, 0], 2 * y - 1) / 2,
    "logistic": lambda z, y: binary_cross_entropy_with_logits(z[:, 0], y),
    "cross_entropy": lambda z, y: cross_entropy(z, y.long()),
}
RULES = {"square": "signed", "logistic": "margin", "cross_entropy": "multiclass"}  # that an attacker takes


class Settings(NamedTuple):
    """How a victim is trained, and what is changed before its weights are released."""

    layers: int = 2  # 2 or 3, of weights
    neurons: int = 500  # of each hidden layer
    loss: str = "square"  # one of LOSSES
    decay: float = 7.5e-4  # μ
    start: str | float = 1e-4  # θ⁰, as in networks.Recipe
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
    polished: bool = False  # by `victims.train` to a stationary point instead


PRIVATE = {"clip": 1.0, "momentum": 0.0, "rate": 0.5, "steps": 300}
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
    "mean kept": {"centred": False, "start": 1e-3, "rate": 0.01, "momentum": 0.98, "steps": 12000},
    "no momentum": {"momentum": 0.0, "rate": 0.1, "steps": 40000},
    "batches of 10": {"batch": 10, "rate": 0.03, "steps": 15000},
    "no decay": {"decay": 0.0},
    "ten times the decay": {"decay": 7.5e-3, "steps": 2000},
    "a tenth of the steps": {"steps": 800},
    "a hundredth of the steps": {"steps": 80},
    "start 1e-2": {"start": 1e-2},
    "standard start": {"start": "standard"},
    "standard start, few steps": {"start": "standard", "steps": 800},
    "standard start, no decay": {"start": "standard", "decay": 0.0},
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
    "frozen first layer": {"frozen": True, "start": "standard"},
    "clipped": PRIVATE,
    "private, noise 1": {**PRIVATE, "private": 1.0},
    "private, noise 0.1": {**PRIVATE, "private": 0.1},
}  # the settings in which each victim differs from the first one


class Trained(NamedTuple):
    """A network as its trainer gives it away, and what the evaluator knows of its training."""

    released: Released
    mean: torch.Tensor  # (d,), was subtracted from the images; zero unless they were centred
    pictures: int  # how many the network saw, mirrored and shifted copies included


def settings(name, neurons):
    """The Settings of a victim in VICTIMS, with so many neurons unless the victim has its own number."""
    return Settings(neurons=neurons)._replace(**VICTIMS[choose("VICTIM", name, VICTIMS)])


def logits(parameters, x):
    """Outputs (m, K) of a ReLU network, weights and biases in turn, for x (m, r)."""
    *hidden, last = zip(parameters[::2], parameters[1::2])
    for weight, bias in hidden:
        x = relu(linear(x, weight, bias))
    return linear(x, *last)


def versions(x, shape, augment):
    """The images (m, d) in all versions that augmentation makes of them: (k, m, d)."""
    pictures = x.view(-1, *shape)
    moves = itertools.product((-2, 0, 2), repeat=2) if augment == "shifts" else []
    shifted = [pictures.roll(move, (1, 2)).flatten(1) for move in moves]
    flipped = [x, pictures.flip(2).flatten(1)] if augment == "flips" else [x]
    return torch.stack(shifted or flipped)


def plain_gradients(parameters, x, y, o, noise):
    """∂ℓ/∂θ of the mean loss over a batch, for every parameter."""
    return torch.autograd.grad(LOSSES[o.loss](logits(parameters, x), y), parameters)


def private_gradients(parameters, x, y, o, noise):
    """The same, clipped image by image to length C, with normal noise of deviation σC on their sum, and averaged."""

    def of_one(values, image, label):
        return LOSSES[o.loss](logits(values, image[None]), label[None])

    each = torch.func.vmap(torch.func.grad(of_one), (None, 0, 0))(parameters, x, y)
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


def initialised(x, outputs, o, seed):
    """θ⁰ as weights and biases in turn, W₁ in the basis Q; and Q (d, r) of versions x (k, m, d), and N (h, d)."""
    recipe = networks.Recipe((o.neurons,) * (o.layers - 1), "square", 0.0, start=o.start)
    network = networks.initial(recipe, x.shape[-1], seed, outputs, x.device)
    adapts = o.optimiser != "SGD"
    basis = torch.eye(x.shape[-1]).to(x) if adapts else networks.span_of(x.flatten(0, 1))
    parameters = [part for layer in network for part in layer]
    parameters[1] = parameters[1] * o.biases
    outside = parameters[0] - parameters[0] @ basis @ basis.T
    parameters[0] = parameters[0] @ basis
    return [part.float() for part in parameters], basis, outside


def noise_outside(o, basis, shape, count, noise):
    """What the noise of a private trainer of so many images adds to W₁ outside of them, in all steps: (h, d)."""
    shrunk = 1 - o.rate * o.decay
    sizes = sum(shrunk ** (2 * k) for k in range(o.steps))
    size = o.rate * o.private * o.clip / count * sizes**0.5
    drawn = torch.randn(shape, dtype=torch.float64, generator=noise).to(basis)
    return size * (drawn - drawn @ basis @ basis.T)


def descent(moving, o):
    """The optimiser of torch that moves these tensors."""
    momentum = {"momentum": o.momentum} if o.optimiser == "SGD" else {}
    return getattr(torch.optim, o.optimiser)(moving, lr=o.rate, weight_decay=o.decay, **momentum)


def train(x, y, outputs, o, seed):
    """Train as the Settings o say: weights and biases in turn, from versions x (k, m, d) and labels y (m,)."""
    parameters, basis, outside = initialised(x, outputs, o, seed)
    fixed = {0, 1} if o.frozen else set() if o.biases else {1}
    rest = torch.ones((), device=x.device)  # c
    moving = [p for k, p in enumerate(parameters) if k not in fixed] + ([] if o.frozen else [rest])
    optimiser, gradients = descent(moving, o), private_gradients if o.clip else plain_gradients
    noise, seen, y = torch.Generator().manual_seed(seed), (x @ basis).float(), y.float()
    for _ in range(o.steps):
        rows = torch.randperm(len(y), generator=noise)[: o.batch or len(y)]
        which = torch.randint(len(seen), rows.shape, generator=noise)
        leaves = [p.detach().requires_grad_() for p in parameters]
        slopes = gradients(leaves, seen[which, rows], y[rows], o, noise)
        for p, slope in zip([*parameters, rest], [*slopes, torch.zeros_like(rest)]):
            p.grad = slope
        optimiser.step()
    parameters = [part.double() for part in parameters]
    first = parameters[0] @ basis.T + rest.double() * outside  # A Qᵀ + cN (h, d)
    return [first + noise_outside(o, basis, outside.shape, len(y), noise), *parameters[1:]]


def changed(weight, o, noise):
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


def parameters_of(secret, seen, mean, o, seed):
    """Train on a Part in versions `seen` (k, m, d), minus a mean (d,): weights and biases in turn."""
    if o.polished:
        recipe = networks.perceptron("signed", *[o.neurons] * (o.layers - 1))
        return [part for layer in victims.train(secret, recipe, seed).released.network for part in layer]
    outputs = int(secret.labels.max()) + 1 if o.loss == "cross_entropy" else 1
    return train(seen - mean, secret.labels, outputs, o, seed)


def release(secret, shape, o, seed):
    """Train on a Part as the Settings o say, and release the changed weights: Trained; InputError if it diverges."""
    seen = versions(secret.images, shape, o.augment)
    mean = seen.mean((0, 1)) * o.centred
    parameters, noise = parameters_of(secret, seen, mean, o, seed), torch.Generator().manual_seed(seed + 1)
    pairs = zip(parameters[::2], parameters[1::2])
    network = tuple(networks.Layer(changed(weight, o, noise), bias) for weight, bias in pairs)
    if not networks.flatten(network).isfinite().all():
        raise InputError("The training of this VICTIM diverged: make its rate smaller.")
    recipe = networks.perceptron(RULES[o.loss], *(len(layer.weight) for layer in network[:-1]))
    recipe = recipe._replace(centred=o.centred, weight_decay=o.decay)
    return Trained(Released(network, secret.labels, recipe), mean, seen.shape[0] * seen.shape[1])
