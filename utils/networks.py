"""How networks are described, drawn and looked at: what trainers, attackers and evaluators agree on."""

import math
from typing import NamedTuple

import torch

from utils.errors import InputError, choose
from utils.kernels.layers import (
    Layer,
    change,
    flatten,
    forward,
    in_span,
    joint,
    parted,
    span_of,
    square_norm,
    within,
)
from utils.kernels.one_hidden import activation

__all__ = [
    "Layer",
    "change",
    "flatten",
    "forward",
    "in_span",
    "joint",
    "parted",
    "span_of",
    "square_norm",
    "within",
]


class Recipe(NamedTuple):
    """How a victim is built and trained: public, like the source code of a trainer."""

    hidden: tuple  # widths of the hidden layers; none is the affine model
    loss: str  # one of kernels.losses.LOSSES
    weight_decay: float  # μ
    sharpness: float = math.inf  # β of the softplus that stands for the ReLU; ∞ is the ReLU itself
    initial: str | float = (
        "standard"  # θ⁰: zero, uniform, standard, or a normal first layer's scale
    )
    biases: bool = True  # whether the layers after the first one have biases
    centred: bool = False  # whether the trainer subtracts the mean of the images
    learning_rate: float = 0.05  # of gradient descent, from here on
    momentum: float = 0.0
    growth: float = 1.05  # factor of the learning rate, each epoch in which the energy falls
    epochs: int = 2500
    stages: int = (
        0  # of a polish between two such descents, for one output and μ > 0: training.polish
    )
    dtype: torch.dtype = torch.float64


class Checkpoint(NamedTuple):
    """What one file of a training holds, of all layers or the first ones."""

    network: tuple  # of Layers, θ(t)
    first: tuple = ()  # of Layers, the optimiser's `momentum_buffer` or `exp_avg`, as torch calls it; or ()
    second: tuple = ()  # of Layers, the optimiser's `exp_avg_sq`; () for none


class Released(NamedTuple):
    """All that an attacker sees of a victim."""

    network: tuple | torch.nn.Module  # θ*, Layers; or a module of rows (n, d), for decoreco
    labels: torch.Tensor  # (m,), of the training images
    recipe: Recipe  # how it was trained: loss, weight decay μ, activation
    copies: tuple = ()  # after `bilevel.merge_neurons`: how many equal neurons each hidden one stands for, by β/√n
    checkpoints: tuple = ()  # files of the same training, the earliest first: Checkpoints

    @property
    def sharpness(self):
        """β of the softplus; where hidden neurons stand for several equal ones, of each (h,)."""
        beta = self.recipe.sharpness
        new = self.network[0].weight.new_tensor  # a number over a tensor is rounded twice
        return new(beta) / new(self.copies).sqrt() if self.copies else beta

    def forward(self, x):
        """The inputs and the outputs of every layer for images x (…, m, d), as `layers.forward`."""
        return forward(self.network, x, lambda z: activation(z, self.sharpness)[0])

    def outputs(self, x):
        """Φ(x; θ*) for images x (…, m, d): (…, m, K)."""
        return self.forward(x)[1][-1]


def affine(weight_decay: float, initial: str = "zero") -> Recipe:
    """The affine classifier of eq. (8), trained to its one stationary point."""
    choose("THETA_START", initial, ("zero", "uniform", "standard"))
    return Recipe((), "logistic", weight_decay, initial=initial)


def one_hidden(
    width: int, weight_decay: float, sharpness: float = 10.0, initial: str = "standard"
) -> Recipe:
    """The network of eq. (9) with a softplus, trained to a stationary point near θ⁰."""
    choose("THETA_START", initial, ("uniform", "standard"))
    return Recipe((width,), "logistic", weight_decay, sharpness, initial)


# After Haim et al. (2022) and Buzaglo et al. (2023): their losses, starts and weight decay. They take 10⁶ steps of one
# learning rate; ours are fewer, with momentum and a growing rate. Without decay the loss needs float64 to fall on.
SEPARATING = Recipe((), "logistic", 0.0, initial=1e-4, biases=False, centred=True)
REGRESSION = SEPARATING._replace(
    loss="square",
    weight_decay=7.5e-4,
    learning_rate=0.01,
    momentum=0.99,
    growth=1.01,
    epochs=1500,
    stages=6,
    dtype=torch.float32,
)
SEVERAL = SEPARATING._replace(loss="cross_entropy")
PERCEPTRONS = {
    "signed": REGRESSION,
    "tied": REGRESSION,
    "margin": SEPARATING,
    "multiclass": SEVERAL,
}


def perceptron(rule: str, *widths: int) -> Recipe:
    """The ReLU network with hidden layers of these widths for which a rule of the stationarity attack is made."""
    return PERCEPTRONS[choose("RULE", rule, PERCEPTRONS)]._replace(hidden=widths)


def initial(recipe, inputs, seed, outputs=1, device="cpu"):
    """Draw θ⁰ for images of `inputs` values; the same numbers on every device.

    `uniform` is U(0, 1), as in the first paper, `standard` torch's U(±1/√n) for n inputs, a number the scale of a
    normal first layer, behind which layers are `standard`.
    """
    if 0 in recipe.hidden:
        raise InputError("A hidden layer of this network has no neurons: raise NEURONS or WIDTH.")
    sizes = (inputs, *recipe.hidden, outputs)
    settings = {"dtype": torch.float64, "generator": torch.Generator().manual_seed(seed)}
    layers = []
    for fan_in, fan_out in zip(sizes, sizes[1:]):
        if isinstance(recipe.initial, str):
            rows = torch.rand(fan_out, fan_in + 1, **settings)
            kinds = {"zero": 0 * rows, "uniform": rows, "standard": (2 * rows - 1) / fan_in**0.5}
            layers.append(parted(kinds[recipe.initial]))
            continue
        draw = torch.rand if layers else torch.randn
        weight, bias = draw(fan_out, fan_in, **settings), draw(fan_out, **settings)
        if not layers:
            layers.append(Layer(recipe.initial * weight, recipe.initial * bias))
        else:
            weight, bias = (fan_in**-0.5 * (2 * part - 1) for part in (weight, bias))
            layers.append(Layer(weight, bias if recipe.biases else None))
    return change(tuple(layers), lambda p: p.to(device))


def round_to_single(network):
    """The weights in single precision, as networks are published, in their own type."""
    return change(network, lambda p: p.float().to(p.dtype))


class Gap(NamedTuple):
    """Where the singular values of W₁ drop: at a stationary point, behind the dimensions that the images span."""

    values: torch.Tensor  # the singular values, falling
    count: int | None  # how many are before the gap; None if there is no gap
    ratio: (
        float  # of the values on both sides of the gap; without one, the largest of two neighbours
    )


def gap(network, least=2.0, noise=1e-6, values=None):
    """Find the largest ratio σ_k/σ_{k+1} of W₁ that is `least` or more, or one of 10 or more that ends in rounding.

    Values below `noise`·σ_max count as that much. A drop that ends above σ_max/100 is no gap: photographs have such.
    """
    values = torch.linalg.svdvals(network[0].weight) if values is None else values
    above = values.clamp_min(noise * values[0])
    ratios = torch.where(above[1:] < above[0] / 100, above[:-1] / above[1:], 1)
    drops = torch.where((ratios >= 10) & (values[1:] < above[1:]), torch.inf, ratios)
    k = int(drops.argmax()) if len(drops) else -1
    ratio = ratios[k].item() if len(drops) else 1.0
    return Gap(values, k + 1 if ratio >= least else None, ratio)


def span(network, tolerance=None):
    """A basis (d, r) of what W₁ sees: before its gap, or with σ > `tolerance`·σ_max, 1e-6 if there is no gap."""
    _, values, vectors = torch.linalg.svd(network[0].weight, full_matrices=False)
    count = gap(network).count if tolerance is None else None
    return vectors[values > (tolerance or 1e-6) * values[0]][:count].mT


def leading_span(network, count):
    """The `count` right singular vectors of W₁ with the largest singular values, as a basis: (d, count)."""
    return torch.linalg.svd(network[0].weight, full_matrices=False)[2][:count].mT


def distance(network, target):
    """‖θ − θ*‖²/‖θ*‖² of two networks, a squared distance that does not shrink with the number of weights."""
    ours, theirs = (flatten(net) for net in (network, target))
    return ((ours - theirs).square().sum() / theirs.square().sum()).item()


def accuracy(z, labels):
    """The share of images that a network with outputs z (m, K) gets right."""
    predicted = z.argmax(1) if z.shape[1] > 1 else z[:, 0] > 0
    return (predicted == labels).double().mean().item()
