"""Read a grid, check all that can be wrong with it, and plan its runs. Loads torch; see scripts/grid.py."""

import contextlib
import functools
import hashlib
import itertools
import json
import math
import os
from pathlib import Path

import grid_run
import run_chapters

from utils.choices import DATASETS
from utils.errors import InputError
from utils.notebook.parameters import assignments, check_parameters

MOST = 100_000  # runs
OWN = {"RESULTS": "{}.json", "PICTURES": "{}.npz"}  # parameters that are set here, and the files that they name
KEYS: dict[str, tuple] = {
    "chapter": (str, "the name of a notebook in book/"),
    "about": (str, "one sentence"),
    "parameters": (dict, "names with values, as in parameters: {IMAGES: 500}"),
    "cross": (dict, "names with lists, as in cross: {SEED: [0, 1, 2]}"),
    "minutes": ((int, float), "a number larger than 0"),
    "retries": (int, "a whole number from 0 on"),
    "label": (str, "what the chapters call its recorded results"),  # from here on for scripts/record.py
    "full_size": (bool, "true or false: whether its runs are as large as the paper's"),
    "pictures": (list, "a list of which pictures to record, as in [{SEED: 0, first: 8}]"),
}


def yaml_of(text):
    """Return what a text of YAML holds; of a name that is there twice, YAML would silently take the second."""
    import yaml

    nodes = [node for node in [yaml.compose(text, yaml.SafeLoader)] if isinstance(node, yaml.CollectionNode)]
    for node in nodes:  # nodes are added on the way
        parts = [part for parts in node.value for part in (parts if isinstance(parts, tuple) else [parts])]
        nodes += [part for part in parts if isinstance(part, yaml.CollectionNode) and part not in nodes]
        names = [name.value for name, _ in node.value] if isinstance(node, yaml.MappingNode) else []
        if twice := [name for place, name in enumerate(names) if name in names[:place]]:
            raise InputError(f"{twice[0]} is named twice: take one out.")
    return yaml.safe_load(text)


def read(path):
    """Return what a grid's file holds."""
    import yaml

    try:
        return yaml_of(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"the file cannot be read ({error.strerror}): check its path.") from error
    except (yaml.YAMLError, UnicodeError) as error:
        mark = getattr(error, "problem_mark", None)
        where = f"line {mark.line + 1}, {getattr(error, 'problem', '')}" if mark else " ".join(str(error).split())
        raise InputError(f"the file cannot be read as YAML ({where}): mend it as in grids/example.yaml.") from error


def check_keys(grid):
    """Raise InputError unless the grid has the keys that it may have, with values of the right kind."""
    if not isinstance(grid, dict):
        raise InputError("a grid needs chapter: and cross:, as in grids/example.yaml.")
    for name, value in grid.items():
        if name not in KEYS:
            raise InputError(f"there is no key {name!r}; a grid has {', '.join(KEYS)}.")
        kind, told = KEYS[name]
        if value is None and name not in ("minutes", "retries"):
            continue
        right = isinstance(value, kind) and isinstance(value, bool) == (kind is bool) and value != math.inf
        if not right or name == "minutes" and value <= 0 or name == "retries" and value < 0:
            raise InputError(f"{name} is {value!r}; it must be {told}.")
    if not grid.get("cross"):
        raise InputError("there are no runs: say what to cross, as in cross: {SEED: [0, 1, 2]}.")


def chapter_of(grid, book):
    """Return the path of the grid's chapter and the parameters {name: default} that it declares."""
    there = {path.stem: path for path in sorted(book.glob("*.ipynb"))}
    if grid.get("chapter") not in there:
        raise InputError(f"chapter is {grid.get('chapter')!r}, but it must be one of {', '.join(there)}.")
    path = there[grid["chapter"]]
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
    """Raise InputError unless all these values may be given to the parameter of a chapter."""
    if name in OWN:
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
    fixed, cross = {**(grid.get("parameters") or {}), **given}, grid["cross"]
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


def plan_of(grid, given, book):
    """Check a grid, and return its plan: all that its runs need to know, and {key: parameters} of every run."""
    check_keys(grid)
    chapter, declared = chapter_of(grid, book)
    fixed, cross = parameters_of(grid, given, declared)
    code = run_chapters.key_of(chapter, {})
    runs = dict(runs_of(code, fixed, cross))
    return {
        "about": grid.get("about") or "",
        "code": code,
        "chapter": str(chapter.resolve()),
        "cwd": os.getcwd(),
        "files": {name: file for name, file in OWN.items() if name in declared},
        "minutes": grid.get("minutes", run_chapters.CELL_TIMEOUT / 60),
        "retries": grid.get("retries", 0),
        **shares(len(runs)),
        "runs": runs,
    }


def runs_of(code, fixed, cross):
    """Pairs of the key of a run, which stands for all that it depends on, and its label and parameters."""
    for values in itertools.product(*cross.values()):
        crossed = dict(zip(cross, values, strict=True))
        parameters = fixed | crossed
        files = [contents(value) for value in parameters.values() if isinstance(value, str)]
        text = json.dumps([code, parameters, files], sort_keys=True)
        label = " ".join(f"{name}={value}" for name, value in crossed.items())
        key = hashlib.sha256(text.encode()).hexdigest()[:16]
        yield key, {"label": label, "crossed": crossed, "parameters": parameters}


def shares(runs):
    """How many jobs run at a time here, at most so many `runs`, and how many threads each of them has."""
    cores = os.cpu_count() or 1
    jobs = typed(os.environ.get("JOBS") or min(cores, max(2, cores // 4), runs), 1)
    if not isinstance(jobs, int) or jobs < 1:
        raise InputError(f"JOBS is {jobs!r}; it must be a whole number larger than 0.")
    threads = typed(os.environ.get("OMP_NUM_THREADS", ""), 1)
    return {"jobs": jobs, "threads": threads if isinstance(threads, int) else max(1, cores // jobs)}


def finished(plan, folder):
    """{key: what it wrote} of the plan's runs that are finished."""
    found = {k: grid_run.finished(folder / f"{k}.json", run["parameters"]) for k, run in plan["runs"].items()}
    return {key: content for key, content in found.items() if content}
