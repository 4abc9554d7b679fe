"""One call from weights and pictures to a report."""

import builtins
import contextlib
import math
import os
import sys
import threading
import time

import torch
from tqdm.auto import tqdm

import audit.judge as judge
import audit.pictures as pictures
import audit.report as report
import audit.stages as stages
import audit.weights as weights
from utils import images, networks
from utils.attacks import known_start
from utils.errors import InputError, choose
from utils.kernels.similarity import detail_ncc, ncc

SIDES = "training pictures", "held-out pictures"
LOW = 0.9  # accuracy on training pictures, below which their normalisation is doubted
STRANGERS = 100  # photographs that are nobody's
OWN = 0.95  # correlation above which one of them is somebody's, after all


def audit(
    network, members, held_out, before=None, *, mean=0.0, deviation=1.0, centred=False, layout="CHW", loss="auto",
    shape=None, steps=200, seed=0, level=0.05, limit=600.0, skip=False, progress=True,
):  # fmt: skip
    """Ask what a network gives away of its training pictures `members`: a Report.

    `network`, and the network `before` training where it is known, are what `weights.read` takes: files (.pth,
    .safetensors), state dicts, torch modules, or functions of a batch (n, C, H, W). `members` and `held_out` are what
    `pictures.load` takes: folders, `.npz` files or arrays. The trainer showed (x − mean)/deviation of pixels x in
    [0, 1], with one number or one for each channel, flattened in `layout`, and if `centred` less the mean of its
    pictures. `loss` is square, logistic or cross_entropy, or follows from the number of outputs. A stage that needs
    more than `limit` seconds is left out, and `level` is the chance of a false alarm. InputError, in one sentence, for
    what cannot be audited.
    """
    begun = time.monotonic()
    choose("The loss", loss, ("auto", "square", "logistic", "cross_entropy"))
    check(level, limit, steps, seed)
    target, shape = read(network, (members, held_out), shape, layout)
    sides = [pictures.load(one, shape, what, skip) for one, what in zip((members, held_out), SIDES)]
    warnings = pictures.compared(*sides)
    start = weights.read(before, shape, layout).layers if before is not None else ()
    if before is not None and not (start and target.layers):
        raise InputError("A network before training is of use where the first layer can be read: leave it away here.")
    if start:
        known_start.check(target.layers[:1], start[:1])
    case = case_of(target, start, sides, shape, (mean, deviation, centred), loss, steps, seed)
    control = judge.differences([side.images for side in sides], strangers(sides, shape), case.labels)
    outcomes = stages.agreement([ran(stage, limit, progress) for stage in stages.planned(case)], shape)
    mean, deviation = (torch.as_tensor(part).tolist() for part in (mean, deviation))
    settings = {"mean": mean, "deviation": deviation, "centred": centred, "layout": layout, "loss": case.recipe.loss,
                "before": before is not None, "steps": steps, "seed": seed, "limit": limit}  # fmt: skip
    doubt = doubts(case, outcomes, sides, layout)
    seconds = time.monotonic() - begun
    return report.reported(case, target, sides, outcomes, control, warnings, doubt, settings, level, seconds)


def read(network, sources, shape, layout):
    """The weights.Target and the one shape (H, W, C) of its pictures: given, that of arrays, or that of most files."""
    sizes = {size for size in map(pictures.shape_of, sources) if size} | ({tuple(shape)} if shape else set())
    if len(sizes) > 1:
        raise InputError(f"Pictures have the sizes {sorted(sizes)}: give one size, that of the network.")
    if not sizes:
        return fitting(network, pictures.own_shapes(sources), layout)
    (shape,) = sizes
    return weights.read(network, shape, layout), shape


def fitting(network, shapes, layout):
    """The weights.Target, and the first of these shapes with which all of it can be read, or else a square one."""
    found = []
    for shape in [*shapes, None]:
        with contextlib.suppress(InputError):
            found.append((weights.read(network, shape, layout), shape))
    found = [one for one in found if one[0].layers] or [(weights.read(network, None, layout), None)]
    target, shape = min(found, key=lambda one: one[0].logits is None)
    return target, shape or weights.square(target.layers[0].weight.shape[1])


def check(level, limit, steps, seed):
    """Raise InputError unless these settings of `audit` are numbers that it can use."""
    if not 0 < level < 1:
        raise InputError(f"The level is {level}: give a chance of a false alarm between 0 and 1.")
    if not limit >= 0:
        raise InputError(f"The limit is {limit}: give the seconds that a stage may take.")
    if steps < 1 or seed < 0:
        given = f"There are {steps} steps, and the seed is {seed}"
        raise InputError(f"{given}: give one step or more, and no negative seed.")


def channels(value, shape, name):
    """One number, or one for each channel, as a picture (d,)."""
    numbers = torch.as_tensor(value, dtype=torch.float64).flatten()
    if len(numbers) not in (1, shape[-1]) or not numbers.isfinite().all():
        raise InputError(f"The {name} is {value}: give one number, or one for each of the {shape[-1]} channels.")
    return numbers.expand(shape).flatten()


def case_of(target, start, sides, shape, normalisation, loss, steps, seed):
    """The stages.Case: pictures as the network sees them, (x − mean)/deviation, with numbered classes."""
    centred = normalisation[2]
    mean, deviation = (channels(one, shape, name) for one, name in zip(normalisation, ("mean", "deviation")))
    if not (deviation > 0).all():
        raise InputError(f"The deviation is {normalisation[1]}: it must be positive.")
    seen = [(side.images - mean) / deviation for side in sides]
    own, both = (part.mean(0) * bool(centred) for part in (seen[0], torch.cat(seen)))
    outputs = outputs_of(target.logits, seen[0][:1]) if target.logits else 1
    loss = loss if loss != "auto" else "cross_entropy" if outputs > 1 else "logistic"
    recipe = networks.Recipe(tuple(len(layer.weight) for layer in target.layers[:-1]), loss, 0.0, centred=centred)
    alone, together = (tuple(part - mean for part in seen) for mean in (own, both))
    labels = pictures.numbered(sides, outputs)

    def shown(x):
        return (x + own) * deviation + mean

    return stages.Case(target.layers, start, target.logits, alone, together, labels, shape, recipe, steps, seed, shown)


def outputs_of(logits, x):
    """How many outputs a network has; InputError if it cannot take a picture x (1, d)."""
    try:
        return logits(x).shape[1]
    except (RuntimeError, TypeError, ValueError, IndexError) as error:
        reason = str(error).splitlines()[0]
        raise InputError(f"The network does not take these pictures ({reason}): give those it is for.") from error


def strangers(sides, shape):
    """How like every picture is to the best of some photographs of nobody's: (m,) and (n,)."""
    views = torch.from_numpy(images.views()[0]).double().permute(0, 3, 1, 2) / 255
    views = views if shape[2] == 3 else views.mean(1, keepdim=True)
    views = torch.nn.functional.interpolate(views, size=shape[:2], mode="area").permute(0, 2, 3, 1).flatten(1)
    own = torch.cat([ncc(views, side.images).amax(1)[:, None] for side in sides], 1).amax(1) > OWN
    views = views[~own][:STRANGERS]
    return [detail_ncc(views, side.images, shape).amax(0) for side in sides]


def ran(stage, limit, progress):
    """The Outcome of a Stage, under a bar of the time that it was expected to take; skipped beyond the limit."""
    about = f"about {max(1, math.ceil(stage.expected))} s"
    if stage.expected > limit:
        said = f"It would take {about}, and the limit is {limit:g} s."
        return stages.Outcome(stage.name, "skipped", said, stage.expected)
    begun = time.monotonic()
    with clock(f"{stage.name}, {about}", stage.expected, progress):
        try:
            outcome = stage.run()
        except InputError as error:
            outcome = stages.Outcome(stage.name, "refused", str(error))
    return outcome._replace(expected=stage.expected, seconds=time.monotonic() - begun)


@contextlib.contextmanager
def clock(title, seconds, progress):
    """A bar that fills while so many seconds pass, and waits at its end if need be; without a screen, a line."""
    notebook = hasattr(builtins, "__IPYTHON__")
    if not progress or "TQDM_DISABLE" in os.environ or not (sys.stderr.isatty() or notebook):
        if progress and not notebook:
            print(title, file=sys.stderr, flush=True)
        yield
        return
    ended, begun, look = threading.Event(), time.monotonic(), "{desc} {percentage:3.0f}%|{bar}| {elapsed}"
    with tqdm(total=100, desc=title, bar_format=look, leave=not notebook) as bar:

        def tick():
            while not ended.wait(0.5):
                bar.n = min(99, int(100 * (time.monotonic() - begun) / max(seconds, 0.1)))
                bar.refresh()

        thread = threading.Thread(target=tick, daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()
            bar.n = 100


def doubts(case, outcomes, sides, layout):
    """The Doubt if the network classifies too few training pictures, with what fits better, if anything; or none."""
    (accuracy,) = [one.facts["accuracy"][0] for one in outcomes if "accuracy" in one.facts] or [1.0]
    if accuracy >= LOW:
        return report.Doubt()
    raw, x, labels = sides[0].images, case.sides[0], case.labels[0]
    tried = {
        "pixels as they are, from 0 to 1": raw,
        "a mean and a deviation of 0.5": 2 * raw - 1,
        "pixels from 0 to 255 (a deviation of 1/255)": 255 * raw,
        "the mean of the training pictures taken off (centred)": x - x.mean(0),
        f"the layout {'HWC' if layout == 'CHW' else 'CHW'}": other_layout(x, case.shape, layout),
    }
    shares = {name: share_of(case.logits(rows), labels) for name, rows in tried.items()}
    best = max(shares, key=shares.__getitem__)
    said = (
        f"The network classifies only {accuracy:.0%} of the training pictures correctly: "
        "it was not trained to the end, or its normalisation is another one"
    )
    wrong = shares[best] > accuracy + 0.1
    better = f"; with {best} it is {shares[best]:.0%}" if wrong else ""
    return report.Doubt(f"{said}{better}.", wrong)


def share_of(outputs, labels):
    """The share of pictures that outputs (n, K) get right; of one output, whichever class it calls the first."""
    share = stages.correct(outputs, labels).double().mean().item()
    return max(share, 1 - share) if outputs.shape[1] == 1 else share


def other_layout(x, shape, layout):
    """Rows (n, d) for a network whose layout was taken for the wrong one."""
    height, width, colours = shape
    if layout == "CHW":
        return x.view(-1, colours, height, width).permute(0, 2, 3, 1).flatten(1)
    return x.view(-1, *shape).permute(0, 3, 1, 2).flatten(1)
