"""Run a notebook for every combination of parameters, and again only what can give something new.

    python -m lab.grid GRID.yaml [NAME=VALUE …] [--profile FOLDER] [--dry-run]

experiments/example.yaml shows all that a grid may say. Everything is checked before the first run. Snakemake runs the
jobs, here or with a profile on a cluster. At the end come table.csv, means.html and Snakemake's report.
"""

import argparse
import contextlib
import fcntl
import hashlib
import itertools
import json
import math
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from lab.parameters import DATASETS, assignments, check, choices
from lab.run import (
    CODE,
    MINUTES,
    OWN,
    ROOT,
    code_of,
    results_of,
    sentence_of,
    typed,
    until_interrupted,
)
from utils.errors import InputError, choose, write

FOLDER = ROOT / "_build" / "grids"
SNAKEMAKE = ROOT / ".snakemake-env" / "bin" / "snakemake"
MOST = 10_000  # runs
FOR_GIT = [f":(glob){pattern}" for pattern in CODE]
KEYS: dict = {
    "experiment": str,
    "about": str,
    "parameters": dict,
    "cross": dict,
    "minutes": (int, float),
}
KEYS |= {"label": str, "full_size": bool, "pictures": list}  # for lab.record


class Strict(yaml.SafeLoader):
    """YAML in which no name stands twice: of two, YAML itself silently takes the second."""

    def construct_mapping(self, node, deep=False):
        if isinstance(node, yaml.MappingNode):
            refuse_twice("the file", [key.value for key, _ in node.value])
        return super().construct_mapping(node, deep)


def refuse_twice(where, values):
    """Raise InputError if one of the values is there twice."""
    for place, value in enumerate(values):
        if value in values[:place]:
            raise InputError(f"{where} has {value!r} twice: take one out.")


def read(path: str | Path) -> Any:
    """Return what a grid's file holds."""
    try:
        return yaml.load(Path(path).read_text(encoding="utf-8"), Strict)
    except InputError:
        raise
    except OSError as error:
        raise InputError(f"the file cannot be read ({error.strerror}): check its path.") from error
    except (yaml.YAMLError, ValueError) as error:  # ValueError: no UTF-8, or a date that is none
        why = " ".join(str(error).split())
        raise InputError(
            f"the file cannot be read as YAML ({why}): mend it as in experiments/example.yaml."
        ) from error


def check_keys(grid):
    """Raise InputError unless the grid has the keys that it may have, with values of the right kind."""
    if not isinstance(grid, dict) or not grid.get("cross"):
        raise InputError("there are no runs: say what to cross, as in cross: {SEED: [0, 1, 2]}.")
    for name, value in grid.items():
        right = isinstance(value, KEYS[choose("a key", name, KEYS)])
        if not right or name == "minutes" and not 0 < value < math.inf:
            raise InputError(f"{name} is {value!r}: write it as in experiments/example.yaml.")
    for name, values in grid["cross"].items():
        if not isinstance(values, list) or not values:
            raise InputError(
                f"{name} is {values!r}; under cross it must be a list of values, as in [0, 1, 2]."
            )


def notebook_of(name):
    """The path of a notebook in experiments/ or book/."""
    there = {
        path.stem: path
        for folder in ("book", "experiments")
        for path in sorted((ROOT / folder).glob("*.ipynb"))
    }
    return there[choose("experiment", name, there)]


def cells_of(notebook):
    """The source and the tags of each cell of code of the notebook at this Path."""
    for cell in json.loads(notebook.read_text(encoding="utf-8"))["cells"]:
        if cell["cell_type"] == "code":
            yield "".join(cell["source"]), cell["metadata"].get("tags", [])


def declared_by(notebook):
    """The parameters {name: default} that a notebook declares."""
    return assignments("\n".join(text for text, tags in cells_of(notebook) if "parameters" in tags))


def choices_by(notebook):
    """The values {name: several} that a notebook says its parameters may have."""
    begins = [text for text, _ in cells_of(notebook) if "report.begin(" in text]
    return choices(begins[0]) if begins else {}


def values_of(grid, given, declared, several):
    """The values {name: list} of all parameters that a grid sets; InputError if one is wrong, or none of `several`."""
    fixed = grid.get("parameters", {}) | given
    cross = grid["cross"]
    if both := fixed.keys() & cross.keys():
        raise InputError(f"{min(both)} is crossed and has one value, too: take one of them out.")
    if (runs := math.prod(map(len, cross.values()))) > MOST:
        raise InputError(f"these are {runs:,} runs: cross fewer values, for {MOST:,} runs at most.")
    values = {name: [value] for name, value in fixed.items()} | cross
    for name in values:
        if name in OWN:
            raise InputError(f"{name} is set for every run: take it out.")
        values[name] = [typed(value, declared.get(name)) for value in values[name]]
        refuse_twice(name, values[name])
        for value in values[name]:
            check(declared, several, name, value)
            if name == "DATASET" and value not in DATASETS and not os.path.isfile(value):
                from training import images

                images.load(value)  # says what is wrong
    return values


def git(*words):
    """What a command of git prints; None where there is no git, no repository or no such commit."""
    with contextlib.suppress(OSError, subprocess.CalledProcessError):
        return subprocess.run(
            ["git", *words], cwd=ROOT, capture_output=True, check=True, text=True
        ).stdout.strip()


def plan_of(grid: dict[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Check a grid, and return its plan: for each run what it needs, under a key of all that it depends on.

    Its commit is the one that is checked out, marked -dirty if the code is not that of the commit; "" without git.
    """
    check_keys(grid)
    declared = declared_by(notebook := notebook_of(grid.get("experiment")))
    values = values_of(grid, given, declared, choices_by(notebook))
    commit = git("rev-parse", "HEAD") or ""
    commit += "-dirty" * bool(git("status", "--porcelain", "--", *FOR_GIT, str(notebook)))
    shared = {
        "notebook": str(notebook),
        "code": code_of(notebook),
        "commit": commit,
        "threads": None,
        "own": [name for name in OWN if name in declared],
        "minutes": grid.get("minutes", MINUTES),
    }
    files = {
        value: hashlib.sha256(Path(value).read_bytes()).hexdigest()
        for value in itertools.chain(*values.values())
        if isinstance(value, str) and os.path.isfile(value)
    }
    runs = {}
    for combined in itertools.product(*values.values()):
        parameters = dict(zip(values, combined))
        crossed = {name: parameters[name] for name in grid["cross"]}
        data = [files.get(value) for value in combined]
        text = json.dumps([shared["code"], parameters, data], sort_keys=True)
        runs[hashlib.sha256(text.encode()).hexdigest()[:16]] = shared | {
            "crossed": crossed,
            "parameters": parameters,
            "label": " ".join(f"{name}={value}" for name, value in crossed.items()),
        }
    return planned(runs)


def planned(runs):
    """The plan of some runs {key: what it needs}: so many at a time, on so many threads, by JOBS and the cores."""
    cores = os.cpu_count() or 1
    stated = os.environ.get("OMP_NUM_THREADS", "")
    jobs = os.environ.get("JOBS") or str(max(1, min(len(runs), cores, max(2, cores // 4))))
    if not re.fullmatch("[1-9][0-9]*", jobs):
        raise InputError(f"JOBS is {jobs!r}; it must be a whole number larger than 0.")
    threads = int(stated) if re.fullmatch("[1-9][0-9]*", stated) else max(1, cores // int(jobs))
    return {"root": str(ROOT), "jobs": int(jobs), "threads": threads, "runs": runs}


def snakemake(plan, folder, profile, dry):
    """Write the plan into the folder of a grid; Snakemake's command for it, or to say what it would do."""
    if not SNAKEMAKE.exists():
        raise InputError("Snakemake is not set up: `make .snakemake-env/ready` does it.")
    if profile and not (Path(profile) / "config.yaml").is_file():
        raise InputError(f"there is no file {profile}/config.yaml: give the folder of a profile.")
    path = folder / "plan.json"
    own = {"path": str(path), "folder": str(folder), "python": sys.executable}
    write(path, json.dumps(plan | own | {"driver": os.getpid()}).encode())
    where = (
        ["--profile", Path(profile).resolve(), "--default-storage-prefix", folder]
        if profile
        else ["--cores", str(plan["jobs"] * plan["threads"])]
    )
    # The table is always made anew: where it is there, Snakemake would make no run for it.
    always = "--keep-going --nolock --rerun-triggers mtime --forcerun table --scheduler greedy"
    shown = (
        ["--dry-run", "--quiet", "rules"]
        if dry
        else ["--report", folder / "report.html", "--report-after-run"]
    )
    return [
        *(SNAKEMAKE, "--snakefile", ROOT / "lab" / "Snakefile", "--directory", folder),
        *("--config", f"plan={path}", "--nocolor", *always.split(), *where, *shown),
    ]


def finished(plan, folder):
    """{key: what it wrote} of the runs that are finished."""
    results = {key: results_of(folder / "runs" / key / OWN["RESULTS"]) for key in plan["runs"]}
    return {key: content for key, content in results.items() if content}


def drive(plan, folder, profile=None, dry=False):
    """Let Snakemake compute what is not finished; return {key: what it wrote} of all that is, and its status.

    The lock of the folder is held until this process and its Snakemake are gone; another driver waits for it.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / "driver.lock", "w") as lock, open(folder / "snakemake.log", "a") as log:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print(f"another driver is at work in {folder}: waiting until it has ended.", flush=True)
            fcntl.flock(lock, fcntl.LOCK_EX)
        log.truncate(0)
        print(f"{len(finished(plan, folder))} of {len(plan['runs'])} done: {folder}", flush=True)
        # What is there is whole.
        shutil.rmtree(folder / ".snakemake" / "incomplete", ignore_errors=True)
        streams: dict = dict(
            stdin=subprocess.DEVNULL, stderr=None if profile else log, pass_fds=[lock.fileno()]
        )
        process = subprocess.Popen(
            snakemake(plan, folder, profile, dry), start_new_session=True, **streams
        )
        try:
            status = process.wait()
        except KeyboardInterrupt:  # here, Snakemake and its jobs end with this process
            process.send_signal(signal.SIGINT)  # and on a cluster, it cancels them
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(20 if profile else 0)
            raise
        return finished(plan, folder), status


def arguments_of(words):
    """The parsed command line; .given is {parameter: text}, .folder is where runs are kept."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("grid")
    parser.add_argument("given", nargs="*", metavar="NAME=VALUE")
    parser.add_argument("--profile")
    for option in ("--dry-run", "--dirty"):
        parser.add_argument(option, action="store_true")
    chosen = parser.parse_intermixed_args(words)
    if wrong := [word for word in chosen.given if "=" not in word]:
        parser.error(f"{wrong[0]} is not of the form NAME=VALUE")
    chosen.given = dict(word.split("=", 1) for word in chosen.given)
    other = hashlib.sha256(json.dumps(chosen.given, sort_keys=True).encode()).hexdigest()[:8]
    chosen.folder = FOLDER / (Path(chosen.grid).stem + (f"-{other}" if chosen.given else ""))
    return chosen


def main(words):
    """Run what is not finished of a grid; return the status to exit with: a number, or one sentence."""
    chosen = arguments_of(words)

    def run():
        plan = plan_of(read(chosen.grid), chosen.given)
        done, status = drive(plan, chosen.folder, chosen.profile, chosen.dry_run)
        files = ["snakemake.log"] if status else ["table.csv", "report.html"]
        print(
            f"{len(done)} of {len(plan['runs'])} done: see {', '.join(str(chosen.folder / file) for file in files)}"
        )
        return int(status != 0)

    return sentence_of(run, chosen.grid)


if __name__ == "__main__":
    until_interrupted(main)
