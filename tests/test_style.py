"""Who may see what, and how large anything may be."""

import ast
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from lab.run import CODE

ROOT = Path(__file__).parent.parent
CHAPTERS = sorted([*(ROOT / "book").glob("*.ipynb"), *(ROOT / "experiments").glob("*.ipynb")])
DOORS = {"attack", "attempt", "train", "audit", "split", "load", "fit"}
PACKAGES = sorted(path.parent.name for path in ROOT.glob("*/__init__.py"))


def code_of(path):
    cells = json.loads(path.read_text())["cells"]
    return "\n".join("".join(c["source"]) for c in cells if c["cell_type"] == "code")


def test_the_wall_refuses_what_an_attacker_may_not_see(tmp_path):
    """The mistakes are planted in a copy of the packages and of the contract on their imports."""
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    for name in PACKAGES:
        shutil.copytree(
            ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__", "*.ipynb")
        )
    planted = [
        ("attacks.unmixing", seen)
        for seen in ("training.ordinary", "evaluation.measures", "lab.report")
    ]
    planted += [
        ("training.stationary", "attacks.bilevel"),
        ("evaluation.null", "experiments.margin"),
    ]
    planted += [("utils.kernels.layers", "utils.networks"), ("utils.networks", "attacks.starts")]
    for module, seen in planted:
        with open(tmp_path / f"{module.replace('.', '/')}.py", "a") as code:
            code.write(f"import {seen}\n")
    command = Path(sys.executable).with_name("lint-imports")
    here = os.environ | {"PYTHONPATH": str(tmp_path)}
    ended = subprocess.run(
        [command, "--no-cache"], cwd=tmp_path, env=here, capture_output=True, text=True
    )
    assert ended.returncode == 1 and all(
        f"{module} -> {seen}" in ended.stdout for module, seen in planted
    )


def test_every_package_and_every_part_of_utils_has_a_layer():
    contract = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
    layers = {name for layer in contract["contracts"][0]["layers"] for name in layer.split(" | ")}
    parts = {
        f"utils.{path.stem}"
        for path in (ROOT / "utils").iterdir()
        if not path.name.startswith(("_", "."))
    }
    assert layers == {*PACKAGES, *parts} - {"utils"}
    assert {*contract["root_packages"]} == {*PACKAGES}


def test_functions_are_read_at_one_glance():
    for name in PACKAGES:
        for path in (ROOT / name).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.FunctionDef):
                    assert node.end_lineno - node.lineno < 40, f"{path.name}: {node.name}"


def test_doors_have_types_for_all_that_they_take_and_return():
    """So that mypy refuses a caller who gives them something else."""
    untyped = set()
    for path in (path for name in PACKAGES for path in (ROOT / name).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef) and node.name in DOORS:
                its = node.args
                given = [
                    *its.posonlyargs,
                    *its.args,
                    *its.kwonlyargs,
                    *filter(None, (its.vararg, its.kwarg)),
                ]
                types = [one.annotation for one in given if one.arg not in ("self", "cls")]
                if None in (*types, node.returns):
                    untyped.add(f"{path.relative_to(ROOT)}: {node.name}")
    assert not untyped


@pytest.mark.parametrize("path", CHAPTERS, ids=lambda path: path.stem)
def test_cells_fit_on_a_page_and_import_our_code_before_torch(path):
    """What is loaded after utils waits as utils says."""
    code = code_of(path)
    nodes = [
        node for node in ast.parse(code).body if isinstance(node, (ast.Import, ast.ImportFrom))
    ]
    first = nodes[0].module if isinstance(nodes[0], ast.ImportFrom) else nodes[0].names[0].name
    assert first.split(".")[0] in PACKAGES
    assert max(map(len, code.splitlines())) <= 90


@pytest.mark.parametrize("path", CHAPTERS, ids=lambda path: path.stem)
def test_what_a_notebook_imports_of_ours_is_in_the_key_of_its_runs(path):
    nodes = [*ast.walk(ast.parse(code_of(path)))]
    names = [node.module for node in nodes if isinstance(node, ast.ImportFrom)]
    names += [one.name for node in nodes if isinstance(node, ast.Import) for one in node.names]
    first = {name.split(".")[0] for name in names}
    ours = {name for name in first if (ROOT / name).is_dir() or (ROOT / f"{name}.py").is_file()}
    assert ours and ours <= {pattern.split("/")[0] for pattern in CODE}


def test_no_definition_stands_in_two_notebooks():
    seen = {}
    for path in CHAPTERS:
        lines = [line for line in code_of(path).splitlines() if not line.startswith(("%", "!"))]
        for node in ast.parse("\n".join(lines)).body:
            if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
                assert seen.setdefault(ast.unparse(node), path.stem) == path.stem, node.name


@pytest.mark.skipif(sys.platform != "linux", reason="torch takes another OpenMP library here")
@pytest.mark.parametrize("wanted, asleep", [({}, True), ({"OMP_WAIT_POLICY": "active"}, False)])
def test_threads_wait_asleep_unless_the_environment_says_otherwise(wanted, asleep):
    """The OpenMP libraries of torch and scikit-learn say how often a thread spins, if utils is loaded first."""
    imports = (
        "from utils.kernels import layers; import torch; from sklearn.utils import _openmp_helpers"
    )
    given = {
        name: value for name, value in os.environ.items() if not name.startswith(("OMP_", "GOMP_"))
    }
    given |= wanted | {"OMP_DISPLAY_ENV": "verbose", "PYTHONPATH": str(ROOT)}
    ended = subprocess.run(
        [sys.executable, "-c", imports], env=given, capture_output=True, text=True, check=True
    )
    counts = re.findall(r"GOMP_SPINCOUNT = '(\d+)'", ended.stdout + ended.stderr)
    assert counts and all((int(count) == 0) == asleep for count in counts)
