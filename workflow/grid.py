"""Run a notebook for every combination of some parameters, and again only what can give something new.

    python -m workflow.grid GRID.yaml [NAME=VALUE …] [--profile FOLDER] [--dry-run]

experiments/example.yaml shows all that a grid may say. Everything is checked before the first run. Snakemake runs the
jobs, here or with a profile on a cluster. At the end come table.csv, means.html and Snakemake's report.
"""

import argparse
import contextlib
import errno
import fcntl
import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from utils.errors import InputError
from utils.files import write
from workflow.plan import ROOT, plan_of, read
from workflow.run import results_of, sentence_of, until_interrupted

FOLDER = ROOT / "_build" / "grids"
TABLES = "table.csv", "means.html"
SNAKEMAKE = ROOT / ".snakemake-env"  # holds `local`, which starts fast, and `cluster`, with plugins for the profiles


def snakemake(plan, folder, place, profile, *options):
    """Write the plan into a place, and return Snakemake's command for it in the folder of the grid."""
    kind = "cluster" if profile else "local"
    command = SNAKEMAKE / kind / "bin" / "snakemake"
    if not command.exists():
        raise InputError(f"Snakemake is not set up: `make .snakemake-env/{kind}/ready` does it.")
    if profile and not (Path(profile) / "config.yaml").is_file():
        raise InputError(f"there is no file {profile}/config.yaml: give the folder of a profile.")
    path = place / "plan.json"
    about = {"path": str(path), "folder": str(folder), "python": sys.executable}
    write(path, json.dumps(plan | about).encode())
    words = ["--snakefile", ROOT / "workflow" / "Snakefile", "--directory", folder, "--config", f"plan={path}"]
    words += ["--keep-going", "--rerun-incomplete", "--rerun-triggers", "params", "input", "mtime"]
    cluster = ["--profile", Path(profile or "").resolve(), "--default-storage-prefix", folder]
    words += cluster if profile else ["--cores", str(plan["jobs"] * plan["threads"])]
    return [command, *words, "--scheduler", "greedy", "--nocolor", *options]


@contextlib.contextmanager
def alone(folder):
    """Hold the lock of a grid's folder, which is free again when this process and its Snakemake are gone."""
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / "driver.lock", "w") as lock:
        for _ in range(20):  # a Snakemake whose driver was killed takes a moment to go
            with contextlib.suppress(BlockingIOError):
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            time.sleep(0.1)
        else:
            raise InputError(f"another driver is at work in {folder}: wait until it has ended.")
        shutil.rmtree(folder / ".snakemake" / "locks", ignore_errors=True)  # Snakemake's own, of one that was killed
        for part in folder.glob("finished/*.part"):
            shutil.rmtree(part)
        yield lock


def finished(plan, folder):
    """{name: what it wrote} of the runs that are finished; a damaged file is removed, so that its run is made again."""
    found = {}
    for name, run in plan["runs"].items():
        content = results_of(path := folder / "runs" / f"{name}.json")
        if content and content["provenance"].get("key") == run["key"]:
            found[name] = content
        elif not content:
            path.unlink(missing_ok=True)
    return found


def drive(plan, folder, profile=None):
    """Let Snakemake compute what is not finished; return {name: what it wrote} of all that is, and its status."""
    with alone(folder) as lock, open(folder / "snakemake.log", "w") as log:
        there = len(finished(plan, folder))
        print(f"{there} of {len(plan['runs'])} done: {folder}", flush=True)
        for name in TABLES if there < len(plan["runs"]) else ():  # Snakemake makes no run for a table that is there
            (folder / name).unlink(missing_ok=True)
        command = snakemake(plan, folder, folder, profile, "--report", folder / "report.html", "--report-after-run")
        streams: dict = dict(stdin=subprocess.DEVNULL, stderr=None if profile else log, pass_fds=[lock.fileno()])
        driver = os.environ | {"GRID_DRIVER": str(os.getpid())}
        process = subprocess.Popen(command, start_new_session=True, env=driver, **streams)
        try:
            status = process.wait()
        except KeyboardInterrupt:  # here, Snakemake and its jobs end with this process
            process.send_signal(signal.SIGINT)  # and on a cluster, it cancels them
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(20 if profile else 0)
            raise
        return finished(plan, folder), status


def go_on(plan, folder, profile):
    """Run what is not finished; return the status to exit with."""
    done, status = drive(plan, folder, profile)
    if status and shutil.disk_usage(folder).free < 1e6:
        raise OSError(errno.ENOSPC, "")
    if status and len(done) == len(plan["runs"]):
        raise InputError(f"the table could not be made: see {folder / 'snakemake.log'}.")
    there = f"see {folder / 'snakemake.log'}" if status else f"{folder / 'table.csv'}, {folder / 'report.html'}"
    print(f"{len(done)} of {len(plan['runs'])} done: {there}")
    return int(status != 0)


def dry_run(plan, folder, profile):
    """Let Snakemake say what it would run, without a trace."""
    with tempfile.TemporaryDirectory() as place:
        command = snakemake(plan, folder if folder.exists() else Path(place), Path(place), profile, "--dry-run")
        ended = subprocess.run(command, capture_output=True, text=True)
    if ended.returncode:
        raise InputError(f"Snakemake cannot plan this: {' '.join((ended.stderr + ended.stdout).split())}")
    names = re.findall("^    wildcards: run=(.*)$", ended.stdout, re.M)
    print(f"{len(names)} of {len(plan['runs'])} runs would be computed:")
    print("\n".join(plan["runs"][name]["label"] for name in names) or "none")


def arguments_of(words):
    """The parsed command line; .given is {parameter: text}, .folder where the grid's runs are kept."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("grid")
    parser.add_argument("given", nargs="*", metavar="NAME=VALUE")
    parser.add_argument("--profile")
    for name in ("--dry-run", "--dirty"):
        parser.add_argument(name, action="store_true")
    chosen = parser.parse_intermixed_args(words)
    if wrong := [word for word in chosen.given if not re.match(r"\w+=", word)]:
        parser.error(f"{wrong[0]} is not of the form NAME=VALUE")
    chosen.given = dict(word.split("=", 1) for word in chosen.given)
    other = hashlib.sha256(json.dumps(chosen.given, sort_keys=True).encode()).hexdigest()[:8]
    chosen.folder = FOLDER / (Path(chosen.grid).stem + (f"-{other}" if chosen.given else ""))
    return chosen


def main(words):
    """Return the status to exit with: a number, or one sentence."""
    chosen = arguments_of(words)
    act = dry_run if chosen.dry_run else go_on
    said = sentence_of(lambda: act(plan_of(read(chosen.grid), chosen.given), chosen.folder, chosen.profile))
    return f"{chosen.grid}: {said}" if isinstance(said, str) else said


if __name__ == "__main__":
    until_interrupted(main)
