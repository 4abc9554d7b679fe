"""The loss of the stationarity attack: the residual R(x, λ) and two penalties, in units of ‖θ*‖², and its gradients."""

import math
from typing import NamedTuple

import torch

from utils.kernels import naive
from utils.kernels.coefficients import Tied, best
from utils.kernels.layers import flatten
from utils.kernels.residual import Stationarity
from utils.networks import in_span


class Parts(NamedTuple):
    """The attacker's loss in parts, each (…); `stationarity` (…, L) for every layer, in units of ‖θ*‖²."""

    stationarity: torch.Tensor  # ‖W̄_l − D_lᵀĀ_{l−1}‖²/‖θ*‖²
    range: torch.Tensor  # weight · Σ relu(|x| − 1)²/‖θ*‖²
    feasibility: torch.Tensor  # 5 Σ relu(λ_min − λ)²/‖θ*‖², zero for rules without a bound
    share: torch.Tensor | None = None  # (…, n): by how much R/‖θ*‖² grows if a candidate is left out
    state: tuple | None = None  # decoreco.State, of an attack that was to stop on its way

    @property
    def total(self):
        """The attacker's loss."""
        return self.stationarity.sum(-1) + self.range + self.feasibility


class Objective:
    """The attacker's loss and its gradients, at pixels x or at coordinates in a basis (d, r), and at λ."""

    def __init__(self, network, rule, sharpness, lambda_min, range_weight, basis=None, target=None):
        self.slow = isinstance(network, torch.nn.Module)  # then autograd differentiates it
        if self.slow:
            self.stationarity = naive.Stationarity(network, rule, target=target)
            self.scale = self.stationarity.squares.sum()
        else:
            given = (network, target)
            seen, wanted = (net if basis is None or net is None else in_span(net, basis) for net in given)
            self.stationarity = Stationarity(seen, rule, target=wanted)
            self.scale = flatten(network if target is None else target).square().sum()  # ‖θ*‖²
        self.stationarity.sharpness = self.scale.new_tensor(sharpness)
        self.bound = lambda_min if rule.bounded else -math.inf
        self.range_weight, self.basis = range_weight, basis
        self.unseen = self.scale - self.stationarity.squares.sum()  # ‖W₁‖² outside of the basis

    def pixels(self, x):
        """Coordinates (…, n, r) to pixels (…, n, d)."""
        return x if self.basis is None else x @ self.basis.mT

    def __call__(self, x, coefficients):
        r = self.stationarity(x, coefficients)
        r.layers[..., 0] += self.unseen
        outside, x_gradient = self.outside(x)
        below = (self.bound - coefficients).clamp_min(0)
        parts = Parts(*(part / self.scale for part in (r.layers, outside, 5 * below.square().sum(-1))))
        return parts, r.x_gradient + x_gradient, r.coefficient_gradient - 10 * below

    def outside(self, x):
        """The penalty for pixels outside of [−1, 1], and its gradient."""
        if not self.range_weight:
            return x.new_zeros(x.shape[:-2]), 0.0
        pixels = self.pixels(x)
        beyond = pixels - pixels.clamp(-1, 1)
        push = 2 * self.range_weight * beyond
        return self.range_weight * beyond.square().sum((-2, -1)), push if self.basis is None else push @ self.basis

    def share(self, x, coefficients):
        """By how much R/‖θ*‖² grows without candidate i: 2λᵢ(b − Hλ)ᵢ + λᵢ²Hᵢᵢ, as R is a quadratic in λ; (…, n)."""
        h, b = self.stationarity.quadratic(x)
        known = torch.ones_like(coefficients) if isinstance(self.stationarity.rule, Tied) else coefficients
        rest = b - (h @ known[..., None])[..., 0]
        return (2 * known * rest + known.square() * h.diagonal(dim1=-2, dim2=-1)) / self.scale

    def best_coefficients(self, x):
        """The λ (…, n) above the bound that minimises R for these x."""
        return best(*self.stationarity.quadratic(x), self.bound)  # type: ignore[call-arg]
