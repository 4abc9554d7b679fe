"""Where the book starts elsewhere, it finds what it needs, and make says what is wrong."""

import os
import re
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
BIN = Path(".venv", "bin")
STUB = '#!/bin/sh\nprintf "<%s>" "$@" >> calls\necho >> calls\ncase "$*" in *"pip install"*) exit 1;; esac\n'
WHOLE = "make distclean, then the same again"


def test_the_package_and_the_lock_agree_with_the_project():
    project, lock = tomllib.loads((ROOT / "pyproject.toml").read_text()), (ROOT / "requirements.lock").read_text()
    folders = [path.parent.relative_to(ROOT) for path in (ROOT / "utils").rglob("__init__.py")]
    assert sorted(".".join(folder.parts) for folder in folders) == sorted(project["tool"]["setuptools"]["packages"])
    locked = re.findall(r"^([\w.-]+)==.*\\\n    --hash=sha256:", lock, re.M)
    assert len(locked) == len(re.findall(r"^\S+==", lock, re.M))
    for requirement in project["project"]["dependencies"] + project["dependency-groups"]["test"]:
        assert re.match(r"[\w-]+", requirement)[0] in locked
    assert os.access(ROOT / "postBuild", os.X_OK)  # Binder runs it


@pytest.fixture
def make(tmp_path, monkeypatch):
    """Calls make in a folder whose Python only writes its calls; returns the status, and all that is printed."""
    monkeypatch.chdir(tmp_path)
    for name in ("book", "scripts", BIN, "_vendor"):
        Path(name).mkdir(parents=True)
    for name in ("Makefile", "_toc.yml", "requirements.lock", "pyproject.toml"):
        shutil.copy(ROOT / name, ".")
    for name in ("book/three-starts-bilevel.ipynb", "scripts/vendor.py", "scripts/widgets.js", ".venv/ready"):
        Path(name).touch()
    for program in (BIN / "python", BIN / "papermill"):
        program.write_text(STUB)
        program.chmod(0o755)

    def call(*words):
        environment = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS"))}
        command = ["make", "--no-print-directory", *words]
        ended = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=600)
        return ended.returncode, ended.stdout + ended.stderr

    return call


def calls():
    """What the stub of Python was called with, a list of words for each call."""
    return [re.findall("<(.*?)>", line) for line in Path("calls").read_text().splitlines()]


def test_make_hands_on_what_it_is_given(make):
    Path("book/three-starts-bilevel.ipynb").write_text('"SEEDS = 3')
    there, grid = ["-o", ".venv/ready", "-o", ".snakemake-env/local/ready"], "_build/batch-three-starts-bilevel.yaml"
    assert make("batch", "SEEDS=3 4", "PARAMETERS=A=1", "DATASET=cifar10", *there)[0] == 0
    assert Path(grid).read_text() == "{experiment: three-starts-bilevel, cross: {SEED: [3,4]}}\n"
    assert calls()[-1] == ["-m", "workflow.grid", grid, "DATASET=cifar10", "SEEDS=1", "A=1"]
    assert 'SEEDS is empty: give some, as in SEEDS="0 1 2"' in make("batch", "SEEDS= ", *there)[1]
    assert make("verify", "RECORD=affine", "RUNS=all", "DATASET=x.npz", *there)[0] == 0
    assert calls()[-1] == ["-m", "workflow.verify", "affine", "--all", "--dataset", "x.npz"]
    make("record", "GRID=a.yaml", "DIRTY=1", *there)
    assert calls()[-1] == ["-m", "workflow.record", "a.yaml", "--dirty"]
    names = [f"{name}.npz" for name in ("it's", 'a"b', "a;b&c", "a`b", "(1)*", "a%b", "ä", "a/b", "a_b", "c/b")]
    for dataset in names:
        assert make("runs", f"DATASET={dataset}", *there) == (0, f"Running the chapters on {dataset} …\n")
        assert calls()[-1][4:] == [f"DATASET={dataset}"]
    assert len({call[3] for call in calls() if "workflow.chapters" in call}) == len(names)  # each has its folder


@pytest.mark.parametrize(
    "mistake, sentence",
    [
        ("rm .venv/ready", "without a network they cannot be"),
        ("touch _build", "_build cannot be written: take a copy"),  # as a folder that is read-only, even for root
        ("ln -sf /nowhere/python3.11 .venv/bin/python", WHOLE),
        ("rm .venv/ready; ln -sf /nowhere/python3.11 .venv/bin/python", WHOLE),
        (r"printf '#!/bin/sh\nexit 1\n' > .venv/bin/python", WHOLE),  # packages are those of another version of Python
        ("echo '#!/nowhere/.venv/bin/python' > .venv/bin/papermill", WHOLE),
    ],
)
def test_make_says_what_is_wrong(make, mistake, sentence):
    subprocess.run(mistake, shell=True, check=True)
    status, printed = make(f"PYTHON={BIN / 'python'}", "runs")
    assert status == 2 and sentence in printed and make("distclean")[0] == 0 and not Path(".venv").exists()
