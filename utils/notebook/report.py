"""What every chapter does with its parameters at the start and with its numbers at the end."""

import json
import os
import platform
import re
import statistics
import tempfile
import time
from collections import namedtuple
from importlib.metadata import version
from pathlib import Path

import torch
from IPython import get_ipython
from IPython.display import Markdown

from utils.errors import InputError, write
from utils.notebook import registry
from utils.notebook.parameters import assignments, check_parameters
from utils.trial import Row as Row  # notebooks make their numbers with report.Row and report.rows
from utils.trial import rows as rows

PROBE = 2**20  # bytes that must fit where a file is to be written; results are smaller

cells_run = []  # the source of every cell since this module was imported, whether or not the kernel keeps a history
if get_ipython():
    get_ipython().events.register("pre_run_cell", lambda info: cells_run.append(info.raw_cell))


# One run of a chapter: its parameters {name: value}, its torch device, and when it started (seconds).
Run = namedtuple("Run", "parameters device started")


def begin():
    """Check the chapter's parameters, choose its device, and see that RESULTS can be written: the Run."""
    heads = ("# Parameters of", "# Parameters\n")  # of the chapter's own cell, and of papermill's behind it
    declared, injected = (next((c for c in reversed(cells_run) if c.startswith(head)), "") for head in heads)
    if not declared:
        raise InputError("The cell that begins with '# Parameters of this chapter' has not been run: run all cells.")
    declared = assignments(declared)
    check_parameters(declared, assignments(injected))
    parameters = {name: get_ipython().user_ns[name] for name in declared}
    for name in parameters.keys() & {"RESULTS", "PICTURES"}:
        check_writable(name, parameters[name])
    return Run(parameters, choose_device(parameters["DEVICE"]), time.monotonic())


def need(holds, said):
    """Raise InputError, with the sentence `said`, unless something holds that other parameters may make false."""
    if not holds:
        raise InputError(f"{said} The text here does not hold with these parameters: take others, or the defaults.")


def choose_device(name):
    """Return the torch device `cpu` or `cuda`; `auto` is a GPU where there is one."""
    found = torch.cuda.is_available()
    if name == "cuda" and not found:
        raise InputError("DEVICE is 'cuda', but torch finds no GPU here: use DEVICE='auto' or 'cpu'.")
    return torch.device("cuda" if found and name != "cpu" else "cpu")


def check_writable(name, path):
    """Raise InputError unless a file can be written at `path`, if there is one; makes the folder if it is missing."""
    if not path:
        return
    try:
        folder, file = os.path.split(os.path.abspath(path))
        os.makedirs(folder, exist_ok=True)
        if os.path.lexists(path) and not os.path.isfile(path):  # a folder, or a device, which would be replaced
            raise OSError("it is there, but is no file")
        with tempfile.NamedTemporaryFile(dir=folder, prefix=f"{file}.", suffix=".tmp") as probe:
            probe.write(bytes(PROBE))  # a buffer writes all of it, or fails
    except (OSError, ValueError) as error:  # ValueError: a NUL byte
        raise unwritable(name, path, error) from error


def unwritable(name, path, error):
    """The InputError for a file that cannot be written."""
    reason = getattr(error, "strerror", None) or error
    return InputError(f"{name} cannot be written to {path!r} ({reason}): give the path of a file in a folder of yours.")


def save_file(name, path, contents):
    """Write bytes to the path that a parameter gives, whole or not at all; InputError if that fails."""
    try:
        write(Path(path), contents)
    except OSError as error:
        raise unwritable(name, path, error) from error


def save(run, rows, sha256):
    """Write parameters, provenance and rows as one JSON object to RESULTS, whole or not at all; nothing if empty.

    Raises InputError, with or without RESULTS, unless every row is as `registry` has it. Whatever stops the file
    after hours of work, the numbers are printed then.
    """
    provenance = {
        "versions": {"python": platform.python_version()} | {n: version(n) for n in ("torch", "numpy", "scipy")},
        "device": str(run.device),
        "threads": torch.get_num_threads(),
        "duration_seconds": round(time.monotonic() - run.started, 3),
        "data_sha256": sha256,
    }
    named = (row._asdict() | (row.where or {}) | {"where": None} for row in rows)
    listed = [{key: value for key, value in one.items() if value is not None} for one in named]
    content = {"parameters": run.parameters, "provenance": provenance, "rows": listed}
    text, path = json.dumps(content, indent=1), run.parameters["RESULTS"]
    try:
        for row in rows:
            registry.check(row.name, row.value, row.baseline, run.parameters, row.where or {})
        if path:
            save_file("RESULTS", path, text.encode())
    except InputError as error:
        if path:
            print(text)
        raise InputError(f"{error} The numbers are printed above." if path else str(error)) from error


def typeset(text):
    """Write 2e-06 as 2·10⁻⁶, and keep the parts of a number on one line."""
    superscript = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
    text = re.sub(r"e([+-]\d+)", lambda power: "·10" + str(int(power[1])).translate(superscript), text)
    return text.replace("< 1·", "< ").replace(" ", "\u00a0")


def number(value, floor=1e-12):
    """Print a number with two digits; what lies below `floor` is rounding, and said to be so."""
    return typeset(f"< {floor:.0e}" if abs(value) < floor else f"{value:.2g}")


def mean_sd(values, floor=1e-12):
    """Print mean ± standard deviation over seeds, or a value alone, or – if there is none; None does not count."""
    values = [value for value in values if value is not None]
    if len(values) < 2 or max(map(abs, values)) < floor:
        return number(values[0], floor) if values else "–"
    mean, spread = statistics.mean(values), statistics.stdev(values)
    spread = float(f"{spread:.1g}") if spread > 1e-9 * abs(mean) else 0  # 10, not 1e+01
    return typeset(f"{mean:.2g} ± {spread:g}")


def extremes(values):
    """Print the smallest and the largest of some numbers."""
    return f"{min(values):.3g} to {max(values):.3g}"


def joined(values):
    """Print whole numbers, one per seed, one after the other."""
    return ", ".join(f"{value:.0f}" for value in values)


def table(header, *rows):
    """Return a Markdown table; cells are strings."""
    lines = [[str(cell).replace("|", "\\|") for cell in line] for line in (header, ["---"] * len(header), *rows)]
    return Markdown("\n".join("| " + " | ".join(line) + " |" for line in lines))
