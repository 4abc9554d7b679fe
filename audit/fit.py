"""Whether pictures were shown as in training: what fits a network better, another way or another order of its classes.

Another way fits better if the network classifies more of the training pictures correctly when they are shown so; or if
it classifies as many, and their loss then tells them from held-out ones. Both are tests, corrected for the number of
ways. This is the judge's check; no attack is told what it finds. A few pictures are looked at first, and the others in
those ways that these do not rule out.
"""

import math
import shlex
from collections import Counter
from collections.abc import Callable
from dataclasses import fields, replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from PIL import Image
from scipy.optimize import linear_sum_assignment
from scipy.stats import binomtest

from audit import judge, pictures, report, stages, weights
from audit.showing import RESIZES, Showing
from utils.errors import InputError

NORMALISATIONS = {  # means and deviations of pixels in [0, 1]
    "a mean and a deviation of 0.5": ("0.5", "0.5"),
    "a mean of 0.5": ("0.5", "1"),
    "ImageNet's mean and deviation": ("0.485 0.456 0.406", "0.229 0.224 0.225"),
    "CIFAR-10's mean and deviation": ("0.4914 0.4822 0.4465", "0.247 0.2435 0.2616"),
    "MNIST's mean and deviation": ("0.1307", "0.3081"),
    "pixels from 0 to 1": ("0", "1"),
    "pixels from 0 to 255": ("0", "0.00392157"),
}
# sides that networks are trained on
SIZES = 28, 32, 48, 64, 96, 112, 128, 160, 192, 224, 256, 299, 320, 384
CENTRES = 0.95, 0.9, 0.875, 0.8, 0.75  # shares of a resized picture that are cut out of its middle
FILES = "shape", "resize", "turn", "alpha"  # fields that say how files are read
READING = "shape", "layout", "activation"  # fields that say how the network is read
TRAINED = 0.9  # share of the training pictures that a network classifies correctly if it was trained to the end
KNOWN = 0.75  # share of the pictures that a network must classify correctly in some way, so that any way is believed
ALIKE = 0.05  # p-value of a gain, above which two ways are taken to fit alike
FEW = 20  # pictures of a side that are looked at first
MOST = 100  # that are looked at, in ways that these do not rule out
RARE = 1e-3  # p-value of what these have right, below which they do
CHANCY = 0.5  # p-value of their loss, above which it is taken to be chance
KINDS = 20  # outputs up to which any order of classes is tried
COMPARISONS = 40  # more than an audit makes
CHANCE = 0.05  # level at which an accuracy is below the one stated
TOLERANCE = 0.05  # share of the pictures by which it may be below


class Way(NamedTuple):
    """One way to show the pictures of both sides."""

    name: str  # of what is other than in the given way
    option: str  # that says so
    logits: Callable  # rows (n, d) -> outputs (n, K)
    rows: Callable  # a side, 0 or 1, and a number n -> its first pictures (n, d) as the network sees them
    labels: tuple  # of both sides (n,)
    outputs: torch.Tensor = torch.zeros(0)  # of the first training pictures, FEW or all (n, K)
    right: torch.Tensor = torch.zeros(0)  # which of these are classified correctly (n,)

    @property
    def share(self):
        """The share of the training pictures that are classified correctly."""
        return self.right.double().mean().item()

    def judged(self, count=MOST):
        """The Way with its outputs of so many pictures, and with what it has right."""
        seen = self.classified(count, 1)
        return self._replace(outputs=seen.outputs[0], right=seen.right[0])

    def classified(self, count=MOST, sides=2):
        """What the network makes of so many pictures of one side or of both, stages.Classified."""
        rows = [self.rows(side, count) for side in range(sides)]
        return stages.classified(self.logits, rows, [part[:count] for part in self.labels[:sides]])

    def shows_as(self, other):
        """Whether it shows the training pictures as another Way does."""
        return all(torch.equal(self.rows(0, n), other.rows(0, n)) for n in (FEW, MOST))

    def may_be_known(self):
        """Whether what it has right does not rule out that KNOWN of all are."""
        right = int(self.right.sum())
        return binomtest(right, len(self.right), KNOWN, "less").pvalue >= RARE

    def knows_as_many(self, other):
        """Whether as many pictures are classified correctly as in another Way, for all that one can tell."""
        count = min(len(self.right), len(other.right))
        return gain(self.right[:count], other.right[:count]) >= ALIKE


def better(case: stages.Case, is_over: Callable) -> tuple[str, list]:
    """A sentence on what fits the network of a Case better than the given way, or "", and notes on ways left out.

    None is asked where the outputs are no classes, or these are not known; and none any more when the audit `is_over`.
    """
    if case.network.logits is None or case.labels[0] is None:
        return "", []
    samples = [np.random.default_rng(0).permutation(size)[:MOST] for size in case.sizes]
    shown = [case.seen(side.images[few]) for side, few in zip(case.pictures, samples)]
    labels = tuple(part[sample] for part, sample in zip(case.labels, samples))
    given = Way("", "", case.network.logits, lambda side, count: shown[side][:count], labels)
    try:
        given = given.judged()
    except InputError:  # no classes, as membership by loss says
        return "", []
    seen = orders(case, given)
    left_out = []
    for (name, option), showing in others(case.showing).items():
        if is_over():
            left_out.append(name)
        elif way := way_of(case, samples, given, showing):
            seen.append(way._replace(name=name, option=option))
    notes = [
        f"{len(left_out)} ways to show pictures were not tried ({', '.join(left_out)}): --limit."
    ]
    return said(case, given, seen), notes * bool(left_out)


def others(given: Showing) -> dict:
    """Showings that differ from the given one in one thing: {(name, option): Showing}."""
    *size, channels = given.shape
    # (name, option, fields)
    changes: list = [
        (f"the {one.name} {value}", f"--{one.name} {value}", {one.name: value})
        for one in fields(given)
        for value in one.metadata.get("choices", RESIZES * (one.name == "resize"))
    ]
    for name, parts in NORMALISATIONS.items():
        mean, deviation = (tuple(map(float, part.split())) for part in parts)
        if len(mean) in (1, channels):
            option = "--mean {} --deviation {}".format(*parts)
            changes.append((name, option, {"mean": mean, "deviation": deviation}))
    taken, option = ("left in", "no --centred") if given.centred else ("taken off", "--centred")
    name = f"the mean of the training pictures {taken}"
    changes.append((name, option, {"centred": not given.centred}))
    turned, option = ("not turned", "--unturned") if given.turn else ("turned", "no --unturned")
    changes.append((f"pictures {turned} by EXIF", option, {"turn": not given.turn}))
    for side in (round(min(size) / share) for share in CENTRES):
        name = f"pictures resized to {side} pixels and cut to their middle"
        changes.append((name, f"--resize {side}", {"resize": side}))
    for side in SIZES:
        shape = side, side, channels
        changes.append((f"pictures of {side}×{side}", f"--shape {side} {side}", {"shape": shape}))
    found = {(name, option): replace(given, **change) for name, option, change in changes}
    return {way: one for way, one in found.items() if one != given}


def way_of(case, samples, given, showing):
    """The Way that a Showing is; None if the network takes no such pictures, or if it is the given way."""

    def pixels(side, count=MOST):
        found = read_again(case.pictures[side], samples[side][:count], case.showing, showing)
        return found.to(case.average)

    def rows(side, count):
        if not showing.centred:
            return showing.rows(pixels(side, count))
        every = (
            case.pictures[0].images.to(case.average) if showing.shape == case.shape else pixels(0)
        )
        return showing.rows(pixels(side, count)) - showing.rows(every).mean(0)

    logits: Any = given.logits
    try:
        if any(getattr(showing, name) != getattr(case.showing, name) for name in READING):
            source, layout, activation = case.network.source, showing.layout, showing.activation
            logits = weights.read(source, showing.shape, layout, activation=activation).logits
            logits(torch.zeros(1, math.prod(showing.shape), dtype=torch.float64))
        way = given._replace(logits=logits, rows=rows)
        if way.shows_as(given) and (
            logits is given.logits or torch.equal(way.judged().outputs, given.outputs)
        ):
            return None
        way = way.judged(FEW)
        return way.judged() if way.may_be_known() else way
    except Exception:  # of a stranger's code that takes no such pictures, or of unreadable files
        return None


def read_again(side, rows, given, showing):
    """Pixels (k, d) in [0, 1] of some rows of Pictures, read in another way than the given one."""
    if all(getattr(showing, name) == getattr(given, name) for name in FILES):
        return side.images[rows]
    if side.folder:
        paths = (side.folder / side.names[row] for row in rows)
        found = [pictures.pixels_of(showing, path, Counter()) for path in paths]
    else:
        stored = (255 * side.images[rows].view(-1, *given.shape)).round().byte().numpy()
        opened = (Image.fromarray(one.squeeze(2) if given.shape[2] == 1 else one) for one in stored)
        found = [pictures.shaped(one, showing, Counter()) for one in opened]
    return torch.from_numpy(np.stack(found)).flatten(1)


def orders(case, given):
    """Ways with the classes in orders that people use: of numbers, of texts, and of texts with numbers in them.

    And with few classes in that which fits best; half of the pictures are judged by the order of the others.
    """
    names = pictures.order_of(case.pictures, case.outputs, case.showing.classes)
    raw = {pictures.named(one): str(one) for side in case.pictures for one in side.kinds}
    found = {}
    keys: list = [
        pictures.by_name,
        raw.get,
        lambda name: raw[name].lower(),
        lambda name: weights.by_number(raw[name]),
    ]
    for key in keys:
        order = {names.index(name): place for place, name in enumerate(sorted(raw, key=key))}
        if any(kind != output for kind, output in order.items()):
            labels = tuple(
                torch.tensor([order[kind] for kind in part.tolist()]) for part in given.labels
            )
            option = classes_of(order, names)
            found[option] = given._replace(option=option, labels=labels).judged()
    if 1 < case.outputs <= KINDS:
        guesses = given.outputs.argmax(1)
        order, right = fitted(guesses, given.labels[0], case.outputs)
        option = classes_of(order, names)
        found.setdefault(option, given._replace(option=option, right=right))
    return [way._replace(name="another order of the classes") for way in found.values()]


def classes_of(order, names):
    """The option that says {class: output}, where outputs have `names`."""
    listed = {output: str(names[kind]) for kind, output in order.items()}
    return f"--classes {shlex.join(listed.get(k, '-') for k in range(1 + max(listed)))}"


def fitting(guesses, labels, outputs):
    """{class: output} by which most guesses (n,) of outputs are the classes (n,)."""
    kinds = labels.unique()
    counts = torch.zeros(outputs, outputs)
    counts.index_put_((labels, guesses), torch.ones(len(labels)), accumulate=True)
    places = linear_sum_assignment(counts[kinds], maximize=True)[1]
    return dict(zip(kinds.tolist(), places.tolist()))


def fitted(guesses, labels, outputs):
    """The order of classes that fits best; and what is right (n,) by the order that fits the other half best."""
    half = torch.empty(len(labels))
    half[labels.argsort()] = torch.arange(len(labels)) % 2.0
    right = torch.zeros(len(labels), dtype=torch.bool)
    for part in (half == 0, half == 1):
        order = fitting(guesses[~part], labels[~part], outputs)
        own = [order.get(kind, -1) for kind in labels[part].tolist()]
        right[part] = torch.tensor(own) == guesses[part]
    return fitting(guesses, labels, outputs), right


def said(case, given, others):
    """The sentence on which of other Ways fits best, and on its option; "" if none fits better than the given one."""
    p_of = partial(p_value_of, case.loss)
    right = more_right(given, others)
    fits = right or telling(given, others, case.asking.level, p_of)
    if not fits:
        return ""
    best, p = max(fits, key=lambda fit: fit[0].share)
    alike = [way.option for way, _ in fits if way is not best and way.knows_as_many(best)]
    also = f", or {' or '.join(alike[:3])}, which fits as well" if alike else ""
    mend = f"try {best.option}{also}."
    p = report.stated(p)
    if not right:
        tells = f"With {best.name} the loss tells training pictures from held-out ones ({p})"
        return f"{tells}, and so the network may leak: {mend}"
    shares = f"which classifies {best.share:.0%} of them correctly, and not {given.share:.0%}"
    return f"The pictures fit the network better with {best.name} ({p}), {shares}: {mend}"


def gain(before, after):
    """The p-value of McNemar's exact test: of two masks (n,) of correct ones, whether the second holds more."""
    up = (after & ~before).sum().item()
    down = (before & ~after).sum().item()
    return float(binomtest(up, up + down, alternative="greater").pvalue) if up + down else 1.0


def more_right(given, others):
    """Those of other Ways in which more pictures are classified correctly, and the p-values of that."""
    fits = [
        (way, len(others) * gain(given.right, way.right)) for way in others if way.share >= KNOWN
    ]
    return [(way, p) for way, p in fits if p < judge.DIFFERENT]


def telling(given, others, level, p_of):
    """Those of other Ways in which the loss tells training pictures from held-out ones, and the p-values of that.

    Those are asked that classify as many training pictures correctly, and none where the given way tells them for
    certain: then the audit finds it, however many comparisons it corrects for.
    """
    if p_of(given) < level / COMPARISONS:
        return []
    asked = [way for way in others if way.knows_as_many(given)]
    likely = [way for way in asked if p_of(way, FEW) < CHANCY]
    whole = [way if len(way.right) == len(given.right) else way.judged() for way in likely]
    fits = [(way, len(asked) * p_of(way)) for way in whole if way.knows_as_many(given)]
    return [(way, p) for way, p in fits if p < level]


def p_value_of(loss, way, count=MOST):
    """The p-value of the loss of the training pictures in a Way being this much smaller than of held-out ones."""
    shown = way.classified(count)
    ours, theirs = (stages.margins(loss, *side) for side in zip(shown.outputs, shown.labels))
    # few pictures of many classes cannot be exchanged within these
    classes = [shown.labels] * (count == MOST)
    return judge.p_value(ours, theirs, *classes)


def poor(outcomes, accuracy, labels=None):
    """A sentence, if a network classifies too few training pictures correctly, so that finding nothing says nothing.

    That is less than TRAINED; or, where its `accuracy` in training is stated, clearly less than that, or no more than
    by naming the largest class of the `labels` (m,) every time.
    """
    facts = next((one.facts for one in outcomes if "accuracy" in one.facts), None)
    if not facts:
        return ""
    share = facts["accuracy"][0]
    only = f"The network classifies only {share:.0%} of the training pictures correctly"
    why = (
        "it was not trained to the end, or is a part of another one, or its normalisation, its activation, the size of"
        " its pictures or the order of its classes (--classes) is another one"
    )
    if accuracy is None:
        say = "If it did no better when its training ended, say how well it did (--accuracy)."
        return f"{only}: {why}. {say}" if share < TRAINED else ""
    count = len(facts["losses"][0])
    below = max(0.0, accuracy - TOLERANCE)
    right = round(share * count)
    if binomtest(right, count, below, "less").pvalue < CHANCE:
        return f"{only}, and not {accuracy:.0%}, as in its training: {why}."
    usual = torch.as_tensor(labels).bincount().max().item() / count if labels is not None else 0.0
    if binomtest(right, count, usual, "greater").pvalue < CHANCE:
        return ""
    return f"{only}, no more than by chance, so nothing shows that it sees them as in its training: {why}."
