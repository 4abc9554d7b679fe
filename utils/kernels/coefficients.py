"""Four rules for the coefficients of the stationarity residual: what the signals of the last layer are.

A rule makes signals D_L (…, n, K) of coefficients λ (…, n) and outputs z (…, n, K), and pulls a derivative in D_L back
to λ and, where the signals depend on them, to the outputs.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from scipy.optimize import nnls
from torch.nn.functional import one_hot

from utils.kernels.losses import LOSSES, Loss, signs


class Signed:
    """c_i = λ_i/n of either sign: regression with weight decay (Buzaglo et al.)."""

    bounded = False  # whether λ_i ≥ λ_min

    def direction(self, z):
        """What λ/n is multiplied by in D_L: one, or (…, n, K)."""
        return 1.0

    def signal(self, z, coefficients):
        """D_L (…, n, K) of outputs z (…, n, K) and λ (…, n)."""
        return coefficients[..., None] * self.direction(z) / z.shape[-2]

    def combined(self, z, coefficients):
        """Σ_i c_iΦ(x_i), whose derivative in the outputs is the signal: what autograd differentiates."""
        return (self.signal(z, coefficients) * z).sum()

    def pullback(self, z, coefficients, up):
        """dR/dλ = ⟨direction, dR/dD_L⟩/n, and dR/dz = 0."""
        return (up * self.direction(z)).sum(-1) / z.shape[-2], torch.zeros_like(up)


@dataclass
class Margin(Signed):
    """c_i = λ_i y_i/n with λ_i ≥ λ_min and y_i = ±1: two classes without weight decay (Haim et al.)."""

    y: torch.Tensor  # (n,) of ±1
    bounded = True

    def direction(self, z):
        return self.y[:, None]


@dataclass
class Multiclass(Signed):
    """λ_i/n times the gradient of Φ_y − max_{j≠y} Φ_j, λ_i ≥ λ_min: more classes, cross-entropy (Buzaglo et al.)."""

    own: torch.Tensor  # (n, K), one at the label
    bounded = True

    def direction(self, z):
        # The strongest other class j.
        rival = torch.where(self.own > 0, -torch.inf, z).argmax(-1, keepdim=True)
        return self.own - torch.zeros_like(z).scatter_(-1, rival, 1.0)


@dataclass
class Tied:
    """c_i = −ℓ'(Φ(x_i), y_i)/(nμ): eqs. (3) and (4) with weight decay, R = ‖∇_θ E‖²/μ². There is no λ."""

    labels: torch.Tensor  # (n,)
    loss: Loss
    weight_decay: float  # μ
    bounded = False

    def signal(self, z, coefficients):
        """D_L (…, n, K), which depends on z alone."""
        return self.loss.slope(z, self.labels) / (-z.shape[-2] * self.weight_decay)

    def combined(self, z, coefficients):
        """The training loss over −μ."""
        return self.loss.value(z, self.labels).mean() / -self.weight_decay

    def pullback(self, z, coefficients, up):
        """dR/dλ = 0, and dR/dz = −ℓ''·dR/dD_L/(nμ)."""
        scale = -z.shape[-2] * self.weight_decay
        return torch.zeros_like(coefficients), self.loss.curvature(z, up) / scale


# Each from labels (n,), the number of outputs, and the victim's loss and weight decay.
RULES: dict[str, Callable] = {
    "signed": lambda *_: Signed(),
    "margin": lambda labels, *_: Margin(signs(labels)),
    "multiclass": lambda labels, outputs, *_: Multiclass(one_hot(labels.long(), outputs)),
    "tied": lambda labels, outputs, loss, weight_decay: Tied(labels, LOSSES[loss], weight_decay),
}


def best(h, b, bound=-math.inf, ridge=1e-6):
    """The λ (…, n) ≥ bound that minimises λᵀHλ − 2bᵀλ, H (…, n, n) and b (…, n); `ridge`·mean Hᵢᵢ makes it unique."""
    like = b
    h = h.double()
    b = b.double()
    ridge = ridge * h.diagonal(dim1=-2, dim2=-1).mean(-1, keepdim=True) + 1e-300  # (…, 1)
    if math.isinf(bound):
        return torch.linalg.solve(h + torch.diag_embed(ridge.expand_as(b)), b).to(like)
    # Non-negative least squares in λ − bound, with a factor F (…, n, n) of H = FᵀF.
    values, vectors = torch.linalg.eigh(h)
    roots = (values.clamp_min(0) + ridge).sqrt()
    factors = roots[..., None] * vectors.mT
    targets = (vectors.mT @ b[..., None])[..., 0] / roots - bound * factors.sum(-1)
    n = b.shape[-1]
    pairs = zip(factors.reshape(-1, n, n).cpu().numpy(), targets.reshape(-1, n).cpu().numpy())
    solutions = [torch.from_numpy(nnls(*pair)[0]) for pair in pairs]
    return bound + torch.stack(solutions).reshape(b.shape).to(like)
