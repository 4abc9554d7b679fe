"""Points on a sphere, a data set that looks like nothing, and how near candidates come: lengths and angles alone.

A draw's seed should be used for no other draw.
"""

import math
from typing import NamedTuple

import torch
from torch.nn.functional import normalize

from evaluation import null
from training.images import Part
from utils import networks
from utils.kernels.similarity import l2


class Nearness(NamedTuple):
    """How near candidates come."""

    loss: float  # the attacker's, in whatever unit
    distance: float  # the mean distance of the five best
    cosine: float  # the mean cosine of the five best
    leak_auc: float  # how often a training point has a larger best cosine than a fresh one; 0.5 if nothing leaked


def points(n, d, seed, device="cpu"):
    """Draw points (n, d) evenly from the unit sphere: a normal vector prefers no direction."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(n, d, dtype=torch.float64, generator=generator)
    return normalize(x, dim=1).to(device)


def labelled(m, d, seed, device="cpu"):
    """A Part of m such points, whose label is the sign of the first coordinate, class 0 first; no class is empty."""
    x = points(m, d, seed, device)
    x[0, 0], x[1, 0] = -x[0, 0].abs(), x[1, 0].abs()
    x = x[(x[:, 0] > 0).double().argsort(stable=True)]
    return Part(x, (x[:, 0] > 0).to(x))


def cosines(candidates, x):
    """All cosines: (n, d), (m, d) -> (n, m)."""
    return normalize(candidates, dim=1) @ normalize(x, dim=1).mT


def nearness(candidates, points, fresh, loss=math.nan):
    """Measure candidates (n, d) against training points (m, d) and as many fresh ones (m, d)."""
    near = l2(candidates, points).amin(1).sort().values[:5].mean()
    ours, others = (cosines(candidates, x) for x in (points, fresh))
    best = ours.amax(1).sort().values[-5:].mean()
    auc = null.area(ours.amax(0).cpu(), others.amax(0).cpu()).value
    return Nearness(loss, near.item(), best.item(), auc)


def first_weights(recipe, inputs, seed, device="cpu"):
    """Draw θ⁰ of a network with one hidden layer and no bias after it, whatever kind of start the recipe has."""
    first, top = networks.initial(recipe, inputs, seed, device=device)
    return first, networks.Layer(top.weight, None)
