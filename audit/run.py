"""One call from weights and pictures to a report: `audit`, whose lines are the order in which all of it happens."""

import math
import os
import sys
import time
from collections.abc import Mapping
from dataclasses import fields, replace
from functools import cache
from pathlib import Path
from typing import Any

import torch

from audit import before as known_start
from audit import (
    files,
    fit,
    modules,
    pictures,
    report,
    shadows,
    stages,
    start,
    states,
    weights,
    whole,
)
from audit.showing import Asking, Showing
from utils.errors import InputError, choose, explained


def audit(
    network: weights.Source,
    members: pictures.Source,
    held_out: pictures.Source,
    before: weights.Source | None = None,
    *,
    key: str | None = None,
    model: str | None = None,
    optimizer: str | Path | Mapping | None = None,
    progress: bool = True,
    **options: Any,
) -> report.Report:
    """Ask what a network gives away of its training pictures `members`: a Report, or InputError.

    `network` and `before` are what `weights.read` takes, `members` and `held_out` what `pictures.load` takes. `key`
    names one of several networks in a file, and `model`, "MODULE:FUNCTION", builds its module. `optimizer` is an
    optimiser's state in a file of its own. `options` are the fields of `Showing` and of `Asking`.
    """
    started = time.monotonic()
    showing, asking = options_of(options)
    sources = members, held_out
    net, showing = network_for(network, sources, showing, key, model)
    showing, notes = with_normalisation(showing, net)
    sides, done = pictures.both(sources, showing)
    state = state_of(network, optimizer, net.layers, showing)
    notes += [*done, *state.notes]
    case = case_of(net, sides, showing, asking)._replace(state=state, notes=tuple(notes))
    run = Run(asking.limit, progress)
    if before is None:
        for stage in start.planned(case, network, model):
            case = known_start.with_start(case, run(stage))
    else:
        case = known_start.with_before(case, before, key)
    for stage in shadows.planned(case) + stages.planned(case) + whole.planned(case):
        run(stage)
    better, left_out = fit.better(case, run.is_over)
    doubts = better, fit.poor(run.outcomes, asking.accuracy, case.labels[0])
    case = case._replace(notes=(*case.notes, *left_out))
    origin = {"key": key, "model": model, "before": before is not None}
    return report.reported(case, run.outcomes, doubts, origin, time.monotonic() - started)


def options_of(options):
    """The Showing and the Asking of options by name; InputError for a name or a value that is none."""
    names = [[one.name for one in fields(kind)] for kind in (Showing, Asking)]
    for name in options:
        choose("The option", name, sum(names, []))
    showing, asking = ({name: options[name] for name in own if name in options} for own in names)
    return Showing(**showing), Asking(**asking)


def network_for(network, sources, showing, key=None, model=None):
    """The weights.Network, and the Showing with the shape (H, W, C) with which all pictures can be read."""
    source, notes = modules.built(model, network, key) if model else (network, ())
    key_there = None if model else key
    found = []
    refusals = []
    for shape in shapes_of(sources, tuple(map(int, showing.shape))):
        try:
            one = weights.read(source, shape, showing.layout, key_there, showing.activation)
            if one.logits:
                outputs_of(one.logits, torch.zeros(1, math.prod(shape), dtype=torch.float64))
            found.append((one, replace(showing, shape=shape)))
        except InputError as error:
            refusals.append(error)
    if not found:
        raise refusals[-1]
    net, showing = min(found, key=lambda pair: pair[0].logits is None)
    if model:
        name = Path(network).name if isinstance(network, str | Path) else net.name
        net = net._replace(name=name, notes=(*net.notes, *notes))
    return net, showing


def shapes_of(sources, shape):
    """The shapes (H, W, C) that pictures may have: `shape`, (H, W) or with C, or that of arrays, or of most files."""
    sizes = {pictures.batch(one)[0].shape[1:] for one in sources if not pictures.is_folder(one)}
    sizes |= {shape} if len(shape) == 3 else set()
    if len(sizes) > 1:
        raise InputError(f"Pictures have the sizes {sorted(sizes)}: give those of the network.")
    return [*sizes] or ([(*shape, k) for k in (1, 3)] if shape else pictures.own_shapes(sources))


def with_normalisation(showing, network):
    """The Showing with the mean and the deviation given, or held by a weights.Network, or 0 and 1; and notes."""
    values = {}
    notes = []
    held = network.normalisation or (None, None)
    for name, own, usual in zip(("mean", "deviation"), held, (0.0, 1.0)):
        value = getattr(showing, name)
        if value is None and own is not None:
            value = own
            listed = ", ".join(f"{x:g}" for x in own.tolist())
            notes.append(f"The {name} is that in the network's file: {listed}.")
        value = torch.as_tensor(usual if value is None else value, dtype=torch.float64)
        values[name] = tuple(value.flatten().tolist())
    return replace(showing, **values), notes


def state_of(network, optimizer, layers, showing):
    """The states.State in what a network is read from, or in an optimizer's own file or dict."""
    own = files.file_in(network, files.STATES) or network
    given = [own, optimizer]
    sources = [one for one in given if isinstance(one, str | Path | Mapping)]
    state = states.read(sources, layers, showing.shape, showing.layout)
    if optimizer is not None and state == states.State():
        raise InputError(
            "The optimizer's file holds no state: give what optimizer.state_dict() returns."
        )
    return state


def case_of(
    network: weights.Network, sides: list[pictures.Pictures], showing: Showing, asking: Asking
) -> stages.Case:
    """The stages.Case of both sides' Pictures: as the network sees them, with numbered classes."""
    precision = torch.float64 if network.layers else torch.float32
    nothing = torch.zeros(math.prod(showing.shape), dtype=precision)
    first = showing.rows(sides[0].images[:2].to(nothing))
    outputs = outputs_of(network.logits, first) if network.logits else 1
    labels = pictures.numbered(sides, outputs, showing.classes)
    case = stages.Case(
        network=network,
        showing=showing,
        asking=asking,
        pictures=tuple(sides),
        average=nothing,
        apart=nothing,
        outputs=outputs,
        labels=labels,
        known=cache(lambda: stages.classified(network.logits, case.rows, labels)),
    )
    if showing.centred:
        own, both = case.rows[0].mean(0), torch.cat(case.rows).mean(0)
        case = case._replace(average=own, apart=own - both)
    return case


def outputs_of(logits, x):
    """How many outputs a network has; InputError if it cannot take pictures x (n, d)."""
    with explained(*weights.MISFIT):
        return logits(x).shape[1]


class Run:
    """Runs Stages until so many seconds of a processor are spent, however busy that is; the others are skipped."""

    def __init__(self, limit, progress):
        self.limit = limit
        self.end = time.process_time() + limit
        self.progress = progress and "TQDM_DISABLE" not in os.environ
        self.outcomes = []

    def is_over(self):
        """Whether nothing more is started."""
        return time.process_time() >= self.end

    def __call__(self, stage):
        """The Outcome of a Stage, which is kept; a line says that it begins."""
        if self.is_over():
            said = f"The audit had taken its limit of {self.limit:g} s before."
            outcome = stages.Outcome(stage.name, "skipped", said)
        else:
            if self.progress:
                print(stage.name, file=sys.stderr, flush=True)
            started = time.monotonic()
            try:
                outcome = stage.run(stage.name)
            except InputError as error:
                outcome = stages.Outcome(stage.name, "refused", str(error))
            outcome = outcome._replace(seconds=time.monotonic() - started, kind=stage.kind)
        self.outcomes.append(outcome)
        return outcome
