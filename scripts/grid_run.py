"""One run of a grid: `python scripts/grid_run.py FOLDER KEY ATTEMPT`, which Snakemake calls; FOLDER holds plan.json.

Who holds the lock of a run computes it; a second one waits, and finds it done. A run's files come into being in
KEY.part/ and move to their places when the chapter has ended, KEY.json last: where it is, the run is finished.
"""

import contextlib
import ctypes
import errno
import fcntl
import functools
import json
import os
import shutil
import signal
import sys
import time
from pathlib import Path

import run_chapters

from utils.kept import write

PR_SET_PDEATHSIG = 1  # linux/prctl.h


def finished(path, parameters):
    """What a run wrote to RESULTS, if it is whole and of these parameters; None otherwise."""
    try:
        content = json.loads(path.read_bytes())
        written = {name: content["parameters"][name] for name in parameters}
        return content if written == parameters and isinstance(content["rows"], list) else None
    except (OSError, ValueError, LookupError, TypeError):
        return None


def die_with(parent):
    """In a child, between fork and exec: let Linux end it when its parent ends, in whatever way."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)


def tied(lock):
    """The class of a kernel that ends when this process ends, and holds the lock for as long as it lives itself."""
    from jupyter_client import AsyncKernelManager

    class Tied(AsyncKernelManager):
        async def start_kernel(self, **settings):
            settings |= dict(pass_fds=(lock.fileno(),), preexec_fn=functools.partial(die_with, os.getpid()))
            return await super().start_kernel(**settings)

    return Tied


def compute(plan, folder, key, lock):
    """Execute the chapter; return None, or one sentence if it stopped."""
    part, parameters = folder / f"{key}.part", plan["runs"][key]["parameters"]
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir()
    names = {name: file.format(key) for name, file in plan["files"].items()}
    settings = dict(execution_timeout=60 * plan["minutes"], kernel_manager_class=tied(lock))
    settings["parameters"] = parameters | {name: str(part / file) for name, file in names.items()}
    stopped = run_chapters.run(Path(plan["chapter"]), part / f"{key}.ipynb", {}, **settings)
    if stopped:
        with contextlib.suppress(OSError):
            os.replace(part / f"{key}.partial.ipynb", folder / f"{key}.ipynb")
        return explained(stopped, plan["minutes"])
    content = finished(part / f"{key}.json", parameters)
    if content is None:
        return "the chapter ended without writing its numbers and parameters to RESULTS."
    content["parameters"] |= {name: str(folder / file) for name, file in names.items()}
    write(part / f"{key}.json", json.dumps(content, indent=1).encode())
    for end in ("npz", "ipynb", "json"):
        if (part / f"{key}.{end}").exists():
            os.replace(part / f"{key}.{end}", folder / f"{key}.{end}")


def explained(stopped, minutes):
    """One sentence from what run_chapters says of a chapter that stopped."""
    if "CellTimeoutError" in stopped:
        return f"a cell took longer than {minutes:g} minutes and was ended: raise `minutes` in the grid if it must."
    if "DeadKernelError" in stopped:
        return "its kernel died: perhaps the memory was full; fewer JOBS need less."
    return " ".join(stopped.rpartition("\nThe notebook up to there is")[0].split())


def attempted(plan, folder, key, lock):
    """Compute the run unless it is finished; return None, or one sentence if that failed."""
    log, parameters = folder / f"{key}.log", plan["runs"][key]["parameters"]
    try:
        if finished(folder / f"{key}.json", parameters) is None:
            log.unlink(missing_ok=True)
            begun = time.monotonic()
            failed = compute(plan, folder, key, lock)
            if failed is None:
                write(log, f"done in {time.monotonic() - begun:.0f} s".encode())
            return failed
        if not log.exists():
            write(log, b"done")
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        return "the disk is full: free some space." if full else f"a file could not be written: {error}"
    finally:
        shutil.rmtree(folder / f"{key}.part", ignore_errors=True)


def main(folder, key, attempt):
    """Return nothing, or the sentence to exit with; after the last attempt KEY.log holds it, too."""
    folder = Path(folder)
    plan = json.loads((folder / "plan.json").read_text(encoding="utf-8"))
    os.chdir(plan["cwd"])
    with open(folder / "locks" / key, "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        failed = attempted(plan, folder, key, lock)
        if failed and int(attempt) > plan["retries"]:
            write(folder / f"{key}.log", f"failed: {failed}".encode())
    return failed


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
