"""What an attacker may know beside the weights, and what the weights tell: radii, shifts, distances to a KKT point.

Networks have two layers of ReLU with a bias in the first, so that Φ(x; tθ) = t²Φ(x; θ). Points and images are rows (n, d).
"""

from typing import NamedTuple

import torch

from utils import decoreco, evaluate, images, mlp, rules
from utils import decoreco_trials as kkt
from utils.errors import InputError

BEST = 5  # reconstructions that the second paper averages over


class Closeness(NamedTuple):
    """How near the best candidates of a set are to training points."""

    distance: float  # mean Euclidean distance to the nearest point, over the BEST nearest candidates
    cosine: float  # mean cosine with the nearest point by angle, over the BEST nearest by angle: it knows no length


def sphere(n, d, radius, seed, device="cpu"):
    """Draw n points evenly from the sphere of a radius in R^d: (n, d)."""
    x = torch.randn(n, d, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    return (radius * x / x.norm(dim=1, keepdim=True)).to(device)


def labelled_sphere(m, d, seed, device="cpu"):
    """Points of the unit sphere with the sign of the first coordinate as label, class 0 first (section 4 of the paper)."""
    if m < 2 or d < 2:
        raise InputError(f"{m} points in {d} dimensions: POINTS and DIMENSIONS must be 2 or larger.")
    x = sphere(m, d, 1.0, seed, device)
    x[0, 0], x[1, 0] = -x[0, 0].abs(), x[1, 0].abs()  # none of the classes is empty
    x = x[(x[:, 0] > 0).double().argsort(stable=True)]
    return images.Part(x, (x[:, 0] > 0).to(x))


def normalised(weights, norm=30.0):
    """The network tθ with ‖tθ‖ = `norm`: for the same λ its R/‖θ‖² is the same, and its ReLU's surrogate comparable."""
    return mlp.change(weights, (norm / mlp.flatten(weights).norm()).mul)


def attack(weights, start, seed=0, **settings):
    """decoreco.attack by the margin rule on the normalised network, half of the candidates `start` (…, n, d) per class.

    Nothing is assumed of the range of the candidates unless `settings` give a `range_weight`.
    """
    labels = kkt.labels(start.shape[-2], 2, start.device)
    settings = {"labels": labels, "range_weight": 0.0, "sharpness": 100.0, **settings}
    return decoreco.attack(normalised(weights), start=start, rule="margin", seed=seed, **settings)


def closeness(candidates, points):
    """The Closeness of candidates (n, d) to points (m, d). Only an evaluator can choose the best."""
    distance = evaluate.l2(candidates, points).min(1).values  # (n,)
    cosine = cosines(candidates, points).max(1).values
    return Closeness(distance.sort().values[:BEST].mean().item(), cosine.sort().values[-BEST:].mean().item())


def cosines(candidates, points):
    """All cosines: (n, d), (m, d) -> (n, m)."""
    return torch.nn.functional.normalize(candidates, dim=1) @ torch.nn.functional.normalize(points, dim=1).T


def found(candidates, points, cosine=0.9):
    """How many points have a candidate within that cosine."""
    return (cosines(candidates, points).max(0).values > cosine).sum().item()


def kkt_distance(weights, x, labels):
    """R/‖θ‖² at points x (m, d) with their best λ ≥ 0 and the ReLU itself: 0 at a KKT point of the margin problem."""
    objective = decoreco.Objective(weights, rules.make("margin", labels, 1), float("inf"), 0.0, 0.0)
    return objective(x, objective.project(x, torch.zeros_like(labels)))[0].total.item()


class Shift(NamedTuple):
    """Two regressions for the same s; without errors in the row space they agree."""

    diluted: float  # of Q(0, 1) on Q(1, 0): errors move it towards 0
    reverse: float  # of Q(1, 0) on Q(0, 1): errors move it away from 0


def estimate_shift(layer):
    """The s for which (s·1, 1) is nearest to the row space of (W, b), from a first layer alone, by two regressions.

    Training moves every row of (W, b) by a combination of rows (x_i, 1). If the mean of the images is s·1, then (s·1, 1)
    is one as well: s·Q(1, 0) = −Q(0, 1), Q the projection away from the row space. First weights in the row space are
    errors in both vectors; `diluted` takes them to be in Q(0, 1) and `reverse` in Q(1, 0), and |diluted| ≤ |reverse|.
    NaN where every shift fits: if the row space is everything, and `reverse` also if the two vectors are orthogonal.
    """
    rows = torch.cat([layer.weight, layer.bias[:, None]], 1)  # (h, d+1)
    _, values, vectors = torch.linalg.svd(rows, full_matrices=False)
    seen = vectors[values > 1e-13 * values[0]]  # (r, d+1)
    units = torch.zeros(2, rows.shape[1]).to(rows)
    units[0, :-1], units[1, -1] = 1, 1
    shift, one = units - units @ seen.T @ seen  # (2, d+1): Q(1, 0) and Q(0, 1)
    visible, offset, cross = shift @ shift, one @ one, shift @ one
    if visible <= 1e-20 * units[0].sum():
        return Shift(float("nan"), float("nan"))
    if offset <= 1e-20:  # (0, 1) is in the row space
        return Shift((-cross / visible).item(), 0.0)
    return Shift((-cross / visible).item(), (-offset / cross).item() if cross else float("nan"))


def blends(candidates, points):
    """Mean cosine of candidates (n, d) with the nearest of the points (m, d), and with the nearest mean of two of them."""
    first, second = torch.triu_indices(len(points), len(points), 1)
    means = (points[first] + points[second]) / 2
    return tuple(cosines(candidates, references).max(1).values.mean().item() for references in (points, means))
