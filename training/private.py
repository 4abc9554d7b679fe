"""Training with private gradients (Abadi et al., 2016): that of each image is clipped, and noise is added to their sum.

The noise comes as anyone would draw it, from torch's generator of the CPU, which drew the start just before.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from scipy.optimize import brentq
from scipy.stats import norm
from torch.nn.functional import binary_cross_entropy_with_logits

DELTA = 1e-5  # the chance that a promised ε may not hold
CLIP = 1.0  # C, the largest norm of the gradient of an image


class Plan(NamedTuple):
    """What a private training announces: public, like the source code of the trainer."""

    steps: int
    sigma: float  # standard deviation of the noise of a step, in units of C
    rate: float  # of descent on the mean gradient
    epsilon: float  # that is promised, at DELTA


def delta_of(mu: float, epsilon: float) -> float:
    """The δ at which μ-Gaussian privacy is (ε, δ)-privacy: Φ(μ/2 − ε/μ) − exp(ε)Φ(−μ/2 − ε/μ).

    That is Corollary 2.13 of Dong, Roth and Su (2022).
    """
    low, high = (norm.logcdf(side * mu / 2 - epsilon / mu) for side in (-1, 1))
    return float(np.exp(high) - np.exp(epsilon + low))


def sigma_of(epsilon: float, steps: int, delta: float = DELTA) -> float:
    """σ for which so many steps on all images are (ε, δ)-private: together they are μ-private for μ = √steps/σ."""
    return steps**0.5 / brentq(lambda mu: delta_of(mu, epsilon) - delta, 1e-3, 50)


def epsilon_of(mu: float, delta: float = DELTA) -> float:
    """ε for which μ-Gaussian privacy is (ε, δ)-privacy; 0 where that is so for every ε."""
    if mu <= 0 or delta_of(mu, 0) <= delta:
        return 0.0
    return brentq(lambda epsilon: delta_of(mu, epsilon) - delta, 0, mu * (mu / 2 + 40))


def clipped(
    net: torch.nn.Sequential, x: torch.Tensor, y: torch.Tensor, weight: float = 1.0
) -> list[torch.Tensor]:
    """The sum of the gradients of images x (m, d), each clipped to C, for every parameter; the loss has a `weight`.

    An image's gradient of a layer is an outer product, whose norm is the product of those of its sides.
    """
    inputs = []
    outputs = []
    for layer in net:
        inputs = [*inputs, x.detach()]
        x = layer(x)
        outputs.append(x)
    linear = [k for k, layer in enumerate(net) if isinstance(layer, torch.nn.Linear)]
    loss = weight * binary_cross_entropy_with_logits(x[:, 0], y, reduction="sum")
    slopes = torch.autograd.grad(loss, [outputs[k] for k in linear])
    pairs = [(slope, inputs[k]) for slope, k in zip(slopes, linear)]
    squares = sum(slope.square().sum(1) * (seen.square().sum(1) + 1) for slope, seen in pairs)
    share = (CLIP / squares.sqrt()).clamp_max(1)[:, None]
    return [p for slope, seen in pairs for p in ((share * slope).mT @ seen, (share * slope).sum(0))]


def fit(
    net: torch.nn.Sequential, x: torch.Tensor, y: torch.Tensor, plan: Plan, weight: float = 1.0,
    normal: Callable[[torch.Size], torch.Tensor] = torch.randn,
) -> None:  # fmt: skip
    """Train a module in place on images x (m, d) with labels y (m,), all of them in every step.

    Where the loss has no `weight`, noise alone moves the module: the same noise, if the generator stands as it stood.
    """
    for _ in range(plan.steps):
        slopes = clipped(net, x, y, weight)
        with torch.no_grad():
            for p, slope in zip(net.parameters(), slopes):
                p -= plan.rate * (slope + plan.sigma * CLIP * normal(p.shape)) / len(x)
