"""One null for every attack: what a number would be if nothing leaked. No attack calls it.

Training images and equally many held-out images of the same classes, which nobody used, are exchangeable within a class
if nothing leaked, and so are their scores.
"""

from collections import namedtuple

import numpy as np
import torch
from scipy.stats import rankdata

from utils.kernels.similarity import is_constant

RESAMPLES = 2000  # of the bootstrap, and of the permutations
Area = namedtuple("Area", "value low high")  # under a ROC curve, with its 95 % interval over resamples of both sides
# How well a score tells reconstructions that show a training image from the others: the Area, and the rate of true
# positives at 1 % false ones; with fewer than 100 others, before the first false one.
Detection = namedtuple("Detection", "auc tpr")


def area(above, below, seed=0):
    """The area under the ROC curve of a score with values `above` (n,) and `below` (k,) on the two sides."""
    above, below = above.cpu(), below.cpu()
    table = ((above[:, None] > below) + 0.5 * (above[:, None] == below)).double().numpy()  # (n, k)
    draw = np.random.default_rng(seed).multinomial
    rows, columns = (draw(n, np.full(n, 1 / n), RESAMPLES) / n for n in table.shape)  # (RESAMPLES, n), (RESAMPLES, k)
    low, high = np.quantile(((rows @ table) * columns).sum(1), (0.025, 0.975))
    return Area(table.mean().item(), low.item(), high.item())


def p_value(training, held_out, seed=0):
    """The share of random exchanges at a place, of one class, after which the AUC is at least as large: (m,), (m,)."""
    ranks = torch.from_numpy(rankdata(torch.stack([training, held_out]), axis=None)).reshape(2, -1)  # (2, m)
    flips = torch.rand(RESAMPLES, len(training), generator=torch.Generator().manual_seed(seed)) < 0.5
    sums = torch.where(flips, ranks[1], ranks[0]).sum(1)
    return (1 + (sums >= ranks[0].sum()).sum().item()) / (1 + RESAMPLES)


def detection(score, truth):
    """How a score (n,) tells a mask (n,) from the rest.

    None where there is nothing to tell apart, or where the score is constant up to rounding and so tells nothing.
    """
    truth = truth.cpu()
    if not truth.any() or truth.all() or is_constant(score):
        return None
    above, below = (score.cpu().double()[side] for side in (truth, ~truth))
    bar = below.sort(descending=True).values[len(below) // 100]
    return Detection(area(above, below), (above > bar).double().mean().item())
