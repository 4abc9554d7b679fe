"""What candidates have in common with training points that look like nothing: lengths and angles alone."""

import math
from typing import NamedTuple

from torch.nn.functional import normalize

from utils import null
from utils.kernels.similarity import l2


class Measured(NamedTuple):
    """How near candidates come to the training points."""

    loss: float  # the attacker's, in whatever unit it was given
    distance: float  # Euclidean, mean of the five best candidates
    cosine: float  # mean of the five best
    leak_auc: float  # how often a training point has a larger best cosine than a fresh one; 0.5 if nothing leaked


def cosines(candidates, x):
    """All cosines: (n, d), (m, d) -> (n, m)."""
    return normalize(candidates, dim=1) @ normalize(x, dim=1).mT


def measured(candidates, points, fresh, loss=math.nan):
    """Measure candidates (n, d) against the training points (m, d) and as many fresh ones (m, d)."""
    near = l2(candidates, points).amin(1).sort().values[:5].mean()
    ours, others = (cosines(candidates, x) for x in (points, fresh))
    best = ours.amax(1).sort().values[-5:].mean()
    auc = null.area(ours.amax(0).cpu(), others.amax(0).cpu()).value
    return Measured(loss, near.item(), best.item(), auc)
