"""KKT sets: points, labels and multipliers that explain a network of one hidden layer, θ = Σ_i λ_i y_i ∇_θΦ(x_i; θ).

The network is Φ(x) = Σ_j v_j σ(w_j·x + b_j) with the ReLU σ, whose slope at zero counts as 0. Points x (n, d) have
signs y (n,) of ±1 and multipliers λ (n,). A *cell* holds the points of one sign that activate the same neurons: on it
the network is affine. Equations in brackets are those of the chapter on merge and split, and of the page of its proofs.
"""

import math
from typing import NamedTuple

import torch

from utils.kernels.layers import flatten, forward, pullback


class KKTSet(NamedTuple):
    """A network, and a set of points that may explain it."""

    network: tuple  # of two Layers, W (h, d) with b (h,) or None and v (1, h) without
    points: torch.Tensor  # x (n, d)
    signs: torch.Tensor  # y (n,) of ±1
    multipliers: torch.Tensor | None  # λ (n,); None where they are not known yet


class Conditions(NamedTuple):
    """By how much each condition of a KKT set is missed. All four are zero at a KKT set, and none is below 0."""

    stationarity: float  # ε/‖θ‖ for ε = ‖θ − Σ λ_i y_i ∇_θΦ(x_i)‖
    violation: float  # max_i (1 − y_iΦ(x_i))
    negativity: float  # max_i −λ_i
    slackness: float  # δ = max_i λ_i(y_iΦ(x_i) − 1)


class Bounds(NamedTuple):
    """Lower bounds on how far a point can be split along a direction."""

    quoted: float  # as the paper has it, (eq-theorem5)
    derived: float  # as the book derives it, (eq-split-bound)


# ---- What a set says of a network ----


def preactivations(network, x):
    """w_j·x + b_j: (n, d) -> (n, h)."""
    return forward(network, x)[1][0]


def input_gradients(network, x):
    """∇_xΦ(x_i) = Σ_j v_j 1[j is active] w_j: (n, d)."""
    active = (preactivations(network, x) > 0).to(x)
    return (active * network[1].weight) @ network[0].weight  # (n, h) @ (h, d)


def margins(kkt):
    """y_iΦ(x_i): (n,)."""
    return kkt.signs * forward(kkt.network, kkt.points)[1][-1][:, 0]


def residual(kkt):
    """θ − Σ_i λ_i y_i ∇_θΦ(x_i) as one vector: (eq-kkt), left side minus right."""
    signals = (kkt.multipliers * kkt.signs)[:, None]
    return flatten(kkt.network) - pullback(kkt.network, kkt.points, lambda z: signals)[1]


def conditions(kkt):
    """How far a set is from a KKT set: Conditions."""
    beyond = margins(kkt) - 1
    missing = residual(kkt).norm() / flatten(kkt.network).norm()
    worst = (-beyond, -kkt.multipliers, kkt.multipliers * beyond)
    return Conditions(missing.item(), *(max(0.0, part.max().item()) for part in worst))


# ---- Cells ----


def cells(kkt):
    """The number of its cell for every point: (n,)."""
    active = preactivations(kkt.network, kkt.points) > 0
    return torch.cat([kkt.signs[:, None] > 0, active], 1).unique(dim=0, return_inverse=True)[1]


def alone(kkt):
    """Whether points with λ > 0 are the only ones in their cells: (n,) of bool."""
    cell = cells(kkt)
    needed = kkt.multipliers > 0
    return needed & (cell[needed].bincount(minlength=int(cell.max()) + 1)[cell] == 1)


def alone_share(kkt):
    """Of the points with λ > 0, the share that is alone in its cell."""
    return (alone(kkt).sum() / (kkt.multipliers > 0).sum()).item()


def moments(kkt):
    """The mass Λ_C (c,) and the moment M_C (c, d) of every cell, in the numbers of `cells`: (eq-moments)."""
    cell = cells(kkt)
    columns = torch.ones_like(kkt.points[:, :1])
    rows = kkt.multipliers[:, None] * torch.cat([kkt.points, columns], 1)
    sums = rows.new_zeros(int(cell.max()) + 1, rows.shape[1]).index_add_(0, cell, rows)
    return sums[:, -1], sums[:, :-1]


def centres(kkt):
    """M_C/Λ_C of the cell of every point: (n, d), and not a number where Λ_C = 0."""
    mass, moment = moments(kkt)
    return (moment / mass[:, None])[cells(kkt)]


def merge_cells(kkt):
    """Leave out the points with λ = 0, and merge every cell to one point (Lemma 2); in the order of first points."""
    kkt = KKTSet(kkt.network, *(part[kkt.multipliers > 0] for part in kkt[1:]))
    cell = cells(kkt).tolist()
    centre = centres(kkt)
    mass = moments(kkt)[0]
    first = [i for i, own in enumerate(cell) if own not in cell[:i]]
    return KKTSet(kkt.network, centre[first], kkt.signs[first], mass[[cell[i] for i in first]])


# ---- Sets in place of others ----


def replace_points(kkt, which, points, multipliers):
    """Take the points `which`, of one label, out and append others with that label."""
    rest = [i for i in range(len(kkt.points)) if i not in set(which)]
    new = points, kkt.signs[which[0]].expand(len(points)), multipliers
    parts = (torch.cat([old[rest], part]) for old, part in zip(kkt[1:], new))
    return KKTSet(kkt.network, *parts)


def paired(kkt, free):
    """x ± free, each with λ/2, in place of every x, pluses first: (eq-planted-set) if `free` is `unseen`."""
    points = torch.cat([kkt.points + free, kkt.points - free])
    return KKTSet(kkt.network, points, kkt.signs.repeat(2), kkt.multipliers.repeat(2) / 2)


def unseen(kkt, photographs):
    """Np (n, d): the part of photographs that neither points nor neurons see."""
    rows = torch.cat([kkt.points, kkt.network[0].weight])
    rows = rows / rows.norm(dim=1, keepdim=True).clamp_min(1e-300)
    _, values, vectors = torch.linalg.svd(rows, full_matrices=False)
    basis = vectors[values > 1e-10 * values[0]].mT  # (d, r)
    orthogonal = photographs - photographs @ basis @ basis.mT
    return orthogonal - orthogonal @ basis @ basis.mT  # against the rounding of the first time


def faraway(kkt, distance, seed):
    """A set further than `distance` from all points of this one, by a pair along one unseen direction (Theorem 4)."""
    generator = torch.Generator().manual_seed(seed)
    drawn = torch.randn(kkt.points.shape[1], dtype=torch.float64, generator=generator)
    move = unseen(kkt, drawn.to(kkt.points)[None])
    return paired(kkt, 1.01 * distance * move / move.norm())


# ---- How far a split can go ----


def to_hyperplanes(network, x):
    """|w_j·x + b_j|/‖w_j‖: (n, h)."""
    lengths = network[0].weight.norm(dim=1).clamp_min(1e-300)
    return preactivations(network, x).abs() / lengths


def budget(kkt, direction):
    """The t at which x_i + tν meets the first hyperplane on its way, or ∞ (eq-budget): (n,)."""
    z = preactivations(kkt.network, kkt.points)
    speed = kkt.network[0].weight @ direction
    closing = torch.where(z > 0, -speed, speed)  # how fast it is approached (n, h)
    return torch.where(closing > 0, z.abs() / closing, math.inf).amin(1)


def reach(kkt, i, direction):
    """How far point i can be split both ways."""
    return min(budget(kkt, side)[i].item() for side in (direction, -direction))


def tangent(kkt, i, direction):
    """The unit vector along the part of a direction (d,) that does not change the margin of point i."""
    gradient = input_gradients(kkt.network, kkt.points[[i]])[0]
    part = direction - direction @ gradient / (gradient @ gradient) * gradient
    return part / part.norm()


def bounds(kkt, i, direction):
    """Bounds on `reach`, for point i and a unit vector ν."""
    z = preactivations(kkt.network, kkt.points[[i]])[0].abs()  # |D_j|‖w_j‖ (h,)
    pull = (kkt.points @ direction).abs().max() * kkt.multipliers.sum()  # γΣλ
    rows = kkt.network[0].weight
    missed = residual(kkt)[: rows.numel()].view(rows.shape).norm(dim=1)  # ‖e_j‖ (h,)
    most = kkt.network[1].weight[0].abs() * pull + missed
    return Bounds((z / pull).min().item(), (z / most).min().item())


def straight_split(kkt, longest):
    """Split every point with λ > 0 both ways along its margin, 0.9 of its `reach` or `longest` (Lemma 3)."""
    made = kkt
    n = len(kkt.points)
    for i in reversed(range(n)):
        if kkt.multipliers[i] > 0:
            own = [k for k in range(n) if kkt.signs[k] == kkt.signs[i]]
            other = own[(own.index(i) + 1) % len(own)]
            ahead = tangent(kkt, i, kkt.points[other] - kkt.points[i])
            move = min(0.9 * reach(kkt, i, ahead), longest) * ahead
            points = kkt.points[i] + torch.stack([move, -move])
            made = replace_points(made, [i], points, kkt.multipliers[i].expand(2) / 2)
    return made
