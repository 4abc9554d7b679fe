"""What grids at the paper's size gave, read from `data/results` (lab/record.py says what its files hold).

A record is a table of pandas with a row for each number: name and seed are its index, value and baseline two columns,
and every parameter that a grid crosses one more. `load("path").query("ACTIVATION == 'gelu'").value["path/loss"]` is the
loss of some runs, by their seeds.
"""

import io
import json
from contextlib import contextmanager

import numpy as np
import pandas as pd
import torch

from evaluation import evaluate, notation
from lab import report
from training.images import DATA
from training.stationary import STATIONARY
from utils.errors import InputError

# How much these may change in the second half of the steps of an attack.
SETTLED = {"leak_auc": 0.05, "alike": 5}
PAIR = ("reconstructions", "nearest_training")
NUMBERS = {"seed": int, "value": float, "baseline": float}  # columns, and their types


@contextmanager
def readable(path, what=""):
    """InputError that names a file of recorded results, whatever goes wrong in the block that reads it."""
    try:
        yield
    except Exception as error:  # damaged files raise almost anything: EOFError, BadZipFile, …
        raise InputError(
            f"{path} cannot be read{what}: take it from the repository again."
        ) from error


def load(name: str) -> pd.DataFrame:
    """Read the results of a grid, in the order of seeds; InputError if they are missing or damaged.

    Its `attrs` are the name, and what NAME.json holds: command, grid and provenance.
    """
    table, description = (DATA / "results" / f"{name}.{kind}" for kind in ("csv", "json"))
    with readable(description):
        about = json.loads(description.read_text(encoding="utf-8"))
        crossed = ["seed" if one == "SEED" else one for one in about["grid"]["cross"]]
        count = about["runs"]
    with readable(table):
        text = table.read_text(encoding="utf-8")
        rows = pd.read_csv(
            io.StringIO(text),
            dtype=NUMBERS,
            keep_default_na=False,  # “none” is a value of NORM
            na_values=[""],
        )
        finite = np.isfinite(rows.value + rows.baseline.fillna(0)).all()
        if not (text.endswith("\n") and finite and len(rows.drop_duplicates(crossed)) == count):
            raise ValueError("a line, a number or a run is not there")
    rows = rows.sort_values("seed", kind="stable").set_index(["name", "seed"])
    rows.attrs = {"name": name, **about}
    return rows


def everything():
    """All records, {name: table}: those at a paper's size first, those on our own photographs last."""
    records = [load(path.stem) for path in sorted((DATA / "results").glob("*.json"))]

    def place(record):
        parameters = record.attrs["grid"].get("parameters", {})
        own = parameters.get("DATASET", "photos").startswith("photos")
        return not record.attrs["full_size"], own

    return {record.attrs["name"]: record for record in sorted(records, key=place)}


def numbers(record, quantity, column="value"):
    """A quantity by seed; empty if it was not recorded, InputError if a seed has it several times."""
    found = record[column].get(quantity, pd.Series(dtype=float))
    if found.index.has_duplicates:
        raise InputError(f"{quantity} has several values per seed: choose by more parameters.")
    return found


def stationary(record, prefix):
    """Which runs attacked a victim that has converged: a bool by seed."""
    return numbers(record, f"{prefix}/victim_error") <= STATIONARY


def converged(record, prefix):
    """Which runs converged, the victim and the attack on it: a bool by seed."""
    done = stationary(record, prefix)
    if prefix.startswith("bilevel"):
        far = numbers(record, f"{prefix}/relative_distance")
        return done.reindex(far.index, fill_value=False) & (
            far <= evaluate.SOLVED[prefix.split("/")[1]]
        )
    halfway = f"steps/{record.attrs['grid']['parameters']['STEPS'] // 2}/"
    for name, most in SETTLED.items():
        before, after = (numbers(record, f"{prefix}/{at}{name}") for at in (halfway, ""))
        done = done.reindex(after.index, fill_value=False) & ((after - before).abs() <= most)
    return done


def said(record, quantity, column="value", of=list):
    """A quantity's mean over the seeds with its extent, in words; and in how many seeds it is, if not in all.

    The column `both` is the quantity and its baseline. `of` makes one number or words of those of all seeds.
    """
    if column == "both":
        return "; ".join(said(record, quantity, one, of) for one in ("value", "baseline"))
    found = numbers(record, quantity, column)
    if found.empty:
        return "–"
    words = of(found)
    if not isinstance(words, str):
        words = notation.mean_with_range(words if isinstance(words, list) else [words])
    seeds = len(record.attrs["grid"]["cross"].get("SEED", ()))
    return words + f" ({len(found)} of {seeds} seeds)" * (len(found) < seeds)


def summary(corner, runs, quantities, across=False, caption=""):
    """A Markdown table of quantities over their seeds, below a caption.

    `runs` are {label: (record, prefix of all names)}, a line each, or `across` a column each. `quantities` are {label:
    cell} or pairs of these. A cell is a name or all that `said` takes after the record, a list of such, which are
    put one after the other, or a function of a record and a prefix.
    """

    def words(cell, record, prefix):
        if callable(cell):
            return cell(record, prefix)
        if isinstance(cell, list):
            return "; ".join(words(one, record, prefix) for one in cell)
        name, *how = [cell] if isinstance(cell, str) else cell
        return said(record, f"{prefix}/{name}", *how)

    pairs = [*(quantities.items() if isinstance(quantities, dict) else quantities)]
    table = [[corner, *(label for label, _ in pairs)]]
    table += [[label, *(words(cell, *run) for _, cell in pairs)] for label, run in runs.items()]
    return report.table(*(zip(*table) if across else table), caption=caption)


def pictures(name, key):
    """Pictures of a run, {what: (k, d) in [0, 1]}, its similarities (k,), and the shape of one picture."""
    path = DATA / "results" / f"{name}.npz"
    with readable(path, f" for {key}"), np.load(path) as archive:
        named = {name.split("/")[1]: archive[name] for name in archive if name.split("/")[0] == key}
        shape = named["reconstructions"].shape[1:]
        rows = {what: torch.from_numpy(array).double() for what, array in named.items()}
    return {what: x.flatten(1) / 255 if x.dim() > 1 else x for what, x in rows.items()}, shape
