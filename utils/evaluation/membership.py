"""One null for every attack, and the title's question as a number; no attack calls anything here.

The same reconstructions are matched with the training images and with equally many held-out images of the same classes
that nobody used. If nothing leaked, the two are exchangeable within a class, and so are their best matches.
"""

from collections import namedtuple
from typing import NamedTuple

import numpy as np
import torch
from scipy.stats import rankdata

from utils.errors import InputError
from utils.kernels.similarity import detail_ncc, is_constant

ALIKE = 0.5  # above, two pictures count as alike; about 1 % of the best matches among unlike ones reach it
RESAMPLES = 2000  # of the bootstrap, and of the permutations
Area = namedtuple("Area", "value low high")  # under a ROC curve, with its 95 % interval over resamples of both sides
# How well a score tells reconstructions that show a training image from the others: the Area, and the rate of true
# positives at 1 % false ones; with fewer than 100 others, before the first false one.
Detection = namedtuple("Detection", "auc tpr")


class Leak(NamedTuple):
    """How much better reconstructions match m training images than m held-out ones, by `similarity.alike`."""

    training: torch.Tensor  # (m,): of every training image, the similarity of its best match
    held_out: torch.Tensor  # (m,): the same for the held-out images
    auc: Area  # how often a training image is matched better than a held-out one; 0.5 if nothing leaked
    p: float  # of an AUC this large if training and held-out images may be exchanged
    above: int  # training images that are matched better than 99 % of the held-out ones
    alike: int  # training images with a match that counts as alike
    alike_held_out: int  # held-out images with one


def leak(candidates, training, held_out, shape):
    """Match candidates (n, d) with training and held-out images (m, d) that are in the same order of classes."""
    if len(held_out) != len(training):
        wanted = "equally many are needed: split the data with held_out=IMAGES, or choose fewer IMAGES"
        raise InputError(f"There are {len(held_out)} held-out images for {len(training)} training images; {wanted}.")
    best = [detail_ncc(candidates, images, shape).amax(0).cpu() for images in (training, held_out)]
    bar = torch.quantile(best[1], 0.99)
    counts = [(values > level).sum().item() for values, level in zip([*best[:1], *best], (bar, ALIKE, ALIKE))]
    return Leak(*best, area(*best), p_value(*best), *counts)  # type: ignore[call-arg]


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
