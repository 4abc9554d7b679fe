"""Rows of a first layer that are combinations of the training images: W = BX and b = B1, whatever file holds them.

A gradient of the first layer is such a combination, BX, and that of its biases is B1. So are sums of gradients. Descent
adds them to the rows, and weight decay shrinks all rows by one factor: between two points in time W₁ = BX + αW₁⁰ and
b₁ = B1 + αb₁⁰, with α = 1 without decay. So the difference W₁ − αW₁⁰ is one entry. An optimiser's first moment is
another: torch's SGD adds the decay to a gradient before it sums it up, so that the moment is BX + cW, and c is found as
α is. All rows of one training are combinations of the same images, and are attacked together, one below the other.
"""

import time
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from torch.nn.functional import cosine_similarity

from attacks import sparse, unmixing
from attacks.contract import Attack
from utils.errors import InputError
from utils.kernels import contrast
from utils.kernels.layers import Network, Shape
from utils.networks import Checkpoint, Layer, Released, change

ROUNDS = 60  # of alternating least squares, at most
SETTLED = 1e-9  # change of α at which they end; single precision tells no more
NEURONS = 160, 700  # to estimate α from: roughly, then from as many as there are
SPARE = 0.1  # share of the directions of these neurons that is taken to be free of images
NEAR = 0.9  # cosine of an image and the unmixed one
MOST = 0.85  # share of such images
COLUMNS = 1 << 14  # of weights that are at once in double precision: photographs have many
WORSE = 0.01  # fall of their score
UNCHANGED = (
    "The first layer is that of its start: nothing was trained there, or the start is no start."
)
NO_STEP = "The moment is zero: the file was written before the first step, or the state was reset; give a later file."


class Rows(NamedTuple):
    """Rows W = BX of a first layer, and their biases b = B1, for training images X (m, d).

    An image that activates a neuron neither when it began to write there nor at the end is likely to have written
    nothing.
    """

    layer: Layer  # W (k, d) and b (k,)
    first: Layer  # the first layer when the images began to write there
    last: Layer  # and when they ended
    removed: tuple  # of every entry what was removed: α of a difference, or c of a moment, in units of the moment


def check(network: Network, initial: Network) -> None:
    """Raise InputError unless an initial network has the same shape as this one, and other, finite weights."""
    ours, theirs = ([tuple(layer.weight.shape) for layer in one] for one in (network, initial))
    if ours != theirs:
        raise InputError(
            f"The start has layers of {theirs} where the network has {ours}: give its own."
        )
    for layer, before in zip(network, initial):
        if (layer.bias is None) != (before.bias is None):
            has, lacks = ("network", "start") if before.bias is None else ("start", "network")
            raise InputError(
                f"A layer of the {has} has a bias that the {lacks} lacks: give the network's own start."
            )
    first = network[0].weight
    before = initial[0].weight
    if not (first.isfinite().all() and before.isfinite().all()):
        raise InputError(
            "The network or its start holds values that are NaN or infinite: give weights as they were."
        )
    if is_unchanged(network, initial):
        raise InputError(UNCHANGED)


def is_unchanged(network: Network, initial: Network) -> bool:
    """Whether the first layer of a network is that of the initial one."""
    return torch.equal(network[0].weight, initial[0].weight.to(network[0].weight))


def slices(*weights: torch.Tensor) -> Iterator[list[torch.Tensor]]:
    """The same columns of weights (h, d), a few at a time, in double precision."""
    for some in zip(*(weight.split(COLUMNS, dim=1) for weight in weights)):
        yield [part.double() for part in some]


def shrinkage(
    weight: torch.Tensor, initial: torch.Tensor, rank: int, alpha: float | None = None
) -> float:
    """α for which W₁ − αW₁⁰ (h, d) is nearest to a matrix of this `rank`, by alternating least squares from `alpha`.

    In turns, V (h, h − rank) is taken as the left directions in which W₁ − αW₁⁰ is smallest, and α as the regression of
    VᵀW₁ on VᵀW₁⁰. The rank may be larger than that of the images' part BX, but not smaller: V must be free of images.
    """
    alpha = ((weight * initial).sum() / initial.square().sum()).item() if alpha is None else alpha
    for _ in range(ROUNDS):
        residuals = (ours - alpha * theirs for ours, theirs in slices(weight, initial))
        gram = sum(some @ some.mT for some in residuals)  # (h, h)
        trailing = torch.linalg.eigh(gram)[1][:, :-rank].mT  # Vᵀ (h − rank, h)
        before = alpha
        both = square = weight.new_zeros((), dtype=torch.float64)
        for ours, theirs in (
            (trailing @ part for part in some) for some in slices(weight, initial)
        ):
            both = both + (ours * theirs).sum()
            square = square + theirs.square().sum()
        alpha = (both / square).item()
        if abs(alpha - before) <= SETTLED:
            break
    return alpha


def difference(network: Network, initial: Network, alpha: float | None = None) -> Rows:
    """What training added to the first layer of an `initial` network; InputError as `check` says.

    α is estimated unless it is given, such as 1 for a training without weight decay.
    """
    check(network, initial)
    first, last = change((initial[0], network[0]), torch.Tensor.detach)
    if alpha is None:
        for some in NEURONS:
            ours, theirs = (layer.weight[:some] for layer in (last, first))
            alpha = shrinkage(ours, theirs, int((1 - SPARE) * min(ours.shape)), alpha)
    bias = None if last.bias is None else last.bias - alpha * first.bias
    pairs = slices(last.weight, first.weight)
    added = [(ours - alpha * theirs).to(last.weight) for ours, theirs in pairs]
    return Rows(
        layer=Layer(torch.cat(added, dim=1), bias),
        first=first,
        last=last,
        removed=(alpha,),
    )


def of_moment(checkpoint: Checkpoint) -> Rows:
    """What the first moment of a Checkpoint holds, less c times the weights; c is estimated."""
    moment = checkpoint.first[0]
    weights = checkpoint.network[0]
    size = (moment.weight.norm() / weights.weight.norm()).item()
    if not size:
        raise InputError(NO_STEP)
    found = difference(change((moment,), lambda p: p / size), (weights,))
    return Rows(found.layer, first=weights, last=weights, removed=(found.removed[0] * size,))


def stack(*entries: Rows) -> Rows:
    """Rows of several entries, one below the other, all of the same size."""
    scaled = []
    for layer, first, last, _ in entries:
        size = layer.weight.norm() / len(layer.weight) ** 0.5
        scaled.append((*change((layer,), lambda p, size=size: p / size), first, last))
    layer, first, last = (Layer(*map(concatenate, zip(*several))) for several in zip(*scaled))
    removed = tuple(factor for entry in entries for factor in entry.removed)
    return Rows(layer, first, last, removed)


def concatenate(parts):
    """Tensors one below the other, or None if one of them is missing."""
    return None if None in parts else torch.cat(parts)


def of_files(files: Sequence[Checkpoint], moments: bool = True) -> Rows:
    """What Checkpoints of one training say together: `moments`, or else what was written from each to the next."""
    found = [of_moment(file) for file in files if file.first and moments]
    if not found:
        found = [difference(late.network, early.network) for early, late in zip(files, files[1:])]
    if not found:
        raise InputError(
            "No file holds a moment, and there are no two to compare: give a file with the state, or two."
        )
    return stack(*found)


def as_released(rows: Rows, released: Released) -> Released:
    """What was released, with these rows as its only layer: any attack on a first layer may be made on them."""
    return released._replace(network=(rows.layer,))


def attempt(
    released: Released, rows: Rows, shape: Shape, count: int | None, seed: int = 0
) -> Attack:
    """Unmix the rows, with the count that they tell or else the given one, or refuse."""
    return unmixing.attempt(as_released(rows, released), shape, count, seed, unmixing.SOON)


def refine(rows: Rows, unmixed: Attack, shape: Shape) -> Attack:
    """The `unmixed` Attack of `attempt`, with exact images where their columns of B are sparse."""
    return apply_refinement(rows, unmixed, shape, sparse.refine)


def refine_by_vote(rows: Rows, unmixed: Attack, shape: Shape) -> Attack:
    """The same for moments, which fade, and with them a column's zeros: so two of three readings must agree.

    If a column is wrong none the less, many images come out far from the unmixed ones, or less like photographs. Then
    the far ones are not believed: the unmixed images stay in their places, and are not sure.
    """
    found = apply_refinement(rows, unmixed, shape, sparse.refine_by_vote)
    single = torch.as_tensor(unmixed.images, dtype=torch.float32)
    before, after = (
        contrast.score(x, single, shape).mean() for x in (unmixed.images, found.images)
    )
    near = cosine_similarity(found.images, unmixed.images).abs() > NEAR
    near |= near.double().mean() > MOST and before - after < WORSE
    images = torch.where(near[:, None], found.images, unmixed.images)
    details = found.details._replace(
        matrix=images @ found.details.basis, sure=found.details.sure & near.cpu()
    )
    return found._replace(images=images, details=details)


def apply_refinement(rows, unmixed, shape, method):
    """An `unmixed` Attack with exact images by a `method`, which is `sparse.refine` or `sparse.refine_by_vote`.

    If the layer does not tell the count, its span holds more than images: then the images are returned as they were,
    none of them sure.
    """
    details = unmixed.details
    if details.count != details.basis.shape[1]:
        sure = torch.zeros(len(unmixed.images), dtype=torch.bool)
        return unmixed._replace(details=details._replace(sure=sure))
    clock = time.perf_counter()
    layer, *layers = change(rows[:3], torch.Tensor.cpu)
    columns = sparse.read_columns(layer, details.basis.cpu(), shape)
    matrix, vectors, sure = method(unmixed.images.cpu(), columns, layers)
    # B (h, m), but for the size of each column
    entries = columns.lengths * (columns.rows @ vectors.mT)
    matrix, entries, sure = (part.to(unmixed.images.device) for part in (matrix, entries, sure))
    details = details._replace(matrix=matrix, sure=sure, columns=entries)
    seconds = unmixed.seconds + time.perf_counter() - clock
    return unmixed._replace(images=matrix @ details.basis.mT, seconds=seconds, details=details)
