"""Run a chapter for every combination of some parameters, and again only what is not finished.

    python scripts/grid.py GRID.yaml [NAME=VALUE …] [--profile FOLDER] [--dry-run]
    python scripts/grid.py --chapter NAME --seeds "0 1 2" [NAME=VALUE …] …

grids/example.yaml shows all that a grid may say. Everything is checked before the first run. A run's files are named by
a hash of all that its numbers depend on, so that other code, data or parameters never share them. Snakemake runs the
jobs, here or with a profile on a cluster; JOBS in the environment: how many at a time. At the end come table.csv and
index.html.
"""

import argparse
import contextlib
import errno
import fcntl
import functools
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import grid_run
from grid_plan import finished, plan_of, read
from run_chapters import ROOT

from utils.errors import InputError
from utils.kept import write

SNAKEMAKE = ROOT / ".snakemake-env"  # holds `local`, which starts fast, and `cluster`, with plugins for the profiles


def snakemake_of(profile):
    """The path of Snakemake's command."""
    kind = "cluster" if profile else "local"
    command = SNAKEMAKE / kind / "bin" / "snakemake"
    if not command.exists():
        raise InputError(f"Snakemake is not set up: `make .snakemake-env/{kind}/ready` does it.")
    return command


def snakemake(plan, place, profile, *options):
    """Write the plan into the folder where Snakemake will run, and return the command that runs it."""
    script = Path(__file__).with_name("grid_run.py")
    plan["command"] = shlex.join([sys.executable, str(script), str(place)])
    plan["marks"] = f"ended/{time.time_ns()}"  # of this call alone, so that no older mark counts, here or in a storage
    write(place / "plan.json", json.dumps(plan).encode())
    command = [snakemake_of(profile), "--snakefile", script.with_name("Snakefile"), "--directory", place]
    command += ["--nolock", "--keep-going"]
    command += ["--rerun-incomplete", "--rerun-triggers", "mtime", "--scheduler", "greedy", "--nocolor", *options]
    command += ["--config", f"plan={place / 'plan.json'}"]
    cores = ["--cores", str(plan["jobs"] * plan["threads"])]
    return command + (["--profile", Path(profile).resolve()] if profile else cores)


@contextlib.contextmanager
def alone(folder):
    """Hold the lock of a grid's folder, which the kernel releases when this process and its Snakemake are gone."""
    (folder / "locks").mkdir(parents=True, exist_ok=True)
    with open(folder / "locks" / "driver", "w") as lock:
        for _ in range(20):  # a Snakemake whose driver was killed takes a moment to go
            with contextlib.suppress(BlockingIOError):
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            time.sleep(0.1)
        else:
            raise InputError(f"another driver is at work in {folder}: wait until it has ended.")
        yield lock


def told(plan, folder, done, seen):
    """Say one line for each run that has ended since the last call; `done` counts, `seen` names those that ended."""
    names = set(os.listdir(folder))
    for key in [key for key in plan["todo"] if f"{key}.log" in names and key not in seen]:
        with contextlib.suppress(OSError):  # it is being tried again
            text = (folder / f"{key}.log").read_text(encoding="utf-8")
            seen[key] = text.startswith("done")
            failed, time_taken = list(seen.values()).count(False), text.removeprefix("done in ")
            ended = f"({time_taken})" if seen[key] else "failed"
            counts = f"{done + len(seen) - failed} of {len(plan['runs'])} done, {failed} failed"
            print(f"{counts}, last: {plan['runs'][key]['label']} {ended}", flush=True)


def stop(process):
    """End Snakemake and its jobs: politely, so that it can cancel those on a cluster, and after ten seconds at once."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGINT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(10)
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def drive(plan, folder, profile, lock):
    """Run what is not finished, and say so as it goes."""
    done = len(plan["runs"]) - len(plan["todo"])
    shutil.rmtree(folder / "ended", ignore_errors=True)
    for key in plan["todo"]:
        (folder / f"{key}.log").unlink(missing_ok=True)
    command = snakemake(plan, folder, profile, "--quiet", "rules")
    die, seen = functools.partial(grid_run.die_with, os.getpid()), {}
    with open(folder / "snakemake.log", "w") as log:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
            pass_fds=[lock.fileno()],
            preexec_fn=die,
        )
        try:
            while process.poll() is None:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(0.5)
                told(plan, folder, done, seen)
                if shutil.disk_usage(folder).free < 1e6:
                    raise OSError(errno.ENOSPC, "")
        except BaseException:
            stop(process)
            raise
    if process.returncode < 0:
        raise InputError("Snakemake was killed: run the same command again, and it goes on.")


def failures(plan, folder, done):
    """[(label, sentence)] of the runs that are not finished."""
    listed = []
    for key, run in ((key, run) for key, run in plan["runs"].items() if key not in done):
        sentence = f"it ended before it could say why: see {folder / 'snakemake.log'}."
        with contextlib.suppress(OSError):
            sentence = (folder / f"{key}.log").read_text(encoding="utf-8").removeprefix("failed: ")
        if (notebook := folder / f"{key}.ipynb").exists():
            sentence = f"{sentence.rstrip('.')}. The notebook up to there is {notebook}"
        listed.append((run["label"], sentence))
    return listed


def go_on(plan, folder, profile, command):
    """Run what is not finished, make the table and the page of what there is; return the status to exit with."""
    import grid_page

    with alone(folder) as lock:
        done, said = finished(plan, folder), None
        plan["todo"] = [key for key in plan["runs"] if key not in done]
        print(f"{len(done)} of {len(plan['runs'])} done: {folder}", flush=True)
        try:
            if plan["todo"]:
                drive(plan, folder, profile, lock)
        except InputError as error:
            said = error
        done = finished(plan, folder)
        failed = failures(plan, folder, done)
        grid_page.make(plan, done, failed, folder, command)
        for label, sentence in [] if said else failed:
            print(f"{label} failed: {sentence}", file=sys.stderr)
        print(f"{len(done)} of {len(plan['runs'])} done. The page: {folder / 'index.html'}", flush=True)
        if said:
            raise said
        return int(bool(failed))


def dry_run(plan, folder, profile):
    """Let Snakemake plan what is not finished, in a folder that is thrown away, and say what it would run."""
    done = finished(plan, folder)
    plan["todo"] = [key for key in plan["runs"] if key not in done]
    with tempfile.TemporaryDirectory() as place:
        command = snakemake(plan, Path(place), profile, "--dry-run", "--quiet", "rules")
        ended = subprocess.run(command, capture_output=True, text=True)
    if ended.returncode:
        raise InputError(f"Snakemake cannot plan this: {' '.join((ended.stderr + ended.stdout).split())}")
    print(f"{len(plan['runs'])} runs, {len(done)} done; these would run:")
    print("\n".join(plan["runs"][key]["label"] for key in plan["todo"]) or "none")


def arguments_of(words):
    """Return the parsed command line, with the grid that it names."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("words", nargs="*", metavar="GRID.yaml or NAME=VALUE")
    for name in ("--chapter", "--seeds", "--profile"):
        parser.add_argument(name)
    parser.add_argument("--dry-run", action="store_true")
    chosen = parser.parse_intermixed_args(words)
    chosen.given = dict(word.split("=", 1) for word in chosen.words if re.match(r"\w+=", word))
    paths = [word for word in chosen.words if not re.match(r"\w+=", word)]
    if len(paths) != (not chosen.chapter):
        parser.error("give one grid, or --chapter and --seeds")
    chosen.path = paths[0] if paths else None
    chosen.name = Path(chosen.path).stem if paths else f"batch-{chosen.chapter}"
    return chosen


def main(words, book=ROOT / "book", grids=ROOT / "_build" / "grids"):
    """Return the status to exit with: a number, or one sentence."""
    chosen = arguments_of(words)
    try:
        grid = {"chapter": chosen.chapter, "cross": {"SEED": (chosen.seeds or "").split()}}
        plan, folder = plan_of(read(chosen.path) if chosen.path else grid, chosen.given, book), grids / chosen.name
        snakemake_of(chosen.profile)
        if chosen.profile and not (Path(chosen.profile) / "config.yaml").is_file():
            raise InputError(f"there is no file {chosen.profile}/config.yaml: give the folder of a profile.")
        if chosen.dry_run:
            return dry_run(plan, folder, chosen.profile)
        return go_on(plan, folder.resolve(), chosen.profile, shlex.join(["python", "scripts/grid.py", *words]))
    except InputError as error:
        return f"{chosen.path or chosen.name}: {error}"
    except KeyboardInterrupt:
        return f"{chosen.path or chosen.name}: stopped; run the same command again, and it goes on."
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            return f"{chosen.path or chosen.name}: the disk is full: free some space, and run the same command again."
        return f"{chosen.path or chosen.name}: {error.filename} cannot be written or read ({error.strerror})."


if __name__ == "__main__":
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):  # end as by Ctrl-C, in the background, too
        signal.signal(number, signal.default_int_handler)
    sys.exit(main(sys.argv[1:]))
