"""One call from weights and pictures to a report."""

import contextlib
import functools
import math
import os
import shlex
import sys
import time
from collections.abc import Mapping
from pathlib import Path

import torch
from scipy.stats import binomtest

import audit.fit as fit
import audit.judge as judge
import audit.modules as modules
import audit.pictures as pictures
import audit.report as report
import audit.shadows as reference
import audit.stages as stages
import audit.states as states
import audit.weights as weights
import audit.whole as whole
from utils import images, networks
from utils.attacks import known_start
from utils.errors import InputError, choose
from utils.kernels.similarity import match

LOW = 0.9  # accuracy on training pictures, below which their normalisation is doubted
CHANCE = 0.05  # level at which an accuracy is above chance
STRANGERS = 100  # photographs that are nobody's
FROZEN = "The weights of the first layer are those from before the training: nothing was trained there."
OWN = 0.95  # correlation above which one of them is somebody's, after all
SQUASH = "--resize squash"


def audit(
    network, members, held_out, before=None, *, mean=None, deviation=None, centred=False, layout="CHW", loss="auto",
    shape=None, steps=200, seed=0, level=0.05, limit=600.0, skip=False, progress=True, optimizer=None, key=None,
    model=None, classes=(), resize="auto", turn=True, activation="relu", shadows=0, train=None,
):  # fmt: skip
    """Ask what a network gives away of its training pictures `members`: a Report.

    `network`, and the network `before` training where it is known, are what `weights.read` takes: files of weights,
    state dicts, torch modules, or functions of a batch (n, C, H, W). `members` and `held_out` are what `pictures.load`
    takes: folders, `.npz` files or arrays. The trainer showed (x − mean)/deviation of pixels x in [0, 1], one number or
    one for each channel, flattened in `layout`, and if `centred` less their mean; what is not given is read from the
    network's file, or else 0 and 1. `key` names one of several networks in a file, whose layers have an `activation` of
    `weights.ACTIVATIONS` between them, and `model`, "MODULE:FUNCTION", builds the module whose weights they are.
    `optimizer` is a file or a dict of an optimiser's state beside a network's file that does not hold it. `loss` is
    square, logistic or cross_entropy, or follows from the outputs, whose `classes` can be named in their order. `shape`
    is (H, W, C), if files are of another size than the network takes; they are cut or squashed to it (`resize`: crop,
    squash, or auto, by a test), and turned as their cameras say, if `turn`. `train` trains `shadows` for reference. A
    stage beyond `limit` seconds is left out, and `level` is the chance of a false alarm. Or InputError.
    """
    started = time.monotonic()
    check_settings(loss, level, limit, steps, seed, resize)
    target, shape = network_for(network, (members, held_out), shape, layout, key, model, activation)
    normalisation, held = normalisation_for(target, mean, deviation, centred)
    start, twin, frozen = start_for(target, before, shape, layout, key)
    state = state_for(network, optimizer, target.layers, shape, layout)
    load = functools.partial(loaded, (members, held_out), shape, skip)
    asked = functools.partial(case_of, target, start, shape, normalisation, loss, steps, seed, classes)
    fitted = functools.partial(better_of, target, activation, normalisation, layout, limit)
    sides, case, better, resize, warnings = seen(load, asked, fitted, resize, turn)
    case = case._replace(state=state, module=target.module and target.module._replace(before=twin))
    control = judge.differences([side.images for side in sides], strangers(sides, shape), case.labels)
    planned = [*reference.planned(case, shadows, train), *stages.planned(case), *whole.planned(case)]
    outcomes = stages.agreement([ran(stage, limit, progress) for stage in planned], shape)
    doubt, warnings = doubt_of(outcomes, better, case, sides, classes), [*held, *warnings, *frozen, *state.notes]
    settings = dict(zip(("mean", "deviation"), (torch.as_tensor(part).tolist() for part in normalisation[:2])))
    settings |= dict(centred=centred, layout=layout, activation=activation, loss=case.recipe.loss, turn=turn, seed=seed)
    settings |= dict(steps=steps, limit=limit, resize=resize, classes=[*classes], before=before is not None)
    settings |= {k: v for k, v in dict(state=state.entry, key=key, model=model, shadows=shadows).items() if v}
    told = case, target, sides, outcomes, control, warnings, doubt, settings, level
    return report.reported(*told, time.monotonic() - started)


def normalisation_for(target, mean, deviation, centred):
    """The mean and the deviation given, or held by the weights.Target, or 0 and 1, and whether `centred`; and notes."""
    given, notes = [mean, deviation], []
    for k, (name, usual) in enumerate({"mean": 0.0, "deviation": 1.0}.items()):
        if given[k] is None and target.normalisation:
            given[k] = target.normalisation[k].tolist()
            notes.append(f"The {name} is that in the network's file: {', '.join(f'{x:g}' for x in given[k])}.")
        given[k] = usual if given[k] is None else given[k]
    return (*given, centred), notes


def start_for(target, before, shape, layout, key):
    """The Layers and the module from before the training, and notes; no Layers if unknown, or the first was frozen."""
    if before is None:
        return (), None, []
    key, module = weights.key_in(before, key), target.module and target.module.module
    twin = modules.twin(module, before, key) if module else None
    start = weights.read(before, shape, layout, key).layers if target.layers or not twin else ()
    if not (start and target.layers or twin):
        raise InputError("A network before training is of use where the first layer can be read: leave it away here.")
    if twin and all(map(torch.equal, module.state_dict().values(), twin.state_dict().values())):
        raise InputError(known_start.UNCHANGED.replace("first layer", "network"))
    same = all(torch.equal(*map(networks.joint, pair)) for pair in zip(target.all_layers or target.layers, start))
    if start and known_start.unchanged(target.layers, start) and (twin or not (same and target.logits)):
        return (), twin, [FROZEN]
    if start:
        known_start.check(target.layers[:1], start[:1])
    return start, twin, []


def network_for(network, sources, shape, layout, key=None, model=None, activation="relu"):
    """The weights.Target and the shape (H, W, C) of its pictures.

    That is `shape`, (H, W) or with C, or that of arrays; or that of most files, if all of the network can be read with
    it, or else square. InputError if two matrices take pictures, of this shape and that.
    """
    if model:
        built = modules.built(model, network, key)
        target, shape = network_for(built, sources, shape, layout, activation=activation)
        name = Path(network).name if isinstance(network, str | Path) else target.name
        notes = [*target.notes, f"The code of {model} was run to build the network."]
        return target._replace(name=name, notes=notes), shape
    if shape and not (len(shape) in (2, 3) and all(one >= 1 and one % 1 == 0 for one in shape)):
        raise InputError(f"The shape is {shape}: give the height, the width, and 1 or 3 channels.")
    shape = tuple(map(int, shape or ()))
    pixels = [pictures.batch(*pictures.arrays(one))[0] for one in sources if not pictures.is_folder(one)]
    sizes = {one.shape[1:] for one in pixels} | ({shape} if len(shape) == 3 else set())
    if len(sizes) > 1:
        raise InputError(f"Pictures have the sizes {sorted(sizes)}: give those of the network.")
    for one in sizes:
        return weights.read(network, one, layout, key, activation), one
    readings, tried = [], [(*shape, k) for k in (1, 3)] if shape else [*pictures.own_shapes(sources), None]
    for one in tried:
        with contextlib.suppress(InputError):
            target = weights.read(network, one, layout, key, activation)
            if not target.layers:  # is it for such pictures?
                outputs_of(target.logits, torch.zeros(1, math.prod(one)))
            readings.append((target, one))
    readings = readings or [(weights.read(network, tried[-1], layout, key, activation), tried[-1])]
    readings = [one for one in readings if one[0].logits] or readings
    shapes = [one or weights.square(target.layers[0].weight.shape[1]) for target, one in readings]
    if readings[0][0].layers and len({*map(math.prod, shapes)}) > 1:
        choices = " or ".join("×".join(map(str, one)) for one in shapes)
        raise InputError(f"The network may take pictures of {choices}: say which by the shape (--shape H W C).")
    (target, one), *_ = readings
    size = "×".join(map(str, shapes[0]))
    guess = f"No file is of {size}, and that was guessed from the network: give the shape of its pictures (--shape)."
    return target if one else target._replace(guess=guess), shapes[0]


def loaded(sources, shape, skip, resize, turn):
    """The Pictures of both sides, read in a way."""
    named = zip(sources, ("training pictures", "held-out pictures"))
    return [pictures.load(source, shape, what, skip, resize, turn) for source, what in named]


def state_for(network, optimizer, layers, shape, layout):
    """The states.State in what a network is read from, or in an optimizer's own file or dict."""
    sources = [network] if isinstance(network, str | Path | Mapping) else []
    if optimizer is not None and not layers:
        raise InputError("A state is of use where the first layer can be read: leave the optimizer away here.")
    state = states.read([*sources, *([] if optimizer is None else [optimizer])], layers, shape, layout)
    if optimizer is not None and state == states.State():
        raise InputError("The optimizer's file holds no state: give what optimizer.state_dict() returns.")
    return state


def check_settings(loss, level, limit, steps, seed, resize):
    """Raise InputError unless these settings of `audit` are such that it can use."""
    choose("The loss", loss, ("auto", "square", "logistic", "cross_entropy"))
    choose("The way to resize", resize, ("auto", "crop", "squash"))
    if not 0 < level < 1:
        raise InputError(f"The level is {level}: give a chance of a false alarm between 0 and 1.")
    if not limit >= 0:
        raise InputError(f"The limit is {limit}: give the seconds that a stage may take.")
    if steps < 1 or seed < 0:
        raise InputError(f"There are {steps} steps, and the seed is {seed}: give a step or more, and no negative seed.")


def channels(value, shape, name):
    """One number, or one for each channel, as a picture (d,)."""
    numbers = torch.as_tensor(value, dtype=torch.float64).flatten()
    if len(numbers) not in (1, shape[-1]) or not numbers.isfinite().all():
        raise InputError(f"The {name} is {value}: give one number, or one for each of the {shape[-1]} channels.")
    if name == "mean" and numbers.abs().max() > 1:
        raise InputError(f"The mean is {value}, and pixels are in [0, 1] here: divide mean and deviation by 255.")
    return numbers.expand(shape).flatten()


def case_of(target, start, shape, normalisation, loss, steps, seed, classes, sides):
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
    labels = pictures.numbered(sides, outputs, classes)

    def shown(x):
        return (x + own) * deviation + mean

    return stages.Case(target.layers, start, target.logits, alone, together, labels, shape, recipe, steps, seed, shown)


def outputs_of(logits, x):
    """How many outputs a network has; InputError if it cannot take a picture x (1, d)."""
    try:
        return logits(x).shape[1]
    except Exception as error:  # of a stranger's code
        reason = (str(error) or type(error).__name__).splitlines()[0]
        raise InputError(f"The network does not take these pictures ({reason}): give those it is for.") from error


def strangers(sides, shape):
    """How like every picture is to the best of some photographs of nobody's: (m,) and (n,)."""
    views = torch.from_numpy(images.views()[0]).double().permute(0, 3, 1, 2) / 255
    views = views if shape[2] == 3 else views.mean(1, keepdim=True)
    views = torch.nn.functional.interpolate(views, size=shape[:2], mode="area").permute(0, 2, 3, 1).flatten(1)
    own = match(views, torch.cat([side.images for side in sides])).signed > OWN
    return [match(side.images, views[~own][:STRANGERS], shape).signed for side in sides]


def ran(stage, limit, progress):
    """The Outcome of a Stage, after a line on the time that it is expected to take; skipped beyond the limit."""
    about = f"about {max(1, math.ceil(stage.expected))} s"
    if stage.expected > limit:
        skipped = f"It would take {about}, and the limit is {limit:g} s."
        return stages.Outcome(stage.name, "skipped", skipped, stage.expected)
    if progress and "TQDM_DISABLE" not in os.environ:
        print(f"{stage.name}, {about}", file=sys.stderr, flush=True)
    started = time.monotonic()
    try:
        outcome = stage.run()
    except InputError as error:
        outcome = stages.Outcome(stage.name, "refused", str(error))
    return outcome._replace(expected=stage.expected, seconds=time.monotonic() - started)


def seen(load, asked, fitted, resize, turn):
    """How the trainer saw pictures: the sides, their stages.Case, the fit.Better or None, crop or squash, and notes.

    `load` gives the sides by how they are resized and turned, `asked` their Case, and `fitted` the Better. With
    `resize` auto they are cut, unless squashed ones fit the network better.
    """
    notes = []
    for manner in ("crop", "squash") if resize == "auto" else [resize]:
        sides = load(manner, turn)
        done, (sides, left_out) = pictures.notes_on(*sides), pictures.distinct(sides)
        better, some = fitted(case := asked(sides), readings(load, sides, manner, turn))
        if resize != "auto" or manner == "squash" or not better or SQUASH not in better.changes.values():
            break
        tested = f"{report.stated(better.p)} after Holm's correction"
        notes = [f"Pictures were squashed, as that fits the network better than cutting them ({tested})."]
    return sides, case, better, manner, [*notes, *done, *left_out, *some]


def readings(load, sides, manner, turn):
    """The pictures of `sides`, which were read in the `manner` crop or squash and turned by EXIF or not, for fit.ways.

    After the given ones come those that are read in another manner, or turned otherwise.
    """
    found: dict = {(): torch.cat([side.images for side in sides])}
    other = "crop" if manner == "squash" else "squash"
    done = {"crop": "pictures cut to their middle square", "squash": "pictures squashed"}[other]
    turned = ("pictures not turned by EXIF", "--unturned") if turn else ("pictures turned by EXIF", "no --unturned")
    ways = {(done, f"--resize {other}"): (other, turn), turned: (manner, not turn)}
    for change, how in ways.items() if any(part.notes for part in sides) else ():  # else nothing was done to them
        with contextlib.suppress(InputError, KeyError):  # some cannot be read thus
            pixels = torch.cat([pictures.kept(*one).images for one in zip(load(*how), [part.names for part in sides])])
            if not torch.equal(pixels, found[()]):
                found[change] = pixels
    return found


def better_of(target, activation, normalisation, layout, limit, case, pixels):
    """The fit.Better of a case, or None where nothing fits better, or classes or outputs are not known; and notes."""
    outputs = outputs_of(case.logits, case.sides[0][:1]) if case.logits and case.labels[0] is not None else 0
    if outputs in (0, case.sides[0].shape[1]):  # an autoencoder's
        return None, []
    layouts = [layout, *({"CHW", "HWC"} - {layout} if case.layers and case.shape[2] > 1 else ())]
    others = [name for name in weights.ACTIVATIONS if name != activation and len(target.all_layers) > 1]
    named = {(f"the activation {name}", f"--activation {name}"): name for name in others}
    logits: dict = {(): case.logits} | {of: weights.outputs(target.all_layers, name) for of, name in named.items()}
    ways = fit.ways(pixels, logits, case.shape, normalisation, layouts)
    begun = time.monotonic()
    case.logits(torch.cat(case.sides)[: 2 * fit.MOST])
    few = ways[: 1 + int(min(len(ways), limit / max(1e-9, time.monotonic() - begun)))]
    left_out = f"Of {len(ways)} ways to show pictures, {len(few)} were tried, as the limit is {limit:g} s."
    return fit.better(few, case.labels, outputs), [left_out] * (len(few) < len(ways))


def doubt_of(outcomes, better, case, sides, classes):
    """Why a finding of nothing may be worth nothing, and whether it is worth nothing for certain.

    It is, where something fits better, named by its option, or where no more training pictures than by chance are
    classified correctly. The sentence is empty where enough are.
    """
    if better:
        name, option = (" and ".join(part) for part in zip(*better.changes.items()))
        if better.order:
            listed = ["-"] * (max(better.order.values()) + 1)
            names = pictures.order_of(sides, outputs_of(case.logits, case.sides[0][:1]), classes)
            for kind, output in better.order.items():
                listed[output] = str(names[kind])
            option = f"--classes {shlex.join(listed)}"
        before, after = better.shares
        gain = f", which classifies {after:.0%} of them correctly, and not {before:.0%}" if after > before else ""
        tested = f"{report.stated(better.p)} after Holm's correction"
        return f"The pictures fit the network better with {name} ({tested}){gain}: try {option}.", True
    (accuracy,) = [one.facts["accuracy"][0] for one in outcomes if "accuracy" in one.facts] or [1.0]
    if accuracy >= LOW:
        return "", False
    count, kinds = len(case.labels[0]), max(2, len(case.labels[0].unique()))
    chance = bool(binomtest(round(accuracy * count), count, 1 / kinds, alternative="greater").pvalue >= CHANCE)
    of_chance = ", no more than chance does" * chance
    return (
        f"The network classifies only {accuracy:.0%} of the training pictures correctly{of_chance}: it was not"
        " trained to the end, or is a part of another one, or its normalisation, its activation or the order of its"
        " classes is another one."
    ), chance
