"""The residual of stationarity, R(x, λ) = ‖θ* − Σ_i c_i ∇_θ Φ(x_i; θ*)‖², and its gradient in closed form.

Attacks differ in the rules for the c (`coefficients`). A layer's share is ‖W̄_l − D_lᵀĀ_{l−1}‖², with its inputs Ā
(…, n, n_{l−1}) and the back-propagated signals D (…, n, n_l), whose rows carry the c. The gradient follows the signals
up and the inputs down: nothing is differentiated twice. Candidates are x (…, n, d), coefficients λ (…, n); leading
dimensions are independent sets. Where the initial θ⁰ is known, the target is θ* − αθ⁰ in place of θ*.
"""

import math
import sys
import warnings
from typing import NamedTuple

import torch

from utils.kernels.layers import back, forward

ROWS = 512  # candidates that are evaluated at once on a CPU, in its cache; on a GPU, all that its memory holds


class Residual(NamedTuple):
    """The residual R at candidates and coefficients, and its gradients."""

    value: torch.Tensor  # R (…)
    layers: torch.Tensor  # the share ‖W̄_l − D_lᵀĀ_{l−1}‖² of each layer (…, L)
    x_gradient: torch.Tensor  # of R in x (…, n, d)
    coefficient_gradient: torch.Tensor  # of R in λ (…, n)


def slopes(z, sharpness):
    """σ(αz), for a ReLU's derivative, above slow denormal numbers, and its derivative; for α = ∞ the ReLU's, and 0."""
    if isinstance(sharpness, float) and math.isinf(sharpness):  # a tensor is finite
        return (z > 0).to(z), torch.zeros_like(z)
    least = 1.5 * math.log(torch.finfo(z.dtype).eps)
    slope = (sharpness * z).clamp_(min=least).sigmoid_()
    return slope, torch.addcmul(slope, slope, slope, value=-1).mul_(sharpness)  # ασ(1 − σ)


def inner(a, b):
    """⟨A, B⟩ over the last two dimensions."""
    return torch.linalg.vecdot(a.flatten(-2), b.flatten(-2))


def gram_share(layer, size, a, d, z):
    """A layer's share as ‖W̄‖² − 2⟨D, Z⟩ + ⟨D, (ĀĀᵀ)D⟩ with Z = ĀW̄ᵀ: 2n² products per input and output.

    `size` is ‖W̄‖². Returns the share (…), its derivative in D (…, n, n_l), that in A (…, n, n_{l−1}) without a term
    c·DW, and c, here −2: `evaluate` adds c·D to other signals that W multiplies, and saves a product.
    """
    gram = (a @ a.mT).add_(layer.bias is not None).mul_(2)  # (n, n_{l−1}) @ (n_{l−1}, n) -> (n, n)
    signals = (gram @ d).sub_(z, alpha=2)
    value = size + inner(d, torch.sub(signals, z, alpha=2)) / 2
    return value, signals, (2 * (d @ d.mT)) @ a, -2.0


def direct_share(layer, size, a, d, z):
    """A layer's share as ‖W̄ − DᵀĀ‖², as it stands: n products for every weight, three times; no term is left out."""
    error = (d.mT @ a).sub_(layer.weight)  # DᵀĀ − W̄: (n_l, n) @ (n, n_{l−1}) -> (n_l, n_{l−1})
    value = inner(error, error)
    signals = (a @ error.mT).mul_(2)
    if layer.bias is not None:
        bias = d.sum(-2) - layer.bias
        value = value + inner(bias[..., None], bias[..., None])
        signals = signals.add_(bias[..., None, :], alpha=2)
    return value, signals, (2 * d) @ error, 0.0


def cheaper_share(layer, size, a, d, z):
    """The form with fewer products: 2n²(n_l + n_{l−1}) against 3n·n_l·n_{l−1}."""
    outputs, inputs = layer.weight.shape[-2:]
    gram = 2 * a.shape[-2] * (outputs + inputs) < 3 * outputs * inputs
    return (gram_share if gram else direct_share)(layer, size, a, d, z)


class Stationarity:
    """R as a function of candidates and coefficients, for one network, rule and sharpness α of its `slopes`.

    R = ‖`target` − Σ c_i∇_θΦ(x_i; θ*)‖²: a `target` of the network's shapes stands for the first θ*, as θ* − αθ⁰ does
    where the initial weights are known; the gradients in the sum are still taken at θ*.
    """

    def __init__(self, network, rule, sharpness=math.inf, share=cheaper_share, target=None):
        self.network, self.rule, self.sharpness = network, rule, sharpness
        self.target, self.share = (network, share) if target is None else (target, direct_share)
        self.rows = ROWS if network[0].weight.device.type == "cpu" else sys.maxsize
        self.squares = torch.stack(
            [sum(p.square().sum() for p in layer if p is not None) for layer in self.target]
        )

    def __call__(self, x, coefficients):
        """The Residual at x (…, n, d), λ (…, n); of (S, n, d) in slices, halved where they do not fit."""
        sets = len(x) if x.dim() == 3 else 1
        slices = max(1, self.rows // x.shape[-2])
        if sets > slices:
            parts = map(self, x.split(slices), coefficients.split(slices))
            return Residual(*map(torch.cat, zip(*parts)))
        try:
            return self.evaluate(x, coefficients)
        except torch.OutOfMemoryError:
            if sets == 1:
                raise
        warnings.warn(
            f"The memory is full: {sets // 2} sets of candidates are moved at once.", stacklevel=2
        )
        self.rows = x.shape[-2] * (sets // 2)
        return self(x, coefficients)

    def evaluate(self, x, coefficients):
        """Return the Residual of all sets at once."""
        network = self.network
        hidden = range(len(self.network) - 1)
        a, z = forward(network, x)
        slope, curvature = map(list, zip(*(slopes(s, self.sharpness) for s in z)))
        d, u = back(network, self.rule.signal(z[-1], coefficients), slope[:-1])
        shares, signals, inputs, pending = zip(*map(self.share, self.target, self.squares, a, d, z))
        up = signals[0]  # dR/dD_l: the layer's own, and through the layers below
        through = []  # dR/dZ_l through the surrogate
        for k in hidden:
            through.append((up * u[k]).mul_(curvature[k]))
            up = ((up * slope[k]) @ network[k + 1].weight.mT).add_(signals[k + 1])
        coefficient_gradient, down = self.rule.pullback(z[-1], coefficients, up)
        for k in reversed(hidden):  # down: dR/dZ_l, from the last layer to the first
            if pending[k + 1]:
                inputs[k + 1].add_(u[k], alpha=pending[k + 1])
            down = inputs[k + 1].add_(down @ network[k + 1].weight).mul_(slope[k]).add_(through[k])
        if pending[0]:
            down = torch.add(down, d[0], alpha=pending[0])
        x_gradient = inputs[0].add_(down @ network[0].weight)  # (n, n_1) @ (n_1, d) -> (n, d)
        layers = torch.stack(shares, -1)
        return Residual(layers.sum(-1), layers, x_gradient, coefficient_gradient)

    def quadratic(self, x):
        """H (…, n, n) and b (…, n) with R(x, λ) = ‖θ*‖² − 2bᵀλ + λᵀHλ, for the rules with free coefficients."""
        a, z = forward(self.network, x)
        slope = [slopes(s, self.sharpness)[0] for s in z[:-1]]
        d, _ = back(self.network, self.rule.signal(z[-1], torch.ones_like(x[..., 0])), slope)
        if self.target is not self.network:
            z = [forward((layer,), ak)[1][0] for layer, ak in zip(self.target, a)]
        grams = [
            (ak @ ak.mT + (layer.bias is not None)) * (dk @ dk.mT)
            for layer, ak, dk in zip(self.network, a, d)
        ]
        return sum(grams), sum((dk * zk).sum(-1) for dk, zk in zip(d, z))
