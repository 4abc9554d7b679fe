"""Exact images behind a known start: an image writes nothing into a neuron that it never activates.

W₁ − αW₁⁰ = BX, and b_ji = 0 up to rounding where image i activates neuron j at no step of the training. So a column of
B has zeros at a third of the neurons or so, and it is one of the vectors Ac that the first layer spans, where A (h, m)
holds the layer in coordinates. Any vector of a span without structure has m − 1 zeros at most; one with clearly more is
most likely a column of B. That is evidence and no proof: where two columns are proportional at many neurons, a
difference of them has many zeros, too. Unmixed images say where to look: the neurons that they leave most inactive, at
the start and at the end of the training, are likely to be zeros. Needs more neurons than about three times the images,
and updates that are sums of gradients: Adam's are not.

A sure column makes the other images exact, since their rows of M = B⁺A are orthogonal to it. Where columns stay unsure,
an image is known but for a combination of their images, and unmixing chooses that.
"""

from typing import NamedTuple

import torch
from scipy.optimize import minimize
from torch.nn.functional import cosine_similarity, normalize

from utils.attacks import unmixing
from utils.kernels import contrast

ROUNDS = 8  # at most
STEPS = 20  # of reweighting
ROUGH = *unmixing.LATER[-1][:2], 120  # ε, window and steps of unmixing in a round, for more than unmixing.FEW images
MOST = 1000, 2  # neurons that a column is sought on, the likeliest zeros: so many, or so many times m
FIRST, FALL, LAST = 0.2, 0.6, 1e-5  # the size of what counts as zero, in units of a column's root mean square
SURE = 1e-3, 0.05  # entries below are zeros; a column is sure if it has so many more than m, as a share of the neurons
CENTRE, WIDTH = -0.5, 0.25  # of the logistic function that takes pre-activations to how likely a zero is
SPREAD = 0.22  # of an image's pixels, where the biases do not tell its size
LIKE = 0.8  # cosine of an image before and after a round, in the median
RANGE = 0.05, 0.6  # of spreads that are believed


class Refined(NamedTuple):
    """Images, and which of them rest on a column that is sure."""

    images: torch.Tensor  # (m, d)
    sure: torch.Tensor  # (m,)
    columns: torch.Tensor | None = None  # of B (h, m), but for the size of each


class Columns(NamedTuple):
    """What training added to the first layer, in coordinates; every neuron's row has length one."""

    rows: torch.Tensor  # orthonormal columns that span those of A (h, m): A = rows @ upper
    upper: torch.Tensor  # (m, m)
    bias: torch.Tensor  # (h,)
    basis: torch.Tensor  # (d, m), of the images
    lengths: torch.Tensor  # (h, 1), that the rows had


def columns(mixing, bias, basis):
    """The Columns of A (h, m), of what was added to the biases (h,), and of a basis (d, m) of the images."""
    lengths = mixing.norm(dim=1, keepdim=True).clamp_min(1e-300)
    rows, upper = torch.linalg.qr(mixing / lengths)
    return Columns(rows, upper, bias / lengths[:, 0], basis, lengths)


def sized(matrix, known):
    """The images M (m, m) with the sizes and signs of those that were trained on: b₁ − αb₁⁰ = B1 tells them."""
    found = known.rows @ known.upper @ torch.linalg.inv(matrix)  # B, up to the size of every column
    factors = 1 / torch.linalg.lstsq(found, known.bias[:, None]).solution[:, 0]
    spread = (matrix @ known.basis.mT).std(1)
    low, high = RANGE
    told = (factors.abs() * spread > low) & (factors.abs() * spread < high)
    return matrix * torch.where(told, factors, factors.sign() * SPREAD / spread)[:, None]


def inactive(x, layers):
    """How likely images (m, d) never activated each neuron of a first layer, given at the start and the end: (m, h)."""
    reached = [x @ weight.mT + bias for weight, bias in layers]
    most = torch.stack([z / z.std(1, keepdim=True) for z in reached]).amax(0)
    return torch.sigmoid((CENTRE - most) / WIDTH) + 0.01


def sparsest(rows, near, likely):
    """The unit vector w (m,) beside `near` for which rows·w (h,) has most zeros, where they are `likely` (h,).

    Iteratively reweighted least squares: an entry weighs more, the smaller it is. Of many neurons the likeliest do.
    """
    best = likely.topk(min(len(rows), max(MOST[0], MOST[1] * len(near)))).indices.sort().values
    rows, likely, w, size = rows[best], likely[best], near, FIRST
    for step in range(STEPS):
        weights = likely / (len(rows) * (rows @ w).square() + size**2)
        w = normalize(torch.linalg.solve((rows.mT * weights) @ rows, near if step < 3 else w), dim=0)
        size = max(size * FALL, LAST)
    return w


def zeros(rows, vectors):
    """How many entries of rows·w are zero, for unit vectors w (n, m): (n,)."""
    return ((rows @ vectors.mT).abs() * len(rows) ** 0.5 < SURE[0]).sum(0)


def kept(found, near, enough):
    """Which of the vectors found (m, m) are taken: with enough zeros (m,), and of equal ones that nearest its start."""
    taken, moved = enough.clone(), (found * near).sum(1).abs()
    equal = (found @ found.mT).abs() > 0.999
    for i in moved.argsort().tolist():
        taken[i] &= not (equal[i] & taken).sum() > 1
    return taken


def completed(matrix, found, sure, basis, shape):
    """The rows M (m, m) that columns found (m, m) allow where they are `sure`, near to a matrix; the rest by unmixing.

    Row i is orthogonal to the sure columns of other images. What may be added to it is a combination of the rows of
    `free` (u, m), which span the images of the unsure columns, and the objective of unmixing chooses it.
    """
    certain, own = found[sure].mT, torch.eye(len(found), dtype=torch.bool)[:, sure]
    begun = matrix - (matrix @ certain).masked_fill(own, 0.0) @ torch.linalg.pinv(certain)
    free, few = torch.linalg.svd(certain.mT)[2][certain.shape[1] :], len(matrix) <= unmixing.FEW
    if not len(free):
        return begun
    details, white = unmixing.whitened(basis, shape, few)
    white = white.double()
    begun, free = (rows @ torch.linalg.inv(white) for rows in (begun, free))
    lengths, free = begun.norm(dim=1, keepdim=True), torch.linalg.qr(free.mT)[0].mT
    return lengths * combined(begun / lengths, free, details, unmixing.STAGES[-1] if few else ROUGH) @ white


def combined(begun, free, details, stage):
    """Rows `begun` (m, m) plus the combinations of orthonormal rows `free` (u, m) that unmix best: (m, m).

    Rows mix the `details` (m, G, K, H, W); a `stage` is ε, a window, and steps at most.
    """
    floor, window, steps = stage
    seen, more = (rows.float() @ details.flatten(1) for rows in (begun, free))  # (m, GKHW) and (u, GKHW)

    def value(flat):
        added = torch.as_tensor(flat).view(len(begun), len(free)).requires_grad_()
        rows = begun + added @ free
        sizes = rows.norm(dim=1, keepdim=True)
        pictures = ((seen + added.float() @ more) / sizes.float()).view(-1, *details.shape[1:])
        apart = torch.linalg.slogdet(rows / sizes).logabsdet
        loss = contrast.faintness(pictures, floor, window).sum() - apart
        return loss.item(), torch.autograd.grad(loss, added)[0].flatten().numpy()

    options = {"maxiter": steps, "maxcor": 15, "ftol": 1e-6}
    zero = [0.0] * (len(begun) * len(free))
    added = minimize(value, zero, jac=True, method="L-BFGS-B", options=options).x
    return begun + torch.as_tensor(added).view(len(begun), len(free)) @ free


def refine(images, mixing, bias, basis, layers, shape):
    """Images (m, d) near to the m pictures behind A (h, m), made exact where their columns are sparse: Refined.

    `bias` (h,) is what was added to the biases, `basis` (d, m) that of the images, `layers` the first layer at the
    start and at the end, `shape` that of an image. All on the CPU.
    """
    known = columns(mixing, bias, basis)
    matrix, sure = sized(images @ basis, known), torch.zeros(len(images), dtype=torch.bool)
    for _ in range(ROUNDS):
        likely = inactive(matrix @ basis.mT, layers)
        near = normalize((known.upper @ torch.linalg.inv(matrix)).mT, dim=1)
        found = torch.stack([w if done else sparsest(known.rows, w, p) for w, p, done in zip(near, likely, sure)])
        before, sure = sure, kept(found, near, zeros(known.rows, found) > len(found) + SURE[1] * len(known.rows))
        found = torch.where(sure[:, None], found, near)
        if (sure == before).all():
            break
        exact = sized(completed(matrix, torch.linalg.solve(known.upper, found.mT).mT, sure, basis, shape), known)
        if cosine_similarity(matrix, exact).abs().median() < LIKE:
            sure, found = before, near
            break  # one wrong column spoils all images
        matrix = exact
    return Refined(matrix @ basis.mT, sure, known.lengths * (known.rows @ found.mT))
