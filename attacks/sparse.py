"""Exact images behind a known start: an image writes nothing into a neuron that it never activates.

W₁ − αW₁⁰ = BX, and b_ji = 0 up to rounding where image i activates neuron j at no step of the training. So a column of
B has zeros at a third of the neurons or so, and it is one of the vectors Ac that the first layer spans, where A (h, m)
holds the layer in coordinates. A vector of a span without structure has m − 1 zeros at most; one with clearly more is
most likely a column of B. That is no proof: a difference of two columns that are proportional at many neurons has many
zeros, too. So vectors with fewer zeros than usual wait, and are sought again. And a vector that is zero only where
another one is, too, is taken for a difference of that one with a third, since a difference is zero where both are: it
does not count. Nor does a vector of which a zero does not follow from its other zeros: see `has_chosen_zero`.

Unmixed images say where to look: zeros are likely at neurons that they leave inactive at the start and at the end. So a
round selects where zeros are likely, searches vectors with zeros there, classifies which are columns of B, and projects
the images onto what these allow: see `refine`. It
needs more neurons than about three times the images, and updates that are sums of gradients: Adam's are not.

A sure column makes the other images exact, since their rows of M = B⁺A are orthogonal to it. Where columns stay unsure,
an image is known but for a combination of their images, and unmixing chooses that.
"""

import math
from typing import NamedTuple

import torch
from torch.nn.functional import cosine_similarity, normalize

from attacks import unmixing
from utils.kernels import contrast
from utils.kernels.layers import Layer, forward
from utils.kernels.solvers import cg, dot

ROUNDS = 16  # at most
AGAIN = 25  # steps of unmixing in a round, for more than unmixing.FEW images
# root mean squares of a column, what counts as zero at first: usually, and where that is stuck
FIRST = 0.2
STUCK = 3.0, 0.02
FALL = 0.85  # what each next size is
LAST = 1e-3, 1e-4, 1e-5  # down to the first of these in single precision
SOLVED = 10  # iterations of conjugate gradients for each size
ZERO = 1e-3  # root mean squares of a column, below which an entry is zero
SURE = 0.05  # a column is sure if it has so many more zeros than m, as a share of the neurons
# of the median number of zeros: columns with fewer wait for the others; with still fewer for ever
USUAL = 0.85
LEAST = 0.5
ALONE = 0.99  # leverage of a zero among a vector's own, from which on it was chosen: columns of B have less
SHARED = 0.97  # of a vector's zeros are another one's, too: a difference with it; columns of B share fewer
CENTRES = -0.5, -0.25, 0.0  # of three readings
SAME = 0.999  # cosine of a column in two readings
WIDTH = 0.25  # of the logistic function that takes pre-activations to how likely a zero is
LIKE = 0.8  # cosine of an image before and after a round, in the median
RANGE = 0.05, 0.6  # of spreads that are believed


class Columns(NamedTuple):
    """The span of the columns of B: what training added to the first layer, in coordinates of the images' basis.

    A neuron's row has length one. A vector w (m,) stands for the column rows·w, and a row of M (m, m) for an image.
    """

    rows: torch.Tensor  # (h, m), with orthonormal columns
    upper: torch.Tensor  # (m, m): A = rows @ upper
    lengths: torch.Tensor  # (h, 1), that the neurons' rows had
    bias: torch.Tensor  # (h, 1), added to the biases, over these lengths
    basis: torch.Tensor  # (d, m), of the images
    features: torch.Tensor  # of the basis, and the matrix (m, m) that whitened them: see `unmixing`
    white: torch.Tensor

    def zeros(self, vectors):
        """Which entries of rows·w are zero, for unit vectors w (n, m): (h, n)."""
        return (self.rows @ vectors.mT).abs() * len(self.rows) ** 0.5 < ZERO

    def nearest(self, matrix):
        """The unit vectors (m, m) of the columns that images M have."""
        return normalize((self.upper @ torch.linalg.inv(matrix)).mT, dim=1)

    def rescale(self, matrix):
        """Images M, given the sizes and signs of those that were trained on.

        Each row is known but for a factor, and so is its column of B = AM⁻¹. The biases tell the factors, since what
        was added to them is B1. A factor that would give an image a spread out of RANGE is believed in its sign alone,
        and the image gets the spread of unmixed ones.
        """
        b = self.rows @ self.upper @ torch.linalg.inv(matrix)  # up to the sizes of columns
        factors = 1 / torch.linalg.lstsq(b, self.bias).solution[:, 0]
        spread = (matrix @ self.basis.mT).std(1)
        low, high = RANGE
        believed = (factors.abs() * spread > low) & (factors.abs() * spread < high)
        usual = factors.sign() * unmixing.SPREAD / spread
        return matrix * torch.where(believed, factors, usual)[:, None]

    def project(self, matrix, vectors, sure):
        """The images near to M that vectors (m, m) allow where these are `sure` (m,); the rest by unmixing.

        Every row is made orthogonal to the columns of M⁻¹ that all other images' sure vectors tell. What may still be
        added to it are the rows whose own columns are unsure, which are orthogonal to all sure ones. How much of each
        is added, the objective of unmixing chooses.
        """
        certain = torch.linalg.solve(self.upper, vectors.mT)[:, sure]
        own = torch.eye(len(vectors), dtype=torch.bool)[:, sure]
        matrix = matrix - (matrix @ certain).masked_fill(own, 0.0) @ torch.linalg.pinv(certain)
        if not sure.all():
            few = len(matrix) <= unmixing.FEW
            rows = torch.linalg.solve(self.white, matrix, left=False)
            stage = unmixing.STAGES[-1] if few else (*unmixing.LATER[-1][:2], AGAIN)
            free = (~sure).nonzero()[:, 0]
            better = contrast.minimise(rows, self.features, *stage, free=free)[0]
            matrix = rows.norm(dim=1, keepdim=True) * better @ self.white
        return self.rescale(matrix)


def read_columns(added, basis, shape):
    """The Columns that an added Layer W (h, d) and b (h,) tells, in a basis (d, m) of the images."""
    mixing = added.weight.to(basis) @ basis
    lengths = mixing.norm(dim=1, keepdim=True).clamp_min(1e-300)
    rows, upper = torch.linalg.qr(mixing / lengths)
    whitened = unmixing.whiten_features(basis, shape, basis.shape[1] <= unmixing.FEW)
    return Columns(rows, upper, lengths, added.bias[:, None] / lengths, basis, *whitened)


def likely_zeros(matrix, layers, centre):
    """How likely images M (m, m) never activated each neuron: (m, h).

    `layers` are the first one at the start and at the end, in coordinates of the images' basis. Pre-activations below
    `centre`, in an image's standard deviations over neurons, speak for a zero.
    """
    reached = [forward((layer,), matrix)[1][0] for layer in layers]
    most = torch.stack([z / z.std(1, keepdim=True) for z in reached]).amax(0)
    return torch.sigmoid((centre - most) / WIDTH) + 0.01


def search_sparse(columns, near, likely, size):
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
        a = columns.rows.to(kind)
        w = vectors.to(kind)
        weights = likely.to(kind) / (len(a) * (w @ a.mT).square() + size**2)

        def product(v, a=a, weights=weights):
            return ((v @ a.mT) * weights) @ a

        initial = w / dot(w, product(w))
        vectors = normalize(initial + cg(product, w - product(initial), iterations=SOLVED).x, dim=1)
    return vectors.to(near)


def drop_differences(columns, vectors, near, enough):
    """Which vectors (m, m) are taken: those with `enough` zeros (m,), unless another one has all of them, too.

    A vector without a zero of its own is most likely a difference of columns, zero where both are. Of those equal, or
    zero at the same neurons, that nearest its start in `near` (m, m) is taken: each image has one column.
    """
    taken = enough.clone()
    moved = (vectors * near).sum(1).abs()
    zero = columns.zeros(vectors).double()
    within = (vectors @ vectors.mT).abs() > 0.999  # rounding hides zeros of faint columns
    if len(vectors) <= unmixing.FEW:  # of hundreds of columns of B, some share as many
        within |= zero.mT @ zero > SHARED * zero.sum(0)[:, None]
    for i in moved.argsort().tolist():
        taken[i] &= not (within[i] & taken).sum() > 1
    return taken


def has_chosen_zero(columns, vector):
    """Whether rows·w, for a unit vector w (m,), has a zero that does not follow from its other ones.

    Where columns are nearly proportional at many neurons, the rows span few directions there. A vector orthogonal to
    these has many zeros at once, whatever it is, and can have others of its choice. Each of those is a row that no
    other one replaces: its leverage among the rows of all zeros is one.
    """
    rows = columns.rows[columns.zeros(vector[None])[:, 0]]
    complete = torch.linalg.qr(torch.cat([rows, vector[None]]))[0]
    return complete[:-1].square().sum(1).max() > ALONE


def classify(columns, vectors, near, sure, share):
    """Which vectors (m, m) are sure to be columns of B, by their zeros in rows·w: a mask (m,).

    Those that were `sure` (m,) before; and those with clearly more zeros than a span without structure allows, none of
    them chosen, and more than a `share` of the median number, since differences of columns have fewer. What differences
    are left, `drop_differences` takes out.
    """
    count = columns.zeros(vectors).sum(0)
    enough = count > len(vectors) + SURE * len(columns.rows)
    for i in (enough & ~sure).nonzero()[:, 0]:
        enough[i] = not has_chosen_zero(columns, vectors[i])
    enough &= count > share * count[enough | sure].double().median()
    return drop_differences(columns, vectors, near, sure | enough)


def search_again(columns, vectors, near, likely):
    """The vectors (m, m), where those with few zeros are sought once more from `near`, and replaced if that finds more.

    The usual search may be stuck. So one begins at a large size, which follows what is likely, and one at a small size,
    which follows what is near.
    """
    vectors = vectors.clone()
    few = ~classify(columns, vectors, near, torch.zeros(len(vectors), dtype=torch.bool), USUAL)
    for size in STUCK if few.any() else ():
        other = search_sparse(columns, near[few], likely[few], size)
        more = columns.zeros(other).sum(0) > columns.zeros(vectors[few]).sum(0)
        vectors[few] = torch.where(more[:, None], other, vectors[few])
    return vectors


def refine(images, columns, layers, centre=CENTRES[0]):
    """Images (m, d) near to those behind Columns, made exact where these are sparse.

    Returns the images' rows M (m, m), the vectors (m, m) of their columns, and which of these are sure (m,). `layers`
    are the first layer at the start and at the end; all is on the CPU. `centre` as `likely_zeros` says.
    """
    basis = columns.basis
    inside = [Layer(layer.weight.to(basis) @ basis, layer.bias) for layer in layers]
    matrix = columns.rescale(images @ basis)
    sure = torch.zeros(len(images), dtype=torch.bool)
    vectors = torch.zeros_like(matrix)
    for _ in range(ROUNDS):
        near = columns.nearest(matrix)
        likely = likely_zeros(matrix, inside, centre)  # select
        initial = torch.where(sure[:, None], vectors, near)
        vectors = initial.clone()
        vectors[~sure] = search_sparse(columns, near[~sure], likely[~sure], FIRST)  # search
        before = sure
        sure = classify(columns, vectors, near, before, USUAL)  # classify
        if (sure & ~before).sum() <= len(sure) // 100:
            vectors = search_again(columns, vectors, near, likely)
            sure = classify(columns, vectors, near, before, LEAST)
        vectors = torch.where(sure[:, None], vectors, near)
        if (vectors - initial).abs().max() < 1e-9:
            break
        exact = columns.project(matrix, vectors, sure)  # project
        if cosine_similarity(matrix, exact).abs().median() < LIKE:
            return matrix, near, before  # one wrong column spoils all images
        matrix = exact
    return matrix, vectors, sure


def refine_by_vote(images, columns, layers):
    """As `refine`, with the vectors alone that two of three readings share, each with another of CENTRES.

    One wrong column spoils all images, and hardly two readings have the same wrong one.
    """
    readings = [refine(images, columns, layers, centre)[1:] for centre in CENTRES]
    vectors, sure = map(torch.stack, zip(*readings))  # (3, m, m), (3, m)
    same = torch.einsum("kmi,lmi->klm", vectors, vectors).abs() > SAME
    shared = (same & sure & sure[:, None]).sum(1) > 1  # (3, m), with another reading
    first = shared.long().argmax(0)
    sure = shared.any(0)
    matrix = columns.rescale(images @ columns.basis)
    chosen = vectors[first, torch.arange(len(first))]
    vectors = torch.where(sure[:, None], chosen, columns.nearest(matrix))
    if sure.any():
        matrix = columns.project(matrix, vectors, sure)
    return matrix, vectors, sure
