"""Run the chapters that can give something new: `python -m workflow.chapters NOTEBOOK … FOLDER [NAME=VALUE …]`.

A chapter is run again if the content of one of these has changed: its cells, what its code reaches in `utils`, the
locked versions, the parameters, the images, the squares of the photographs, the recorded results that it names, or all
of them and the ledger if it prints verdicts.
"""

import hashlib
import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

from utils import fingerprint
from utils.files import write
from workflow.plan import typed
from workflow.run import end_with, execute, sentence_of, shares, until_interrupted

DATA = fingerprint.ROOT / "data"
LONGEST = "decoreco-attack", "three-starts-bilevel", "energy-landscape"  # begun first where no times are known


def key_of(chapter, given):
    """A SHA-256 of all that the executed chapter depends on."""
    cells = json.loads(chapter.read_text(encoding="utf-8"))["cells"]
    shown = [(c["cell_type"], "".join(c["source"]), {k: v for k, v in c["metadata"].items() if v}) for c in cells]
    code = "\n".join(text for kind, text, _ in shown if kind == "code")
    files = [DATA / "photographs.json", Path(given.get("DATASET", ""))]
    files += [file for file in sorted(DATA.glob("results/*")) if "recorded.load" in code and f'"{file.stem}"' in code]
    files += sorted(DATA.glob("speed/*.json")) if '"speed"' in code else []
    files += [DATA / "claims.yaml", *sorted(DATA.glob("results/*.csv"))] if "ledger.table" in code else []
    sums = [hashlib.sha256(file.read_bytes()).hexdigest() for file in files if file.is_file()]
    everything = [shown, fingerprint.of(chapter), sums, given, sys.version]
    return hashlib.sha256(json.dumps(everything, sort_keys=True).encode()).hexdigest()


def run(chapter, output, given):
    """Execute one chapter; return None, or one sentence if it stopped. `output` is replaced when all is done."""
    import nbformat

    partial = output.with_suffix(".partial.ipynb")
    partial.parent.mkdir(parents=True, exist_ok=True)
    values = {name: typed(text, 0) for name, text in given.items()}
    if stopped := execute(chapter, partial, values):
        return f"{chapter.stem} stopped. {stopped} The notebook up to there is {partial}"
    notebook = nbformat.read(partial, as_version=4)
    for part in [notebook, *notebook.cells]:  # papermill's records of time and place
        part.metadata.pop("papermill", None)
        part.metadata.pop("execution", None)
    nbformat.write(notebook, partial)
    os.replace(partial, output)


def last_of(output):
    """What is known of the last time: the key, and how many seconds it took."""
    try:
        return json.loads(output.with_suffix(".key").read_text())
    except (OSError, ValueError):
        return {}


def begin(chapter, output, given, threads):
    """Run a chapter in a process of its own, which ends with this one."""
    words = [sys.executable, "-m", "workflow.chapters", chapter, output, f"--parent={os.getpid()}"]
    settings = {"OMP_NUM_THREADS": str(threads), "TQDM_DISABLE": "1"} | os.environ
    words += [f"{name}={text}" for name, text in given.items()]
    return subprocess.Popen(words, env=settings, start_new_session=True)


def left(chapters, seconds, jobs):
    """How many chapters are left, and about how long they take, in words; one whose time is unknown is average."""
    known = [time for time in seconds.values() if time]
    about = sum(seconds[chapter] or sum(known) / len(known) for chapter in chapters) / jobs / 60 if known else 0
    return f"{len(chapters)} left" + (f", about {max(1, round(about))} min" if about else "")


def run_all(chapters, folder, given):
    """Run each chapter with its share of the cores, and say how many are left; return 1 if one failed, 0 if none."""
    keys, last = {c: key_of(c, given) for c in chapters}, {c: last_of(folder / c.name) for c in chapters}
    todo = [c for c in chapters if last[c].get("key") != keys[c] or not (folder / c.name).exists()]
    seconds = {c: last[c].get("seconds") for c in todo}
    todo.sort(key=lambda c: (-(seconds[c] or 0), c.stem not in LONGEST))
    (jobs, threads), running, failed = shares(len(todo)), {}, 0
    same = len(chapters) - len(todo)
    print(f"{same} of {len(chapters)} chapters are unchanged, {left(todo, seconds, jobs)}", flush=True)
    while todo:
        for c in [c for c in todo if c not in running][: jobs - len(running)]:
            running[c] = begin(c, folder / c.name, given, threads), time.monotonic()
        time.sleep(0.1)
        for c, (process, begun) in [(c, each) for c, each in running.items() if each[0].poll() is not None]:
            del running[c]
            todo.remove(c)
            failed |= process.returncode != 0
            if process.returncode == 0:
                seconds[c] = round(time.monotonic() - begun, 1)
                write(folder / f"{c.stem}.key", json.dumps({"key": keys[c], "seconds": seconds[c]}).encode())
                print(f"{c.stem}: {seconds[c]:.0f} s; {left(todo, seconds, jobs)}", flush=True)
    return int(failed)


def main(words):
    """Return the status to exit with: nothing, a number or one sentence."""
    pairs = [word for word in words if re.match(r"(--)?\w+=", word)]
    paths, given = [Path(word) for word in words if word not in pairs], dict(word.split("=", 1) for word in pairs)
    parent = given.pop("--parent", None)
    if len(paths) < 2:
        return __doc__
    if parent:
        end_with(int(parent))
        return run(paths[0], paths[1], given)
    return sentence_of(lambda: run_all(paths[:-1], paths[-1], given))


if __name__ == "__main__":
    until_interrupted(main)
