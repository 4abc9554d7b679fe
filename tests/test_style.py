"""Who may see what, how large anything may be, and that what is imported is declared."""

import ast
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from importlib.metadata import packages_distributions
from itertools import chain
from pathlib import Path

import pytest

from lab.run import CODE

ROOT = Path(__file__).parent.parent
NOTEBOOKS = sorted([*(ROOT / "book").glob("*.ipynb"), *(ROOT / "experiments").glob("*.ipynb")])
PACKAGES = sorted(path.parent.name for path in ROOT.glob("*/__init__.py"))
MODULES = [path for name in PACKAGES for path in (ROOT / name).rglob("*.py")]
OTHERS = [*ROOT.glob("tests/**/*.py"), *ROOT.glob("tools/*.py"), *ROOT.glob("book/_ext*/*.py")]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
DOORS = {"attack", "attempt", "train", "audit", "split", "load", "fit"}
each_notebook = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)


def code_of(notebook):
    cells = json.loads(notebook.read_text())["cells"]
    return "\n".join("".join(c["source"]) for c in cells if c["cell_type"] == "code")


def imported(code):
    """The first names of the packages that a program imports, in their order."""
    names = []
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.ImportFrom):
            names.append(node.module)
        elif isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
    return [name.split(".")[0] for name in names]


def functions():
    """Every function of the packages, with its file."""
    for path in MODULES:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef):
                yield node, path.relative_to(ROOT)


def test_the_wall_refuses_what_an_attacker_may_not_see(tmp_path):
    """The mistakes are planted in a copy of the packages and of the contract on their imports."""
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    for path in MODULES:
        (tmp_path / path.relative_to(ROOT)).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, tmp_path / path.relative_to(ROOT))
    planted = [
        ("attacks.unmixing", "training.ordinary"),
        ("attacks.unmixing", "evaluation.measures"),
        ("attacks.unmixing", "lab.report"),
        ("training.stationary", "attacks.bilevel"),
        ("evaluation.null", "experiments.margin"),
        ("utils.kernels.layers", "utils.networks"),
        ("utils.networks", "attacks.starts"),
    ]
    for module, seen in planted:
        with open(tmp_path / f"{module.replace('.', '/')}.py", "a") as code:
            code.write(f"import {seen}\n")
    command = [Path(sys.executable).with_name("lint-imports"), "--no-cache"]
    here = os.environ | {"PYTHONPATH": str(tmp_path)}
    ended = subprocess.run(command, cwd=tmp_path, env=here, capture_output=True, text=True)
    assert ended.returncode == 1
    assert all(f"{module} -> {seen}" in ended.stdout for module, seen in planted)


def test_every_package_and_every_part_of_utils_has_a_layer():
    contract = PROJECT["tool"]["importlinter"]
    layers = {name for layer in contract["contracts"][0]["layers"] for name in layer.split(" | ")}
    parts = {f"utils.{path.stem}" for path in (ROOT / "utils").glob("[a-z]*")}
    assert layers == {*PACKAGES, *parts} - {"utils"}
    assert {*contract["root_packages"]} == {*PACKAGES}


def test_what_is_imported_is_declared():
    """What comes along with another package today need not come with its next version."""
    needed = PROJECT["project"]["dependencies"] + PROJECT["dependency-groups"]["test"]
    needed += [PROJECT["project"]["name"]]
    needed += chain.from_iterable(PROJECT["project"]["optional-dependencies"].values())
    declared = {re.match(r"[\w-]+", requirement)[0] for requirement in needed}
    sources = packages_distributions()
    for path in [*MODULES, *OTHERS]:
        given = {source for name in imported(path.read_text()) for source in sources.get(name, [])}
        assert {source.lower().replace("_", "-") for source in given} <= declared, path


def test_functions_are_read_at_one_glance():
    assert not [
        f"{path}: {node.name}" for node, path in functions() if node.end_lineno - node.lineno >= 40
    ]


def test_doors_have_types_for_all_that_they_take_and_return():
    """So that mypy refuses a caller who gives them something else."""
    for node, path in functions():
        if node.name in DOORS:
            its = node.args
            given = [*its.posonlyargs, *its.args, *its.kwonlyargs, its.vararg, its.kwarg]
            types = [one.annotation for one in given if one and one.arg not in ("self", "cls")]
            assert None not in (*types, node.returns), f"{path}: {node.name}"


@each_notebook
def test_cells_fit_on_a_page_and_import_our_code_before_torch(path):
    """What is loaded after utils waits as utils says; what is ours is in the key of a run."""
    code = code_of(path)
    assert max(map(len, code.splitlines())) <= 90
    first, *others = imported(code)
    assert first in PACKAGES
    ours = {name for name in [first, *others] if (ROOT / name).is_dir()}
    assert ours <= {pattern.split("/")[0] for pattern in CODE}


def test_no_definition_stands_in_two_notebooks():
    seen = {}
    for path in NOTEBOOKS:
        for node in ast.parse(code_of(path)).body:
            if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
                assert seen.setdefault(ast.unparse(node), path.stem) == path.stem, node.name


@pytest.mark.skipif(sys.platform != "linux", reason="torch takes another OpenMP library here")
def test_threads_wait_asleep():
    """The OpenMP libraries of torch and scikit-learn say how often a thread spins, if utils is loaded first."""
    code = (
        "from utils.kernels import layers; import torch; from sklearn.utils import _openmp_helpers"
    )
    given = {name: text for name, text in os.environ.items() if "OMP_" not in name}
    given |= {"OMP_DISPLAY_ENV": "verbose", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", code]
    ended = subprocess.run(command, env=given, capture_output=True, text=True, check=True)
    counts = re.findall(r"GOMP_SPINCOUNT = '(\d+)'", ended.stdout + ended.stderr)
    assert counts and not any(map(int, counts))
