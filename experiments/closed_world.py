"""Membership tests for somebody who holds an image: one number for each, larger for a member, and no reconstruction.

Images x (n, d) are without the trainer's mean, with labels y (n,). An attack on pixels has to beat each.
"""

from collections.abc import Iterator, Sequence

import numpy as np
import torch

from attacks import first_layer, unmixing
from evaluation import measures, null
from experiments import variants
from training import images, ordinary
from training.images import Part, Split
from utils import networks
from utils.errors import InputError, choose
from utils.kernels import naive
from utils.kernels.layers import Network, Shape, square_norm
from utils.kernels.losses import LOSSES
from utils.networks import Released

EPOCHS = 60  # of a training from a known start, as of ordinary.train


def by_loss(released: Released, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """−ℓ(Φ(x; θ*), y), the threshold test of Yeom et al. (2018): (n,)."""
    return -LOSSES[released.recipe.loss].value(released.outputs(x), y)


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


TESTS = {
    "loss": by_loss,
    "span": lambda released, x, y: share(x, networks.span(released.network)),  # before W₁'s gap
    "residual": by_residual,
}


def areas(released: Released, data: Split, mean: torch.Tensor | float) -> dict[str, null.Area]:
    """How well each test tells training from held-out images of a Split, less the trainer's mean: {test: Area}."""
    ours, theirs = measures.sides(data, mean)
    return {
        name: null.area(
            test(released, ours, data.secret.labels), test(released, theirs, data.held_out.labels)
        )
        for name, test in TESTS.items()
    }


# ---- A natural picture in hand: was a network trained on it? ----


def parts(dataset, m, seed, device):
    """A Split of a data set with three parts of m images, and a Part of all its other pictures."""
    labelled = images.load(dataset)
    data = images.split(labelled, m, m, seed, device, held_out=m)
    whole = [one for one in (labelled, labelled.unused) if one]
    x, y = (np.concatenate(both) for both in zip(*(one[:2] for one in whole)))
    x = x / 255.0 if x.dtype == np.uint8 else x.astype(float)
    used = {row.numpy().tobytes() for part in data[:3] for row in part.images.cpu()}
    rows = [k for k, row in enumerate(x) if row.tobytes() not in used]
    if len(rows) < 2:
        raise InputError("All images of DATASET are in use: choose fewer IMAGES.")
    others = torch.from_numpy(x[rows]).flatten(1), torch.from_numpy(y[rows])
    return data, images.Part(*(mine.to(like) for mine, like in zip(others, data.secret)))


def train_victim(part, shape, name, neurons, seed):
    """Train by a name of `variants.VICTIMS` or, from a known start, of `ordinary.TRAINERS`, on a Part.

    The Victim, and a basis (d, r) of as many directions as what training added to the first layer tells, or all of the
    layer where the start is unknown; or else of as many as pictures.
    """
    choose("VICTIM", name, [*variants.VICTIMS, *ordinary.TRAINERS])
    if name in ordinary.TRAINERS:
        victim = ordinary.train(part, None, shape, name, (neurons, neurons), seed=seed)
        rows = first_layer.difference(victim.released.network, victim.initial)
        added = first_layer.as_released(rows, victim.released)
    else:
        victim = variants.release(part, shape, variants.settings(name, neurons), seed)
        added = victim.released
    try:
        return victim, unmixing.read(added)[1]
    except InputError:
        count = victim.versions - added.recipe.centred
        return victim, networks.leading_span(added.network, count)


def references(
    parts: Sequence[Part], shape: Shape, name: str, neurons: int, seed: int, initial: Network
) -> Iterator[tuple[Network, torch.Tensor]]:
    """Networks trained as `train_victim` does on Parts, each with its own batches or start, and their means (d,).

    Where the start is known, all of them begin at this `initial` one. Yields pairs.
    """
    means = [mean_of(part, shape, name) for part in parts]
    seeds = range(1000 * (seed + 1), 1000 * (seed + 1) + len(parts))
    if name not in ordinary.TRAINERS:
        several = [part.images - mean for part, mean in zip(parts, means)]
        labels = [part.labels for part in parts]
        o = variants.settings(name, neurons)
        yield from zip(variants.train_together(several, labels, 1, o, seeds), means)
        return
    for part, mean, own_seed in zip(parts, means, seeds):
        net = naive.module_of(initial).float().to(mean.device)
        ordinary.tune(net, ordinary.subtract(part, mean), shape, name, EPOCHS, own_seed)
        yield ordinary.layers_of(net), mean


def mean_of(part: Part, shape: Shape, name: str) -> torch.Tensor:
    """The mean (d,) of a Part, of the kind that this trainer takes away."""
    if name in ordinary.TRAINERS:
        return ordinary.colour_mean(part, shape)
    return part.images.mean(0) * variants.settings(name, 1).centred


def share(x: torch.Tensor, basis: torch.Tensor) -> torch.Tensor:
    """The share of the energy of pictures (n, d) that is in the span of a basis (d, r): (n,)."""
    return (x @ basis).square().sum(1) / x.square().sum(1)


def found(scores: torch.Tensor, others: torch.Tensor) -> float:
    """The share of scores (n,) above a bar that at most one of a thousand of others (k,) passes."""
    bar = others.sort(descending=True).values[len(others) // 1000]
    return (scores > bar).double().mean().item()


def by_half(members: torch.Tensor, others: torch.Tensor) -> tuple[float, float]:
    """The share of members (n,) above the bar of every second of others (k,), and that of the rest of these."""
    return found(members, others[::2]), found(others[1::2], others[::2])
