"""Exact images behind a known start: an image writes nothing into a neuron that it never activates.

W₁ − αW₁⁰ = BX, and b_ji = 0 up to rounding where image i activates neuron j at no step of the training. So a column of
B has zeros at a third of the neurons or so, and it is one of the vectors Ac that the first layer spans, where A (h, m)
holds the layer in coordinates. A vector of a span without structure has m − 1 zeros at most; one with clearly more is
most likely a column of B. That is no proof: a difference of two columns that are proportional at many neurons has many
zeros, too. So vectors with fewer zeros than usual wait, and are sought again. And a vector that is zero only where
another one is, too, is taken for a difference of that one with a third, since a difference is zero where both are: it
does not count.

Unmixed images say where to look: zeros are likely at neurons that they leave inactive at the start and at the end.
Needs more neurons than about three times the images, and updates that are sums of gradients: Adam's are not.

A sure column makes the other images exact, since their rows of M = B⁺A are orthogonal to it. Where columns stay unsure,
an image is known but for a combination of their images, and unmixing chooses that.
"""

import math
from typing import NamedTuple

import torch
from torch.nn.functional import cosine_similarity, normalize

from attacks import unmixing
from utils.kernels import contrast
from utils.kernels.layers import forward
from utils.kernels.solvers import cg, dot

ROUNDS = 16  # at most
AGAIN = (
    *unmixing.LATER[-1][:2],
    25,
)  # ε, window and steps of unmixing in a round, for more than unmixing.FEW images
FIRST = (
    0.2,
    3.0,
    0.02,
)  # root mean squares of a column, what counts as zero at first: usually, and where that is stuck
FALL = 0.85  # what each next size is
LAST = 1e-3, 1e-4, 1e-5  # down to the first of these in single precision
SOLVED = 10  # iterations of conjugate gradients for each size
SURE = (
    1e-3,
    0.05,
)  # entries below are zeros; a column is sure if it has so many more than m, as a share of the neurons
USUAL = (
    0.85,
    0.5,
)  # of the median number of zeros: columns with fewer wait for the others; with still fewer for ever
SHARED = 0.97  # of a vector's zeros are another one's, too: a difference with it; columns of B share fewer
CENTRES = -0.5, -0.25, 0.0  # of three readings
SAME = 0.999  # cosine of a column in two readings
# of the logistic function that takes pre-activations to how likely a zero is
CENTRE = CENTRES[0]
WIDTH = 0.25
SPREAD = 0.22  # of an image's pixels, where the biases do not tell its size
LIKE = 0.8  # cosine of an image before and after a round, in the median
RANGE = 0.05, 0.6  # of spreads that are believed


class Columns(NamedTuple):
    """What training added to the first layer, in coordinates of the images' basis. A neuron's row has length one."""

    rows: torch.Tensor  # (h, m), with orthonormal columns
    upper: torch.Tensor  # (m, m): A = rows @ upper
    bias: torch.Tensor  # (h,), added to the biases, over the length that a neuron's row had
    basis: torch.Tensor  # (d, m), of the images


def rescale(matrix, columns):
    """Images in coordinates, rows M (m, m), given the sizes and signs of those that were trained on.

    Each row is known but for a factor, and so is its column of B = AM⁻¹. The biases tell the factors, since what was
    added to them is B1. A factor that would give an image a spread out of RANGE is believed in its sign alone, and the
    image gets the spread SPREAD.
    """
    mixing = (
        columns.rows @ columns.upper @ torch.linalg.inv(matrix)
    )  # B, up to the sizes of columns
    factors = 1 / torch.linalg.lstsq(mixing, columns.bias[:, None]).solution[:, 0]
    spread = (matrix @ columns.basis.mT).std(1)
    low, high = RANGE
    believed = (factors.abs() * spread > low) & (factors.abs() * spread < high)
    return matrix * torch.where(believed, factors, factors.sign() * SPREAD / spread)[:, None]


def search_sparse(rows, near, likely, size):
    """Unit vectors w (n, m) beside `near` for which rows·w (h,) has most zeros, where they are `likely` (n, h).

    Iteratively reweighted least squares: an entry of rows·w weighs more, the smaller it is and the likelier a zero is
    there. What counts as small shrinks from `size` on. If this is large, all entries count as small at first, and zeros
    come where they are likely; if it is small, they come where `near` has small entries already. The vectors begin at
    `near`, and for each size a few iterations of conjugate gradients take all of them on.
    """
    vectors = near
    steps = int(math.log(LAST[0] / size) / math.log(FALL))
    for size in (*(size * FALL**k for k in range(steps)), *LAST[1:]):
        kind = torch.float32 if size > LAST[0] else torch.float64
        a = rows.to(kind)
        w = vectors.to(kind)
        weights = likely.to(kind) / (len(a) * (w @ a.mT).square() + size**2)

        def product(v, a=a, weights=weights):
            return ((v @ a.mT) * weights) @ a

        initial = w / dot(w, product(w))
        vectors = normalize(initial + cg(product, w - product(initial), iterations=SOLVED).x, dim=1)
    return vectors.to(near)


def zeros(rows, vectors):
    """Which entries of rows·w are zero, for unit vectors w (n, m): (h, n)."""
    return (rows @ vectors.mT).abs() * len(rows) ** 0.5 < SURE[0]


def select(vectors, near, enough, rows):
    """Which vectors (m, m) are taken: those with `enough` zeros (m,), unless another one has all of them, too.

    A vector without a zero of its own is most likely a difference of columns, zero where both are. Of those equal, or
    zero at the same neurons, that nearest its start in `near` (m, m) is taken: each image has one column.
    """
    taken = enough.clone()
    moved = (vectors * near).sum(1).abs()
    zero = zeros(rows, vectors).double()
    within = (vectors @ vectors.mT).abs() > 0.999  # rounding hides zeros of faint columns
    if len(vectors) <= unmixing.FEW:  # of hundreds of columns of B, some share as many
        within |= zero.mT @ zero > SHARED * zero.sum(0)[:, None]
    for i in moved.argsort().tolist():
        taken[i] &= not (within[i] & taken).sum() > 1
    return taken


def classify(vectors, near, sure, rows, share):
    """Which vectors (m, m) are sure to be columns of B, by their zeros in rows·w: a mask (m,).

    Those that were `sure` (m,) before; and those with clearly more zeros than a span without structure allows, and more
    than a `share` of the median number, since differences of columns have fewer. What differences are left, `select`
    takes out.
    """
    count = zeros(rows, vectors).sum(0)
    enough = count > len(vectors) + SURE[1] * len(rows)
    enough &= count > share * count[enough | sure].double().median()
    return select(vectors, near, sure | enough, rows)


def retry(vectors, near, likely, rows):
    """The vectors (m, m), where those with few zeros are sought once more from `near`, and replaced if that finds more.

    The usual search may be stuck. So one begins at a large size, which follows what is likely, and one at a small size,
    which follows what is near.
    """
    few = ~classify(vectors, near, torch.zeros(len(vectors), dtype=torch.bool), rows, USUAL[0])
    for size in FIRST[1:] if few.any() else ():
        other = search_sparse(rows, near[few], likely[few], size)
        more = zeros(rows, other).sum(0) > zeros(rows, vectors[few]).sum(0)
        vectors[few] = torch.where(more[:, None], other, vectors[few])
    return vectors


def project(matrix, columns, sure, basis, shape):
    """The rows M (m, m) that columns (m, m) allow where these are `sure` (m,), near to a matrix; the rest by unmixing.

    The columns are those of M⁻¹: so every row is made orthogonal to the sure columns of all other images. What may
    still be added to it are the rows whose own columns are unsure, which are orthogonal to all sure ones. How much of
    each is added, the objective of unmixing chooses.
    """
    certain = columns[sure].mT
    own = torch.eye(len(columns), dtype=torch.bool)[:, sure]
    initial = matrix - (matrix @ certain).masked_fill(own, 0.0) @ torch.linalg.pinv(certain)
    if sure.all():
        return initial
    few = len(matrix) <= unmixing.FEW
    features, white = unmixing.whiten_features(basis, shape, few)
    rows = torch.linalg.solve(white, initial, left=False)
    stage = unmixing.STAGES[-1] if few else AGAIN
    better = contrast.minimise(rows, features, *stage, free=(~sure).nonzero()[:, 0])[0]
    return rows.norm(dim=1, keepdim=True) * better @ white


def in_coordinates(mixing, bias, basis):
    """What training added, A (h, m) and `bias` (h,), as Columns; and the length of every neuron's row (h, 1)."""
    lengths = mixing.norm(dim=1, keepdim=True).clamp_min(1e-300)
    rows, upper = torch.linalg.qr(mixing / lengths)
    return Columns(rows, upper, bias / lengths[:, 0], basis), lengths


def refine(images, mixing, bias, basis, layers, shape, centre=CENTRE):
    """Images (m, d) near to the m pictures behind A (h, m), made exact where their columns of B are sparse.

    Returns the images, which of them rest on a column that is sure (m,), and the columns (h, m), but for their sizes.
    `bias` (h,) is what was added to the biases, `basis` (d, m) that of the images, `layers` the first layer at the
    start and at the end, `shape` that of an image. All on the CPU. Pre-activations below `centre`, in an image's
    standard deviations over neurons, speak for a zero.
    """
    columns, lengths = in_coordinates(mixing, bias, basis)
    matrix = rescale(images @ basis, columns)
    sure = torch.zeros(len(images), dtype=torch.bool)
    vectors = torch.zeros_like(matrix)
    for _ in range(ROUNDS):
        reached = [forward((layer,), matrix @ basis.mT)[1][0] for layer in layers]
        most = torch.stack([z / z.std(1, keepdim=True) for z in reached]).amax(0)
        likely = (
            torch.sigmoid((centre - most) / WIDTH) + 0.01
        )  # that images never activated each neuron (m, h)
        near = normalize((columns.upper @ torch.linalg.inv(matrix)).mT, dim=1)
        initial = torch.where(sure[:, None], vectors, near)
        vectors = initial.clone()
        before = sure
        vectors[~sure] = search_sparse(columns.rows, near[~sure], likely[~sure], FIRST[0])
        sure = classify(vectors, near, before, columns.rows, USUAL[0])
        if (sure & ~before).sum() <= len(sure) // 100:
            vectors = retry(vectors, near, likely, columns.rows)
            sure = classify(vectors, near, before, columns.rows, USUAL[1])
        vectors = torch.where(sure[:, None], vectors, near)
        if (vectors - initial).abs().max() < 1e-9:
            break
        exact = rescale(
            project(matrix, torch.linalg.solve(columns.upper, vectors.mT).mT, sure, basis, shape),
            columns,
        )
        if cosine_similarity(matrix, exact).abs().median() < LIKE:
            sure = before
            vectors = near
            break  # one wrong column spoils all images
        matrix = exact
    return matrix @ basis.mT, sure, lengths * (columns.rows @ vectors.mT)


def refine_by_vote(images, mixing, bias, basis, layers, shape):
    """As `refine`, with the columns alone that two of three readings share, each with another of CENTRES.

    One wrong column spoils all images, and hardly two readings have the same wrong one.
    """
    readings = [refine(images, mixing, bias, basis, layers, shape, centre) for centre in CENTRES]
    columns, lengths = in_coordinates(mixing, bias, basis)
    vectors = torch.stack(
        [normalize((columns.rows.mT @ (found / lengths)).mT, dim=1) for _, _, found in readings]
    )
    sure = torch.stack([sure for _, sure, _ in readings])
    same = (
        (torch.einsum("kmi,lmi->klm", vectors, vectors).abs() > SAME) & sure & sure[:, None]
    )  # (3, 3, m)
    shared = same.sum(1) > 1  # (3, m), with another reading
    sure = shared.any(0)
    first = shared.long().argmax(0)
    matrix = rescale(images @ basis, columns)
    near = normalize((columns.upper @ torch.linalg.inv(matrix)).mT, dim=1)
    vectors = torch.where(sure[:, None], vectors[first, torch.arange(len(first))], near)
    if sure.any():
        inverse = torch.linalg.solve(columns.upper, vectors.mT).mT
        matrix = rescale(project(matrix, inverse, sure, basis, shape), columns)
    return matrix @ basis.mT, sure, lengths * (columns.rows @ vectors.mT)
