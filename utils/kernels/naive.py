"""The plainest forms, by autograd, with which closed forms and the chapters' fast kernels are compared.

The residual of stationarity is for any torch.nn.Module of rows (n, d); the energy, twice differentiable, for Layers
with biases, σ(s) = softplus(βs)/β of a sharpness β and one output, images x (m, d) and labels y (m,) in {0, 1}.
"""

import math

import numpy as np
import torch
from torch.nn.functional import binary_cross_entropy_with_logits, softplus
from torch.nn.utils import parameters_to_vector as vector_of
from torch.overrides import TorchFunctionMode

from utils.kernels.layers import flatten, square_norm
from utils.kernels.residual import Residual

RELUS = torch.relu, torch.relu_, torch.Tensor.relu, torch.Tensor.relu_, torch.nn.functional.relu


class SmoothBackward(torch.autograd.Function):
    """A ReLU, max(z, 0), that passes gradients back with the slope σ(αz) in place of 1[z > 0]; α = ∞ is the ReLU's."""

    @staticmethod
    def forward(ctx, z, sharpness):
        """Return max(z, 0), of the shape of z."""
        ctx.save_for_backward(z)
        ctx.sharpness = sharpness
        return z.clamp_min(0)

    @staticmethod
    def backward(ctx, upstream):
        """Multiply with σ(αz); α itself has no gradient."""
        (z,) = ctx.saved_tensors
        slope = (z > 0).to(z) if math.isinf(ctx.sharpness) else torch.sigmoid(ctx.sharpness * z)
        return upstream * slope, None


class InPlaceOfReLU(TorchFunctionMode):
    """While it lasts, another function of one tensor takes the place of every ReLU."""

    def __init__(self, other):
        super().__init__()
        self.other = other

    def __torch_function__(self, function, types, args=(), kwargs=None):
        return self.other(args[0]) if function in RELUS else function(*args, **(kwargs or {}))


class Smoothed(InPlaceOfReLU):
    """While it lasts, every ReLU is a SmoothBackward with the sharpness α."""

    def __init__(self, sharpness):
        super().__init__(lambda z: SmoothBackward.apply(z, sharpness))


def module_of(network):
    """The module of a network of Layers, with weights of its own."""
    parts: list = []
    for weight, bias in network:
        linear = torch.nn.Linear(*weight.shape[::-1], bias=bias is not None).to(weight)
        linear.load_state_dict({"weight": weight} | ({} if bias is None else {"bias": bias}))
        parts += [torch.nn.ReLU(), linear] if parts else [linear]
    return torch.nn.Sequential(*parts)


def signed(z, coefficients):
    """Σ_i c_iΦ(x_i) with c_i = λ_i/n, from outputs z (n, 1)."""
    return (coefficients * z[:, 0]).mean()


def residual(module, x, coefficients, sharpness=math.inf, combined=signed, target=None):
    """R(x, λ) = ‖θ* − Σ_i c_i ∇_θ Φ(x_i; θ*)‖² for a module Φ; its gradients in x, λ.

    Candidates x are (n, d), λ (n,). `combined` is Σ_i c_iΦ(x_i), a function of outputs
    (n, K) and λ; a `target`, a module, has other weights for θ*.
    """
    x, coefficients = (part.detach().requires_grad_() for part in (x, coefficients))
    theta = tuple(module.parameters())
    with Smoothed(sharpness):
        z = module(x.view_as(x))  # (n, d) -> (n, K); a view, for torch's counter
    gradients = torch.autograd.grad(combined(z, coefficients), theta, create_graph=True)
    wanted = theta if target is None else target.parameters()
    value = sum((p.detach() - g).square().sum() for p, g in zip(wanted, gradients))
    inputs = (x, coefficients)
    unused = {"allow_unused": True, "materialize_grads": True}
    slopes = torch.autograd.grad(value, inputs, **unused)
    return value.detach(), *slopes


class Stationarity:
    """`residual.Stationarity` for a module: the same calls, one set of candidates after the other; R has one part."""

    rows = 0  # candidates of several sets that are evaluated at once

    def __init__(self, module, rule, sharpness=math.inf, target=None):
        self.network, self.rule, self.sharpness, self.target = module, rule, sharpness, target
        self.theta = vector_of((module if target is None else target).parameters()).detach()
        self.squares = self.theta.square().sum()[None]

    def __call__(self, x, coefficients):
        """Return the Residual at x (…, n, d) and λ (…, n)."""
        if x.dim() > 2:
            return Residual(*map(torch.stack, zip(*map(self, x, coefficients))))
        combined = self.rule.combined
        value, *slopes = residual(
            self.network, x, coefficients, self.sharpness, combined, self.target
        )
        return Residual(value, value[None], *slopes)

    def quadratic(self, x):
        """H (…, n, n) and b (…, n) with R(x, λ) = ‖θ*‖² − 2bᵀλ + λᵀHλ, from the gradient of every candidate."""
        if x.dim() > 2:
            return tuple(map(torch.stack, zip(*map(self.quadratic, x))))
        with Smoothed(self.sharpness):
            z = self.network(x)
        signals = self.rule.signal(z, torch.ones_like(x[:, 0])).detach()
        theta = tuple(self.network.parameters())
        rows = []  # ∇_θ⟨D_i, Φ(x_i)⟩ of every candidate
        for one in torch.eye(len(x)).to(x):
            alone = torch.autograd.grad(z, theta, signals * one[:, None], retain_graph=True)
            rows.append(vector_of(alone))
        rows = torch.stack(rows)  # (n, p)
        return rows @ rows.mT, rows @ self.theta


def logits(x, network, sharpness):
    """Φ(x; θ) for every image: (m,)."""
    for layer in network[:-1]:
        s = x @ layer.weight.T + layer.bias  # (m, n) @ (n, h) -> (m, h)
        x = softplus(s, beta=sharpness, threshold=40)
    return (x @ network[-1].weight.T + network[-1].bias)[:, 0]


def energy(x, y, network, weight_decay, sharpness):
    """The training energy E = (1/m) Σ ℓ + (μ/2)‖θ‖² with the logistic loss."""
    losses = binary_cross_entropy_with_logits(logits(x, network, sharpness), y)
    return losses + weight_decay / 2 * square_norm(network)


def gradient(x, y, network, weight_decay, sharpness):
    """∇_θE as one vector: (p,)."""
    return flatten(torch.func.grad(energy, argnums=2)(x, y, network, weight_decay, sharpness))


def error_probability(x, y, network, sharpness):
    """|sigmoid(z) − y|, the probability of the other class, one minus the confidence in the label: (m,)."""
    return torch.sigmoid((1 - 2 * y) * logits(x, network, sharpness))


def solve_bits(rows, right):
    """Textbook elimination over GF(2) of bits (n, c) and right-hand sides (n,): a solution (c,), and the rank."""
    table = np.column_stack([rows, right]) != 0
    pivots = []
    for column in range(rows.shape[1]):
        below = np.flatnonzero(table[len(pivots) :, column]) + len(pivots)
        if len(below):
            table[[len(pivots), below[0]]] = table[[below[0], len(pivots)]]
            others = np.flatnonzero(table[:, column])
            table[others[others != len(pivots)]] ^= table[len(pivots)]
            pivots.append(column)
    solution = np.zeros(rows.shape[1], int)
    solution[pivots] = table[: len(pivots), -1]
    return solution, len(pivots)
