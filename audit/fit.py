"""How a trainer saw pictures: what fits a network better, another way to show them or another order of its classes.

Training ends where the loss has no slope. So over all training pictures, shown as they were then, the errors of the
outputs, softmax(z) − y, average to nothing: their mean is the slope of the cross-entropy in the biases of the outputs.
Shown otherwise, the errors lean. They also do where labels were smoothed, classes were weighed, or biases decayed: so a
lean is a hint, and no proof. This is the judge's check; no attack is told what it finds.
"""

from collections import namedtuple
from functools import partial
from typing import NamedTuple

import numpy as np
import torch
from scipy.optimize import linear_sum_assignment
from scipy.stats import binomtest

from audit import judge, weights

NORMALISATIONS = {  # means and deviations of pixels in [0, 1]
    "a mean and a deviation of 0.5": ("0.5", "0.5"),
    "ImageNet's mean and deviation": ("0.485 0.456 0.406", "0.229 0.224 0.225"),
    "CIFAR-10's mean and deviation": ("0.4914 0.4822 0.4465", "0.247 0.2435 0.2616"),
    "MNIST's mean and deviation": ("0.1307", "0.3081"),
    "pixels from 0 to 1": ("0", "1"),
    "pixels from 0 to 255": ("0", "0.00392157"),
}
AT_REST = 0.1  # p-value of a lean, above which errors are taken to have none; below judge.DIFFERENT they have one
TRAINED = 0.9  # share of the training pictures that a network classifies correctly if it was trained to the end
KNOWN = 0.75  # share of the pictures that a network must classify correctly in some way, so that any way is believed
ALIKE = 0.05  # p-value of a gain, above which two ways are taken to fit alike
FLIPS = 1999
MOST, KINDS = 100, 20  # pictures that are looked at, and classes up to which their order is doubted

# One way to show pictures: its change of the given one, a name and an option; a function () -> rows (n, d) as the
# network sees them; its logits. What fits better: its change, an `order` {class: output} or None, the p-value of its
# test, or None for a lean alone, the shares of pictures classified correctly as given and thus, and options that fit
# as well.
Way = namedtuple("Way", "change rows logits")
Better = namedtuple("Better", "change order p shares others")


class Seen(NamedTuple):
    """How a network takes pictures that are shown in a way."""

    change: tuple  # of the given way
    right: torch.Tensor  # which of them it classifies correctly (n,)
    lean: float  # p-value of the lean of its errors
    order: dict | None = None  # {class: output}, if it is another

    @property
    def share(self):
        """The share of pictures that are classified correctly."""
        return self.right.double().mean().item()


def ways(pixels, logits, shape, normalisation, layouts):
    """The Ways, the given one first, then those that differ in one thing.

    Pixels (n, d) in [0, 1] and logits are named by their change, {(name, option): …}, which is () for the given ones.
    The given `normalisation` is a mean, a deviation, and whether the pictures' mean was taken off (centred).
    """
    mean, deviation, centred = normalisation

    def way(change, normalisation=normalisation, layout=layouts[0]):
        rows = partial(shown, pixels.get(change, pixels[()]), normalisation, shape, layouts[0], layout)
        return Way(change, rows, logits.get(change, logits[()]))

    found = [way(change) for change in {**pixels, **logits}]
    found += [way((f"the layout {one}", f"--layout {one}"), layout=one) for one in layouts[1:]]
    for name, parts in NORMALISATIONS.items():
        if len(parts[0].split()) in (1, shape[2]):
            numbers = [[*map(float, part.split())] for part in parts]
            found.append(way((name, "--mean {} --deviation {}".format(*parts)), (*numbers, centred)))
    taken, option = ("left in", "no --centred") if centred else ("taken off", "--centred")
    found.append(way((f"the mean of the training pictures {taken}", option), (mean, deviation, not centred)))
    return found


def shown(pictures, normalisation, shape, given, layout):
    """Rows (n, d) as a network sees them that takes a `layout` and is given another."""
    mean, deviation = (torch.as_tensor(one).double().flatten().expand(shape).flatten() for one in normalisation[:2])
    rows = (pictures - mean) / deviation
    rows = rows - rows.mean(0) * bool(normalisation[2])
    return rows if given == layout else weights.flattened(weights.batched(rows, shape, given), layout)


def errors_of(z, labels):
    """softmax(z) − y (n, K) of outputs z (n, K) and labels (n,), so that no row's sum is rounded."""
    others = z.softmax(1).scatter(1, labels[:, None], 0.0)
    return others.scatter(1, labels[:, None], -others.sum(1, keepdim=True))


def lean(errors):
    """The p-value of a mean of errors (n, K) this long if each had its sign by lot."""
    signs = torch.randint(0, 2, (FLIPS, len(errors)), generator=torch.Generator().manual_seed(0)) * 2.0 - 1
    lengths = (signs.to(errors.dtype) @ errors).square().sum(1)
    return (1 + (lengths >= errors.sum(0).square().sum()).sum().item()) / (1 + FLIPS)


def gain(before, after):
    """The p-value of McNemar's exact test: of two masks (n,) of correct ones, whether the second holds more."""
    up, down = (after & ~before).sum().item(), (before & ~after).sum().item()
    return float(binomtest(up, up + down, alternative="greater").pvalue) if up + down else 1.0


def fitting(guesses, labels, outputs):
    """{class: output} by which most guesses (n,) of outputs are the classes (n,)."""
    kinds, counts = labels.unique(), torch.zeros(outputs, outputs)
    counts.index_put_((labels, guesses), torch.ones(len(labels)), accumulate=True)
    return dict(zip(kinds.tolist(), linear_sum_assignment(counts[kinds], maximize=True)[1].tolist()))


def reordered(guesses, labels, outputs):
    """The Seen of the order of classes that fits best; half of the pictures are judged by the order of the others."""
    half, right = torch.empty(len(labels)), torch.zeros(len(labels), dtype=torch.bool)
    half[labels.argsort()] = torch.arange(len(labels)) % 2.0
    for part in (half == 0, half == 1):
        order = fitting(guesses[~part], labels[~part], outputs)
        right[part] = torch.tensor([order.get(kind, -1) for kind in labels[part].tolist()]) == guesses[part]
    return Seen(("another order of the classes", ""), right, 0.0, fitting(guesses, labels, outputs))


def better(candidates, labels, outputs, plain=True):
    """What fits a network better than the first of the candidate Ways, by a test of a level: Better, or None.

    The training pictures have labels (n,), numbers of `outputs`, which are exchanged where one output has them so.
    Leans are asked where the loss is `plain` cross-entropy.
    """
    index = np.random.default_rng(0).permutation(len(labels))[:MOST]
    every, labels = [way.logits(way.rows()[index]).nan_to_num() for way in candidates], labels[index]
    every = [z if outputs > 1 else torch.cat([0 * z, z], 1) for z in every]
    guesses = [z.argmax(1) for z in every]
    if outputs == 1 and (guesses[0] == labels).double().mean() < 0.5:
        labels = 1 - labels
    leans = [lean(errors_of(z, labels)) if plain else 0.0 for z in every]
    found = [Seen(way.change, guess == labels, p) for way, guess, p in zip(candidates, guesses, leans)]
    return best_of(*found, *([reordered(guesses[0], labels, outputs)] if 1 < outputs <= KINDS else []))


def best_of(given, *others):
    """The Better of the Seen `others`, or None if none fits better than the given one.

    It classifies more pictures correctly; or, for want of such, as many, and with errors at rest where those of the
    given way lean.
    """
    fits, leans = [], given.lean < judge.DIFFERENT
    for one in others:
        p = len(others) * gain(given.right, one.right)
        if p < judge.DIFFERENT and one.share >= KNOWN:
            fits.append((one, p))
        elif leans and one.lean >= AT_REST and one.share >= max(given.share, TRAINED):
            fits.append((one, None))
    if not fits:
        return None
    best = max((one for one, _ in fits), key=lambda one: one.share)
    alike = [(one, p) for one, p in fits if gain(one.right, best.right) >= ALIKE]
    (one, p), *rest = sorted(alike, key=lambda fit: (fit[1] is None, fit[0].lean < AT_REST, -fit[0].share))
    others = [other.change[1] for other, _ in rest if not other.order]
    return Better(one.change, one.order, p, (given.share, one.share), others)
