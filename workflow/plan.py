"""Read a grid, check all that can be wrong with it, and plan its runs. Loads no torch, unless a DATASET is wrong."""

import contextlib
import functools
import hashlib
import itertools
import json
import math
import os
from pathlib import Path
from urllib.parse import quote

import yaml

from utils import fingerprint
from utils.choices import DATASETS
from utils.errors import InputError, choose
from utils.notebook.parameters import assignments, check_parameters
from workflow import commits, run

ROOT = Path(__file__).parent.parent
MOST = 10_000  # runs
MOVED = ROOT / "book" / "moved.yaml"  # old names of notebooks, under which some grids were recorded
TEXT, NAMES = (str, "text"), (dict, "names with values, as in {IMAGES: 500}")
KEYS = {  # of a grid; the last three are for workflow.record
    "experiment": TEXT, "about": TEXT, "parameters": NAMES, "cross": NAMES,
    "minutes": (int | float, "a number larger than 0"), "retries": (int, "a whole number from 0 on"),
    "label": TEXT, "full_size": (bool, "true or false"), "pictures": (list, "a list, as in [{SEED: 0, first: 8}]"),
}  # fmt: skip


class Strict(yaml.SafeLoader):
    """YAML in which no name stands twice: of two, YAML itself silently takes the second."""

    def construct_mapping(self, node, deep=False):
        names = [key.value for key, _ in node.value]
        if twice := [name for place, name in enumerate(names) if name in names[:place]]:
            raise InputError(f"{twice[0]} is named twice: take one out.")
        return super().construct_mapping(node, deep)


def read(path):
    """Return what a grid's file holds."""
    try:
        return yaml.load(Path(path).read_text(encoding="utf-8"), Strict)
    except OSError as error:
        raise InputError(f"the file cannot be read ({error.strerror}): check its path.") from error
    except (yaml.YAMLError, UnicodeError) as error:
        why = " ".join(str(error).split())
        raise InputError(f"the file cannot be read as YAML ({why}): mend it as in experiments/example.yaml.") from error


def check_keys(grid):
    """Raise InputError unless the grid has the keys that it may have, with values of the right kind."""
    if not isinstance(grid, dict):
        raise InputError("a grid needs experiment: and cross:, as in experiments/example.yaml.")
    for name, value in grid.items():
        if name not in KEYS:
            raise InputError(f"there is no key {name!r}; a grid has {', '.join(KEYS)}.")
        kind, what = KEYS[name]
        right = isinstance(value, kind) and isinstance(value, bool) == (kind is bool)
        if not right or name == "minutes" and not 0 < value < math.inf or name == "retries" and value < 0:
            raise InputError(f"{name} is {value!r}; it must be {what}.")
    if not grid.get("cross"):
        raise InputError("there are no runs: say what to cross, as in cross: {SEED: [0, 1, 2]}.")


def notebook_of(name):
    """Return the path of a notebook in experiments/ or book/, and the parameters {name: default} that it declares."""
    there = {path.stem: path for folder in ("book", "experiments") for path in sorted((ROOT / folder).glob("*.ipynb"))}
    moved = yaml.safe_load(MOVED.read_text(encoding="utf-8")) if MOVED.exists() else {}
    name = name if name in there else moved.get(name, name)
    path = there[choose("experiment", name, there)]
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    sources = ["".join(cell["source"]) for cell in cells if "parameters" in cell["metadata"].get("tags", [])]
    return path, assignments("\n".join(sources))


def typed(value, default):
    """A text as a number, if the parameter's default is one and the text can be one: YAML 1.1 takes 1e-3 for a text."""
    for kind in (int, float) if isinstance(value, str) and isinstance(default, (int, float)) else ():
        with contextlib.suppress(ValueError):
            return kind(value)
    return value


def check_values(declared, name, values):
    """Raise InputError unless all these values may be given to the parameter of a notebook."""
    if name in run.OWN:
        raise InputError(f"{name} is set for every run: take it out.")
    for place, value in enumerate(values):
        check_parameters(declared, {name: value})
        if value in values[:place]:
            raise InputError(f"{name} has {value!r} twice: take one out.")
        if name == "DATASET" and value not in DATASETS and not (value.endswith(".npz") and os.path.isfile(value)):
            from utils import images

            images.load(value)  # says what is wrong


def parameters_of(grid, given, declared):
    """Return the fixed parameters {name: value} and the crossed ones {name: values} of a grid, when all are right."""
    fixed, cross = {**grid.get("parameters", {}), **given}, grid["cross"]
    for name, values in cross.items():
        if name in fixed:
            raise InputError(f"{name} is crossed and has one value, too: take one of them out.")
        if not isinstance(values, list) or not values:
            raise InputError(f"{name} is {values!r}; under cross it must be a list of values, as in [0, 1, 2].")
    fixed = {name: typed(value, declared.get(name)) for name, value in fixed.items()}
    cross = {name: [typed(value, declared.get(name)) for value in values] for name, values in cross.items()}
    for name, values in {**{name: [value] for name, value in fixed.items()}, **cross}.items():
        check_values(declared, name, values)
    if (runs := math.prod(map(len, cross.values()))) > MOST:
        raise InputError(f"these are {runs:,} runs: cross fewer values, for {MOST:,} runs at most.")
    return fixed, cross


@functools.cache
def contents(path):
    """SHA-256 of a file; of a value that names none, nothing."""
    return hashlib.sha256(Path(path).read_bytes()).hexdigest() if os.path.isfile(path) else None


def runs_of(shared, fixed, cross):
    """Pairs of the name of a run, SEED=0,START=random, and what it needs; its key stands for all that it depends on."""
    for values in itertools.product(*cross.values()):
        crossed = dict(zip(cross, values))
        parameters = fixed | crossed
        files = [contents(value) for value in parameters.values() if isinstance(value, str)]
        text = json.dumps([shared["fingerprint"], parameters, files], sort_keys=True)
        about = {"key": hashlib.sha256(text.encode()).hexdigest()[:16], "crossed": crossed, "parameters": parameters}
        about["label"] = " ".join(f"{name}={value}" for name, value in crossed.items())
        yield ",".join(f"{name}={quote(str(value))}" for name, value in crossed.items()), shared | about


def plan_of(grid, given):
    """Check a grid, and return its plan."""
    check_keys(grid)
    notebook, declared = notebook_of(grid.get("experiment"))
    fixed, cross = parameters_of(grid, given, declared)
    named = sorted({*fixed, *cross, *run.OWN, "DATASET"})  # the latter is given where the images lie elsewhere
    code = fingerprint.of(notebook, named)
    shared = {"notebook": str(notebook), "given": named, "fingerprint": code, "threads": None}
    shared["commit"] = commits.commit_of(notebook.relative_to(ROOT), named, code)
    shared |= {"own": [name for name in run.OWN if name in declared], "minutes": grid.get("minutes", run.MINUTES)}
    return planned(dict(runs_of(shared, fixed, cross)), grid.get("retries", 0))


def planned(runs, retries=0):
    """The plan of some runs {name: what it needs}."""
    jobs, threads = run.shares(len(runs))
    return {"root": str(ROOT), "jobs": jobs, "threads": threads, "retries": retries, "runs": runs}
