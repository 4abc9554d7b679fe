"""KKT sets: points, labels and multipliers that explain a two-layer ReLU network, and how to merge and split them.

Φ(x; θ) = Σ_j v_j σ(w̄_j·x̄) with θ = (W̄, v) is homogeneous of degree two; x̄ is x, or (x, 1) if the first layer has a
bias. Points x_i with labels y_i = ±1 and multipliers λ_i are a KKT set of θ if
    θ = Σ_i λ_i y_i ∇_θΦ(x_i; θ),   y_iΦ(x_i; θ) ≥ 1,   λ_i ≥ 0,   λ_i(y_iΦ(x_i; θ) − 1) = 0.          (kkt)
Where the same neurons are active, ∇_θΦ is affine in x: points of one label and one pattern of active neurons enter the
first condition through Σλ_i and Σλ_i x_i alone. Shapes: points (n, d), W̄ (h, d) or (h, d+1).
"""

import math
from typing import NamedTuple

import torch
from scipy.optimize import nnls

from utils.errors import InputError
from utils.kernels.coefficients import Margin
from utils.kernels.layers import change, flatten, forward, pullback, unflatten
from utils.kernels.residual import Stationarity

ROUNDING = 1e-9  # by which a margin may miss 1 without anybody having asked for it


class KKTSet(NamedTuple):
    """A network and points that may explain it."""

    network: tuple  # two Layers: W̄ with or without a bias, and v (1, h) without
    points: torch.Tensor  # x (n, d)
    signs: torch.Tensor  # y (n,) of ±1
    multipliers: torch.Tensor  # λ (n,)


class Conditions(NamedTuple):
    """By how much each line of (kkt) is missed; all four are zero at a KKT point."""

    stationarity: float  # ε = ‖θ − Σ λ_i y_i ∇_θΦ(x_i)‖
    violation: float  # max_i (1 − y_iΦ(x_i)), at least 0
    slackness: float  # δ = max_i λ_i(y_iΦ(x_i) − 1), at least 0
    negativity: float  # max_i −λ_i, at least 0


def check(kkt, which=(), least=0):
    """Raise InputError unless network and points fit, and `which` names at least `least` different points."""
    network, (n, d) = kkt.network, kkt.points.shape
    if len(network) != 2 or network[1].bias is not None or len(network[1].weight) != 1:
        raise InputError("KKT sets need a network of two layers with one output and no bias after the first layer.")
    if (d, n, n) != (network[0].weight.shape[1], len(kkt.signs), len(kkt.multipliers)):
        raise InputError(f"{n} points of {d} values need {d} inputs of the network, {n} signs and {n} multipliers.")
    if not (kkt.signs.abs() == 1).all():
        raise InputError("The labels of a KKT set must be −1 or +1: use losses.signs for labels 0 and 1.")
    if len(which) < least or len(set(which)) != len(which) or not all(0 <= i < n for i in which):
        raise InputError(f"{list(which)} was asked for: give at least {least} different numbers from 0 to {n - 1}.")


def preactivations(network, x):
    """w̄_j·x̄: (n, d) -> (n, h)."""
    return forward(network, x)[1][0]


def margins(kkt):
    """y_iΦ(x_i): (n,)."""
    return kkt.signs * forward(kkt.network, kkt.points)[1][-1][:, 0]


def residual(kkt):
    """e = θ − Σ λ_i y_i ∇_θΦ(x_i), in the shapes of the network."""
    _, combined = pullback(kkt.network, kkt.points, lambda z: (kkt.multipliers * kkt.signs)[:, None])
    return unflatten(flatten(kkt.network) - combined, kkt.network)


def conditions(kkt):
    """Measure the four lines of (kkt); (ε, δ)-KKT says stationarity ≤ ε and slackness ≤ δ, the other two being zero."""
    beyond = margins(kkt) - 1
    worst = -beyond, kkt.multipliers * beyond, -kkt.multipliers
    return Conditions(flatten(residual(kkt)).norm().item(), *(max(0.0, part.max().item()) for part in worst))


def input_gradients(kkt):
    """∇_xΦ(x_i) = Σ_j v_j 1[j is active] w_j: (n, d)."""
    active = (preactivations(kkt.network, kkt.points) > 0).to(kkt.points)
    return (active * kkt.network[1].weight) @ kkt.network[0].weight  # (n, h) @ (h, d) -> (n, d)


def cells(kkt):
    """Group the points by label and active neurons: a list of lists of their numbers."""
    groups = {}
    for i, (sign, active) in enumerate(zip(kkt.signs, preactivations(kkt.network, kkt.points) > 0)):
        groups.setdefault((sign.item(), *active.tolist()), []).append(i)
    return list(groups.values())


def replaced(kkt, which, points, multipliers):
    """Take the points `which`, of one label, out and append others with that label."""
    rest = [i for i in range(len(kkt.points)) if i not in set(which)]
    new = points, kkt.signs[which[0]].expand(len(points)), multipliers
    return KKTSet(kkt.network, *(torch.cat([old[rest], part]) for old, part in zip(kkt[1:], new)))


def merge(kkt, which):
    """Put one point in the place of several of a cell: their mean weighted by λ, with the sum of their λ (Lemma 2)."""
    check(kkt, which, 2)
    active, multipliers = preactivations(kkt.network, kkt.points[which]) > 0, kkt.multipliers[which]
    labels, differing = len(kkt.signs[which].unique()), (active != active[0]).any(0).sum().item()
    least, total = multipliers.min(), multipliers.sum()
    if labels > 1 or differing or least < 0 or total <= 0:
        facts = f"{labels} labels, {differing} neurons active at some only, λ from {least:.3g} with the sum {total:.3g}"
        raise InputError(f"The points {list(which)} cannot be merged: {facts}.")
    return replaced(kkt, which, (multipliers / total @ kkt.points[which])[None], total[None])


def condense(kkt):
    """Merge every cell to one point, and leave out the points whose λ is zero: no two of the rest can be merged."""
    kkt = KKTSet(kkt.network, *(part[kkt.multipliers > 0] for part in kkt[1:]))
    while several := [cell for cell in cells(kkt) if len(cell) > 1]:
        kkt = merge(kkt, several[0])
    return kkt


def budget(kkt, direction):
    """The step t at which x_i + tν meets the first hyperplane on its way, |w̄_j·x̄_i|/|w_j·ν|, or ∞: (n,)."""
    z, speed = preactivations(kkt.network, kkt.points), kkt.network[0].weight @ direction  # (n, h), (h, d) @ (d,)
    closing = torch.where(z > 0, -speed, speed)  # how fast a step approaches the hyperplane
    return torch.where(closing > 0, z.abs() / closing, math.inf).min(1).values


def spread(kkt, index, moves, shares, violation=0.0):
    """Put points x + μ_k with multipliers ρ_kλ in the place of one x, where Σρ_k = 1 and Σρ_kμ_k = 0.

    `moves` μ (K, d), `shares` ρ (K,). InputError if they do not balance, if a neuron changes its state on the way, or
    if a margin falls below 1 by more than `violation`. The new points come last.
    """
    check(kkt, [index], 1)
    balanced = (shares @ moves).norm() <= ROUNDING * moves.norm()
    if not (balanced and (shares > 0).all() and (shares.sum() - 1).abs() < ROUNDING):
        raise InputError("The moves of a split must balance: positive shares that add up to 1, a weighted mean of 0.")
    here = kkt._replace(points=kkt.points[index : index + 1])
    reach = min(budget(here, move).item() for move in moves)
    if reach <= 1:
        raise InputError(f"Point {index} meets a hyperplane at {reach:.3g} of this step: take a smaller one.")
    made = replaced(kkt, [index], here.points + moves, shares * kkt.multipliers[index])
    lowest = margins(made)[-len(moves) :].min().item()
    if lowest < 1 - violation - ROUNDING - 1e-15 * moves.norm().item():  # which is rounding for long moves
        advice = f"take a direction orthogonal to ∇ₓΦ (`tangent`), or allow a violation of {1 - lowest:.3g}"
        raise InputError(f"The margin of point {index} falls to {lowest:.6g}: {advice}.")
    return made


def split_points(kkt, which, direction, alpha, beta=None, violation=0.0):
    """Replace each x in `which` by x + αν with λβ/(α+β) and x − βν with λα/(α+β) (Lemma 3); β is α if it is None."""
    beta = alpha if beta is None else beta
    if not (0 < alpha < math.inf and 0 < beta < math.inf):
        raise InputError(f"The steps of a split are {alpha:g} and {beta:g}; both must be larger than 0.")
    check(kkt, which, 1)
    moves = torch.stack([alpha * direction, -beta * direction])
    shares = direction.new_tensor([beta, alpha]) / (alpha + beta)
    for index in sorted(which, reverse=True):  # the last first, so that the numbers of the others stay
        kkt = spread(kkt, index, moves, shares, violation)
    return kkt


def orthogonal_part(direction, rows):
    """The unit vector along the part of `direction` (d,) that is orthogonal to all `rows` (k, d)."""
    _, values, vectors = torch.linalg.svd(rows, full_matrices=False)
    basis = vectors[values > 1e-12 * values[0]]  # (r, d)
    part = direction - (direction @ basis.mT) @ basis
    part = part - (part @ basis.mT) @ basis  # once more, against the rounding of the first time
    if part.norm() <= 1e-10 * direction.norm():
        raise InputError(f"Nothing is left of the direction: {len(basis)} of {len(direction)} dimensions are excluded.")
    return part / part.norm()


def tangent(kkt, which, direction):
    """The unit vector along the part of `direction` (d,) that keeps the margins of the points in `which`."""
    return orthogonal_part(direction, input_gradients(kkt)[which])


def unit_margin(kkt):
    """Scale θ so that the smallest margin is 1: θ/√q. The residual shrinks by the same √q, and λ stays what it is."""
    smallest = margins(kkt).min().item()
    if smallest <= 0:
        raise InputError(f"The smallest margin is {smallest:g}: train the network longer, until it misjudges no point.")
    return kkt._replace(network=change(kkt.network, lambda p: p / smallest**0.5))


def best_multipliers(kkt):
    """The set with the λ ≥ 0 that make its stationarity residual smallest, by non-negative least squares."""
    h, b = Stationarity(kkt.network, Margin(kkt.signs)).quadratic(kkt.points)  # for λ/n
    values, vectors = torch.linalg.eigh(h)
    seen = values > 1e-13 * values[-1]  # points may have the same gradients
    root, vectors = values[seen].sqrt(), vectors.mT[seen]  # (r,), (r, n)
    scaled, _ = nnls(*(part.cpu().numpy() for part in (root[:, None] * vectors, vectors @ b / root)))
    return kkt._replace(multipliers=torch.as_tensor(scaled).to(kkt.points) / len(kkt.points))
