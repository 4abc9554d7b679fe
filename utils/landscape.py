"""What the loss of an attack looks like: along lines, on planes, in its curvature, and how many minima it has.

Images are sets x (…, m, d), or (…, m, r) in the coordinates of an orthonormal basis. A loss is a function from x to (…).
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from scipy.optimize import linear_sum_assignment

from utils import evaluate, starts
from utils.errors import InputError

MEMORY = 2**28  # numbers that one call of an attack may hold, 2 GB


class Grid(NamedTuple):
    """What an attack made of S mixed starts; images in the coordinates of a basis, without the mean."""

    basis: torch.Tensor  # (d, r)
    mean: torch.Tensor  # (d,), or 0.0
    start: torch.Tensor  # (S, m, r)
    found: torch.Tensor  # (S, m, r)
    loss: torch.Tensor  # the attacker's (S,)
    start_distance: torch.Tensor  # of the start to the training set, the partition and the noise (S, 3)
    distance: torch.Tensor  # of what was found (S, 3)

    def pictures(self, sets):
        """Coordinates (…, m, r) as pixels (…, m, d), with the mean."""
        return sets @ self.basis.mT + self.mean


class Spectrum(NamedTuple):
    """What Lanczos' method says about the eigenvalues of a symmetric matrix."""

    values: torch.Tensor  # Ritz values (k,), rising; the outermost are close to eigenvalues
    weights: torch.Tensor  # (k,), adding up to 1: the share of the eigenvalues that each of them stands for


def reachable(*rows):
    """An orthonormal basis (…, d, r) of the span of all these images and weights, each (…, n, d) or (d,).

    The gradients of both attacks are combinations of the start's images and of the rows of W₁. So an optimiser that only
    combines gradients, such as gradient descent or L-BFGS, loses nothing if r coordinates replace d pixels; Adam, which
    scales every coordinate by itself, is another one in other coordinates (`turned`). Leading dimensions are independent.
    """
    rows = [part[None] if part.dim() == 1 else part for part in rows]
    most = torch.broadcast_shapes(*(part.shape[:-2] for part in rows))
    return torch.linalg.qr(torch.cat([part.expand(*most, -1, -1) for part in rows], -2).mT)[0]


def turned(basis, seed=0):
    """The same span with axes drawn at random, so that none of them is an image."""
    r = basis.shape[-1]
    axes = torch.randn(r, r, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    return basis @ torch.linalg.qr(axes)[0].to(basis)


def pairs(values):
    """All pairs (λ₁, λ₂) of some values, as two vectors (S,), λ₁ slowest."""
    values = torch.as_tensor(values, dtype=torch.float64)
    return tuple(grid.flatten() for grid in torch.meshgrid(values, values, indexing="ij"))


def explore(attack: Callable, references, rows, first, second, shape, mean=0.0):
    """Attack from every mixture of three sets of images, the `references` (training, partition, noise), each (m, d).

    `attack(start, basis) -> (images, loss)` works on batches (c, m, d), without the `mean`; `rows` (…, d) are the weights
    that it sees images through; `first` and `second` are λ₁ and λ₂ of S starts. Returns the Grid.
    """
    centred = [part - mean for part in references]
    basis = turned(reachable(*centred, rows))
    start = starts.mixture(*(part @ basis for part in centred), first, second)

    def one(x):
        began = x @ basis.mT
        found, loss = attack(began, basis)
        near = [torch.stack([distance(y + mean, part, shape) for part in references], 1) for y in (began, found)]
        return found @ basis, loss, *near

    return Grid(basis, mean, start, *in_chunks(one, start, len(basis)))


def in_chunks(function: Callable, start, pixels):
    """Apply a function (c, m, r) -> tuple of (c, …) to as many of S starts at once as memory permits, and join the results.

    A quasi-Newton attack remembers about fifty times its start; about ten copies of the images have all their `pixels`.
    """
    m, r = start.shape[1:]
    most = MEMORY // (50 * m * r + 10 * m * pixels)
    if not most:
        raise InputError(
            f"One start of {m} images with {pixels} values each is too large for this memory: choose fewer IMAGES."
        )
    return tuple(map(torch.cat, zip(*map(function, start.split(most)))))


def distance(found, references, shape):
    """The mean L2 distance of every set (S, m, d) to the structurally most similar references (k, d) of its images: (S,)."""
    flat = found.flatten(0, 1)
    index = evaluate.nearest(flat, references, shape).index
    return (flat - references[index]).norm(dim=1).view(found.shape[:2]).mean(1)


def line(a, b, points, beyond=0.5):
    """x = a + t(b − a) for t from −`beyond` to 1 + `beyond`: t (points,), x (points, …)."""
    t = torch.linspace(-beyond, 1 + beyond, points).to(a)
    return t, a + t.view(-1, *[1] * a.dim()) * (b - a)


def plane(a, b, c, points, beyond=0.5):
    """x = a + s(b − a) + tv on the plane through a, b and c, v being orthogonal to b − a and as long.

    Returns s and t, both from −`beyond` to 1 + `beyond` (points,); x (points², …), s slowest; and the (s, t) of c.
    """
    u, w = b - a, c - a
    share = (u * w).sum() / u.square().sum()
    across = w - share * u
    height = across.norm() / u.norm()
    s, along = line(a, b, points, beyond)
    t = s.view(-1, *[1] * a.dim())
    x = along[:, None] + t * across / height
    return s, x.flatten(0, 1), (share.item(), height.item())


def dips(values):
    """How many times the samples (n,) of a curve fall and then rise, as far as the sampling shows it."""
    change = values.diff()
    change = change[change != 0]
    return ((change[:-1] < 0) & (change[1:] > 0)).sum().item()


def curvature(gradient: Callable, x, step=1e-5):
    """The product v -> ∇²f v at x, by central differences of the gradient; x changes by `step`, root mean square."""

    def product(v):
        h = step * v.numel() ** 0.5 / v.norm()
        return (gradient(x + h * v) - gradient(x - h * v)) / (2 * h)

    return product


def lanczos(product: Callable, like, steps, seed=0):
    """The Spectrum of a symmetric matrix from `steps` products with it, starting at a random vector shaped `like` another.

    Every new vector is made orthogonal to all earlier ones, so that no eigenvalue is found twice.
    """
    generator = torch.Generator().manual_seed(seed)
    v = torch.randn(like.numel(), dtype=like.dtype, generator=generator).to(like.device)
    basis, diagonal, off = [v / v.norm()], [], []
    for _ in range(min(steps, len(v))):
        w = product(basis[-1].view(like.shape)).flatten()
        diagonal.append(w @ basis[-1])
        for _ in range(2):  # twice is enough
            known = torch.stack(basis)
            w = w - (known @ w) @ known  # (k, n) @ (n,), (k,) @ (k, n)
        off.append(w.norm())
        if off[-1] <= 1e-10 * torch.stack(diagonal).abs().max():
            break
        basis.append(w / off[-1])
    k = len(diagonal)
    tridiagonal = torch.diag(torch.stack(diagonal)) + torch.diag(torch.stack(off)[: k - 1], 1)
    values, vectors = torch.linalg.eigh(tridiagonal, UPLO="U")
    return Spectrum(values, vectors[0].square())


def apart(a, b):
    """The mean L2 distance of two sets of images, (m, d) each, in the order that makes it smallest: a set has no order."""
    table = evaluate.l2(a, b)
    return table[linear_sum_assignment(table.cpu())].mean().item()


def distinct(sets, tolerance):
    """How many of S sets (S, m, d) are further than `tolerance` (L2, per image) from every one that was counted before."""
    counted = []
    for found in sets:
        if all(apart(found, other) > tolerance for other in counted):
            counted.append(found)
    return len(counted)
