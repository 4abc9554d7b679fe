"""Make hands on what it is given, and runs again what is older."""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parent.parent
BIN = Path(".venv", "bin")
STUB = """#!/bin/sh
printf "<%s>" "$@" >> calls
echo >> calls
case "$*" in *"pip install"*|*fails*) exit 1;; *lab.run*)
    shift 2; for word; do case "$word" in *.ipynb) ran="$ran $word";; _build*) folder="$word";; esac; done
    mkdir -p "$folder"; for each in $ran; do touch "$folder/${each#book/}"; done;; esac
"""


@pytest.fixture
def make(tmp_path, monkeypatch):
    """Calls make in a folder whose Python only writes its calls; returns its status, what it prints, and the calls."""
    monkeypatch.chdir(tmp_path)
    for name in ("Makefile", "requirements.lock", "pyproject.toml"):
        shutil.copy(ROOT / name, ".")
    for name in ("a", "decoreco-attack", "three-starts-bilevel"):
        Path("book").mkdir(exist_ok=True)
        Path(f"book/{name}.ipynb").write_text('"SEEDS = 3')
        with open("_toc.yml", "a") as contents:
            contents.write(f"- file: book/{name}\n")
    shutil.copytree(ROOT / "tools", "tools")
    BIN.mkdir(parents=True)
    for program in ("python", "papermill"):
        (BIN / program).write_text(STUB)
        (BIN / program).chmod(0o755)

    def call(*words, ready=(".venv/ready", ".snakemake-env/ready")):
        clean = {name: text for name, text in os.environ.items() if "MAKE" not in name[:4]}
        Path("calls").write_text("")
        command = ["make", "--no-print-directory", *words]
        for name in ready:
            command += ["-o", name]
        ended = subprocess.run(command, capture_output=True, text=True, env=clean, timeout=600)
        calls = [re.findall("<(.*?)>", line) for line in Path("calls").read_text().splitlines()]
        return ended.returncode, ended.stdout + ended.stderr, calls

    return call


@pytest.mark.parametrize(
    "words, handed_on",
    [
        (["grid", "PROFILE=p"], ["lab.grid", "experiments/example.yaml", "--profile", "p"]),
        (["verify", "RECORD=a", "RUNS=all"], ["lab.verify", "a", "--all"]),
        (["verify", "DATASET=x.npz"], ["lab.verify", "--dataset", "x.npz"]),
        (["record", "GRID=a.yaml", "DIRTY=1"], ["lab.record", "a.yaml", "--dirty"]),
    ],
)
def test_make_hands_on_what_it_is_given(make, words, handed_on):
    assert make(*words) == (0, "", [["-m", *handed_on]])


@pytest.mark.parametrize(
    "words, said",
    [
        (["batch", "CHAPTER=rank decides"], 'CHAPTER is "rank decides": give one name'),
        (["grid", "GRID="], 'GRID is "": give one name'),
        (["verify", "RUNS=3"], 'RUNS is "3": say RUNS=all'),
    ],
)
def test_make_says_what_it_cannot_hand_on(make, words, said):
    status, printed, calls = make(*words)
    assert (status, calls) == (2, []) and said in printed and len(printed.splitlines()) == 1


def test_a_batch_is_a_grid_of_its_seeds(make):
    path = "_build/batch-three-starts-bilevel.yaml"
    handed_on = ["-m", "lab.grid", path, "DATASET=it's", "SEEDS=1", "A=1"]
    assert make("batch", "SEEDS=3 4", "PARAMETERS=A=1", "DATASET=it's") == (0, "", [handed_on])
    assert yaml.safe_load(Path(path).read_text())["cross"] == {"SEED": [3, 4]}


def test_a_chapter_runs_again_if_it_is_older_and_make_fails_with_it(make):
    for name in ("utils/kernels/b.py", "data/results/c.csv", "d/e.npz"):
        Path(name).parent.mkdir(parents=True)
        Path(name).touch()

    def ran(dataset="photos"):
        status, _, calls = make("runs", f"DATASET={dataset}")
        return status, [Path(word).stem for call in calls for word in call if ".ipynb" in word]

    chapters = ["decoreco-attack", "a", "three-starts-bilevel"]  # the longest first
    assert ran() == (0, chapters)
    assert ran() == (0, [])
    assert ran("d/e.npz") == (0, chapters)
    os.utime("book/a.ipynb", (2e9, 2e9))
    assert ran() == (0, ["a"])
    for path in ("utils/kernels/b.py", "data/results/c.csv", "d/e.npz"):
        os.utime(path, (2.1e9, 2.1e9))
        assert ran("d/e.npz") == (0, chapters)
        os.utime(path, (1e9, 1e9))
    Path("book/a.ipynb").rename("book/fails.ipynb")
    Path("_toc.yml").write_text(Path("_toc.yml").read_text().replace("book/a", "book/fails"))
    assert ran("other") == (2, ["decoreco-attack", "fails", "three-starts-bilevel"])


@pytest.mark.parametrize(
    "change, printed, kept",
    [
        ("true", "Running the chapters on photos …\n", True),
        ("echo >> requirements.lock", "Setting up .venv", True),
        ("echo '#!/nowhere/.venv/bin/python' > .venv/bin/papermill", "Setting up .venv", False),
    ],
)
def test_an_environment_that_changed_or_is_gone_is_set_up_again(make, change, printed, kept):
    """The Python of this test installs nothing, as one without a network."""
    python = shutil.copy(BIN / "python", "python")
    made = "cat requirements.lock pyproject.toml tools/set_up.sh tools/vendor.py tools/widgets.js"
    subprocess.run(f"{made} | cksum > .venv/ready; {change}", shell=True, check=True)
    _, said, _ = make("runs", f"PYTHON={Path(python).absolute()}", ready=())
    assert said.startswith(printed) and (BIN / "papermill").exists() == kept
