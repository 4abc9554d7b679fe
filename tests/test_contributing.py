"""What CONTRIBUTING.md shows works: its pieces of Python are executed as they stand, its grid is planned."""

import ast
import inspect
import re
import shutil
from importlib import import_module
from pathlib import Path

import pytest

from utils import cache
from utils.evaluation import evaluate
from utils.kernels import coefficients
from workflow import plan

ROOT = Path(__file__).parent.parent
PARTS = re.split(r"^## ", (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8"), flags=re.M)[1:]
FENCES = [
    (part.split("\n")[0], kind, code)
    for part in PARTS
    for kind, code in re.findall(r"^```(\w+)\n(.*?)^```", part, re.M | re.S)
]


def fenced(wanted):
    return [pytest.param(code, id=heading) for heading, kind, code in FENCES if kind == wanted]


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A folder with the notebook that is copied; registries are put back, and nothing is kept on disk."""
    (tmp_path / "experiments").mkdir()
    shutil.copy(ROOT / "experiments" / "one-attack.ipynb", tmp_path / "experiments")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(plan, "ROOT", tmp_path)
    monkeypatch.setattr(cache, "FOLDER", None)
    for registry in (evaluate.ROWS, coefficients.RULES):
        for name in ("seen", "weighted"):  # are deleted in the end, for they are not there now
            monkeypatch.setitem(registry, name, None)
            monkeypatch.delitem(registry, name)
    return tmp_path


@pytest.mark.parametrize("code", fenced("python"))
def test_what_is_shown_works(code, place):
    exec(compile(code, "CONTRIBUTING.md", "exec"), {"__name__": "shown"})


@pytest.mark.parametrize("code", fenced("yaml"))
def test_the_grid_that_is_shown_can_be_run(code, place):
    (place / "mine.yaml").write_text(code, encoding="utf-8")
    assert len(plan.plan_of(plan.read("mine.yaml"), {})["runs"]) == 10


def public(path):
    """The names of the public functions, classes and methods of a file."""
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and not node.name.startswith("_"):
            yield node.name
            for part in node.body if isinstance(node, ast.ClassDef) else ():
                if isinstance(part, ast.FunctionDef) and not part.name.startswith("_"):
                    yield f"{node.name}.{part.name}"


MODULES = sorted(path for path in (ROOT / "utils").rglob("*.py") if path.name != "__init__.py")


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.stem)
def test_every_public_function_has_a_docstring_and_a_place_on_the_page(path):
    name = ".".join(path.relative_to(ROOT).with_suffix("").parts)
    found = import_module(name)
    assert f".. automodule:: {name}\n" in (ROOT / "book" / "code.md").read_text(encoding="utf-8")
    assert found.__doc__
    for name in public(path):
        owner, _, part = name.rpartition(".")
        holder = getattr(found, owner) if owner else found
        assert inspect.getdoc(getattr(holder, part)), name  # a method may inherit its own
