"""How a trainer saw pictures: what fits a network better, another way to show them or another order of its classes.

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
ORDER = "another order of the classes"
MARGIN = 0.05  # of the errors, that must go: a half-trained network errs a little less on pictures of more contrast
KNOWN = 0.05  # level at which a network knows the classes; that of what fits better is judge.DIFFERENT
UNTRAINED, WIDTH = 99, 100  # random networks that a network is compared with, and their neurons
MOST, KINDS = 100, 20  # pictures of a side and classes that are looked at

# One way to show pictures to a network: what it changes, {name: option}, empty for the given way; a function () -> rows
# (n, d) of both sides as the network sees them; and its logits.
Way = namedtuple("Way", "changes rows logits")
# What fits better: its changes, and an `order` {class: output} or None; p after Holm's correction for all that was
# tried; the shares of the pictures classified correctly as given, and thus.
Better = namedtuple("Better", "changes order p shares")


def ways(readings, networks, shape, normalisation, layouts):
    """The Ways, the given one first: every normalisation in every layout, then the other readings and networks alone.

    `readings` are pictures (n, d) in [0, 1], and `networks` logits, both by their option: {(name, option): …}, the
    given one first. So are the one or two `layouts`. The given `normalisation` is a mean, a deviation, and whether the
    mean of the pictures was taken off (centred).
    """
    mean, deviation, centred = normalisation
    taken, no = ("left in", "no --centred") if centred else ("taken off", "--centred")
    norms = {(): normalisation}
    for name, numbers in NORMALISATIONS.items():
        if len(numbers[0]) in (1, shape[2]):
            option = "--mean {} --deviation {}".format(*(" ".join(f"{x:g}" for x in part) for part in numbers))
            norms[name, f"{option} and {no}" if centred else option] = *numbers, False
    norms[f"the mean of the training pictures {taken}", no] = mean, deviation, not centred
    flat = {(): layouts[0]} | {(f"the layout {one}", f"--layout {one}"): one for one in layouts[1:]}
    (_, pixels), (_, logits) = next(iter(readings.items())), next(iter(networks.items()))
    tried = [((norm, flat_as), pixels, logits) for norm, flat_as in itertools.product(norms, flat)]
    tried += [(((), (), change), other, logits) for change, other in [*readings.items()][1:]]
    tried += [(((), (), change), pixels, other) for change, other in [*networks.items()][1:]]
    return [
        Way(dict(filter(None, of)), partial(shown, x, norms[of[0]], shape, (layouts[0], flat[of[1]])), z)
        for of, x, z in tried
    ]


def shown(pictures, normalisation, shape, layouts):
    """Rows (n, d) as a network sees them that takes one layout and is given another."""
    mean, deviation = (torch.as_tensor(one).double().expand(shape).flatten() for one in normalisation[:2])
    rows = (pictures - mean) / deviation
    rows = rows - rows.mean(0) * bool(normalisation[2])
    before, after = layouts
    return rows if before == after else weights.flattened(weights.batched(rows, shape, before), after)


def sampled(sides):
    """Places in both sides, (m,) and (n,), one after the other, of MOST of each, from the first KINDS of classes."""
    draw, few, start, found = torch.Generator().manual_seed(0), torch.cat(sides).unique()[:KINDS], 0, []
    for side in sides:
        order = torch.randperm(len(side), generator=draw)
        found.append(start + order[torch.isin(side[order], few)][:MOST])
        start += len(side)
    return torch.cat(found)


def untrained(rows, kinds):
    """The outputs of random networks with one hidden layer, which they share, for rows (n, d): (n, UNTRAINED, K)."""
    draw = torch.Generator().manual_seed(0)
    layer, last = ((rows.shape[1], WIDTH), (WIDTH, UNTRAINED * kinds))
    neurons = (rows @ torch.randn(layer, generator=draw, dtype=rows.dtype)).clamp_min(0)
    return (neurons @ torch.randn(last, generator=draw, dtype=rows.dtype)).view(len(rows), UNTRAINED, kinds)


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


def ordered_as(order, labels):
    """The outputs (n,) of labels (n,) in an order {class: output}; without one, they are the labels."""
    return np.array([order.get(label, label) for label in labels.tolist()])


def placed(shares, columns):
    """Of `shares` (n, …, K) those in the columns (n,): (n, …)."""
    return shares[np.arange(len(columns)), ..., columns]


def crossed(shares, labels):
    """As `placed`, in the order that fits the other half of the pictures, so that no picture chooses its own."""
    half = np.array([(labels[:k] == label).sum() % 2 for k, label in enumerate(labels)])
    orders = [assigned(shares[half != part], labels[half != part]) for part in (0, 1)]
    return placed(shares, np.where(half, *(ordered_as(order, labels) for order in orders[::-1])))


def looked(way, index, labels, columns):
    """How pictures stand in a Way, (n, K), and by random networks (n, UNTRAINED, K); the likeliest outputs (n,)."""
    rows = way.rows()[index]
    outputs = way.logits(rows).nan_to_num()
    outputs = outputs if outputs.shape[1] > 1 else torch.cat([-outputs, outputs], 1)
    random = standing(untrained(rows, len(columns)), labels)
    return standing(outputs[:, columns], labels), random, outputs.argmax(1).numpy()


def improvement(before, after):
    """The p-value of errors 1 − `before` (n,), of shares of n pictures, that fall by more than MARGIN."""
    fall = np.log((1 - before + 0.5 / len(before)) / (1 - after + 0.5 / len(before)))
    fall = fall[before != after] - MARGIN
    return float(wilcoxon(fall, alternative="greater").pvalue) if len(fall) else 1.0


def better(candidates, sides, outputs):
    """What fits a network better than the first of the candidate Ways, by tests of a level: Better, or None.

    `sides` are the labels of both sides' pictures, (m,) and (n,), as numbers of `outputs`; two classes of one output
    are exchanged where they fit better thus. The network must know the classes, in some way or order, better than
    random networks do, as these tell some classes apart, too. Then a paired test of Wilcoxon's, with Holm's correction,
    asks whether its errors fall.
    """
    index = sampled(sides)
    labels = torch.cat(sides)[index].numpy()
    columns = np.arange(max(outputs, 2)) if outputs <= KINDS else np.unique(labels)
    places = np.searchsorted(columns, labels)
    if len(np.unique(labels)) < 2:
        return None
    shares, random, guesses = zip(*(looked(way, index, places, columns) for way in candidates))
    means = [placed(one, places).mean() for one in shares]
    null = [placed(one, places).mean(0) for one in random]
    if outputs <= KINDS:  # then orders are tried, for the given way alone
        best = [ordered_as(assigned(one, places), places) for one in (shares[0], *np.moveaxis(random[0], 1, 0))]
        means.append(placed(shares[0], best[0]).mean())
        null.append([placed(random[0][:, k], one).mean() for k, one in enumerate(best[1:])])
    if (1 + (np.max(null, 0) >= max(means)).sum()) / (1 + UNTRAINED) >= KNOWN:
        return None
    truth, own = (best[0], best[0]) if outputs == 1 else (labels, places)
    tried = [
        Better(way.changes, None, placed(one, own), (guess == truth).mean())
        for way, one, guess in zip(candidates, shares, guesses)
    ]
    if 1 < outputs <= KINDS:
        right = (guesses[0] == best[0]).mean()
        tried.append(Better({ORDER: ""}, assigned(shares[0], places), crossed(shares[0], places), right))
    return simplest(tried)


def simplest(tried):
    """Of what fits better than the first, (changes, order, standing of pictures (n,), share that is correct), the best.

    Of those that a test does not tell from it, the one with the fewest changes.
    """
    given, *others = tried
    tests = judge.holm([judge.Comparison("", 0.0, 0.0, improvement(given.p, one.p)) for one in others])
    fits = [
        (one, test.adjusted) for one, test in zip(others, tests)
        if test.adjusted < judge.DIFFERENT and one.shares > given.shares
    ]  # fmt: skip
    if not fits:
        return None
    best = max(fits, key=lambda one: one[0].p.mean())[0]
    alike = [(one, p) for one, p in fits if improvement(one.p, best.p) >= KNOWN]
    one, p = min(
        alike, key=lambda one: (len(one[0].changes), -round(one[0].p.mean(), 2))
    )  # the first of those that are alike
    return Better(one.changes, one.order, p, (given.shares, one.shares))
