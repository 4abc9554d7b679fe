"""What grids at the paper's size gave, read from `data/results` (lab/record.py says what its files hold)."""

import csv
import json
import math
import re
from contextlib import contextmanager
from typing import NamedTuple

import numpy as np
import torch

from evaluation import evaluate, notation
from lab import report
from training.images import DATA
from training.stationary import STATIONARY
from utils.errors import InputError

SETTLED = {
    "leak_auc": 0.05,
    "alike": 5,
}  # how much these may change in the second half of the steps of an attack
NAME = r"[^ ;/].*?(?=; | / |$)"  # of several, with ; or / between them
BASELINE = " (baseline)"  # behind the name of a quantity
HOW = {  # behind a name and a comma: what is printed of its seeds, in place of their mean with its extent
    "largest": lambda values: notation.mean_with_range([max(values)]),
    "smallest": lambda values: notation.mean_with_range([min(values)]),
    "in all": lambda values: notation.mean_with_range([sum(values)]),
    "each": report.joined,
}
PAIR = ("reconstructions", "nearest_training")


class Recorded(NamedTuple):
    """The recorded results of one grid."""

    name: str  # of the grid
    rows: list  # a dict per number
    about: dict  # command, grid and provenance


@contextmanager
def readable(path, what=""):
    """InputError that names a file of recorded results, whatever goes wrong in the block that reads it."""
    try:
        yield
    except (
        Exception
    ) as error:  # damaged files raise almost anything: EOFError, KeyError, BadZipFile, …
        raise InputError(
            f"{path} cannot be read{what}: take it from the repository again."
        ) from error


def load(name: str) -> Recorded:
    """Read the results of a grid; InputError if they are missing or damaged."""
    table, description = (DATA / "results" / f"{name}.{kind}" for kind in ("csv", "json"))
    with readable(description):
        about = json.loads(description.read_text(encoding="utf-8"))
        crossed = [*about["grid"]["cross"]]
        runs = about["runs"]
    with readable(table):
        rows = list(
            csv.DictReader((text := table.read_text(encoding="utf-8")).splitlines(), strict=True)
        )
        numbers = [
            int(row["seed"]) + float(row["value"]) + float(row["baseline"] or 0) for row in rows
        ]
        there = {tuple(row["seed" if name == "SEED" else name] for name in crossed) for row in rows}
        if not (text.endswith("\n") and all(map(math.isfinite, numbers)) and len(there) == runs):
            raise ValueError("a line, a number or a run is not there")
    return Recorded(name, rows, about)


def everything():
    """The Recorded of all grids, {name: Recorded}: those at a paper's size first, those on our own photographs last."""
    records = [load(path.stem) for path in sorted((DATA / "results").glob("*.json"))]
    own = {
        one.name: one.about["grid"].get("parameters", {}).get("DATASET", "photos") == "photos"
        for one in records
    }
    return {
        one.name: one
        for one in sorted(records, key=lambda one: (not one.about["full_size"], own[one.name]))
    }


def values(recorded, quantity, column="value", **where):
    """A quantity or its baseline, {seed: number} of the runs with these parameters; InputError if not unique.

    `alike (baseline)` is another way to write the baseline of alike.
    """
    if quantity.endswith(BASELINE):
        quantity = quantity.removesuffix(BASELINE)
        column = "baseline"
    where = {"name": quantity} | where
    rows = [
        row
        for row in recorded.rows
        if all(row[name] == str(value) for name, value in where.items())
    ]
    numbers = {int(row["seed"]): float(row[column]) for row in rows}
    if len(numbers) < len(rows):
        raise InputError(
            f"{quantity} of {recorded.name} has several values per seed: name more parameters."
        )
    return numbers


def by_seed(recorded, quantity, column="value", **where):
    """The same as a list, in the order of seeds."""
    return [number for _, number in sorted(values(recorded, quantity, column, **where).items())]


def stationary(recorded, prefix, **where):
    """Which runs attacked a victim that has converged: {seed: bool}."""
    return {
        seed: error <= STATIONARY
        for seed, error in values(recorded, f"{prefix}/victim_error", **where).items()
    }


def converged(recorded, prefix, **where):
    """Which runs converged, the victim and the attack on it: {seed: bool}."""
    done = stationary(recorded, prefix, **where)
    if prefix.startswith("bilevel"):
        far = values(recorded, f"{prefix}/relative_distance", **where)
        return {
            seed: done.get(seed, False) and far[seed] <= evaluate.SOLVED[prefix.split("/")[1]]
            for seed in far
        }
    halfway = f"steps/{recorded.about['grid']['parameters']['STEPS'] // 2}/"
    for name, most in SETTLED.items():
        before, after = (values(recorded, f"{prefix}/{at}{name}", **where) for at in (halfway, ""))
        done = {
            seed: done.get(seed, False) and abs(after[seed] - before[seed]) <= most
            for seed in after
        }
    return done


def beyond(recorded, quantity, **where):
    """By how much a quantity is above its baseline: one number per seed."""
    after, before = (
        values(recorded, quantity, column, **where) for column in ("value", "baseline")
    )
    return [after[seed] - before[seed] for seed in after]


def result(recorded, names, **where):
    """A quantity's mean over the seeds with its extent, in words; and in how many seeds it is, if not in all.

    Several names, between ; or / as in "alike; alike (baseline)", are put into words one after the other. A name may
    end in ", beyond", for the quantity less its baseline, or in one of HOW, as in "alike, largest".
    """

    def words(name):
        quantity, _, how = name[0].partition(", ")
        numbers = (beyond if how == "beyond" else by_seed)(recorded, quantity, **where)
        seeds = len(recorded.about["grid"]["cross"].get("SEED", ()))
        few = f" ({len(numbers)} of {seeds} seeds)" if 0 < len(numbers) < seeds else ""
        return (HOW.get(how, notation.mean_with_range)(numbers) if numbers else "–") + few

    return re.sub(NAME, words, names)


def summary(corner, runs, quantities, across=False, say=result):
    """A Markdown table of quantities over their seeds, as `say` puts a Recorded, a name and parameters into words.

    `runs` are {label: (Recorded, prefix of all names, {parameter: value})}, a line each, or `across` a column each;
    `quantities` are {label: names}, or pairs of these, with ; or / between several names.
    """

    def cell(names, record, prefix, where):
        return re.sub(NAME, lambda name: say(record, f"{prefix}/{name[0]}", **where), names)

    pairs = [*(quantities.items() if isinstance(quantities, dict) else quantities)]
    table = [[corner, *(label for label, _ in pairs)]]
    table += [[label, *(cell(names, *run) for _, names in pairs)] for label, run in runs.items()]
    return report.table(*(zip(*table) if across else table))


def pictures(recorded, key):
    """Pictures of a run, {what: (k, d) in [0, 1]}, its similarities (k,), and the shape of one picture."""
    path = DATA / "results" / f"{recorded.name}.npz"
    with readable(path, f" for {key}"), np.load(path) as archive:
        named = {name.split("/")[1]: archive[name] for name in archive if name.split("/")[0] == key}
        shape = named["reconstructions"].shape[1:]
        rows = {what: torch.from_numpy(array).double() for what, array in named.items()}
    return {what: x.flatten(1) / 255 if x.dim() > 1 else x for what, x in rows.items()}, shape


def mean(recorded, quantity, column="value", **where):
    """The mean of a quantity or its baseline over the seeds."""
    return notation.extent(by_seed(recorded, quantity, column, **where))[0]


def with_null(name):
    """The names of a quantity and of its baseline, one after the other."""
    return f"{name}; {name}{BASELINE}"


def on_the_way(recorded, prefix, quantity, **where):
    """The mean of a quantity over the seeds after so many steps of an attack: {steps: number}."""
    names = {row["name"] for row in recorded.rows if row["name"].startswith(f"{prefix}/steps/")}
    steps = sorted({int(name.removeprefix(f"{prefix}/steps/").split("/")[0]) for name in names})
    return {k: mean(recorded, f"{prefix}/steps/{k}/{quantity}", **where) for k in steps}
