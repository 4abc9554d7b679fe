"""One call from weights and pictures to a report."""

import functools
import math
import os
import shlex
import sys
import time
from collections.abc import Callable, Mapping, Sequence
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
import audit.start as start
import audit.states as states
import audit.weights as weights
import audit.whole as whole
from attacks import first_layer
from training import images
from utils import networks
from utils.errors import InputError, choose
from utils.kernels.layers import Shape
from utils.kernels.similarity import match

CHANCE = 0.05  # level at which an accuracy is below the one stated
TOLERANCE = 0.05  # share of the pictures by which it may be below
# steps, and pixels of a side
LARGEST = 10**6
SIDE = 4096
SMALLEST = 1e-4  # deviation of pixels
SEEDS = 2**32
STRANGERS = 100  # photographs that are nobody's
FROZEN = (
    "The weights of the first layer are those from before the training: nothing was trained there."
)
STRANGE = "The network from before the training is no more like this one than any other is: give its own start."
RELATED = 4  # standard deviations of the correlation of unrelated weights, above which two networks are related
OWN = 0.95  # correlation above which one of them is somebody's, after all


def audit(
    network: weights.Source, members: pictures.Source, held_out: pictures.Source, before: weights.Source | None = None,
    *, mean: fit.Numbers = None, deviation: fit.Numbers = None, centred: bool = False, layout: str = "CHW",
    loss: str = "auto", shape: Sequence[int] | None = None, steps: int = 200, seed: int = 0, level: float = 0.05,
    limit: float = 600.0, skip: bool = False, progress: bool = True, optimizer: str | Path | Mapping | None = None,
    key: str | None = None, model: str | None = None, classes: Sequence = (), resize: str | int = "crop",
    turn: bool = True, alpha: str = "white", activation: str = "relu", shadows: int = 0,
    train: Callable | str | None = None, accuracy: float | None = None) -> report.Report:  # fmt: skip
    """Ask what a network gives away of its training pictures `members`: a Report, or InputError.

    `network`, and the network `before` training, are what `weights.read` takes, `members` and `held_out` what
    `pictures.load` takes. How its trainer showed them is as in `fit.Showing`; unless given, mean and deviation are
    those in the file, or 0 and 1. `key` names one of several networks in a file, and `model`, "MODULE:FUNCTION", builds
    its module. `optimizer` is an optimiser's state beside a network's file without one. `loss` is square, logistic or
    cross_entropy, or follows from the outputs, whose `classes` can be named in their order. `accuracy` is the share of
    training pictures classified correctly when training ended, if below fit.TRAINED. `train` trains `shadows` for
    reference. A stage that takes a core more than `limit` seconds is left out; `level` is the chance of a false alarm.
    """
    started = time.monotonic()
    check_settings(loss, level, limit, steps, seed, resize, alpha, accuracy)
    target, shape = network_for(network, (members, held_out), shape, layout, key, model, activation)
    normalisation, held = normalisation_for(target, mean, deviation, centred)
    state = state_for(network, optimizer, target.layers, shape, layout)
    given = fit.Showing(
        normalisation[0], normalisation[1], centred, layout, activation, shape, resize, turn, alpha
    )
    load = functools.partial(
        pictures.load, shape=shape, skip=skip, resize=resize, turn=turn, alpha=alpha
    )
    both = load(members, what="training pictures"), load(held_out, what="held-out pictures")
    sides, done = pictures.distinct(both, shape)
    case = case_of(
        target, sides, shape, normalisation, classes, loss, steps=steps, seed=seed, state=state
    )
    case, target, said, outcomes = with_start(
        case, target, network, before, model, layout, key, limit, progress
    )
    names = pictures.order_of(sides, case.outputs, classes)
    better, slow = better_of(target, given, (members, held_out), sides, case, names, limit, level)
    control = judge.differences(
        [side.images for side in sides], strangers(sides, shape), case.labels
    )
    planned = reference.planned(case, shadows, train) + stages.planned(case) + whole.planned(case)
    outcomes += [ran(stage, limit, progress) for stage in planned]
    doubts = fits_better(better, names) if better else "", poor_accuracy(outcomes, case, accuracy)
    settings = given._asdict() | dict(
        loss=case.recipe.loss, seed=seed, steps=steps, limit=limit, classes=[*classes]
    )
    stated = dict(
        before=start.WORDS if case.since else before is not None,
        state=state.entry,
        key=key,
        model=model,
    )
    settings |= {
        name: value
        for name, value in (stated | dict(shadows=shadows, accuracy=accuracy)).items()
        if value
    }
    args = (
        case,
        target,
        sides,
        outcomes,
        control,
        [*held, *done, *slow, *said, *state.notes],
        doubts,
        settings,
        level,
    )
    return report.reported(*args, time.monotonic() - started)


def normalisation_for(target, mean, deviation, centred):
    """The mean and the deviation given, or held by the weights.Target, or 0 and 1, and whether `centred`; and notes."""
    given = [mean, deviation]
    notes = []
    for k, (name, usual) in enumerate({"mean": 0.0, "deviation": 1.0}.items()):
        if given[k] is None and target.normalisation:
            given[k] = target.normalisation[k].tolist()
            notes.append(
                f"The {name} is that in the network's file: {', '.join(f'{x:g}' for x in given[k])}."
            )
        given[k] = usual if given[k] is None else given[k]
    return (
        *(tuple(torch.as_tensor(one, dtype=torch.float64).flatten().tolist()) for one in given),
        centred,
    ), notes


def with_start(case, target, network, before, model, layout, key, limit, progress):
    """The Case and the Target with the start: `before`, or one that is read; notes; and the Outcomes of a reading."""
    planned = start.planned(target, network, model, case.shape, layout) if before is None else []
    outcomes = [ran(stage, limit, progress) for stage in planned]
    read = next((one for one in outcomes if one.start), None)
    before, key = (read.start, None) if read else (before, key)
    target, initial, notes = initial_for(target, before, case.shape, layout, key)
    since, notes = (start.SINCE, [read.sentence, *notes]) if read else ("", notes)
    return (
        case._replace(initial=initial, module=target.module, since=since),
        target,
        notes,
        outcomes,
    )


def initial_for(target, before, shape, layout, key):
    """The Target with its module from before the training, the Layers from then, and notes.

    There are no Layers if they are not known, or if the first one was frozen.
    """
    if before is None:
        return target, (), []
    key = weights.key_in(before, key)
    module = target.module and target.module.module
    twin = modules.twin(module, before, key) if module else None
    target = target._replace(module=target.module and target.module._replace(before=twin))
    initial = weights.read(before, shape, layout, key).layers if target.layers or not twin else ()
    if not (initial and target.layers or twin):
        raise InputError(
            "A network before training is of use where the first layer can be read: leave it away here."
        )
    if twin and all(map(torch.equal, module.state_dict().values(), twin.state_dict().values())):
        raise InputError(first_layer.UNCHANGED.replace("first layer", "network"))
    same = all(
        torch.equal(*map(networks.joint, pair))
        for pair in zip(target.all_layers or target.layers, initial)
    )
    if (
        initial
        and first_layer.is_unchanged(target.layers, initial)
        and (twin or not (same and target.logits))
    ):
        return target, (), [FROZEN]
    if not initial:
        return target, (), []
    first_layer.check(target.layers[:1], initial[:1])
    weights_of = torch.stack([one[0].weight.flatten() for one in (target.layers, initial)])
    alike = weights_of.corrcoef()[0, 1].abs() * weights_of.shape[1] ** 0.5 > RELATED
    return target, initial, [] if alike else [STRANGE]


def network_for(
    network: weights.Source, sources: Sequence[pictures.Source], shape: Sequence[int] | None, layout: str,
    key: str | None = None, model: str | None = None, activation: str = "relu",
) -> tuple[weights.Target, Shape]:  # fmt: skip
    """The weights.Target and the shape (H, W, C) of its pictures: of `shapes_of` one with which all can be read."""
    if model:
        built = modules.built(model, network, key)
        target, shape = network_for(built, sources, shape, layout, activation=activation)
        name = Path(network).name if isinstance(network, str | Path) else target.name
        notes = [*target.notes, f"The code of {model} was run to build the network."]
        return target._replace(name=name, notes=notes, built=built), shape
    readings = []
    refusals = []
    for one in shapes_of(sources, shape):
        try:
            target = weights.read(network, one, layout, key, activation)
            if target.logits:
                outputs_of(target.logits, torch.zeros(1, math.prod(one), dtype=torch.float64))
            readings.append((target, one))
        except InputError as error:
            refusals.append(error)
    if not readings:
        raise refusals[-1]
    return min(readings, key=lambda reading: reading[0].logits is None)


def shapes_of(sources, shape):
    """The shapes (H, W, C) that pictures may have: `shape`, (H, W) or with C, or that of arrays, or of most files."""
    if shape and not (len(shape) in (2, 3) and all(one >= 1 and one % 1 == 0 for one in shape)):
        raise InputError(f"The shape is {shape}: give the height, the width, and 1 or 3 channels.")
    shape = tuple(map(int, shape or ()))
    sizes = {pictures.batch(one)[0].shape[1:] for one in sources if not pictures.is_folder(one)}
    sizes |= {shape} if len(shape) == 3 else set()
    if len(sizes) > 1:
        raise InputError(f"Pictures have the sizes {sorted(sizes)}: give those of the network.")
    return [*sizes] or ([(*shape, k) for k in (1, 3)] if shape else pictures.own_shapes(sources))


def state_for(network, optimizer, layers, shape, layout):
    """The states.State in what a network is read from, or in an optimizer's own file or dict."""
    sources = [network] if isinstance(network, str | Path | Mapping) else []
    if optimizer is not None and not layers:
        raise InputError(
            "A state is of use where the first layer can be read: leave the optimizer away here."
        )
    state = states.read(
        [*sources, *([] if optimizer is None else [optimizer])], layers, shape, layout
    )
    if optimizer is not None and state == states.State():
        raise InputError(
            "The optimizer's file holds no state: give what optimizer.state_dict() returns."
        )
    return state


def check_settings(loss, level, limit, steps, seed, resize, alpha, accuracy):
    """Raise InputError unless these settings of `audit` are such that it can use."""
    choose("The loss", loss, ("auto", "square", "logistic", "cross_entropy"))
    choose("The paper behind transparent pictures", alpha, ("white", "black", "drop"))
    if not (isinstance(resize, int) and 1 <= resize <= SIDE):
        choose(
            "The way to resize",
            resize,
            ("crop", "squash", f"1 to {SIDE} pixels of the shorter side"),
        )
    if not 0 < level < 1:
        raise InputError(f"The level is {level}: give a chance of a false alarm between 0 and 1.")
    if not 0 <= limit < math.inf:
        raise InputError(
            f"The limit is {limit}: give the seconds that a stage may take, such as 1e9."
        )
    if not (1 <= steps <= LARGEST and 0 <= seed < SEEDS):
        mend = f"give one step to {LARGEST:,}, and a seed from 0 to {SEEDS - 1:,}"
        raise InputError(f"There are {steps} steps, and the seed is {seed}: {mend}.")
    if not (accuracy is None or 0 <= accuracy <= 1):
        raise InputError(
            f"The accuracy is {accuracy}: give the share of pictures classified correctly, such as 0.83."
        )


def channels(value, shape, name):
    """One number, or one for each channel, as a picture (d,)."""
    numbers = torch.as_tensor(value, dtype=torch.float64).flatten()
    if len(numbers) not in (1, shape[-1]) or not numbers.isfinite().all():
        raise InputError(
            f"The {name} is {value}: give one number, or one for each of the {shape[-1]} channels."
        )
    if name == "mean" and numbers.abs().max() > 1:
        raise InputError(
            f"The mean is {value}, and pixels are in [0, 1] here: divide mean and deviation by 255."
        )
    return numbers.expand(shape).flatten()


def case_of(target, sides, shape, normalisation, classes, loss, **given):
    """The stages.Case: pictures as the network sees them, (x − mean)/deviation, with numbered classes."""
    mean, deviation = (
        channels(one, shape, name) for one, name in zip(normalisation, ("mean", "deviation"))
    )
    if not ((deviation > SMALLEST) & (deviation < 1 / SMALLEST)).all():
        raise InputError(
            f"The deviation is {normalisation[1]}: it must be positive, for pixels in [0, 1]."
        )
    seen = [(side.images - mean) / deviation for side in sides]
    own, both = (part.mean(0) * bool(normalisation[2]) for part in (seen[0], torch.cat(seen)))
    alone, together = (tuple(part - mean for part in seen) for mean in (own, both))
    outputs = outputs_of(target.logits, alone[0][:2]) if target.logits else 1
    labels = pictures.numbered(sides, outputs, classes)

    def shown(x):
        return (x + own) * deviation + mean

    given |= {"recipe": recipe_of(target, outputs, loss, normalisation[2]), "module": target.module}
    given["count"] = sides[0].count
    return stages.Case(
        target.layers, (), target.logits, outputs, alone, together, labels, shape, shown, **given
    )


def recipe_of(target, outputs, loss, centred):
    """The Recipe of a network of so many outputs, whose loss is given, or follows from these."""
    loss = loss if loss != "auto" else "cross_entropy" if outputs > 1 else "logistic"
    return networks.Recipe(
        tuple(len(layer.weight) for layer in target.layers[:-1]), loss, 0.0, centred=centred
    )


def outputs_of(logits, x):
    """How many outputs a network has; InputError if it cannot take pictures x (n, d)."""
    try:
        return logits(x).shape[1]
    except Exception as error:  # of a stranger's code
        reason = (str(error) or type(error).__name__).splitlines()[0]
        raise InputError(
            f"The network does not take these pictures ({reason}): give their size (--shape)."
        ) from error


def strangers(sides, shape):
    """How like every picture is to the best of some photographs of nobody's: (m,) and (n,)."""
    views = torch.from_numpy(images.views()[0]).double().permute(0, 3, 1, 2) / 255
    views = views if shape[2] == 3 else views.mean(1, keepdim=True)
    views = (
        torch.nn.functional.interpolate(views, size=shape[:2], mode="area")
        .permute(0, 2, 3, 1)
        .flatten(1)
    )
    own = match(views, torch.cat([side.images for side in sides])).signed > OWN
    views = views if own.all() else views[~own]
    return [match(side.images, views[:STRANGERS], shape).signed for side in sides]


def ran(stage, limit, progress):
    """The Outcome of a Stage, after a line on the time that it is expected to take; skipped beyond the limit."""
    about = f"about {max(1, math.ceil(stage.expected))} s"
    if stage.expected > limit:
        skipped = f"It would take {about}, and the limit is {limit:g} s."
        return stages.Outcome(stage.name, "skipped", skipped, stage.expected)
    if progress and stage.expected and "TQDM_DISABLE" not in os.environ:
        print(f"{stage.name}, {about}", file=sys.stderr, flush=True)
    started = time.monotonic()
    try:
        outcome = stage.run()
    except InputError as error:
        outcome = stages.Outcome(stage.name, "refused", str(error))
    return outcome._replace(expected=stage.expected, seconds=time.monotonic() - started)


def better_of(target, given, sources, sides, case, names, limit, level):
    """The fit.Better way to show pictures, or None, and notes on ways that were left out.

    There is none where outputs are no classes, or these are not known; outputs have `names`.
    """
    if (
        target.logits is None or case.labels[0] is None or case.outputs == case.sides[0].shape[1]
    ):  # an autoencoder's
        return None, []
    candidates = fit.ways(target, given, sources, sides, case)
    candidates += fit.orders(candidates[0], sides, names)
    try:
        found, slow = fit.better(case, candidates, limit, level)
    except InputError:  # the outputs are not finite, as membership by loss says
        return None, []
    why = f"they would take more than {limit / fit.SHARE:g} s each: --limit"
    left_out = f"{len(slow)} ways to show pictures were not tried ({', '.join(slow)}), as {why}."
    return found, [left_out] * bool(slow)


def fits_better(better, names):
    """What a fit.Better says, and its option. Outputs have `names`."""
    name, option = better.way.change
    if better.way.order:
        listed = {output: str(names[kind]) for kind, output in better.way.order.items()}
        option = f"--classes {shlex.join(listed.get(k, '-') for k in range(1 + max(listed)))}"
    others = " or ".join(better.others[:3])
    option += f", or {others}, which fits as well" if others else ""
    p = report.stated(better.p)
    if better.by_loss:
        tells = f"With {name} the loss tells training pictures from held-out ones ({p}), and so the network may leak"
        return f"{tells}: try {option}."
    gain = f"which classifies {better.way.share:.0%} of them correctly, and not {better.given.share:.0%}"
    return f"The pictures fit the network better with {name} ({p}), {gain}: try {option}."


def poor_accuracy(outcomes, case, accuracy):
    """A sentence, if a network classifies too few training pictures correctly, so that finding nothing says nothing.

    That is less than fit.TRAINED; or clearly less than the `accuracy` that it had in training.
    """
    (share,) = [one.facts["accuracy"][0] for one in outcomes if "accuracy" in one.facts] or [1.0]
    only = f"The network classifies only {share:.0%} of the training pictures correctly"
    why = (
        "it was not trained to the end, or is a part of another one, or its normalisation, its activation, the size of"
        " its pictures or the order of its classes (--classes) is another one"
    )
    if accuracy is None:
        say = "If it did no better when its training ended, say how well it did (--accuracy)."
        return f"{only}: {why}. {say}" if share < fit.TRAINED else ""
    count = len(case.sides[0])
    p = binomtest(round(share * count), count, max(0.0, accuracy - TOLERANCE), "less").pvalue
    return f"{only}, and not {accuracy:.0%}, as in its training: {why}." if p < CHANCE else ""
