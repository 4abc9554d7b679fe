"""KKT sets that are exact to rounding, in closed form: one group of neurons with equal directions for each class."""

import torch
from scipy.optimize import nnls

from experiments.kkt_sets import (
    KKTSet,
    budget,
    input_gradients,
    merge_cells,
    replace_points,
    residual,
)
from training import images
from utils.errors import InputError
from utils.kernels import losses
from utils.kernels.one_hidden import append_ones
from utils.networks import Layer, parted


def one_class(x):
    """ū (d,) and α (n,) of one class of x̄ (n, d); ū is None if there is none."""
    lifted = append_ones(x / x.norm(dim=1).mean()).mT  # (d+1, n)
    target = torch.zeros_like(lifted[:, 0])
    target[-1] = 1
    solution, _ = nnls(lifted.cpu().numpy(), target.cpu().numpy(), maxiter=100 * len(x))
    support = torch.as_tensor(solution).to(x) > 0
    alpha = torch.zeros_like(x[:, 0])
    if support.any():
        inverse = torch.linalg.pinv(x[support])  # (d, s)
        alpha[support] = inverse.mT @ inverse.sum(1)  # of the shortest ū with ū·x̄ = 1
    u = alpha @ x
    exact = (x @ u).min() > 1 - 1e-9 and alpha.min() > -1e-9
    return (u if exact else None), alpha.clamp_min(0)


def one_side(points, signs, sign, bias=True):
    """ū (d+1,) and α (points of the class,) of class `sign`, and ū·x̄ (n,)."""
    x = append_ones(points) if bias else points
    u, alpha = one_class(x[signs == sign]) if (signs == sign).any() else (None, None)
    if u is None:
        raise InputError(f"No hyperplane parts class {sign:+d} from the origin.")
    return u, alpha, x @ u


def compatible(points, signs, bias=True, gap=0.02):
    """The numbers of the points that stay: none has the other class's ū·x̄ > −`gap`."""
    kept = torch.arange(len(points), device=points.device)
    while True:
        x = points[kept]
        y = signs[kept]
        wrong = [(y != s) & (one_side(x, y, s, bias)[2] > -gap) for s in (1, -1)]
        if not (wrong[0] | wrong[1]).any():
            return kept
        kept = kept[~(wrong[0] | wrong[1])]


def two_groups(points, signs, neurons=1, bias=True, seed=0):
    """The network with random shares τ, and λ, of which these points are a KKT set."""
    if not neurons:
        raise InputError("A class has no neurons: raise NEURONS to 2 or more.")
    generator = torch.Generator().manual_seed(seed)
    first = []
    second = []
    multipliers = torch.zeros_like(signs)
    for sign in (1, -1):
        u, alpha, there = one_side(points, signs, sign, bias)
        if (there[signs != sign] >= 0).any():
            raise InputError(f"Class {sign:+d} is active at points of the other class.")
        shares = torch.rand(neurons, dtype=torch.float64, generator=generator) + 0.1
        shares = (shares / shares.sum()).to(u)
        size = u.norm()
        multipliers[signs == sign] = alpha / size
        first.append((shares / size).sqrt()[:, None] * u)  # (neurons, d+1)
        second.append(sign * (shares * size).sqrt())
    rows = torch.cat(first)
    top = torch.cat(second)[None]
    layer = parted(rows) if bias else Layer(rows, None)
    return KKTSet((layer, Layer(top, None)), points, signs, multipliers)


def exact_set(points, signs, neurons=3, bias=True, seed=0):
    """A KKT set, to rounding, of those points that the construction allows."""
    kept = compatible(points, signs, bias)
    return two_groups(points[kept], signs[kept], neurons, bias, seed)


def residual_change(new, old):
    """The largest change of an entry of the stationarity residual."""
    return (residual(new) - residual(old)).abs().max().item()


def allowed(x, labels):
    """The Part of images (m, d) that are compatible around their own mean."""
    while True:
        if min((labels == label).sum() for label in (0, 1)) < 2:
            raise InputError("Fewer than two images of a class: raise IMAGES.")
        kept = compatible(x - x.mean(0), losses.signs(labels))
        if len(kept) == len(x):
            return images.Part(x, labels)
        x = x[kept]
        labels = labels[kept]


def spread_towards(kkt, photographs, signs, count=10):
    """Merge every cell, then spread its point towards `count` photographs (k, d)."""
    made = merge_cells(kkt)
    for i in reversed(range(len(made.points))):
        gradient = input_gradients(made.network, made.points)[i]
        moves = photographs[signs == made.signs[i]][:count]
        moves = moves - torch.outer(moves @ gradient, gradient) / gradient.dot(gradient)
        moves = moves - moves.mean(0)
        room = min(budget(made, move)[i].item() for move in moves)
        shares = moves.new_full((len(moves),), 1 / len(moves))
        points = made.points[i] + min(1.0, 0.9 * room) * moves
        made = replace_points(made, [i], points, shares * made.multipliers[i])
    return made
