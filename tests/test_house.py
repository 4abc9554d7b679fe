"""The house keeps its rules: who may see what, and how large anything may be."""

import ast
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from utils.fingerprint import parsed

ROOT = Path(__file__).parent.parent
FILES = sorted((ROOT / "utils").rglob("*.py"))
CHAPTERS = sorted([*(ROOT / "book").glob("*.ipynb"), *(ROOT / "experiments").glob("*.ipynb")])
NOT_FOR_ATTACKERS = ("utils.images", "utils.victims", "utils.descent", "utils.evaluation", "utils.notebook")


def name_of(path):
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports(path):
    """The modules of utils that a file imports, wherever in it."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return found & {name_of(file) for file in FILES}


REACHED = {name_of(path): imports(path) for path in FILES}


def reached(name):
    seen, new = set(), {name}
    while new:
        seen |= new
        new = set().union(*(REACHED[module] for module in new)) - seen
    return seen


def test_attackers_cannot_reach_what_only_the_evaluator_knows():
    attackers = [name for name in REACHED if name.startswith("utils.attacks")]
    assert len(attackers) >= 4
    for name in attackers:
        rooms = {module for module in reached(name) if module.startswith(NOT_FOR_ATTACKERS)}
        assert not rooms, f"{name} reaches {rooms}"


def test_kernels_import_kernels_alone():
    kernels = [name for name in REACHED if name.startswith("utils.kernels")]
    assert len(kernels) >= 7
    for name in kernels:
        assert all(module.startswith("utils.kernels") for module in REACHED[name] - {"utils"}), name


def test_notebooks_alone_import_what_is_for_notebooks():
    for name in REACHED:
        if not name.startswith("utils.notebook"):
            assert not any(module.startswith("utils.notebook") for module in REACHED[name]), name


def test_nothing_imports_itself_in_a_circle():
    for name in REACHED:
        assert not any(name in reached(module) for module in REACHED[name] - {name}), name


def test_functions_are_read_at_one_glance():
    for path in FILES:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef):
                assert node.end_lineno - node.lineno < 40, f"{path.name}: {node.name}"


@pytest.mark.parametrize("path", CHAPTERS, ids=lambda path: path.stem)
def test_lines_of_cells_fit_on_a_page(path):
    for cell in json.loads(path.read_text())["cells"]:
        if cell["cell_type"] == "code":
            assert max(map(len, "".join(cell["source"]).splitlines()), default=0) <= 90, cell["source"]


def definitions(path):
    """The functions and classes of a notebook, without docstrings and comments."""
    lines = [line for line in code_of(path).splitlines() if not line.startswith(("%", "!"))]
    nodes = parsed("\n".join(lines)).body
    return [ast.unparse(node) for node in nodes if isinstance(node, (ast.FunctionDef, ast.ClassDef))]


def test_no_definition_stands_in_two_notebooks():
    found = [(text, path.stem) for path in CHAPTERS for text in definitions(path)]
    where = {text: {stem for other, stem in found if other == text} for text, _ in found}
    assert not {text: stems for text, stems in where.items() if len(stems) > 1}


@pytest.mark.parametrize("path", CHAPTERS, ids=lambda path: path.stem)
def test_a_chapter_imports_utils_first(path):
    """What is loaded after utils waits as utils says."""
    nodes = ast.parse(code_of(path)).body
    first = next(node for node in nodes if isinstance(node, (ast.Import, ast.ImportFrom)))
    assert isinstance(first, ast.ImportFrom) and first.module.split(".")[0] == "utils"


@pytest.mark.skipif(sys.platform != "linux", reason="torch takes another OpenMP library here")
@pytest.mark.parametrize("wanted, asleep", [({}, True), ({"OMP_WAIT_POLICY": "active"}, False)])
def test_threads_wait_asleep_unless_the_environment_says_otherwise(wanted, asleep):
    """The OpenMP libraries of torch and scikit-learn say how often a thread spins, if utils is loaded first."""
    imports = "from utils.kernels import layers; import torch; from sklearn.utils import _openmp_helpers"
    given = {name: value for name, value in os.environ.items() if not name.startswith(("OMP_", "GOMP_"))}
    given |= wanted | {"OMP_DISPLAY_ENV": "verbose", "PYTHONPATH": str(ROOT)}
    ended = subprocess.run([sys.executable, "-c", imports], env=given, capture_output=True, text=True, check=True)
    counts = re.findall(r"GOMP_SPINCOUNT = '(\d+)'", ended.stdout + ended.stderr)
    assert counts and all((int(count) == 0) == asleep for count in counts)


def code_of(path):
    return "\n".join("".join(c["source"]) for c in json.loads(path.read_text())["cells"] if c["cell_type"] == "code")


def test_what_one_chapter_alone_needs_stands_in_it():
    chapters = [set(re.findall(r"\w+", code_of(path))) for path in CHAPTERS]
    words = [word for path in FILES for word in re.findall(r"\w+", path.read_text())]
    rooms = [path for path in FILES if path.parent.name != "kernels"]  # arithmetic may wait for others
    for path in rooms:
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, (ast.FunctionDef, ast.ClassDef)) and words.count(node.name) == 1:
                assert sum(node.name in chapter for chapter in chapters) >= 2, f"{path.name}: {node.name}"
