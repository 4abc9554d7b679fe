"""The losses of the victims: values, slopes and curvatures in the outputs of a network.

Outputs z are (…, m, K). Two classes have K = 1 and labels y (m,) in {0, 1}, which stand for −1 and +1; more classes
have labels in {0, …, K−1}.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch.nn.functional import one_hot, softplus


class Loss(NamedTuple):
    """ℓ(z, y), one per image, with ∂ℓ/∂z and the product of ∂²ℓ/∂z² with a direction."""

    value: Callable  # z, y -> (…, m)
    slope: Callable  # z, y -> (…, m, K)
    bend: Callable  # z, direction (…, m, K) -> (…, m, K)


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
    # log(1 + exp(−yz)), y = ±1
    "logistic": Loss(
        lambda z, y: softplus(-signs(y) * z[..., 0]),
        lambda z, y: -(signs(y) * torch.sigmoid(-signs(y) * z[..., 0]))[..., None],
        lambda z, v: curvatures(z) * v,
    ),
    # (z − y)², y = ±1
    "square": Loss(
        lambda z, y: (z[..., 0] - signs(y)).square(),
        lambda z, y: 2 * (z - signs(y)[..., None]),
        lambda z, v: 2 * v,
    ),
    # −log softmax(z)_y
    "cross_entropy": Loss(
        lambda z, y: z.logsumexp(-1) - (z * one_hot(y.long(), z.shape[-1])).sum(-1),
        lambda z, y: torch.softmax(z, -1) - one_hot(y.long(), z.shape[-1]),
        softmax_product,
    ),
}
