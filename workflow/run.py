"""One run of a grid, as Snakemake calls it: `python -m workflow.run PLAN.json NAME OUTPUT.json THREADS PARENT`.

A run comes into being in a folder of its own, which gets its name in one step when the run has ended: a hash of all
that the numbers depend on. A run whose folder is there is not computed again.
"""

import errno
import json
import os
import re
import shutil
import signal
import sys
import tempfile
import threading
import time
from pathlib import Path

from utils import fingerprint
from utils.errors import InputError
from utils.files import write

MINUTES = 360  # that a cell may take
OWN = {"RESULTS": "results.json", "PICTURES": "pictures.npz"}  # parameters that are set here, and the files they name


def shares(runs):
    """How many of some runs are computed at a time, and on how many threads: by JOBS, OMP_NUM_THREADS, the cores."""
    cores, stated = os.cpu_count() or 1, os.environ.get("OMP_NUM_THREADS", "")
    jobs = os.environ.get("JOBS") or str(max(1, min(runs, cores, max(2, cores // 4))))
    if not re.fullmatch("[1-9][0-9]*", jobs):
        raise InputError(f"JOBS is {jobs!r}; it must be a whole number larger than 0.")
    return int(jobs), int(stated) if re.fullmatch("[1-9][0-9]*", stated) else max(1, cores // int(jobs))


def sentence_of(act):
    """What an act returns, or one sentence on what stopped it."""
    try:
        return act()
    except InputError as error:
        return str(error)
    except KeyboardInterrupt:
        return "stopped; run the same command again, and it goes on."
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            return "the disk is full: free some space, and run the same command again."
        return f"{error.filename} cannot be written or read ({error.strerror})."


def until_interrupted(main):
    """Exit with what the command of this process returns; it ends as by Ctrl-C, in the background, too."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)
    sys.exit(main(sys.argv[1:]))


def end_with(parent):
    """End this process and all that it started once its parent, of this number, is gone, in whatever way that ended."""
    import psutil

    def watch():
        while os.getppid() == parent:
            time.sleep(0.1)
        for child in psutil.Process().children(recursive=True):
            child.kill()
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def execute(notebook, output, parameters, minutes=MINUTES):
    """Execute a notebook with papermill, each cell in so many minutes; return None, or one sentence if it stopped."""
    sys.modules["rfc3987_syntax"] = None  # a grammar that papermill's imports would build, in two seconds
    import papermill

    settings = dict(kernel_name="python3", record_timing=False, progress_bar=False, execution_timeout=60 * minutes)
    settings["extra_arguments"] = ["--log-level=CRITICAL"]
    for attempt in range(3):
        try:
            papermill.execute_notebook(notebook, output, parameters, **settings)
            return None
        except Exception as error:  # of a cell, which has a name of its own, or of a kernel
            name = getattr(error, "ename", type(error).__name__)
            sentence = " ".join(str(getattr(error, "evalue", error)).split())
            if attempt == 2 or not any(words in sentence for words in ("before replying", "didn't respond")):
                break  # else the kernel found its port taken, and a new one may find another
    if name == "CellTimeoutError":
        return f"a cell took longer than {minutes:g} minutes and was ended."
    if name == "DeadKernelError":
        return "its kernel died: perhaps the memory was full; fewer JOBS need less."
    return f"{name}: {sentence}"


def results_of(path):
    """What a run wrote to RESULTS; None if that is not there, or not whole."""
    try:
        content = json.loads(path.read_bytes())
        return content if {"parameters", "provenance", "rows"} <= content.keys() else None
    except (OSError, ValueError, AttributeError):
        return None


def compute(run, stored, threads):
    """Execute a run, and keep what it wrote in the folder `stored`; InputError if it fails."""
    if fingerprint.of(run["notebook"], run["given"]) != run["fingerprint"]:
        raise InputError("the code has changed since this was begun: run the same command again.")
    os.environ |= {"OMP_NUM_THREADS": str(threads), "TQDM_DISABLE": "1"}
    stored.parent.mkdir(parents=True, exist_ok=True)
    part = Path(tempfile.mkdtemp(prefix=f"{stored.name}.", suffix=".part", dir=stored.parent))
    parameters = run["parameters"] | {name: str(part / OWN[name]) for name in run["own"]}
    failed = execute(run["notebook"], part / "notebook.ipynb", parameters, run["minutes"])
    content = results_of(part / OWN["RESULTS"])
    if failed or not content:
        ended = stored.with_suffix(".failed")
        shutil.rmtree(ended, ignore_errors=True)
        part.rename(ended)
        failed = failed or "it ended without writing its numbers to RESULTS."
        raise InputError(f"{failed} The notebook up to there is {ended / 'notebook.ipynb'}")
    content["parameters"] = {name: value for name, value in content["parameters"].items() if name not in OWN}
    content["provenance"] |= {name: run[name] for name in ("key", "fingerprint", "commit")} | {"threads": threads}
    write(part / OWN["RESULTS"], json.dumps(content, indent=1).encode())
    part.rename(stored)


def main(plan, name, output, threads, parent):
    """Compute a run unless that was done, write its numbers, and print a line; return the status to exit with."""
    end_with(int(parent))
    begun, folder, runs = time.monotonic(), Path(plan).parent, json.loads(Path(plan).read_bytes())["runs"]
    run, stored = runs[name], folder / "finished" / runs[name]["key"]

    def act():
        if not stored.exists():
            compute(run, stored, run["threads"] or int(threads))
        write(Path(output), (stored / OWN["RESULTS"]).read_bytes())

    if failed := sentence_of(act):
        print(f"{run['label']} failed: {failed}", flush=True)
        return 1
    done = sum((folder / "finished" / each["key"]).exists() for each in runs.values())
    print(f"{done} of {len(runs)} done, last: {run['label']} ({time.monotonic() - begun:.0f} s)", flush=True)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
