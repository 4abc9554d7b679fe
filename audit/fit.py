"""How a trainer saw pictures: what fits a network better, another way to show them or another order of its classes.

This is the judge's check, of both sides' pictures together and alike; no attack is told what it finds.
"""

from collections import namedtuple
from functools import partial

import numpy as np
import torch
from scipy.optimize import linear_sum_assignment
from scipy.stats import rankdata, wilcoxon

from audit import judge, weights

NORMALISATIONS = {  # means and deviations of pixels in [0, 1]
    "pixels from 0 to 1": ("0", "1"),
    "a mean and a deviation of 0.5": ("0.5", "0.5"),
    "pixels from 0 to 255": ("0", "0.00392157"),
    "ImageNet's mean and deviation": ("0.485 0.456 0.406", "0.229 0.224 0.225"),
    "CIFAR-10's mean and deviation": ("0.4914 0.4822 0.4465", "0.247 0.2435 0.2616"),
    "MNIST's mean and deviation": ("0.1307", "0.3081"),
}
MARGIN = 0.05  # of the errors, that must go: a half-trained network errs a little less on pictures of more contrast
KNOWN = 0.05  # level at which a network knows the classes; that of what fits better is judge.DIFFERENT
UNTRAINED, WIDTH = 99, 100  # random networks that a network is compared with, and their neurons
MOST, KINDS = 100, 20  # pictures of a side and classes that are looked at

# One way to show pictures: its changes of the given one, {name: option}; a function () -> rows (n, d) as the network
# sees them; its logits. What fits better: its changes, an `order` {class: output} or None, p after Holm's correction,
# and the shares of pictures classified correctly as given, and thus.
Way = namedtuple("Way", "changes rows logits")
Better = namedtuple("Better", "changes order p shares")


def ways(pixels, logits, shape, normalisation, layouts):
    """The Ways, the given one first: all normalisations in all layouts, then other pixels and other logits alone.

    Pixels (n, d) in [0, 1] and logits are named by their change, {(name, option): …}, which is () for the given ones.
    The given `normalisation` is a mean, a deviation, and whether the pictures' mean was taken off (centred).
    """
    mean, deviation, centred = normalisation
    taken, no = ("left in", "no --centred") if centred else ("taken off", "--centred")
    norms: dict = {(): normalisation}
    flat = {(): layouts[0]} | {(f"the layout {one}", f"--layout {one}"): one for one in layouts[1:]}
    for name, parts in NORMALISATIONS.items():
        if len(parts[0].split()) in (1, shape[2]):
            option = "--mean {} --deviation {}".format(*parts) + f" and {no}" * centred
            norms[name, option] = *([*map(float, part.split())] for part in parts), False
    norms[f"the mean of the training pictures {taken}", no] = mean, deviation, not centred
    tried: list = [(norm, layout, (), ()) for norm in norms for layout in flat]
    tried += [*(((), (), of, ()) for of in pixels if of), *(((), (), (), of) for of in logits if of)]
    found = []
    for of in tried:
        seen = pixels[of[2]], norms[of[0]], shape, layouts[0], flat[of[1]]
        found.append(Way(dict(filter(None, of)), partial(shown, *seen), logits[of[3]]))
    return found


def shown(pictures, normalisation, shape, given, layout):
    """Rows (n, d) as a network sees them that takes a `layout` and is given another."""
    mean, deviation = (torch.as_tensor(one).double().expand(shape).flatten() for one in normalisation[:2])
    rows = (pictures - mean) / deviation
    rows = rows - rows.mean(0) * bool(normalisation[2])
    return rows if given == layout else weights.flattened(weights.batched(rows, shape, given), layout)


def standing(z, labels):
    """The share of pictures of other classes whose outputs are lower than a picture's own: (n, …, K) for (n, …, K).

    In the column of its class that is an area under a curve, which no scale of outputs and no bias of a class changes.
    """
    z = np.asarray(z - z.mean(-1, keepdims=True))
    ranks, found = rankdata(z, axis=0), np.empty(z.shape)
    for own in (labels == kind for kind in np.unique(labels)):
        found[own] = (ranks[own] - rankdata(z[own], axis=0)) / (~own).sum()
    return found


def fitting(shares, labels):
    """The outputs (K,), one for each class, in which classes (n,) stand highest by `shares` (n, K)."""
    order, kinds = np.arange(shares.shape[1]), np.unique(labels)
    order[kinds] = linear_sum_assignment([shares[labels == kind].mean(0) for kind in kinds], maximize=True)[1]
    return order


def looked(way, index, labels, columns):
    """How pictures stand in a Way, (n, K), and by random networks (n, UNTRAINED, K); the likeliest outputs (n,)."""
    rows, draw = way.rows()[index], torch.Generator().manual_seed(0)
    z = way.logits(rows).nan_to_num()
    z = z if z.shape[1] > 1 else torch.cat([-z, z], 1)
    sizes = (rows.shape[1], WIDTH), (WIDTH, UNTRAINED * len(columns))
    first, last = (torch.randn(size, generator=draw, dtype=rows.dtype) for size in sizes)
    random = ((rows @ first).clamp_min(0) @ last).view(len(rows), UNTRAINED, -1)
    return standing(z[:, columns], labels), standing(random, labels), z.argmax(1).numpy()


def better(candidates, sides, outputs):
    """What fits a network better than the first of the candidate Ways, by tests of a level: Better, or None.

    `sides` are the labels of both sides' pictures, (m,) and (n,), as numbers of `outputs`; two classes of one output
    are exchanged where they fit better thus. The network must know the classes, in some way or order, better than
    random networks do, as these tell some classes apart, too. Then a paired test of Wilcoxon's asks if its errors fall.
    """
    every, m = torch.cat(sides).numpy(), len(sides[0])
    columns = np.unique(every)[:KINDS] if outputs > KINDS else np.arange(max(outputs, 2))
    drawn = np.random.default_rng(0).permutation(np.flatnonzero(np.isin(every, columns)))
    index = np.concatenate([drawn[drawn < m][:MOST], drawn[drawn >= m][:MOST]])
    labels, at = np.searchsorted(columns, every[index]), np.arange(len(index))
    if len(np.unique(labels)) < 2:
        return None
    shares, random, guesses = zip(*(looked(way, index, labels, columns) for way in candidates))
    order, half = fitting(shares[0], labels), np.empty(len(at), int)
    null = [one[at, :, labels].mean(0) for one in random]
    null += [[one[at, fitting(one, labels)[labels]].mean() for one in random[0].swapaxes(0, 1)]]
    most = max(shares[0][at, order[labels]].mean(), *(one[at, labels].mean() for one in shares))
    if (1 + (np.max(null, 0) >= most).sum()) / (1 + UNTRAINED) >= KNOWN:
        return None
    own = order[labels] if outputs == 1 else labels
    right = [(guess == columns[own]).mean() for guess in guesses]
    tried: list = [(way.changes, None, share, one[at, own]) for way, share, one in zip(candidates, right, shares)]
    if 1 < outputs <= KINDS:
        half[np.argsort(labels, kind="stable")] = at % 2  # so that no picture chooses the order for itself
        orders = [fitting(shares[0][half == part], labels[half == part])[labels] for part in (1, 0)]
        changes, fit = {"another order of the classes": ""}, dict(zip(labels.tolist(), order[labels].tolist()))
        share = (guesses[0] == order[labels]).mean()
        tried.append((changes, fit, share, shares[0][at, np.where(half, orders[1], orders[0])]))
    return simplest(*tried)


def simplest(given, *others):
    """The Better that fits best of others, (changes, order, share correct, standing (n,)), or None if none does.

    Of those that a test does not tell from the best, it is the first with the fewest changes.
    """
    tests = judge.holm([judge.Comparison("", 0, 0, improvement(given[-1], one[-1])) for one in others])
    fits = [(*one, test.adjusted) for one, test in zip(others, tests) if one[2] > given[2]]
    fits = [one for one in fits if one[-1] < judge.DIFFERENT]
    best = max((one[3] for one in fits), key=np.mean, default=None)
    alike = [one for one in fits if improvement(one[3], best) >= KNOWN]
    found = min(alike, key=lambda one: (len(one[0]), -round(one[3].mean(), 2)), default=None)
    return found and Better(found[0], found[1], found[-1], (given[2], found[2]))


def improvement(before, after):
    """The p-value of errors 1 − `before` (n,), of shares of n pictures, that fall by more than MARGIN."""
    fall = np.log((1 - before + 0.5 / len(before)) / (1 - after + 0.5 / len(before)))
    fall = fall[before != after] - MARGIN
    return float(wilcoxon(fall, alternative="greater").pvalue) if len(fall) else 1.0
