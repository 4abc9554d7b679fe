"""One null for every attack, which no attack calls: if nothing leaked, training images and held-out ones, which nobody
used, are exchangeable within a class, and so are their scores.
"""

from typing import NamedTuple

import numpy as np
import torch

from utils.kernels.similarity import is_constant

RESAMPLES = 2000  # of the bootstrap, and of exchanges at a place
SHUFFLES = 9999  # of permutations within classes


class Area(NamedTuple):
    """The area under a ROC curve: how often a score of the first side is larger than one of the second."""

    value: float  # from 0 to 1; equal scores count half
    low: float  # where its 95 % interval begins, over resamples of both sides
    high: float  # where this interval ends


class Detection(NamedTuple):
    """How well a score tells reconstructions that show a training image from the others."""

    auc: Area  # under its ROC curve
    tpr: float  # the rate of true positives at 1 % false ones; with fewer than 100 others, before the first false one


def area(above: torch.Tensor, below: torch.Tensor) -> Area:
    """The area under the ROC curve of a score with values `above` (n,) and `below` (k,) on the two sides."""
    above = above.cpu()[:, None]
    below = below.cpu()
    table = ((above > below) + 0.5 * (above == below)).double().numpy()  # (n, k)
    draw = np.random.default_rng(0).multinomial
    # How often each is drawn: (RESAMPLES, n), (RESAMPLES, k).
    rows, columns = (draw(n, np.full(n, 1 / n), RESAMPLES) / n for n in table.shape)
    low, high = np.quantile(((rows @ table) * columns).sum(1), (0.025, 0.975)).clip(0, 1)
    return Area(table.mean().item(), low.item(), high.item())


def p_value(
    training: torch.Tensor,
    held_out: torch.Tensor,
    seed: int = 0,
    classes: np.ndarray | torch.Tensor | None = None,
) -> float:
    """The share of random exchanges of values (m,), (n,) after which the AUC is at least as large.

    Exchanged are the two values at a place; or, with the `classes` (m + n,) of the training values and then of the
    held-out ones, any values of one class.
    """
    values = torch.cat([training, held_out]).cpu().numpy()
    m = len(training)
    # Ranks from 1 on, equal values sharing the mean of theirs; scipy.stats takes long to import.
    _, places, counts = np.unique(values, return_inverse=True, return_counts=True)
    ranks = (counts.cumsum() - (counts - 1) / 2)[places]
    if classes is None:
        flips = torch.rand(RESAMPLES, m, generator=torch.Generator().manual_seed(seed)) < 0.5
        sums = np.where(flips, ranks[m:], ranks[:m]).sum(1)
    else:
        sums = shuffle(ranks, m, np.asarray(classes), seed)
    return (1 + (sums >= ranks[:m].sum()).sum().item()) / (1 + len(sums))


def shuffle(ranks, m, classes, seed):
    """Sums of the first m of ranks (m + n,) after random permutations within classes (m + n,): (SHUFFLES,)."""
    draw = np.random.default_rng(seed)
    sums = np.zeros(SHUFFLES)
    for kind in np.unique(classes):
        values = ranks[classes == kind]
        count = (classes[:m] == kind).sum()
        # In parts whose tables fit into the memory, which are views of the sums.
        for part in np.array_split(sums, 1 + SHUFFLES * len(values) // 2_000_000):
            table = draw.permuted(np.tile(values, (len(part), 1)), axis=1)
            part += table[:, :count].sum(1)
    return sums


def detection(score: torch.Tensor, truth: torch.Tensor) -> Detection | None:
    """How a score (n,) tells a mask (n,) from the rest; None if there is no rest, or the score is constant."""
    truth = truth.cpu()
    if not truth.any() or truth.all() or is_constant(score):
        return None
    above, below = (score.cpu().double()[side] for side in (truth, ~truth))
    bar = below.sort(descending=True).values[len(below) // 100]
    return Detection(area(above, below), (above > bar).double().mean().item())
