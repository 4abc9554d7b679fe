"""What CONTRIBUTING.md shows works: its pieces of Python are executed as they stand, its grid is planned."""

import re
import shutil
from pathlib import Path

import pytest

from attacks import ATTACKS
from lab import grid
from utils.kernels import coefficients

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
    """A folder with the notebook that is copied; registries are put back."""
    (tmp_path / "experiments").mkdir()
    shutil.copy(ROOT / "experiments" / "one-attack.ipynb", tmp_path / "experiments")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(grid, "ROOT", tmp_path)
    for registry in (ATTACKS, coefficients.RULES):
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
    assert len(grid.plan_of(grid.read("mine.yaml"), {})["runs"]) == 10
