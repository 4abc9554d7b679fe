"""Membership tests for somebody who holds an image: one number for each, larger for a member, and no reconstruction.

Images x (n, d) are without the trainer's mean, with labels y (n,). An attack on pixels has to beat each.
"""

import torch

from evaluation import measures, null
from training.images import Split
from utils.kernels.layers import square_norm
from utils.kernels.losses import LOSSES
from utils.networks import Released, span


def by_loss(released: Released, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """−ℓ(Φ(x; θ*), y), the threshold test of Yeom et al. (2018): (n,)."""
    return -LOSSES[released.recipe.loss].value(released.outputs(x), y)


def by_span(released: Released, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """The share of ‖x‖² in the row space of W₁, before its gap if it has one: (n,)."""
    basis = span(released.network)
    return (x @ basis).square().sum(1) / x.square().sum(1)


def by_residual(released: Released, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """The cosine c of θ* and −∇_θ ℓ(x, y): what one image alone explains of stationarity, (n,).

    min_{λ≥0} ‖θ* + λ∇_θ ℓ‖² = ‖θ*‖²(1 − max(c, 0)²). With δ_l = ∂ℓ/∂z_l and the inputs ā_{l−1} of a layer, ∇ℓ is
    δ_l ⊗ ā_{l−1}, so neither ⟨θ*, ∇ℓ⟩ nor ‖∇ℓ‖ needs the gradient itself.
    """
    inputs, outputs = released.forward(x.detach().requires_grad_())
    losses = LOSSES[released.recipe.loss].value(outputs[-1], y)
    signals = torch.autograd.grad(losses.sum(), outputs)
    product = sum((d * z).sum(1) for d, z in zip(signals, outputs))
    squares = sum(
        d.square().sum(1) * (a.square().sum(1) + (layer.bias is not None))
        for d, a, layer in zip(signals, inputs, released.network)
    )
    return -(product / (squares * square_norm(released.network)).sqrt().clamp_min(1e-300)).detach()


TESTS = {"loss": by_loss, "span": by_span, "residual": by_residual}


def areas(released: Released, data: Split, mean: torch.Tensor | float) -> dict[str, null.Area]:
    """How well each test tells training from held-out images of a Split, less the trainer's mean: {test: Area}."""
    pairs = [*zip(measures.sides(data, mean), (data.secret.labels, data.held_out.labels))]
    scores = {name: [test(released, *pair) for pair in pairs] for name, test in TESTS.items()}
    return {name: null.area(*(values.cpu() for values in both)) for name, both in scores.items()}
