"""One null for every attack: what a number would be if nothing leaked. No attack calls it.

Training images and held-out images of the same classes, which nobody used, are exchangeable within a class if nothing
leaked, and so are their scores.
"""

from collections import namedtuple

import numpy as np
import torch

from utils.kernels.similarity import is_constant

RESAMPLES = 2000  # of the bootstrap, and of exchanges at a place
SHUFFLES = 9999  # of permutations within classes
Area = namedtuple("Area", "value low high")  # under a ROC curve, with its 95 % interval over resamples of both sides
# How well a score tells reconstructions that show a training image from the others: the Area, and the rate of true
# positives at 1 % false ones; with fewer than 100 others, before the first false one.
Detection = namedtuple("Detection", "auc tpr")


def area(above, below):
    """The area under the ROC curve of a score with values `above` (n,) and `below` (k,) on the two sides."""
    above, below = above.cpu(), below.cpu()
    table = ((above[:, None] > below) + 0.5 * (above[:, None] == below)).double().numpy()  # (n, k)
    draw = np.random.default_rng(0).multinomial
    rows, columns = (draw(n, np.full(n, 1 / n), RESAMPLES) / n for n in table.shape)  # (RESAMPLES, n), (RESAMPLES, k)
    low, high = np.quantile(((rows @ table) * columns).sum(1), (0.025, 0.975))
    return Area(table.mean().item(), low.item(), high.item())


def p_value(training, held_out, seed=0, classes=None):
    """The share of random exchanges of values (m,), (n,) after which the AUC is at least as large.

    Exchanged are the two values at a place, which are of one class; or, with the `classes` (m + n,) of the training
    values and then of the held-out ones, any values of one class.
    """
    ranks, m = ranks_of(torch.cat([training, held_out]).cpu().numpy()), len(training)
    sums = flipped(ranks.reshape(2, m), seed) if classes is None else shuffled(ranks, m, np.asarray(classes), seed)
    return (1 + (sums >= ranks[:m].sum()).sum().item()) / (1 + len(sums))


def ranks_of(values):
    """The rank of each value (n,), from 1 on; equal ones share the mean of theirs."""
    _, places, counts = np.unique(values, return_inverse=True, return_counts=True)  # scipy.stats takes long to import
    return (counts.cumsum() - (counts - 1) / 2)[places]


def flipped(ranks, seed):
    """Sums of the first row of ranks (2, m) after random exchanges with the second one: (RESAMPLES,)."""
    flips = torch.rand(RESAMPLES, ranks.shape[1], generator=torch.Generator().manual_seed(seed)) < 0.5
    return np.where(flips, ranks[1], ranks[0]).sum(1)


def shuffled(ranks, m, classes, seed):
    """Sums of the first m of ranks (m + n,) after random permutations within classes (m + n,): (SHUFFLES,)."""
    draw, sums = np.random.default_rng(seed), np.zeros(SHUFFLES)
    for kind in np.unique(classes):
        values, count = ranks[classes == kind], (classes[:m] == kind).sum()
        sizes = map(len, np.array_split(sums, 1 + SHUFFLES * len(values) // 2_000_000))  # so that tables fit
        tables = (draw.permuted(np.tile(values, (size, 1)), axis=1) for size in sizes)
        sums += np.concatenate([table[:, :count].sum(1) for table in tables])
    return sums


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
