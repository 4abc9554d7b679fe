"""Execute notebooks: `[JOBS=2] python -m lab.run NOTEBOOK … FOLDER [NAME=VALUE …]`, and print how long each took.

Snakemake calls it for a run of a grid: `python -m lab.run --grid PLAN.json KEY RESULTS.json PARENT`. The run works in
the folder of its numbers, which it writes last and in one step.
"""

import contextlib
import functools
import hashlib
import json
import logging
import os
import signal
import sys
import tempfile
import threading
import time
import tomllib
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path

from lab import forked
from utils.errors import InputError

ROOT = Path(__file__).parent.parent
INSTALLED = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"][
    "setuptools"
]["packages"]
# What a run depends on beside its notebook: all the Python that a notebook may import, and the locked versions.
CODE = *(f"{name}/**/*.py" for name in INSTALLED if "." not in name), "requirements.lock"
MINUTES = 360  # that a cell may take
OWN = {
    "RESULTS": "results.json",
    "PICTURES": "pictures.npz",
}  # parameters that are set here, and the files they name


def sentence_of(act, place):
    """What an act returns, or one sentence on what stopped it, with its place."""
    try:
        return act()
    except InputError as error:
        return f"{place}: {error}"
    except KeyboardInterrupt:
        return f"{place}: stopped; run the same command again, and it goes on."
    except OSError as error:
        file = error.filename or "a file"
        why = error.strerror
        return f"{place}: {file} cannot be written or read ({why}): mend this, and run the same command again."


def until_interrupted(main):
    """Exit with what the command of this process returns; it ends as by Ctrl-C, in the background, too."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)
    sys.exit(main(sys.argv[1:]))


def end_children():
    """End all that this process started, and all that this started."""
    import psutil

    for child in psutil.Process().children(recursive=True):
        child.kill()


def end_with(parent):
    """End this process and all that it started once its parent, of this number, is gone, in whatever way that ended."""

    def watch():
        while os.getppid() == parent:
            time.sleep(0.1)
        end_children()
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def in_threads(act, items, jobs=1):
    """What an act returns for each item, as they end: in the main thread nbclient takes Ctrl-C for itself."""
    with ThreadPoolExecutor(jobs) as pool:
        try:
            for done in as_completed([pool.submit(act, item) for item in items]):
                yield done.result()
        except KeyboardInterrupt:
            logging.disable()  # papermill says that its kernels died
            pool.shutdown(wait=False, cancel_futures=True)
            end_children()
            raise


def execute(notebook, output, parameters, minutes=MINUTES):
    """Execute a notebook with papermill, each cell in so many minutes; InputError if it stops."""
    # a grammar that papermill's imports would build, in two seconds
    sys.modules["rfc3987_syntax"] = None
    import nbformat
    import papermill
    from traitlets.config import Config

    Path(output).parent.mkdir(parents=True, exist_ok=True)
    settings = {
        "kernel_name": "python3",
        "record_timing": False,
        "progress_bar": False,
        "execution_timeout": 60 * minutes,
        "start_timeout": 600,  # it may take long on busy cores
        "extra_arguments": ["--log-level=CRITICAL"],
    }
    try:
        with tempfile.TemporaryDirectory(prefix="kernel-") as sockets:  # no two meet at one port
            manager = {"transport": "ipc", "ip": f"{sockets}/socket"}
            settings["config"] = Config(KernelManager=manager)
            executed = papermill.execute_notebook(notebook, output, parameters, **settings)
    except Exception as error:
        why = reason(error, minutes)
        raise InputError(f"{why} The notebook up to there is {output}") from error
    for part in [executed, *executed.cells]:  # papermill's records of time and place
        part.metadata.pop("papermill", None)
        part.metadata.pop("execution", None)
    nbformat.write(executed, output)


def reason(error, minutes):
    """What stopped a notebook, in one sentence: an exception of a cell, which has a name of its own, or of a kernel."""
    name = getattr(error, "ename", type(error).__name__)
    if name == "CellTimeoutError":
        return f"a cell took longer than {minutes:g} minutes and was ended."
    if name == "DeadKernelError":
        return "its kernel died: perhaps the memory was full; fewer JOBS need less."
    return f"{name}: {' '.join(str(getattr(error, 'evalue', error)).split())}"


def typed(value, default):
    """A text as a number, if the parameter's default is one and the text can be one: YAML 1.1 takes 1e-3 for a text."""
    for kind in (
        (int, float) if isinstance(value, str) and isinstance(default, (int, float)) else ()
    ):
        with contextlib.suppress(ValueError):
            return kind(value)
    return value


def chapter(notebook, output, parameters):
    """Execute a notebook; its output is there when all is done."""
    start = time.monotonic()
    partial = output.with_suffix(".partial.ipynb")
    execute(notebook, partial, parameters)
    os.replace(partial, output)
    print(f"{notebook.stem}: {time.monotonic() - start:.0f} s", flush=True)


@functools.cache
def code_of(notebook):
    """SHA-256 of the code that a run depends on: its notebook and CODE."""
    cells = json.loads(Path(notebook).read_bytes())["cells"]
    digest = hashlib.sha256(
        "\n".join("".join(c["source"]) for c in cells if c["cell_type"] == "code").encode()
    )
    for file in sorted(file for pattern in CODE for file in ROOT.glob(pattern)):
        digest.update(
            f"{file.relative_to(ROOT)} {hashlib.sha256(file.read_bytes()).hexdigest()}".encode()
        )
    return digest.hexdigest()


def results_of(path):
    """What a run wrote to RESULTS; None if that is not there, or not whole: then it is removed, and made again."""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        content = json.loads(path.read_bytes())
        if {"parameters", "provenance", "rows"} <= content.keys():
            return content
    path.unlink(missing_ok=True)
    return None


def job(plan, key, results, parent):
    """Compute a run of a plan, and print how many are done, or why it failed; return the status to exit with."""
    end_with(int(parent))
    start = time.monotonic()
    runs = json.loads(Path(plan).read_bytes())["runs"]
    results = Path(results)
    run = runs[key]

    def compute(run):  # in the folder of its numbers, which are the last that it writes
        if code_of(run["notebook"]) != run["code"]:
            raise InputError(
                "the code has changed since this was begun: run the same command again."
            )
        own = {name: str(results.with_name(OWN[name])) for name in run["own"]}
        notebook = results.with_name("notebook.ipynb")
        execute(run["notebook"], notebook, run["parameters"] | own, run["minutes"])
        if not results_of(results):
            raise InputError(f"it ended without writing its numbers to RESULTS: see {notebook}")

    failure = sentence_of(lambda: [*in_threads(compute, [run])][0], f"{run['label']} failed")
    done = sum((results.parents[1] / each / results.name).exists() for each in runs)
    last = f"{done} of {len(runs)} done, last: {run['label']} ({time.monotonic() - start:.0f} s)"
    print(failure or last, flush=True)
    return int(bool(failure))


def main(words):
    """Return the status to exit with: a number or one sentence."""
    if words[:1] == ["--grid"]:
        return job(*words[1:])
    paths = [Path(word) for word in words if "=" not in word]
    if len(paths) < 2:
        return __doc__
    *notebooks, folder = paths
    end_with(os.getppid())
    forked.fork_kernels()
    parameters = {
        name: typed(text, 0) for name, text in (word.split("=", 1) for word in words if "=" in word)
    }
    failures = []

    def run_one(notebook):
        output = folder / notebook.name
        return sentence_of(lambda: chapter(notebook, output, parameters), notebook.stem)

    def compute():
        for failure in filter(None, in_threads(run_one, notebooks, int(os.environ.get("JOBS", 1)))):
            print(failure, file=sys.stderr, flush=True)
            failures.append(failure)

    return sentence_of(compute, "the notebooks") or int(bool(failures))


if __name__ == "__main__":
    until_interrupted(main)
