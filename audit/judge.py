"""One null for all that an audit measures, and one rule that says that something leaks.

Training and held-out pictures of one class can be exchanged if the network knows neither. So a score has the area 0.5,
and of the pictures that pass a bar either side holds its share.
"""

from typing import NamedTuple

import numpy as np
import torch
from scipy.stats import chi2_contingency, hypergeom
from scipy.stats.contingency import crosstab
from torch.nn.functional import interpolate

from evaluation import null
from training import images
from utils.kernels.similarity import match

NEAR = 0.9  # |NCC| of a picture that came back almost exactly
BACK = f"correlation above {NEAR:g}"  # the same in words
TELLING = 0.75  # area of membership that must lie above its 95 % interval before an audit may say that it found nothing
DIFFERENT = 0.01  # level at which training and held-out pictures differ by themselves
RATES = 0.01, 0.001  # of false positives
STRANGERS = 100  # photographs that are nobody's
OWN = 0.95  # correlation above which one of them is somebody's, after all


class Comparison(NamedTuple):
    """One number of the training pictures beside that of the held-out ones."""

    name: str
    training: float  # an area, or a count
    held_out: float  # what it would be without a leak: 0.5, or the count of held-out pictures
    p: float
    adjusted: float = 1.0  # for the number of all tests, after Holm
    opposite: float = 1.0  # p of held-out pictures that are told from training ones, which no leak explains; adjusted


class Near(Comparison):
    """Of the counts of pictures that came back almost exactly, which leak even where both sides differ."""


class Alike(Comparison):
    """Of the counts of pictures that are alike what came back."""


class Scored(NamedTuple):
    """A score of membership, the higher, the likelier: of m training and n held-out pictures."""

    training: torch.Tensor  # (m,)
    held_out: torch.Tensor  # (n,)
    area: null.Area  # with its 95 % interval
    p: float  # of an area this large under exchange within classes
    opposite: float  # of one this small


def scored(sides, labels=(None, None)):
    """The Scored of two sides' values, (m,) and (n,), with labels of their classes where they are known."""
    training, held_out = sides
    area = null.area(training.double(), held_out.double())
    more = p_value(training, held_out, labels)
    less = p_value(-training, -held_out, labels)
    return Scored(training, held_out, area, p=more, opposite=less)


def p_value(training, held_out, labels=(None, None), seed=0):
    """The p-value of an area at least as large under exchange within classes, or of any values if none are known."""
    return null.p_value(training, held_out, seed, classes_of(labels, len(training) + len(held_out)))


def classes_of(labels, count):
    """The classes (m + n,) of both sides' labels; all are of one where these are not known."""
    return np.zeros(count) if labels[0] is None else np.concatenate(labels)


def of_area(name, score):
    """The Comparison of a Scored."""
    return Comparison(name, score.area.value, 0.5, p=score.p, opposite=score.opposite)


def of_count(name, sides, labels=(None, None)):
    """The Comparison of both sides' masks, (m,) and (n,): whether more training pictures pass.

    The test is exact, under exchange within classes, and Fisher's where these are not known.
    """
    (ours, theirs), m = (int(side.sum()) for side in sides), len(sides[0])
    passes = torch.cat([*sides]).numpy()
    chances = np.ones(1)
    classes = classes_of(labels, len(passes))
    for own in (classes == kind for kind in np.unique(classes)):
        n = own[:m].sum()
        chances = np.convolve(
            chances, hypergeom.pmf(np.arange(n + 1), own.sum(), passes[own].sum(), n)
        )
    more, less = (min(1.0, float(part.sum())) for part in (chances[ours:], chances[: ours + 1]))
    return Comparison(name, ours, theirs, p=more, opposite=less)


def holm(tests):
    """The Comparisons with p-values adjusted so that any of them errs at most as often as its level says."""
    more, less = ([getattr(test, name) for test in tests] for name in ("p", "opposite"))
    pairs = zip(tests, adjusted(more), adjusted(less))
    return [test._replace(adjusted=ours, opposite=theirs) for test, ours, theirs in pairs]


def adjusted(values):
    """P-values, adjusted for their number by Holm's method."""
    p = np.array(values)
    order = p.argsort(kind="stable")
    found = np.empty(len(p))
    found[order] = np.maximum.accumulate(np.minimum(1, np.arange(len(p), 0, -1) * p[order]))
    return found.tolist()


def control(case):
    """Comparisons that say whether the two sides of a stages.Case differ before any network: two-sided, adjusted.

    By brightness, contrast, the balance of classes, and likeness to photographs that have nothing to do with them.
    """
    sides = [side.images for side in case.pictures]
    scores = {
        "brightness": [x.mean(1) for x in sides],
        "contrast": [x.std(1) for x in sides],
        "likeness to strangers": strangers(sides, case.shape),
    }
    tests = []
    for name, values in scores.items():
        score = scored(values, case.labels)
        p = min(1.0, 2 * score.p, 2 * score.opposite)
        tests.append(Comparison(name, score.area.value, 0.5, p))
    if case.labels[0] is not None:
        tests.append(balance(case.labels))
    return holm(tests)


def balance(labels):
    """The Comparison of the classes of both sides' labels: the share of the first one, and whether all are as many."""
    held_out = np.repeat([0, 1], [len(part) for part in labels])
    counts = crosstab(held_out, np.concatenate(labels)).count
    p = float(chi2_contingency(counts).pvalue) if counts.shape[1] > 1 else 1.0
    ours, theirs = (counts[:, 0] / counts.sum(1)).tolist()
    return Comparison("share of the first class", ours, theirs, p)


def strangers(sides, shape):
    """How like every picture (m, d), (n, d) is to the best of some photographs of nobody's: (m,) and (n,)."""
    views = torch.from_numpy(images.views()[0]).float().permute(0, 3, 1, 2) / 255
    views = views if shape[2] == 3 else views.mean(1, keepdim=True)
    views = interpolate(views, size=shape[:2], mode="area").permute(0, 2, 3, 1).flatten(1)
    likeness = [[match(few, side).signed for side in sides] for few in views.split(STRANGERS)]
    own = torch.cat([torch.stack(part).amax(0) for part in likeness]) > OWN
    few = slice(STRANGERS) if own.all() else (~own).nonzero()[:STRANGERS, 0]
    return [match(side, views[few], shape).signed for side in sides]
