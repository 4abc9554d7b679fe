"""What every chapter does with its parameters at the start and with its numbers at the end."""

import json
import platform
import statistics
import time
from collections.abc import Collection, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import NamedTuple

import torch
from IPython import get_ipython
from IPython.display import Markdown

from evaluation import notation
from lab import registry
from lab.parameters import assignments, check
from utils.errors import InputError, check_writable, write, written
from utils.kernels import products, step

# Notebooks make and print their numbers with report.Row, report.rows and report.number.
Row = notation.Row
rows = notation.rows
number = notation.number
typeset = notation.typeset

cells_run = []  # the source of every cell since this module was imported, whether or not the kernel keeps a history


def shown(shell, kind, error, trace, tb_offset=None):
    """Show what stopped a cell: a full memory as a mistake that a reader can mend, all else as it is."""
    if step.full(error):
        error = InputError(
            "The memory is full: take smaller sizes in the cell of parameters, or end what else runs."
        )
    shell.showtraceback((type(error), error, trace), tb_offset=tb_offset)


if get_ipython():
    get_ipython().events.register("pre_run_cell", lambda info: cells_run.append(info.raw_cell))
    get_ipython().set_custom_exc((RuntimeError, MemoryError), shown)


class Run(NamedTuple):
    """One run of a chapter."""

    parameters: dict  # {name: value}
    device: torch.device  # on which it computes
    started: float  # when it started, in seconds of time.monotonic


def begin(**choices: Collection) -> Run:
    """Check the notebook's parameters, choose its device, and see that its files can be written: the Run.

    `choices` are the values that parameters may have, {name: several}; lab.grid reads them before a notebook is run.
    """
    # The notebook's own cell, and papermill's behind it.
    declared, injected = (
        next((cell for cell in reversed(cells_run) if cell.startswith(head)), "")
        for head in ("# Parameters of", "# Parameters\n")
    )
    if not declared:
        raise InputError(
            "The cell that begins with '# Parameters of this chapter' has not been run: run all cells."
        )
    declared = assignments(declared)
    for name, value in [*declared.items(), *assignments(injected).items()]:
        check(declared, choices, name, value)
    parameters = {name: get_ipython().user_ns[name] for name in declared}
    for name in ("RESULTS", "PICTURES"):
        if parameters.get(name):
            check_writable(name, parameters[name])
    if folder := parameters.get("REPORT"):
        check_writable("REPORT", Path(folder) / "report.html")
    return Run(parameters, choose_device(parameters["DEVICE"]), time.monotonic())


def need(holds, sentence):
    """Raise InputError, with a `sentence`, unless something holds that parameters may make false."""
    if not holds:
        raise InputError(
            f"{sentence} The text here does not hold with these parameters: take others, or the defaults."
        )


def choose_device(name):
    """Return the torch device `cpu` or `cuda`; `auto` is a GPU where there is one."""
    there = torch.cuda.is_available()
    if name == "cuda" and not there:
        raise InputError(
            "DEVICE is 'cuda', but torch finds no GPU here: use DEVICE='auto' or 'cpu'."
        )
    return torch.device("cuda" if there and name != "cpu" else "cpu")


def save_file(name: str, path: str | Path, contents: bytes) -> None:
    """Write bytes to the path that a parameter gives, whole or not at all; InputError if that fails."""
    with written(name, path):
        write(Path(path), contents)


def save(run: Run, rows: Sequence[notation.Row], sha256: str) -> None:
    """Write parameters, provenance and rows as one JSON object to RESULTS, or nothing if that is empty.

    Raises InputError unless every row is as `registry` has it; what stops the file, the numbers are printed then.
    """
    provenance = {
        "versions": {"python": platform.python_version()}
        | {n: version(n) for n in ("torch", "numpy", "scipy")},
        "device": str(run.device),
        "threads": torch.get_num_threads(),
        "products": products.LIBRARY,
        "duration_seconds": round(time.monotonic() - run.started, 3),
        "data_sha256": sha256,
    }
    named = (row._asdict() | (row.where or {}) | {"where": None} for row in rows)
    listed = [{key: value for key, value in one.items() if value is not None} for one in named]
    content = {"parameters": run.parameters, "provenance": provenance, "rows": listed}
    text = json.dumps(content, indent=1)
    path = run.parameters["RESULTS"]
    try:
        for row in rows:
            registry.check(row.name, row.value, row.baseline, run.parameters, row.where or {})
        if path:
            save_file("RESULTS", path, text.encode())
    except InputError as error:
        if path:
            print(text)
        raise InputError(
            f"{error} The numbers are printed above." if path else str(error)
        ) from error


def mean_sd(values, floor=1e-12):
    """Print mean ± standard deviation over seeds, or a value alone, or – if there is none; None does not count."""
    values = [value for value in values if value is not None]
    if len(values) < 2 or max(map(abs, values)) < floor:
        return number(values[0], floor) if values else "–"
    mean = statistics.mean(values)
    spread = statistics.stdev(values)
    spread = float(f"{spread:.1g}") if spread > 1e-9 * abs(mean) else 0  # 10, not 1e+01
    return typeset(f"{mean:.2g} ± {spread:g}")


def joined(values):
    """Print whole numbers, one per seed, one after the other."""
    return ", ".join(f"{value:.0f}" for value in values)


def table(header, *rows, caption=""):
    """Return a Markdown table below a caption, which says what to see in it; cells are strings."""
    lines = [
        [str(cell).replace("|", "\\|") for cell in line]
        for line in (header, ["---"] * len(header), *rows)
    ]
    text = "\n".join("| " + " | ".join(line) + " |" for line in lines)
    return Markdown(f"{caption}\n\n{text}" if caption else text)
