"""Points on a sphere: a data set that looks like nothing. A draw's seed should be used for no other draw."""

import torch
from torch.nn.functional import normalize

from utils.images import Part


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
