"""How a trainer saw pictures: what fits a network better, another way to show them or another order of its classes.

Another way fits better if the network classifies more of the training pictures correctly when they are shown so; or if
it classifies as many, and their loss then tells them from held-out ones. Both are tests, corrected for the number of
ways. This is the judge's check; no attack is told what it finds.
"""

import contextlib
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from PIL import Image
from scipy.optimize import linear_sum_assignment
from scipy.stats import binomtest

from audit import judge, pictures, stages, weights, whole

NORMALISATIONS = {  # means and deviations of pixels in [0, 1]
    "a mean and a deviation of 0.5": ("0.5", "0.5"),
    "a mean of 0.5": ("0.5", "1"),
    "ImageNet's mean and deviation": ("0.485 0.456 0.406", "0.229 0.224 0.225"),
    "CIFAR-10's mean and deviation": ("0.4914 0.4822 0.4465", "0.247 0.2435 0.2616"),
    "MNIST's mean and deviation": ("0.1307", "0.3081"),
    "pixels from 0 to 1": ("0", "1"),
    "pixels from 0 to 255": ("0", "0.00392157"),
}
SIZES = (
    28,
    32,
    48,
    64,
    96,
    112,
    128,
    160,
    192,
    224,
    256,
    299,
    320,
    384,
)  # of sides that networks are trained on
CENTRES = 0.95, 0.9, 0.875, 0.8, 0.75  # shares of a resized picture that are cut out of its middle
TRAINED = 0.9  # share of the training pictures that a network classifies correctly if it was trained to the end
KNOWN = 0.75  # share of the pictures that a network must classify correctly in some way, so that any way is believed
ALIKE = 0.05  # p-value of a gain, above which two ways are taken to fit alike
MOST = 100  # pictures of a side that are looked at
KINDS = 20  # outputs up to which any order of classes is tried
REORDERED = "another order of the classes", ""
COMPARISONS = 40  # more than an audit makes
Numbers = float | Sequence[float] | None  # one number, or one for each channel; None for the usual
SHARE = 20  # a way may take the limit of a stage, divided by this


class Showing(NamedTuple):
    """How a trainer shows pictures to a network: (x − mean)/deviation of pixels x in [0, 1]."""

    mean: tuple  # one number or one for each channel
    deviation: tuple
    centred: bool  # whether the mean of the training pictures is taken off
    layout: str  # CHW or HWC, how pictures are flattened
    activation: str  # of weights.ACTIVATIONS, between the layers of a file
    shape: tuple  # (H, W, C), which files of another size are brought to
    resize: (
        str | int
    )  # how: crop, squash, or the pixels of the shorter side before the middle is cut out
    turn: bool  # whether files are turned as their cameras say
    alpha: str  # the paper that transparent ones are laid on, white or black; or drop, and they lose their transparency

    @property
    def reading(self):
        """What concerns the files."""
        return dict(shape=self.shape, resize=self.resize, turn=self.turn, alpha=self.alpha)


class Way(NamedTuple):
    """One way to show the pictures of both sides."""

    change: tuple  # of the given way: a name and an option; () for the given one
    rows: Callable  # a side, 0 or 1 -> its pictures (n, d) as the network sees them
    logits: Callable  # rows (n, d) -> outputs (n, K)
    labels: tuple  # of both sides (n,)
    order: dict | None = None  # {class: output}, if it is another one
    right: torch.Tensor = torch.zeros(0)  # which training pictures are classified correctly (n,)

    @property
    def share(self):
        """The share of the training pictures that are classified correctly."""
        return self.right.double().mean().item()


class Better(NamedTuple):
    """A Way that fits a network better than the given one."""

    way: Way
    given: Way
    p: float  # of its test, corrected for the number of ways
    by_loss: bool  # whether it is the loss that tells
    others: list  # options that fit as well


CHOICES = {  # fields of a Showing, and names of their values, which are those of options
    "activation": {name: f"the activation {name}" for name in weights.ACTIVATIONS},
    "layout": {name: f"the layout {name}" for name in ("CHW", "HWC")},
    "resize": {"squash": "pictures squashed", "crop": "pictures cut to squares"},
    "alpha": {
        "white": "transparent pictures laid on white",
        "black": "transparent pictures laid on black",
        "drop": "transparent pictures taken without their transparency",
    },
}


def others(given, fields, sizes):
    """Showings that differ from the given one in one thing, such as one of `fields`: {(name, option): Showing}."""
    channels = given.shape[2]
    found = {}
    for field in fields:
        for value, name in CHOICES[field].items():
            found[name, f"--{field} {value}"] = given._replace(**{field: value})
    for name, parts in NORMALISATIONS.items():
        mean, deviation = (tuple(map(float, part.split())) for part in parts)
        if len(mean) in (1, channels):
            option = "--mean {} --deviation {}".format(*parts)
            found[name, option] = given._replace(mean=mean, deviation=deviation)
    taken, option = ("left in", "no --centred") if given.centred else ("taken off", "--centred")
    found[f"the mean of the training pictures {taken}", option] = given._replace(
        centred=not given.centred
    )
    turned, option = ("not turned", "--unturned") if given.turn else ("turned", "no --unturned")
    found[f"pictures {turned} by EXIF", option] = given._replace(turn=not given.turn)
    for side in [round(min(given.shape[:2]) / share) for share in CENTRES]:
        name = f"pictures resized to {side} pixels and cut to their middle"
        found[name, f"--resize {side}"] = given._replace(resize=side)
    for side in sizes:
        name = f"pictures of {side}×{side}"
        option = f"--shape {side} {side}"
        found[name, option] = given._replace(shape=(side, side, channels))
    return {change: one for change, one in found.items() if one != given}


def ways(target, given, sources, sides, case):
    """The Ways, the given one first; the Pictures of both sides came from `sources`."""
    samples = [np.random.default_rng(0).permutation(len(side.images))[:MOST] for side in sides]
    labels = tuple(part[sample] for part, sample in zip(case.labels, samples))
    fields = {
        "activation": len(target.all_layers) > 1,
        "layout": case.layers and given.shape[2] > 1,
    }
    fields = [field for field in CHOICES if fields.get(field, True)]

    def pixels(showing, k):
        if showing.reading == given.reading:
            return sides[k].images[samples[k]]
        return read_again(sources[k], sides[k], samples[k], given, showing)

    def rows(showing, k):
        same = showing.shape == given.shape
        average = sides[0].images.mean(0) if same else pixels(showing, 0).mean(0)
        return shown(pixels(showing, k), average, showing, given)

    def logits(showing):
        if showing.activation != given.activation:
            return weights.outputs(target.all_layers, showing.activation)
        return case.logits if showing.shape == given.shape else target.sized(showing.shape)

    found = [Way((), lambda k: case.sides[k][samples[k]], case.logits, labels)]
    for change, showing in others(given, fields, SIZES if target.sized else ()).items():
        found.append(Way(change, partial(rows, showing), logits(showing), labels))
    return found


def orders(way, sides, names):
    """Ways with the classes in orders that people use: of numbers, of texts, and of texts with numbers in them."""
    raw = {
        pictures.named(label): str(label) for side in sides for label in side.kinds or side.labels
    }
    keys = (
        pictures.by_name,
        lambda name: raw[name],
        lambda name: raw[name].lower(),
        lambda name: weights.by_number(raw[name]),
    )
    found = []
    for key in keys:
        places = {name: place for place, name in enumerate(sorted(raw, key=key))}
        order = {names.index(name): place for name, place in places.items()}
        if any(kind != output for kind, output in order.items()) and order not in [
            one.order for one in found
        ]:
            labels = tuple(
                torch.tensor([order[kind] for kind in part.tolist()]) for part in way.labels
            )
            found.append(way._replace(change=REORDERED, labels=labels, order=order))
    return found


def read_again(source, side, rows, given, showing):
    """Pixels (k, d) in [0, 1] of some rows of the Pictures of a source, read in another way than the given one."""
    if pictures.is_folder(source):
        paths = (Path(source).expanduser() / side.names[row] for row in rows)
        read = partial(pictures.pixels_of, **showing.reading, done=Counter())
        return torch.from_numpy(np.stack([read(path=path) for path in paths])).flatten(1)
    stored = (255 * side.images[rows].view(-1, *given.shape)).round().byte().numpy()
    opened = (Image.fromarray(one.squeeze(2) if given.shape[2] == 1 else one) for one in stored)
    found = [pictures.shaped(one, showing.shape, showing.resize, Counter()) for one in opened]
    return torch.from_numpy(np.stack(found)).flatten(1)


def shown(pixels, average, showing, given):
    """Rows (n, d) as a network sees them that takes a layout and is given another."""
    shape = showing.shape
    mean, deviation = (
        torch.as_tensor(one).double().flatten().expand(shape).flatten() for one in showing[:2]
    )
    rows = (pixels - (average if showing.centred else mean)) / deviation
    if showing.layout == given.layout:
        return rows
    return weights.flattened(weights.batched(rows, shape, given.layout), showing.layout)


def gain(before, after):
    """The p-value of McNemar's exact test: of two masks (n,) of correct ones, whether the second holds more."""
    up = (after & ~before).sum().item()
    down = (before & ~after).sum().item()
    return float(binomtest(up, up + down, alternative="greater").pvalue) if up + down else 1.0


def fitting(guesses, labels, outputs):
    """{class: output} by which most guesses (n,) of outputs are the classes (n,)."""
    kinds = labels.unique()
    counts = torch.zeros(outputs, outputs)
    counts.index_put_((labels, guesses), torch.ones(len(labels)), accumulate=True)
    return dict(
        zip(kinds.tolist(), linear_sum_assignment(counts[kinds], maximize=True)[1].tolist())
    )


def reordered(way, guesses, outputs):
    """The Way with the order of classes that fits best; half of the pictures are judged by the order of the others."""
    labels = way.labels[0]
    half = torch.empty(len(labels))
    right = torch.zeros(len(labels), dtype=torch.bool)
    half[labels.argsort()] = torch.arange(len(labels)) % 2.0
    for part in (half == 0, half == 1):
        order = fitting(guesses[~part], labels[~part], outputs)
        right[part] = (
            torch.tensor([order.get(kind, -1) for kind in labels[part].tolist()]) == guesses[part]
        )
    return way._replace(change=REORDERED, order=fitting(guesses, labels, outputs), right=right)


def classified(case, way, rows):
    """The stages.Classified rows (n, d) of some sides, the first of them the training pictures, shown in a way."""
    return stages.classified(
        case._replace(logits=way.logits, sides=rows, labels=way.labels[: len(rows)])
    )


def better(case, candidates, limit, level):
    """What fits the network of a case better than the first of the candidate Ways: Better, or None; and Ways left out.

    By a test at the level judge.DIFFERENT of pictures classified correctly, and else at `level` of the loss. Left out
    are the names of those that take more than their SHARE of the `limit` of a stage, in seconds.
    """
    given, *rest = candidates
    first = given.rows(0)
    given = given._replace(right=classified(case, given, [first]).right[0])
    seen = []
    slow = []
    for way in rest:
        with contextlib.suppress(
            Exception
        ):  # of a stranger's code that takes no such pictures, or of unreadable files
            rows = way.rows(0)
            if not way.order and way.logits == given.logits and torch.equal(rows, first):
                continue
            if len(rows) * whole.seconds(way.logits, rows) > limit / SHARE:
                slow.append(way.change[0])
                continue
            seen.append(way._replace(right=classified(case, way, [rows]).right[0]))
    if 1 < case.outputs <= KINDS:
        seen.append(reordered(given, given.logits(first).argmax(1), case.outputs))
    right = more_right(given, seen)
    fits = right or telling(case, given, seen, level)
    if not fits:
        return None, slow
    best, p = max(fits, key=lambda fit: fit[0].share)
    alike = [
        one.change[1] for one, _ in fits if one is not best and gain(one.right, best.right) >= ALIKE
    ]
    return Better(best, given, p, by_loss=not right, others=[*filter(None, alike)]), slow


def more_right(given, others):
    """Those of other Ways in which more pictures are classified correctly, and the p-values of that."""
    fits = [
        (one, len(others) * gain(given.right, one.right)) for one in others if one.share >= KNOWN
    ]
    return [(one, p) for one, p in fits if p < judge.DIFFERENT]


def telling(case, given, others, level):
    """Those of other Ways in which the loss tells training pictures from held-out ones, and the p-values of that.

    Those are asked that classify as many training pictures correctly, and none where the given way tells them for
    certain: then the audit finds it, however many comparisons it corrects for.
    """
    if p_value_of(case, given) < level / COMPARISONS:
        return []
    asked = [one for one in others if gain(one.right, given.right) >= ALIKE]
    return [(one, p) for one in asked if (p := len(asked) * p_value_of(case, one)) < level]


def p_value_of(case, way):
    """The p-value of the loss of the training pictures in a Way being this much smaller than of held-out ones."""
    shown = classified(case, way, [way.rows(k) for k in (0, 1)])
    ours, theirs = (stages.margins(case, *side) for side in zip(shown.outputs, shown.labels))
    return judge.p_value(ours, theirs, way.labels)
