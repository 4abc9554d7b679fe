"""KKT sets: points, labels and multipliers that explain one two-layer ReLU network, and how to merge, split and build them.

A network Φ(x; θ) = Σ_j v_j σ(w̄_j·x̄) with θ = (W̄, v) is homogeneous of degree two: Φ(x; cθ) = c²Φ(x; θ). Here x̄ is x, or
(x, 1) if the first layer has a bias. Points x_i with labels y_i = ±1 and multipliers λ_i are a KKT set of θ if they satisfy
the first-order conditions of min ½‖θ‖² subject to y_iΦ(x_i; θ) ≥ 1:

    θ = Σ_i λ_i y_i ∇_θΦ(x_i; θ),   y_iΦ(x_i; θ) ≥ 1,   λ_i ≥ 0,   λ_i(y_iΦ(x_i; θ) − 1) = 0.          (kkt)

Where the same neurons are active, ∇_θΦ is affine in x. So points of one label and one pattern of active neurons enter the
first condition through Σλ_i and Σλ_i x_i alone: they can be merged and split. Shapes: points (n, d), W̄ (h, d) or (h, d+1).
"""

import math
from typing import NamedTuple

import torch
from scipy.optimize import nnls

from utils import mlp, rules
from utils.errors import InputError
from utils.losses import LOSSES
from utils.mlp import Layer
from utils.stationarity import Stationarity

ROUNDING = 1e-9  # by which a margin may miss 1 without anybody having asked for it


class KKTSet(NamedTuple):
    """A network and points that may explain it."""

    network: tuple  # two mlp.Layers: W̄ with or without a bias, and v (1, h) without
    points: torch.Tensor  # x (n, d)
    signs: torch.Tensor  # y (n,) of ±1
    multipliers: torch.Tensor  # λ (n,)


class Conditions(NamedTuple):
    """By how much each line of (kkt) is missed; all four are zero at a KKT point."""

    stationarity: float  # ε = ‖θ − Σ λ_i y_i ∇_θΦ(x_i)‖
    violation: float  # max_i (1 − y_iΦ(x_i)), at least 0
    slackness: float  # δ = max_i λ_i(y_iΦ(x_i) − 1), at least 0
    negativity: float  # max_i −λ_i, at least 0


class Budget(NamedTuple):
    """How far each point can move before a neuron changes its state; ∞ where none ever does."""

    forward: torch.Tensor  # (n,)
    backward: torch.Tensor  # (n,)


class Bounds(NamedTuple):
    """Lower bounds on a Budget that need no look at the single neuron's direction."""

    quoted: float  # min_j |D_j|‖w_j‖/(γΣλ), Theorem 5 as a summary of the paper quotes it
    derived: float  # min_j |D_j|‖w_j‖/(|v_j|γΣλ + ‖e_j‖), ours; e_j is neuron j's part of the stationarity residual


# ---- What a set says ----


def check(kkt):
    """Raise InputError unless the set belongs to a homogeneous two-layer network with one output, and its parts fit."""
    network, (n, d) = kkt.network, kkt.points.shape
    if len(network) != 2 or network[1].bias is not None or len(network[1].weight) != 1:
        raise InputError("KKT sets need a network of two layers with one output and no bias after the first layer.")
    if network[0].weight.shape[1] != d or kkt.signs.shape != (n,) or kkt.multipliers.shape != (n,):
        raise InputError(
            f"{n} points of {d} values need {d} inputs, {n} signs and {n} multipliers, but there are "
            f"{network[0].weight.shape[1]}, {len(kkt.signs)} and {len(kkt.multipliers)}."
        )
    if not (kkt.signs.abs() == 1).all():
        raise InputError("The labels of a KKT set must be −1 or +1: use losses.signs for labels 0 and 1.")


def before(network, x):
    """The pre-activations w̄_j·x̄: (n, d) -> (n, h)."""
    return mlp.forward(network, x)[1][0]


def margins(kkt):
    """y_iΦ(x_i): (n,)."""
    return kkt.signs * mlp.forward(kkt.network, kkt.points)[1][-1][:, 0]


def residual(kkt):
    """e = θ − Σ λ_i y_i ∇_θΦ(x_i), in the shapes of the network."""
    a, z = mlp.forward(kkt.network, kkt.points)
    d, _ = mlp.back(kkt.network, (kkt.multipliers * kkt.signs)[:, None], [(z[0] > 0).to(z[0])])
    return tuple(
        Layer(layer.weight - dl.mT @ al, None if layer.bias is None else layer.bias - dl.sum(0))  # (k, n) @ (n, l)
        for layer, dl, al in zip(kkt.network, d, a)
    )


def conditions(kkt):
    """Measure the four lines of (kkt); (ε, δ)-KKT says stationarity ≤ ε and slackness ≤ δ, the other two being zero."""
    beyond = margins(kkt) - 1
    worst = (-beyond).max(), (kkt.multipliers * beyond).max(), (-kkt.multipliers).max()
    return Conditions(mlp.flatten(residual(kkt)).norm().item(), *(max(0.0, part.item()) for part in worst))


def input_gradients(kkt):
    """∇_xΦ(x_i) = Σ_j v_j 1[j is active] w_j: (n, d)."""
    active = (before(kkt.network, kkt.points) > 0).to(kkt.points)
    return (active * kkt.network[1].weight) @ kkt.network[0].weight  # (n, h) @ (h, d) -> (n, d)


def cells(kkt):
    """Group the points by label and active neurons: a list of lists of their numbers."""
    found = {}
    for i, (sign, active) in enumerate(zip(kkt.signs, before(kkt.network, kkt.points) > 0)):
        found.setdefault((sign.item(), *active.tolist()), []).append(i)
    return list(found.values())


# ---- Merge and split ----


def replaced(kkt, which, points, multipliers):
    """Take some points of one label out and append others with that label."""
    rest = [i for i in range(len(kkt.points)) if i not in set(which)]
    signs = kkt.signs[which[0]].expand(len(points))
    return kkt._replace(
        points=torch.cat([kkt.points[rest], points]),
        signs=torch.cat([kkt.signs[rest], signs]),
        multipliers=torch.cat([kkt.multipliers[rest], multipliers]),
    )


def check_numbers(kkt, which, least):
    """Raise InputError unless `which` names at least `least` different points of the set."""
    if len(which) < least or len(set(which)) != len(which) or not all(0 <= i < len(kkt.points) for i in which):
        raise InputError(
            f"The points {list(which)} were asked for: give at least {least} different numbers from 0 to "
            f"{len(kkt.points) - 1}."
        )


def merge(kkt, which):
    """Put one point in the place of several: their mean weighted by λ, with the sum of their λ (Lemma 2).

    InputError unless they have one label and the same active neurons, and some λ is positive. The merged point comes last.
    """
    check(kkt)
    check_numbers(kkt, which, 2)
    signs, active = kkt.signs[which], before(kkt.network, kkt.points[which]) > 0
    if (signs != signs[0]).any():
        raise InputError(f"The points {list(which)} cannot be merged: their labels differ.")
    different = (active != active[0]).any(0).sum().item()
    if different:
        raise InputError(f"The points {list(which)} cannot be merged: {different} neurons are active at some only.")
    multipliers = kkt.multipliers[which]
    total = multipliers.sum()
    if not (multipliers >= 0).all() or total <= 0:
        raise InputError(
            f"The points {list(which)} cannot be merged: no multiplier may be negative, and one must be positive."
        )
    return replaced(kkt, which, (multipliers / total @ kkt.points[which])[None], total[None])


def condense(kkt):
    """Merge every cell to one point, and leave out the points whose λ is zero: no two of the rest can be merged."""
    used = kkt.multipliers > 0
    kkt = kkt._replace(points=kkt.points[used], signs=kkt.signs[used], multipliers=kkt.multipliers[used])
    while several := [cell for cell in cells(kkt) if len(cell) > 1]:
        kkt = merge(kkt, several[0])
    return kkt


def budget(kkt, direction):
    """The steps t at which x_i + tν and x_i − tν meet the first hyperplane on their way: |w̄_j·x̄_i|/|w_j·ν|."""
    z, speed = before(kkt.network, kkt.points), kkt.network[0].weight @ direction  # (n, h), (h, d) @ (d,) -> (h,)
    closing = torch.where(z > 0, -speed, speed)  # how fast a step forward approaches the hyperplane

    def first(rate):
        return torch.where(rate > 0, z.abs() / rate, math.inf).min(1).values

    return Budget(first(closing), first(-closing))


def spread(kkt, index, moves, shares, violation=0.0):
    """Put points x + μ_k with multipliers ρ_kλ in the place of one x, where Σρ_k = 1 and Σρ_kμ_k = 0.

    `moves` μ (K, d), `shares` ρ (K,). InputError if they do not balance, if a neuron changes its state on the way, or if
    a margin falls below 1 by more than `violation`. The new points come last.
    """
    check(kkt)
    check_numbers(kkt, [index], 1)
    if not ((shares > 0).all() and (shares.sum() - 1).abs() < ROUNDING):
        raise InputError("The shares of a split must be positive and add up to 1.")
    if (shares @ moves).norm() > ROUNDING * moves.norm():
        raise InputError("The moves of a split must balance: their mean, weighted by the shares, must be 0.")
    one = kkt._replace(points=kkt.points[index : index + 1])
    for move in moves:
        reach, length = budget(one, move).forward.item(), move.norm().item()
        if reach <= 1:
            raise InputError(
                f"Point {index} can move {reach * length:.6g} in this direction before a neuron changes its state, but "
                f"{length:.6g} was asked for: take a smaller step."
            )
    made = replaced(kkt, [index], one.points + moves, shares * kkt.multipliers[index])
    lowest = margins(made)[-len(moves) :].min().item()
    if lowest < 1 - violation - ROUNDING - 1e-15 * moves.norm().item():  # which is rounding for long moves
        raise InputError(
            f"The margin of point {index} falls to {lowest:.6g}: take a direction that is orthogonal to the gradient of "
            f"the network in x (`tangent`), or allow a violation of {1 - lowest:.3g}."
        )
    return made


def split(kkt, which, direction, forward, backward=None, violation=0.0):
    """Put x + αν with λβ/(α+β) and x − βν with λα/(α+β) in the place of each x in `which` (Lemma 3).

    ν is `direction` (d,), α `forward` and β `backward` (α if it is not given). InputErrors as of `spread`.
    """
    alpha, beta = forward, forward if backward is None else backward
    if not (0 < alpha < math.inf and 0 < beta < math.inf):
        raise InputError(f"The steps of a split are {alpha:g} and {beta:g}; both must be larger than 0.")
    check_numbers(kkt, which, 1)
    moves = torch.stack([alpha * direction, -beta * direction])
    shares = direction.new_tensor([beta, alpha]) / (alpha + beta)
    for index in sorted(which, reverse=True):  # the last first, so that the numbers of the others stay
        kkt = spread(kkt, index, moves, shares, violation)
    return kkt


def without(direction, rows):
    """The unit vector along the part of `direction` (d,) that is orthogonal to all `rows` (k, d)."""
    _, values, vectors = torch.linalg.svd(rows, full_matrices=False)
    basis = vectors[values > 1e-12 * values[0]]  # (r, d)
    left = direction
    for _ in range(2):  # once more, against the rounding of the first time
        left = left - (left @ basis.mT) @ basis
    if left.norm() <= 1e-10 * direction.norm():
        raise InputError(
            f"Nothing is left of the direction: {len(basis)} dimensions of {len(direction)} are excluded. Choose another one."
        )
    return left / left.norm()


def tangent(kkt, which, direction):
    """The unit vector along the part of `direction` (d,) that keeps the margins of the points in `which`."""
    return without(direction, input_gradients(kkt)[which])


def bounds(kkt, index, direction):
    """Two lower bounds on how far point `index` can move along a unit vector ν; γ = max_i |x_i·ν|.

    From w_j = v_j Σ_i λ_i y_i 1[j is active at i] x_i + e_j: |w_j·ν| ≤ |v_j|γΣλ + ‖e_j‖, and |D_j|‖w_j‖ = |w̄_j·x̄|.
    """
    z = before(kkt.network, kkt.points[index : index + 1])[0].abs()  # (h,)
    spread = (kkt.points @ direction).abs().max() * kkt.multipliers.sum()  # γΣλ
    missed = residual(kkt)[0].weight.norm(dim=1)  # ‖e_j‖ (h,)
    return Bounds((z / spread).min().item(), (z / (kkt.network[1].weight[0].abs() * spread + missed)).min().item())


def hidden(kkt, direction):
    """The unit vector along the part of `direction` (d,) that is orthogonal to all points and to all w_j.

    At a KKT point the w_j lie in the span of the points, so that the points alone decide whether there is one.
    """
    return without(direction, torch.cat([kkt.points, kkt.network[0].weight]))


def faraway(kkt, distance, direction=None, seed=0):
    """A KKT set of the same network all of whose points are further than `distance` from all of this one's (Theorem 4).

    Every point is split along one hidden direction: no pre-activation changes, however long the step. At a KKT point it is
    enough that the points do not span the space; a trained network's w_j must leave a direction as well, as they do if
    there are more dimensions than points and neurons together. InputError if nothing is left.
    """
    if not 0 < distance < math.inf:
        raise InputError(f"The distance is {distance:g}; it must be larger than 0.")
    if torch.linalg.matrix_rank(kkt.points) == kkt.points.shape[1]:
        raise InputError(
            f"The points span all {kkt.points.shape[1]} dimensions, so that no direction is orthogonal to all of them: "
            "Theorem 4 does not apply."
        )
    if direction is None:
        generator = torch.Generator().manual_seed(seed)  # uniform: normal draws may be a network's own start
        direction = torch.rand(kkt.points.shape[1], dtype=torch.float64, generator=generator) - 0.5
    direction = hidden(kkt, direction.to(kkt.points))
    return split(kkt, range(len(kkt.points)), direction, 1.01 * distance)


# ---- (ε, δ)-KKT ----


def normalised(kkt):
    """Scale θ so that the smallest margin is 1: θ/√q. The residual shrinks by the same √q, and λ stays what it is."""
    smallest = margins(kkt).min().item()
    if smallest <= 0:
        raise InputError(
            f"The smallest margin is {smallest:g}: a network that misjudges a point has no KKT set. Train it "
            f"for longer, or a wider one."
        )
    return kkt._replace(network=mlp.change(kkt.network, lambda p: p / smallest**0.5))


def best_multipliers(kkt):
    """The set with the λ ≥ 0 that make its stationarity residual smallest, by non-negative least squares."""
    h, b = Stationarity(kkt.network, rules.Margin(kkt.signs)).quadratic(kkt.points)  # for λ/n
    values, vectors = torch.linalg.eigh(h)
    seen = values > 1e-13 * values[-1]  # points may have the same gradients
    root, vectors = values[seen].sqrt(), vectors.mT[seen]  # (r,), (r, n)
    found, _ = nnls(*(part.cpu().numpy() for part in (root[:, None] * vectors, vectors @ b / root)))
    return kkt._replace(multipliers=torch.as_tensor(found).to(kkt.points) / len(kkt.points))


def fitted(network, points, signs):
    """The set of a trained network: its smallest margin scaled to 1, with its best multipliers."""
    kkt = KKTSet(network, points, signs, torch.zeros_like(signs))
    check(kkt)
    return best_multipliers(normalised(kkt))


def known_slack_budget(kkt, index, direction, slackness):
    """The largest t for which a split of point `index` by t both ways, then `normalised`, keeps all slacks at `slackness`.

    With M = y_iΦ(x_i), a = t|∇_xΦ(x_i)·ν| and the new smallest margin M − a, the slacks are λ_i a/(M − a) at the upper half
    and λ_k(y_kΦ(x_k)/(M − a) − 1) at the others; the state of the neurons is not looked at here.
    """
    pace = (input_gradients(kkt)[index] @ direction).abs().item()
    if pace <= ROUNDING:
        return math.inf
    m, own = margins(kkt), kkt.multipliers[index]
    others = torch.arange(len(m), device=m.device) != index
    lowest = (kkt.multipliers * m / (kkt.multipliers + slackness))[others].nan_to_num(0.0).max()
    allowed = torch.minimum(slackness * m[index] / (own + slackness), m[index] - lowest)
    return allowed.clamp_min(0).item() / pace


def retrained(network, points, signs, recipe):
    """Train a two-layer network on points as they are, by gradient descent on the logistic loss without weight decay.

    As in `mlp.train`, but nothing is subtracted. Outside the span of the points x̄ the first layer stays as it is.
    """
    check(KKTSet(network, points, signs, torch.ones_like(signs)))
    weight, bias = network[0]
    first = weight if bias is None else torch.cat([weight, bias[:, None]], 1)
    x = points if bias is None else torch.cat([points, torch.ones_like(points[:, :1])], 1)
    basis, upper = torch.linalg.qr(x.mT)  # Q (d+1, r), Lᵀ (r, n)
    inside = (Layer(first @ basis, None), network[1])

    def objective(theta):
        return mlp.gradient(mlp.unflatten(theta, inside), upper.mT, (signs + 1) / 2, LOSSES["logistic"])

    trained = mlp.unflatten(mlp.descend(objective, mlp.flatten(inside), recipe), inside)
    first = first + (trained[0].weight - inside[0].weight) @ basis.mT  # (h, r) @ (r, d+1) -> (h, d+1)
    layer = Layer(first, None) if bias is None else Layer(first[:, :-1], first[:, -1])
    return (layer, trained[1])


# ---- KKT points to test with ----


def one_class(x):
    """The hard-margin support vectors of one class: u (d,) and α (n,) ≥ 0 of min ½‖u‖² subject to x_i·u ≥ 1, u = Σ α_i x_i.

    Non-negative least squares finds the support, a pseudo-inverse polishes α to rounding. u is None if no u exists.
    """
    scale = x.norm(dim=1).mean()
    lifted = torch.cat([x / scale, torch.ones_like(x[:, :1])], 1).mT  # (d+1, n)
    target = torch.zeros_like(lifted[:, 0])
    target[-1] = 1
    support = torch.as_tensor(nnls(lifted.cpu().numpy(), target.cpu().numpy(), maxiter=100 * len(x))[0]).to(x) > 0
    alpha = torch.zeros_like(x[:, 0])
    if support.any():
        inverse = torch.linalg.pinv(x[support])  # (d, s): u is its row sum, the shortest with x_i·u = 1 on the support
        alpha[support] = inverse.mT @ inverse.sum(1)
    u = alpha @ x
    exact = (x @ u).min() > 1 - ROUNDING and alpha.min() > -ROUNDING
    return (u if exact else None), alpha.clamp_min(0)


def two_groups(points, signs, neurons=1, bias=True, seed=0):
    """A network and multipliers for which given points are an exact KKT set, in closed form.

    Each class has a group of `neurons` that are active on this class and on no other point. The group acts as u·x̄ for the
    u of `one_class`: w̄_j = √(ρ_j/‖u‖)u, v_j = y√(ρ_j‖u‖), λ_i = α_i/‖u‖, with random shares ρ_j that add up to one.
    InputError if a class has no such u, or if the u of one class is positive at a point of the other (`compatible`).
    """
    x = torch.cat([points, torch.ones_like(points[:, :1])], 1) if bias else points
    generator, multipliers, first, second = torch.Generator().manual_seed(seed), torch.zeros_like(signs), [], []
    for sign in (1, -1):
        own = signs == sign
        if not own.any():
            raise InputError(f"There is no point of class {sign:+d}: give points of both classes.")
        u, alpha = one_class(x[own])
        if u is None:
            raise InputError(
                f"No hyperplane has class {sign:+d} on one side and the origin on the other: shift the data."
            )
        if (wrong := (x @ u >= 0) & ~own).any():
            raise InputError(
                f"The neurons of class {sign:+d} are active at the points {wrong.nonzero()[:, 0].tolist()} of the other "
                "class: leave these out (`compatible`), or shift the data."
            )
        shares, size = torch.rand(neurons, dtype=torch.float64, generator=generator).to(x) + 0.1, u.norm()
        shares = shares / shares.sum()
        multipliers[own] = alpha / size
        first.append((shares / size).sqrt()[:, None] * u)  # (neurons, d+1)
        second.append(sign * (shares * size).sqrt())
    first = torch.cat(first)
    layer = Layer(first[:, :-1], first[:, -1]) if bias else Layer(first, None)
    return KKTSet((layer, Layer(torch.cat(second)[None], None)), points, signs, multipliers)


def compatible(points, signs, bias=True, gap=0.02):
    """The numbers of points that are left after all were taken out at which the other class's u·x̄ is above −`gap`."""
    kept = torch.arange(len(points), device=points.device)
    while True:
        x, y = points[kept], signs[kept]
        x = torch.cat([x, torch.ones_like(x[:, :1])], 1) if bias else x
        wrong = torch.zeros_like(y, dtype=torch.bool)
        for sign in (1, -1):
            if not (y == sign).any():
                raise InputError(f"No point of class {sign:+d} is left: the classes are not compatible.")
            u, _ = one_class(x[y == sign])
            if u is None:
                raise InputError(f"No hyperplane has class {sign:+d} on one side and the origin on the other.")
            wrong |= (y != sign) & (x @ u > -gap)
        if not wrong.any():
            return kept
        kept = kept[~wrong]
