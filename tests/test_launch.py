"""Where the book starts elsewhere, it finds what it needs: with conda, on Colab, and by make."""

import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
LOCK = (ROOT / "requirements.lock").read_text()
LOCKED = re.findall(r"^\S+==(?:.*\\\n)(?:    --hash=sha256:.*\n)+", LOCK, re.M)  # packages with a hash


def test_conda_gives_pip_what_pip_takes(tmp_path):
    """conda writes the list under `pip:` into a file; pip must accept all of it, hashes included."""
    *_, pip = yaml.safe_load((ROOT / "environment.yml").read_text())["dependencies"]
    (tmp_path / "requirements.lock").write_text("".join(LOCKED[:3]))
    (tmp_path / "condaenv.requirements.txt").write_text("\n".join(pip["pip"]))
    command = [sys.executable, "-m", "pip", "install", "--dry-run", "--no-index", "--no-deps", "-U"]
    ended = subprocess.run([*command, "-r", "condaenv.requirements.txt"], cwd=tmp_path, capture_output=True, text=True)
    assert ended.returncode == 0 and "Would install" not in ended.stdout, ended.stderr
    assert os.access(ROOT / "postBuild", os.X_OK)  # Binder runs it


def test_the_package_and_the_lock_agree_with_the_project():
    folders = [path.parent.relative_to(ROOT) for path in (ROOT / "utils").rglob("__init__.py")]
    assert sorted(".".join(folder.parts) for folder in folders) == sorted(PROJECT["tool"]["setuptools"]["packages"])
    assert len(LOCKED) == len(re.findall(r"^\S+==", LOCK, re.M))
    names = {package.split("==")[0] for package in LOCKED}
    for requirement in PROJECT["project"]["dependencies"] + PROJECT["dependency-groups"]["test"]:
        assert re.match(r"[\w-]+", requirement)[0] in names


STUB = '#!/bin/sh\nprintf "<%s>" "$@" >> calls\necho >> calls\ncase "$*" in *"pip install"*) exit 1;; esac\n'


@pytest.fixture
def checkout(tmp_path):
    """A folder with the Makefile and the contents of the book, and an environment whose Python only writes its calls.

    Returns the folder, and a function that calls make in it.
    """
    for name in ("Makefile", "_toc.yml", "requirements.lock", "pyproject.toml"):
        shutil.copy(ROOT / name, tmp_path)
    for name in ("book", "scripts", ".venv/bin", "_vendor"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "book" / "three-starts-bilevel.ipynb").touch()
    for name in ("vendor.py", "widgets.js"):
        (tmp_path / "scripts" / name).touch()
    for name in ("python", "papermill"):
        (tmp_path / ".venv" / "bin" / name).write_text(STUB)
        (tmp_path / ".venv" / "bin" / name).chmod(0o755)
    (tmp_path / ".venv" / "ready").touch()

    def make(*words, ready=True):
        given = ["-o", ".venv/ready"] if ready else []
        environment = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS"))}
        command = ["make", "--no-print-directory", *given, *words]
        ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, env=environment, timeout=600)
        return ended.returncode, ended.stdout, ended.stderr

    return tmp_path, make


def calls(folder):
    """What the stub of Python was called with, a list of words for each call."""
    lines = (folder / "calls").read_text().splitlines() if (folder / "calls").exists() else []
    return [re.findall("<(.*?)>", line) for line in lines]


def test_a_path_of_images_may_hold_any_character_but_a_space_and_has_a_folder_of_its_own(checkout):
    folder, make = checkout
    names = ["it's", 'a"b', "a;b&c", "a`b", "(1)*", "a%b", "ä", "a/b", "a_b", "c/b"]
    for dataset in (f"{name}.npz" for name in names):
        assert make("runs", f"DATASET={dataset}") == (0, f"Running the chapters on {dataset} …\n", "")
        assert calls(folder)[-1][1] == "workflow.chapters" and calls(folder)[-1][4:] == [f"DATASET={dataset}"]
    folders = {call[3] for call in calls(folder) if "workflow.chapters" in call}
    assert len(folders) == len(names) and all(re.fullmatch(r"_build/runs/[\w.-]+-\d+", name) for name in folders)


def test_what_was_vendored_comes_back_if_it_is_removed(checkout):
    folder, make = checkout
    make("html")
    assert ["scripts/vendor.py", "_vendor"] not in calls(folder)
    (folder / "_vendor").rmdir()
    for target in ("html", "pdf"):
        (folder / "calls").unlink()
        make(target)
        assert ["scripts/vendor.py", "_vendor"] in calls(folder)


def test_a_set_up_without_a_network_names_it(checkout):
    folder, make = checkout
    (folder / ".venv" / "ready").unlink()
    status, printed, errors = make(f"PYTHON={folder}/.venv/bin/python", "runs", ready=False)
    assert status == 2 and "without a network they cannot be" in printed.splitlines()[-1]
    assert calls(folder)[-1][:4] == ["-m", "pip", "install", "-qq"]  # and nothing after it


def test_a_folder_that_cannot_be_written_is_named(checkout):
    """A file in the place of _build stands for a folder that is read-only, which root does not feel."""
    folder, make = checkout
    (folder / "_build").touch()
    for target in ("runs", "lab", "lint"):
        status, printed, errors = make(target)
        assert status == 2 and not printed and not calls(folder)
        assert re.fullmatch(rf"Makefile:\d+: \*\*\* {folder}/_build cannot be written: .*  Stop.\n", errors)
    assert make("clean")[0] == 0 and make("runs")[0] == 0


@pytest.mark.parametrize("gone", ["python", "python, before it was ready", "packages", "shebang"])
def test_an_environment_that_is_no_longer_whole_ends_in_a_hint(checkout, gone):
    folder, make = checkout
    python, program = (folder / ".venv" / "bin" / name for name in ("python", "papermill"))
    if "ready" in gone:
        (folder / ".venv" / "ready").unlink()
    if "python" in gone:
        python.unlink()
        python.symlink_to("/nowhere/python3.11")
    elif gone == "packages":  # as of another version of Python
        python.write_text("#!/bin/sh\nexit 1\n")
    else:
        program.write_text("#!/nowhere/.venv/bin/python\n")
    status, printed, errors = make("runs")
    assert status == 2 and not printed and "make distclean, then the same again" in errors and errors.count("\n") == 1
    assert make("distclean")[0] == 0 and not (folder / ".venv").exists()


def test_make_hands_on_what_it_is_given(checkout):
    folder, make = checkout
    (folder / "book" / "three-starts-bilevel.ipynb").write_text('"SEEDS = 3')
    grid = "_build/batch-three-starts-bilevel.yaml"
    there = "-o", ".snakemake-env/local/ready"
    assert make("batch", "SEEDS=3 4", "PARAMETERS=A=1", "DATASET=cifar10", *there)[0] == 0
    assert (folder / grid).read_text() == "{experiment: three-starts-bilevel, cross: {SEED: [3,4]}}\n"
    assert calls(folder)[-1] == ["-m", "workflow.grid", grid, "DATASET=cifar10", "SEEDS=1", "A=1"]
    assert 'SEEDS is empty: give some, as in SEEDS="0 1 2"' in make("batch", "SEEDS= ", *there)[2]
    assert make("verify", "RECORD=affine", "RUNS=all", "DATASET=x.npz", *there)[0] == 0
    assert calls(folder)[-1] == ["-m", "workflow.verify", "affine", "--all", "--dataset", "x.npz"]
    make("record", "GRID=a.yaml", "DIRTY=1")
    assert calls(folder)[-1] == ["-m", "workflow.record", "a.yaml", "--dirty"]
