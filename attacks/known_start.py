"""A known start: what training added to the first layer is what the images wrote there, whatever was there before.

Gradient descent leaves W₁ = BX + αW₁⁰ and b₁ = B1 + αb₁⁰ for training images X, the initial W₁⁰ and b₁⁰, and a number
α, one without weight decay. Who knows the initial network, such as public weights that were fine-tuned, takes αW₁⁰
away, and attacks the rest as if it had been zero (`first_layer`).
"""

import time

import torch

from attacks import decoreco, first_layer, unmixing
from attacks.contract import Attack
from attacks.first_layer import Rows
from utils.kernels.layers import Network, Shape
from utils.networks import Layer, Released, leading_span


def attempt(
    released: Released,
    initial: Network,
    shape: Shape,
    count: int | None,
    seed: int = 0,
    alpha: float | None = None,
) -> tuple[Attack, Rows | None]:
    """Unmix what training added to the `initial` network, and these Rows; a refusal, and None, if it added nothing."""
    if first_layer.is_unchanged(released.network, initial):
        return unmixing.refuse(first_layer.UNCHANGED), None
    clock = time.perf_counter()
    rows = first_layer.difference(released.network, initial, alpha)
    found = first_layer.attempt(released, rows, shape, count, seed)
    return found._replace(seconds=time.perf_counter() - clock), rows


def stationarity(
    released: Released,
    initial: Network,
    candidates: torch.Tensor,
    alpha: float,
    count: int,
    settings: decoreco.Settings = decoreco.ADAM,
    seed: int = 0,
) -> Attack:
    """The stationarity attack on θ* − αθ⁰, in the span of `count` leading directions of W₁ − αW₁⁰.

    To first order that is right for a training that hardly moves the weights (Loo et al., 2024, of wide networks).
    """
    rows = first_layer.difference(released.network, initial, alpha)
    pairs = zip(released.network, initial)
    target = tuple(Layer(*(p - alpha * q for p, q in zip(ours, theirs))) for ours, theirs in pairs)
    basis = leading_span((rows.layer,), count)
    settings = settings._replace(rule="margin")
    return decoreco.attack(released, candidates, settings, target=target, basis=basis, seed=seed)
