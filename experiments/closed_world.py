"""Membership tests for somebody who holds an image: one number for each, larger for a member, and no reconstruction.

Images x (n, d) are without the trainer's mean, with labels y (n,). An attack on pixels has to beat each.
"""

import io
import itertools
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import torch
from PIL import Image

from attacks import first_layer, unmixing
from evaluation import measures, null
from experiments import variants
from training import Victim, ordinary
from training.images import Labelled, Part, Split
from utils import networks
from utils.errors import InputError
from utils.kernels import naive
from utils.kernels.layers import Network, Shape, square_norm
from utils.kernels.losses import LOSSES
from utils.networks import Released, span

EPOCHS = 60  # of a training from a known start, as of ordinary.train


def by_loss(released: Released, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """−ℓ(Φ(x; θ*), y), the threshold test of Yeom et al. (2018): (n,)."""
    return -LOSSES[released.recipe.loss].value(released.outputs(x), y)


def by_span(released: Released, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """The share of ‖x‖² in the row space of W₁, before its gap if it has one: (n,)."""
    return share(x, span(released.network))


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


# ---- A natural picture in hand: was a network trained on it? ----


def train(part: Part, shape: Shape, name: str, neurons: int, seed: int) -> tuple[Victim, Released]:
    """Train by a name of `variants.VICTIMS` or, from a known start, of `ordinary.TRAINERS`, on a Part.

    The Victim, and a network whose first layer holds what training added to the start, or all of an unknown one.
    """
    if name in ordinary.TRAINERS:
        victim = ordinary.train(part, None, shape, name, (neurons, neurons), seed=seed)
        added = first_layer.difference(victim.released.network, victim.initial)
        return victim, first_layer.as_released(added, victim.released)
    victim = variants.release(part, shape, variants.settings(name, neurons), seed)
    return victim, victim.released


def references(
    parts: Sequence[Part], shape: Shape, name: str, neurons: int, seed: int, initial: Network
) -> Iterator[tuple[Network, torch.Tensor]]:
    """Networks trained as `train` does on Parts, each with its own batches or start, and the means (d,) that they take.

    Where the start is known, all of them begin at this `initial` one.
    """
    means = [mean_of(part, shape, name) for part in parts]
    seeds = range(1000 * (seed + 1), 1000 * (seed + 1) + len(parts))
    if name not in ordinary.TRAINERS:
        o = variants.settings(name, neurons)
        several = [part.images - mean for part, mean in zip(parts, means)]
        yield from zip(
            variants.train_together(several, [part.labels for part in parts], 1, o, seeds), means
        )
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


def basis_of(added: Released, count: int) -> torch.Tensor:
    """A basis (d, r) of as many directions as the first layer tells, or else as pictures."""
    try:
        return unmixing.read(added)[1]
    except InputError:
        return networks.leading_span(added.network, count - added.recipe.centred)


def share(x: torch.Tensor, basis: torch.Tensor) -> torch.Tensor:
    """The share of the energy of pictures (n, d) that is in the span of a basis (d, r): (n,)."""
    return (x @ basis).square().sum(1) / x.square().sum(1)


def unused(labelled: Labelled, data: Split) -> Part:
    """All pictures of a data set that are in no Part of a Split of it."""
    sets = [one for one in (labelled, labelled.unused) if one]
    x, y = (np.concatenate(both) for both in zip(*(one[:2] for one in sets)))
    x = torch.from_numpy(x / 255.0 if x.dtype == np.uint8 else x.astype(float)).flatten(1)
    used = {row.numpy().tobytes() for part in data[:3] for row in part.images.cpu()}
    rows = [k for k, row in enumerate(x) if row.numpy().tobytes() not in used]
    return Part(x[rows].to(data.secret.images), torch.from_numpy(y)[rows].to(data.secret.labels))


def found(scores: torch.Tensor, others: torch.Tensor) -> float:
    """The share of scores (n,) above a bar that at most one of a thousand of others (k,) passes."""
    bar = others.sort(descending=True).values[len(others) // 1000]
    return (scores > bar).double().mean().item()


def by_half(members: torch.Tensor, others: torch.Tensor) -> tuple[float, float]:
    """The share of members (n,) above the bar of every second of others (k,), and that of the rest of these."""
    return found(members, others[::2]), found(others[1::2], others[::2])


# ---- The same picture, but not to the pixel ----


def moved(
    x: torch.Tensor, shape: Shape, most: int
) -> Iterator[tuple[tuple[int, int], torch.Tensor]]:
    """Pictures (n, d) of a shape (H, W, C), moved by up to so many pixels down and right: ((down, right), (n, d)).

    What leaves is lost, and edges are repeated.
    """
    height, width = shape[:2]
    rows, columns = (torch.arange(-most, n + most).clamp(0, n - 1) for n in (height, width))
    larger = x.view(-1, *shape)[:, rows][:, :, columns]
    for top, left in itertools.product(range(2 * most + 1), repeat=2):
        yield (
            (most - top, most - left),
            larger[:, top : top + height, left : left + width].flatten(1),
        )


def by_pillow(x: torch.Tensor, shape: Shape, change: Callable) -> torch.Tensor:
    """Pictures (n, d), changed one by one by a function of a Pillow image, as bytes."""
    pixels = x.view(-1, *shape).mul(255).round().byte().cpu().numpy()
    changed = [np.asarray(change(Image.fromarray(one.squeeze()))) for one in pixels]
    return torch.from_numpy(np.stack(changed)).flatten(1).to(x) / 255


def compressed(picture, quality):
    """A Pillow image after JPEG of this quality."""
    buffer = io.BytesIO()
    picture.save(buffer, "jpeg", quality=quality)
    return Image.open(buffer)


def resized(picture):
    """A Pillow image, enlarged by a quarter, from 32 to 40 pixels say, and brought back."""
    larger = picture.resize([side * 5 // 4 for side in picture.size], Image.Resampling.LANCZOS)
    return larger.resize(picture.size, Image.Resampling.LANCZOS)


CHANGES: dict[str, Callable] = {  # of pictures (n, d) of a shape
    "as_trained": lambda x, shape: x,
    "jpeg_95": lambda x, shape: by_pillow(x, shape, lambda picture: compressed(picture, 95)),
    "jpeg_75": lambda x, shape: by_pillow(x, shape, lambda picture: compressed(picture, 75)),
    "resized": lambda x, shape: by_pillow(x, shape, resized),
    "brighter": lambda x, shape: (1.05 * x).clamp(max=1),
    "shifted": lambda x, shape: dict(moved(x, shape, 1))[0, 1],
    "mirrored": ordinary.mirror,
}


def tries(x: torch.Tensor, shape: Shape) -> Iterator[torch.Tensor]:
    """Pictures (n, d), moved by up to two pixels both ways, and all of it mirrored: fifty times (n, d)."""
    for picture in (x, ordinary.mirror(x, shape)):
        for _, one in moved(picture, shape, 2):
            yield one
