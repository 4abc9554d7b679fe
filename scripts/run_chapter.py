"""Run one chapter with papermill, and put the executed notebook in its place only when it has finished.

    python scripts/run_chapter.py CHAPTER.ipynb OUTPUT.ipynb [NAME=VALUE …]

With OUTPUT equal to CHAPTER it refreshes the committed outputs, leaving out whatever depends on time.
"""

import contextlib
import os
import sys
import time
from pathlib import Path

import nbformat
import papermill
import yaml
from papermill.exceptions import PapermillExecutionError

CELL_TIMEOUT = 6 * 3600  # seconds


def run(chapter, output, parameters):
    """Execute `chapter` with `parameters` into `output`; exit with one sentence if a cell fails."""
    begun, partial = time.monotonic(), output.with_name(output.stem + ".partial.ipynb")
    partial.parent.mkdir(parents=True, exist_ok=True)
    os.environ["TQDM_DISABLE"] = "1"  # for the kernel: the page needs no bars; papermill has loaded its own already
    try:
        papermill.execute_notebook(
            str(chapter),
            str(partial),
            parameters,
            progress_bar=sys.stderr.isatty(),
            kernel_name="python3",  # of this environment
            execution_timeout=CELL_TIMEOUT,
            record_timing=False,
            extra_arguments=["--log-level=ERROR"],  # of the kernel
        )
    except PapermillExecutionError as error:
        sys.exit(f"{chapter.stem} stopped. {error.ename}: {error.evalue}\nThe notebook up to there is {partial}")
    if output == chapter:
        forget_the_run(partial)
    os.replace(partial, output)
    print(f"{chapter.stem}: {time.monotonic() - begun:.0f} s")


def forget_the_run(path):
    """Remove papermill's records of time and place from a notebook."""
    notebook = nbformat.read(path, as_version=4)
    for part in [notebook, *notebook.cells]:
        part.metadata.pop("papermill", None)
        part.metadata.pop("execution", None)
    nbformat.write(notebook, path)


def parse(argument):
    """Split NAME=VALUE; VALUE is a number where it can be one, and else what YAML makes of it."""
    name, equals, value = argument.partition("=")
    if not equals:
        sys.exit(f"{argument!r} is not of the form NAME=VALUE")
    for number in (int, float):
        with contextlib.suppress(ValueError):
            return name, number(value)
    return name, yaml.safe_load(value) if value else ""


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    run(Path(sys.argv[1]), Path(sys.argv[2]), dict(parse(argument) for argument in sys.argv[3:]))
