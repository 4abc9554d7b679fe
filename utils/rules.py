"""Four rules for the coefficients of the stationarity residual: what the signals of the last layer are.

The residual's gradients are Σ_i c_i ∇_θ Φ(x_i) for one output, or mixtures of several; a rule turns coefficients λ (…, n)
and outputs z (…, n, K) of n candidates into the signals D_L (…, n, K) that are propagated back, and pulls a derivative
in D_L back to λ and, where the signals depend on them, to the outputs. Coefficients are published with a factor 1/n.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch.nn.functional import one_hot

from utils.errors import InputError, choose
from utils.losses import LOSSES, Loss, signs


class Signed:
    """c_i = λ_i/n of either sign: regression with weight decay (Buzaglo et al.)."""

    bounded = False

    def signal(self, z, coefficients):
        """D_L = λ/n."""
        return coefficients[..., None] / z.shape[-2]

    def pullback(self, z, coefficients, up):
        """dR/dλ = dR/dD_L/n."""
        return up[..., 0] / z.shape[-2], None


class Margin(NamedTuple):
    """c_i = λ_i y_i/n with λ_i ≥ λ_min and y_i = ±1: two classes without weight decay (Haim et al.)."""

    y: torch.Tensor  # (n,) of ±1
    bounded = True

    def signal(self, z, coefficients):
        """D_L = λy/n."""
        return (coefficients * self.y)[..., None] / z.shape[-2]

    def pullback(self, z, coefficients, up):
        """dR/dλ = y·dR/dD_L/n."""
        return up[..., 0] * self.y / z.shape[-2], None


class Multiclass(NamedTuple):
    """λ_i/n times the gradient of Φ_y − max_{j≠y} Φ_j, λ_i ≥ λ_min: more classes, cross-entropy (Buzaglo et al.)."""

    own: torch.Tensor  # (n, K), one at the label
    bounded = True

    def direction(self, z):
        """e_y − e_j for the strongest other class j."""
        rival = torch.where(self.own > 0, -torch.inf, z).argmax(-1)
        return self.own - one_hot(rival, z.shape[-1])

    def signal(self, z, coefficients):
        """D_L = λ(e_y − e_j)/n."""
        return coefficients[..., None] * self.direction(z) / z.shape[-2]

    def pullback(self, z, coefficients, up):
        """dR/dλ = ⟨e_y − e_j, dR/dD_L⟩/n."""
        return (up * self.direction(z)).sum(-1) / z.shape[-2], None


class Tied(NamedTuple):
    """c_i = −ℓ'(Φ(x_i), y_i)/(nμ): eqs. (3) and (4) with weight decay, R = ‖∇_θ E‖²/μ². There is no λ."""

    labels: torch.Tensor  # (n,)
    loss: Loss
    weight_decay: float  # μ
    bounded = False

    def signal(self, z, coefficients):
        """D_L = −ℓ'(z, y)/(nμ)."""
        return self.loss.slope(z, self.labels) / (-z.shape[-2] * self.weight_decay)

    def pullback(self, z, coefficients, up):
        """dR/dz = −ℓ''·dR/dD_L/(nμ)."""
        return torch.zeros_like(coefficients), self.loss.bend(z, up) / (-z.shape[-2] * self.weight_decay)


RULES: dict[str, Callable] = {
    "signed": lambda labels, outputs, weight_decay, loss: Signed(),
    "margin": lambda labels, outputs, weight_decay, loss: Margin(signs(labels)),
    "multiclass": lambda labels, outputs, weight_decay, loss: Multiclass(one_hot(labels.long(), outputs)),
    "tied": lambda labels, outputs, weight_decay, loss: Tied(labels, LOSSES[loss], weight_decay),
}


def make(name, labels, outputs, weight_decay=None, loss=None):
    """Build a rule for n candidates with labels (n,), after checking that labels, outputs and rule fit together."""
    choose("RULE", name, RULES)
    many = name == "multiclass" or (name == "tied" and loss == "cross_entropy")
    if many != (outputs > 1):
        raise InputError(
            f"The rule {name!r} needs a network with {'several outputs' if many else 'one output'}, but this one has "
            f"{outputs}: use {'signed or margin' if many else 'multiclass'}."
        )
    if name == "tied":
        choose("loss", loss, LOSSES)
        if not weight_decay or weight_decay <= 0:
            raise InputError(
                f"The tied rule divides by the weight decay, which is {weight_decay!r}: it must be larger than 0."
            )
    classes = max(outputs, 2)
    if name != "signed" and not torch.isin(labels, torch.arange(classes, device=labels.device).to(labels)).all():
        raise InputError(
            f"The rule {name!r} needs labels from 0 to {classes - 1}, but they reach from {labels.min():g} to {labels.max():g}."
        )
    if name != "signed" and len(labels) < classes:
        raise InputError(f"There are {len(labels)} candidates for {classes} classes: make CANDIDATES larger.")
    return RULES[name](labels, outputs, weight_decay, loss)
