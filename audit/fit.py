"""How a trainer saw pictures: which way of showing them, or order of the classes, fits a network better than the given.

This is the judge's check, of both sides' pictures together and alike; no attack is told what it finds.
"""

import itertools
from collections import namedtuple
from functools import partial

import numpy as np
import torch
from scipy.optimize import linear_sum_assignment
from scipy.stats import rankdata, wilcoxon

from audit import judge, weights

NORMALISATIONS = {  # means and deviations of pixels in [0, 1]
    "pixels from 0 to 1": ([0.0], [1.0]),
    "a mean and a deviation of 0.5": ([0.5], [0.5]),
    "pixels from 0 to 255": ([0.0], [1 / 255]),
    "ImageNet's mean and deviation": ([0.485, 0.456, 0.406], [0.229, 0.224, 0.225]),
    "CIFAR-10's mean and deviation": ([0.4914, 0.4822, 0.4465], [0.247, 0.2435, 0.2616]),
    "MNIST's mean and deviation": ([0.1307], [0.3081]),
}
MARGIN = 0.05  # of the errors, that must go: a half-trained network errs a little less on pictures of more contrast
KNOWN = 0.05  # level at which a network knows the classes; that of what fits better is judge.DIFFERENT
UNTRAINED, WIDTH = 199, 100  # random networks that a network is compared with, and their neurons
MOST = 100  # pictures of a side

# One way of showing pictures: its name and the options that give it, empty for the given one, and a function () ->
# rows (n, d) of both sides as the network sees them.
Way = namedtuple("Way", "name option rows")
# What fits better: a Way, or the given one and an `order` {class: output}; p after Holm's correction for all that was
# tried; the shares of the pictures classified correctly as given, and thus.
Better = namedtuple("Better", "way order p shares")


def ways(readings, shape, normalisation, layouts):
    """The Ways to show `readings`, (name, option, pictures (n, d) in [0, 1]), the given one first.

    The given `normalisation` is a mean, a deviation, and whether the mean of pictures was taken off (centred). There
    are one or two `layouts`, the given one first.
    """
    mean, deviation, centred = normalisation
    taken, no = ("left in", "no --centred") if centred else ("taken off", "--centred")
    norms = [("", "", mean, deviation, centred)]
    for name, numbers in NORMALISATIONS.items():
        if len(numbers[0]) in (1, shape[2]):
            option = "--mean {} --deviation {}".format(*(" ".join(f"{x:g}" for x in part) for part in numbers))
            norms.append((name, f"{option} and {no}" if centred else option, *numbers, False))
    norms.append((f"the mean of the training pictures {taken}", no, mean, deviation, not centred))
    flat = [("", "", layouts[0]), *((f"the layout {one}", f"--layout {one}", one) for one in layouts[1:])]
    found = []
    for reading, norm, layout in itertools.product(readings, norms, flat):
        names, options = (" and ".join(filter(None, some)) for some in list(zip(reading, norm, layout))[:2])
        rows = partial(shown, reading[2], norm[2:], shape, (layouts[0], layout[2]))
        found.append(Way(names, options, rows))
    return found


def shown(pictures, normalisation, shape, layouts):
    """Rows (n, d) as a network sees them that takes one layout and is given another."""
    mean, deviation = (torch.as_tensor(one).double().expand(shape).flatten() for one in normalisation[:2])
    rows = (pictures - mean) / deviation
    rows = rows - rows.mean(0) * bool(normalisation[2])
    before, after = layouts
    return rows if before == after else weights.flattened(weights.batched(rows, shape, before), after)


def standing(outputs, labels):
    """The share of pictures of other classes whose outputs are lower than a picture's own: (n, …, K) for (n, …, K).

    In the column of its class that is an area under a curve, picture by picture: no scale of the outputs and no bias of
    a class changes it.
    """
    z = np.asarray(outputs)
    z = z - z.mean(-1, keepdims=True)
    ranks, found = rankdata(z, axis=0), np.empty(z.shape)
    for kind in np.unique(labels):
        own = labels == kind
        found[own] = (ranks[own] - rankdata(z[own], axis=0)) / (~own).sum()
    return found


def assigned(shares, labels):
    """The order of outputs, {class: output}, in which classes (n,) stand highest by `shares` (n, K)."""
    kinds = np.unique(labels)
    best = linear_sum_assignment([shares[labels == kind].mean(0) for kind in kinds], maximize=True)[1]
    return dict(zip(kinds.tolist(), best.tolist()))


def placed(shares, labels, order=None):
    """Of `shares` (n, …, K) those in the column of the labels (n,), or of their outputs in an order: (n, …)."""
    columns = labels if order is None else np.array([order[label] for label in labels.tolist()])
    return shares[np.arange(len(labels)), ..., columns]


def untrained(rows, kinds):
    """The outputs of random networks with one hidden layer, which they share, for rows (n, d): (n, UNTRAINED, K)."""
    draw = torch.Generator().manual_seed(0)
    layer, last = ((rows.shape[1], WIDTH), (WIDTH, UNTRAINED * kinds))
    neurons = (rows @ torch.randn(layer, generator=draw, dtype=rows.dtype)).clamp_min(0)
    return (neurons @ torch.randn(last, generator=draw, dtype=rows.dtype)).view(len(rows), UNTRAINED, kinds)


def crossed(shares, labels):
    """As `placed`, in the order that fits the other half of the pictures, so that no picture chooses its own."""
    half = np.array([(labels[:k] == label).sum() % 2 for k, label in enumerate(labels)])
    found = np.empty(len(labels))
    for own in (half == 0, half == 1):
        order = dict(enumerate(range(shares.shape[-1]))) | assigned(shares[~own], labels[~own])
        found[own] = placed(shares[own], labels[own], order)
    return found


def improvement(before, after, count):
    """The p-value of errors 1 − `before` (n,), of shares of `count` pictures, that fall by more than MARGIN."""
    fall = np.log((1 - before + 0.5 / count) / (1 - after + 0.5 / count))
    fall = fall[before != after] - MARGIN
    return float(wilcoxon(fall, alternative="greater").pvalue) if len(fall) else 1.0


def sampled(sides):
    """Places in both sides, (m,) and (n,), one after the other, of MOST of each."""
    draw = torch.Generator().manual_seed(0)
    first, second = (torch.randperm(len(side), generator=draw)[:MOST] for side in sides)
    return torch.cat([first, len(sides[0]) + second])


def best_standing(shares, labels):
    """The mean of `shares` (n, K) in the best order of the outputs."""
    return placed(shares, labels, assigned(shares, labels)).mean()


def looked(logits, rows, labels):
    """How pictures as rows stand, (n, K), and by random networks (n, UNTRAINED, K); the likeliest outputs (n,)."""
    outputs = logits(rows).nan_to_num()
    outputs = outputs if outputs.shape[1] > 1 else torch.cat([-outputs, outputs], 1)
    random = standing(untrained(rows, outputs.shape[1]), labels)
    return standing(outputs, labels), random, outputs.argmax(1).numpy()


def better(logits, candidates, sides, ordered=True):
    """What fits a network better than the first of the candidate Ways, by tests of a level: Better, or None.

    `logits` are a function of rows, `sides` the labels of both sides' pictures, (m,) and (n,), as numbers of outputs,
    which are exchanged where they fit better thus and are not `ordered`, as those of one output. The network must know
    the classes, in some way or order, better than random networks do, as these tell some classes apart, too. Then a
    paired test of Wilcoxon's, with Holm's correction, asks whether its errors fall.
    """
    index = sampled(sides)
    labels = torch.cat(sides)[index].numpy()
    if len(np.unique(labels)) < 2:
        return None
    shares, null, right = [], np.zeros(UNTRAINED), []
    for way in candidates:
        own, random, guesses = looked(logits, way.rows()[index], labels)
        null = np.maximum(null, placed(random, labels).mean(0))
        if not shares:  # orders are tried for the given way alone
            null = np.maximum(null, [best_standing(random[:, k], labels) for k in range(UNTRAINED)])
        shares.append(own)
        right.append(guesses)
    most = max(best_standing(shares[0], labels), *(placed(one, labels).mean() for one in shares))
    if (1 + (null >= most).sum()) / (1 + UNTRAINED) >= KNOWN:
        return None
    return compared(candidates, shares, right, labels, ordered)


def compared(candidates, shares, right, labels, ordered):
    """The Better of Ways, by how pictures stand in each of them, `shares` (n, K), and their likeliest outputs (n,)."""
    order = assigned(shares[0], labels)
    fitting = np.array([order[label] for label in labels.tolist()])  # labels in the order that fits best
    if not ordered:
        labels = fitting
    given, after = placed(shares[0], labels), [*(placed(one, labels) for one in shares[1:]), crossed(shares[0], labels)]
    tests = [judge.Comparison("", 0.0, 0.0, improvement(given, one, len(labels))) for one in after]
    adjusted = [one.adjusted for one in judge.holm(tests)]
    means = [one.mean() for one in after]
    kinds = [*((way, None, labels, one) for way, one in zip(candidates[1:], right[1:]))]
    kinds.append((candidates[0], order, fitting, right[0]))
    fits = [k for k, p in enumerate(adjusted) if p < judge.DIFFERENT and means[k] > given.mean()]
    if not fits:
        return None
    best = max(fits, key=lambda k: round(means[k], 2))  # the first of those that are alike
    way, order, wanted, guesses = kinds[best]
    return Better(way, order, adjusted[best], ((right[0] == labels).mean(), (guesses == wanted).mean()))
