"""Run chapters with papermill, two or more side by side, and only those whose result can differ from the last one.

    python scripts/run_chapters.py CHAPTER.ipynb … FOLDER [NAME=VALUE …]
    python scripts/run_chapters.py CHAPTER.ipynb OUTPUT.ipynb [NAME=VALUE …]

A chapter is run again if the content of one of these has changed: its cells, the files of `utils` that it imports, but
for their comments and docstrings, the parameters, the file of images, the squares of the photographs, the recorded
results that it names, the locked versions, this script. JOBS in the environment: how many at a time.
"""

import contextlib
import hashlib
import json
import os
import re
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))
from utils import kept  # noqa: E402  (this loads no torch)

LONGEST = ("04-decoreco-solver", "05-random-initialisation", "08-landscape")  # begun first
AFTER = {"table-1": ("05-random-initialisation", "06-ground-truth-initialisation", "07-partition-initialisation")}
CELL_TIMEOUT = 6 * 3600  # seconds


def key_of(chapter, given):
    """Return a SHA-256 of all that the executed chapter depends on."""
    cells = json.loads(chapter.read_text(encoding="utf-8"))["cells"]
    tags = [{name: value for name, value in cell["metadata"].items() if value} for cell in cells]  # [] is none
    cells = [(cell["cell_type"], "".join(cell["source"]), said) for cell, said in zip(cells, tags, strict=True)]
    lines = "\n".join(text for kind, text, _ in cells if kind == "code").splitlines()
    lines, code = [line for line in lines if not line.startswith(("%", "!"))], None
    with contextlib.suppress(SyntaxError):  # the run will say where
        code = kept.fingerprint("\n".join(lines))
    squares = ROOT / "data" / "photographs.json"
    files = [Path(__file__), ROOT / "requirements.lock", squares, Path(given.get("DATASET", ""))]
    recorded = sorted((ROOT / "data" / "results").iterdir()) if "recorded.load" in "\n".join(lines) else []
    files += [file for file in recorded if f'"{file.stem}"' in "\n".join(lines)]
    files += sorted((ROOT / "data" / "speed").glob("*.json")) if '"speed"' in "\n".join(lines) else []
    sums = [hashlib.sha256(file.read_bytes()).hexdigest() for file in files if file.is_file()]
    everything = [cells, code, sums, given, sys.version]
    return hashlib.sha256(json.dumps(everything, sort_keys=True).encode()).hexdigest()


def run(chapter, output, given, **more):
    """Execute one chapter; return None, or one sentence if a cell fails. `output` is replaced when all is done.

    `more` goes to papermill, and counts before what is set here.
    """
    key, key_file, partial = key_of(chapter, given), output.with_suffix(".key"), output.with_suffix(".partial.ipynb")
    there = all(path.exists() for path in (output, key_file, Path(given.get("RESULTS") or output)))
    if there and key_file.read_text() == key:
        return print(f"{output.stem}: unchanged\n", end="")  # in one piece, beside the other processes

    import nbformat

    begun = time.monotonic()
    partial.parent.mkdir(parents=True, exist_ok=True)
    bar = sys.stderr.isatty() and "TQDM_DISABLE" not in os.environ
    os.environ["TQDM_DISABLE"] = "1"  # for the kernel: the page needs no bars; papermill has loaded its own already
    settings = dict(kernel_name="python3", execution_timeout=CELL_TIMEOUT, record_timing=False, progress_bar=bar)
    settings["parameters"] = {name: value_of(text) for name, text in given.items()}
    try:
        execute(chapter, partial, extra_arguments=["--log-level=CRITICAL"], **settings | more)
    except Exception as error:  # of a cell, which has a name of its own, or of a kernel that died
        name, sentence = getattr(error, "ename", type(error).__name__), getattr(error, "evalue", error)
        return f"{chapter.stem} stopped. {name}: {sentence}\nThe notebook up to there is {partial}"
    notebook = nbformat.read(partial, as_version=4)
    for part in [notebook, *notebook.cells]:  # papermill's records of time and place
        part.metadata.pop("papermill", None)
        part.metadata.pop("execution", None)
    nbformat.write(notebook, partial)
    os.replace(partial, output)
    key_file.write_text(key)
    print(f"{chapter.stem}: {time.monotonic() - begun:.0f} s\n", end="", flush=True)


def execute(*paths, **settings):
    """Call papermill; again if the kernel did not start, as where another has just taken the port it found free."""
    import papermill

    for attempt in range(3):
        try:
            return papermill.execute_notebook(*paths, **settings)
        except RuntimeError as error:
            if attempt == 2 or "before replying" not in str(error):
                raise


def value_of(text):
    """A parameter's value: a number where the text can be one, and else what YAML makes of it."""
    import yaml

    for number in (int, float):
        with contextlib.suppress(ValueError):
            return number(text)
    return yaml.safe_load(text) if text else ""


def run_all(chapters, folder, given):
    """Run each chapter in a process with its share of the cores; return 1 if one failed, and 0 if none did."""
    cores = os.cpu_count() or 1
    jobs = int(os.environ.get("JOBS", 0)) or min(cores, max(2, cores // 4))
    share = {"OMP_NUM_THREADS": str(max(1, cores // jobs)), "TQDM_DISABLE": "1"}
    running = {}

    def failed(chapter):
        wait([running[stem] for stem in AFTER.get(chapter.stem, ()) if stem in running])
        command = [sys.executable, __file__, chapter, folder / chapter.name]
        command += [f"{name}={text}" for name, text in given.items()]
        return subprocess.run(command, env=share | os.environ).returncode

    with ThreadPoolExecutor(jobs) as pool:
        for chapter in sorted(chapters, key=lambda one: (one.stem in AFTER, one.stem not in LONGEST)):
            running[chapter.stem] = pool.submit(failed, chapter)
    return int(any(job.result() for job in running.values()))


def main(arguments):
    """Sort the arguments, and return the status to exit with: nothing, a number or a sentence."""
    given = [argument for argument in arguments if re.match(r"\w+=", argument)]
    paths = [Path(argument) for argument in arguments if argument not in given]
    given = dict(argument.split("=", 1) for argument in given)
    if len(paths) < 2:
        return __doc__
    return run(paths[0], paths[1], given) if paths[-1].suffix == ".ipynb" else run_all(paths[:-1], paths[-1], given)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
