"""Where the book starts elsewhere, it finds what it needs, and make says what is wrong."""

import os
import re
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parent.parent
BIN = Path(".venv", "bin")
STUB = '#!/bin/sh\nprintf "<%s>" "$@" >> calls\necho >> calls\ncase "$*" in *"pip install"*) exit 1;; esac\n'
WHOLE = "make distclean, then the same again"


def test_the_package_and_the_lock_agree_with_the_project():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    lock = (ROOT / "requirements.lock").read_text()
    folders = [path.parent.relative_to(ROOT) for path in ROOT.glob("[a-z]*/**/__init__.py")]
    assert sorted(".".join(folder.parts) for folder in folders) == sorted(
        project["tool"]["setuptools"]["packages"]
    )
    locked = re.findall(r"^([\w.-]+)==.*\\\n    --hash=sha256:", lock, re.M)
    assert len(locked) == len(re.findall(r"^\S+==", lock, re.M))
    for requirement in project["project"]["dependencies"] + project["dependency-groups"]["test"]:
        assert re.match(r"[\w-]+", requirement)[0] in locked
    assert os.access(ROOT / "postBuild", os.X_OK)  # Binder runs it


@pytest.fixture
def make(tmp_path, monkeypatch):
    """Calls make in a folder whose Python only writes its calls; returns the status, and all that is printed."""
    monkeypatch.chdir(tmp_path)
    for name in ("book", "tools", BIN, "_vendor"):
        Path(name).mkdir(parents=True)
    for name in ("Makefile", "_toc.yml", "requirements.lock", "pyproject.toml"):
        shutil.copy(ROOT / name, ".")
    shutil.copy(ROOT / "tools/set_up.sh", "tools")
    for name in (
        "book/three-starts-bilevel.ipynb",
        "tools/vendor.py",
        "tools/widgets.js",
        ".venv/ready",
    ):
        Path(name).touch()
    for program in (BIN / "python", BIN / "papermill"):
        program.write_text(STUB)
        program.chmod(0o755)

    def call(*words):
        environment = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("MAKE", "MFLAGS"))
        }
        command = ["make", "--no-print-directory", *words]
        ended = subprocess.run(
            command, capture_output=True, text=True, env=environment, timeout=600
        )
        return ended.returncode, ended.stdout + ended.stderr

    return call


def calls():
    """What the stub of Python was called with, a list of words for each call."""
    return [re.findall("<(.*?)>", line) for line in Path("calls").read_text().splitlines()]


def test_make_hands_on_what_it_is_given(make):
    Path("book/three-starts-bilevel.ipynb").write_text('"SEEDS = 3')
    there = ["-o", ".venv/ready", "-o", ".snakemake-env/ready"]
    grid = "_build/batch-three-starts-bilevel.yaml"
    assert make("batch", "SEEDS=3 4", "PARAMETERS=A=1", "DATASET=cifar10", *there)[0] == 0
    assert yaml.safe_load(Path(grid).read_text()) == {
        "experiment": "three-starts-bilevel",
        "cross": {"SEED": [3, 4]},
    }
    assert calls()[-1] == ["-m", "lab.grid", grid, "DATASET=cifar10", "SEEDS=1", "A=1"]
    assert 'SEEDS is empty: give some, as in SEEDS="0 1 2"' in make("batch", "SEEDS= ", *there)[1]
    assert make("grid", "PROFILE=lab/profiles/slurm", *there)[0] == 0
    assert calls()[-1] == [
        "-m",
        "lab.grid",
        "experiments/example.yaml",
        "--profile",
        "lab/profiles/slurm",
    ]
    assert make("verify", "RECORD=affine", "RUNS=all", "DATASET=x.npz", *there)[0] == 0
    assert calls()[-1] == ["-m", "lab.verify", "affine", "--all", "--dataset", "x.npz"]
    make("record", "GRID=a.yaml", "DIRTY=1", *there)
    assert calls()[-1] == ["-m", "lab.record", "a.yaml", "--dirty"]
    names = [
        f"{name}.npz"
        for name in ("it's", 'a"b', "a;b&c", "a`b", "(1)*", "a%b", "ä", "a/b", "a_b", "c/b")
    ]
    for dataset in names:
        assert make("runs", f"DATASET={dataset}", *there) == (
            0,
            f"Running the chapters on {dataset} …\n",
        )
        assert calls()[-1][4:] == [f"DATASET={dataset}"]
    Path("a_b.npz").write_text("other pictures")
    make("runs", "DATASET=a_b.npz", *there)
    assert (
        len({str(Path(call[3]).parent) for call in calls() if "lab.run" in call}) == len(names) + 1
    )


def test_a_chapter_runs_again_if_it_is_older_and_one_that_fails_stops_no_other(make):
    contents = "- file: book/a\n- file: book/decoreco-attack\n- file: book/three-starts-bilevel\n"
    Path("_toc.yml").write_text(contents)
    for path in map(
        Path,
        ("book/a.ipynb", "book/decoreco-attack.ipynb", "utils/kernels/b.py", "data/results/c.csv"),
    ):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    (BIN / "python").write_text(
        STUB + 'case "$*" in *fails*) exit 1;; *lab.run*) mkdir -p "${4%/*}" && touch "$4";; esac\n'
    )

    def ran():
        Path("calls").unlink(missing_ok=True)
        status = make("runs", "JOBS=1", "-o", ".venv/ready")[0]
        return status, [Path(call[2]).stem for call in calls() if "lab.run" in call]

    assert ran() == (0, ["decoreco-attack", "a", "three-starts-bilevel"])  # the longest first
    assert ran() == (0, [])
    os.utime("book/a.ipynb", (2e9, 2e9))
    assert ran() == (0, ["a"])
    Path("book/a.ipynb").rename("book/fails.ipynb")
    Path("_toc.yml").write_text(contents.replace("book/a", "book/fails"))
    for path in ("utils/kernels/b.py", "data/results/c.csv", "requirements.lock"):
        os.utime(path, (2.1e9, 2.1e9))
        assert ran() == (2, ["decoreco-attack", "fails", "three-starts-bilevel"])
        os.utime(path, (1e9, 1e9))
    assert 'JOBS is "many": it must be a whole number' in make("runs", "JOBS=many")[1]


def test_every_stage_of_the_tests_runs_and_the_failing_ones_are_named(make):
    (BIN / "pytest").write_text(
        '#!/bin/sh\necho stage >> stages\ncase "$*" in *nbval*) exit 1;; esac\n'
    )
    (BIN / "pytest").chmod(0o755)
    status, printed = make("test", "-o", ".venv/ready", "-o", ".snakemake-env/ready")
    assert status == 2 and "Tests failed in stage: 1 3 (of 4)" in printed  # there is no linter
    assert Path("stages").read_text().count("stage") == 3


@pytest.mark.parametrize(
    "mistake, sentence",
    [
        ("rm .venv/ready", "without a network they cannot be"),
        (
            "touch _build",
            "_build cannot be written: take a copy",
        ),  # as a folder that is read-only, even for root
        ("ln -sf /nowhere/python3.11 .venv/bin/python", WHOLE),
        ("rm .venv/ready; ln -sf /nowhere/python3.11 .venv/bin/python", WHOLE),
        (
            r"printf '#!/bin/sh\nexit 1\n' > .venv/bin/python",
            WHOLE,
        ),  # packages are those of another version of Python
        ("echo '#!/nowhere/.venv/bin/python' > .venv/bin/papermill", WHOLE),
    ],
)
def test_make_says_what_is_wrong(make, mistake, sentence):
    subprocess.run(mistake, shell=True, check=True)
    status, printed = make(f"PYTHON={BIN / 'python'}", "runs")
    assert (
        status == 2
        and sentence in printed
        and make("distclean")[0] == 0
        and not Path(".venv").exists()
    )
