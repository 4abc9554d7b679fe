"""The losses of victims at outputs z (…, m, K), K = 1 for two classes, and labels y (m,) in {0, …, K−1} or {0, 1}."""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch.nn.functional import one_hot, softplus


class Loss(NamedTuple):
    """A loss ℓ(z, y) as functions."""

    value: Callable  # of z and y: ℓ(z, y), one per image (…, m)
    slope: Callable  # of z and y: ∂ℓ/∂z (…, m, K)
    curvature: Callable  # of z and a direction (…, m, K): its product with ∂²ℓ/∂z² (…, m, K)


def signs(labels):
    """0 and 1 become −1 and +1: (m,)."""
    return 2 * labels - 1


def softmax_product(z, v):
    """(diag(p) − ppᵀ)v for p = softmax(z)."""
    p = torch.softmax(z, -1)
    return p * (v - (p * v).sum(-1, keepdim=True))


def curvatures(z):
    """ℓ''(z) = σ(z)(1 − σ(z)) of the logistic loss, without cancellation for large |z|."""
    return torch.sigmoid(z) * torch.sigmoid(-z)


LOSSES = {
    "logistic": Loss(  # log(1 + exp(−yz)), y = ±1
        lambda z, y: softplus(-signs(y) * z[..., 0]),
        lambda z, y: -(signs(y) * torch.sigmoid(-signs(y) * z[..., 0]))[..., None],
        lambda z, v: curvatures(z) * v,
    ),
    "square": Loss(  # (z − y)², y = ±1
        lambda z, y: (z[..., 0] - signs(y)).square(),
        lambda z, y: 2 * (z - signs(y)[..., None]),
        lambda z, v: 2 * v,
    ),
    "cross_entropy": Loss(  # −log softmax(z)_y
        lambda z, y: z.logsumexp(-1) - (z * one_hot(y.long(), z.shape[-1])).sum(-1),
        lambda z, y: torch.softmax(z, -1) - one_hot(y.long(), z.shape[-1]),
        softmax_product,
    ),
}
