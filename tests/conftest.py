import ast
import os
import shutil
import time
from pathlib import Path

import nbformat
import numpy as np
import pytest
import torch

from utils import images, networks
from utils.attacks import decoreco, starts
from utils.training import stationary

ROOT = Path(__file__).parent.parent
BOOK = ROOT / "book"
SUMS = "def double(x):\n    return 2 * x\n\n\ndef half(x):\n    return x / 2\n"
UTILS = (
    "__init__", "errors", "choices", "files", "quantities", "attacks/__init__", "notebook/__init__",
    "notebook/parameters",
)  # fmt: skip


def pytest_runtest_setup():
    """What a test draws without a generator of its own is the same in every run."""
    torch.manual_seed(0)


def chapter_functions(stem):
    """What a chapter or an experiment defines: its imports, parameters and other constants, functions and classes.

    Only cells are executed that hold nothing else, so that no experiment runs.
    """
    names = {"__name__": stem}
    (path,) = (path for folder in (BOOK, ROOT / "experiments") for path in folder.glob(f"{stem}.ipynb"))
    for cell in nbformat.read(path, as_version=4).cells:
        if cell.cell_type == "code" and all(map(only_defines, ast.parse(cell.source).body)):
            exec(compile(cell.source, f"{stem}: {cell.source.splitlines()[0]}", "exec"), names)
    return names


def only_defines(statement):
    """Whether a statement is an import, a function, a class, or the assignment of a literal."""
    if isinstance(statement, ast.Assign):
        try:
            ast.literal_eval(statement.value)
        except ValueError:
            return False
        return True
    return isinstance(statement, (ast.Import, ast.ImportFrom, ast.FunctionDef, ast.ClassDef))


@pytest.fixture
def small():
    """Twelve random images of thirty pixels, with labels and a generator for more."""
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(12, 30, dtype=torch.float64, generator=generator)
    y = torch.tensor([0.0] * 6 + [1.0] * 6, dtype=torch.float64)
    return x, y, generator


def drawn(*shape, seed=0, dtype=torch.float64):
    """Normal numbers, the same in every run."""
    return torch.randn(*shape, dtype=dtype, generator=torch.Generator().manual_seed(seed))


class Bomb:
    """A pickle that makes a folder if it is loaded."""

    def __init__(self, path):
        self.path = str(path)

    def __reduce__(self):
        return os.mkdir, (self.path,)


def noisy_classes(seed):
    """A Part of thirty images of a hundred numbers, in two noisy classes."""
    x = starts.random(30, 100, seed)
    x[15:, :50] += 1
    return images.Part(x, (torch.arange(30) >= 15).double())


def relu_released(rule="signed"):
    """What a small ReLU network of twelve photographs gives away, of four classes if the rule is for several."""
    data = images.split(images.load("photos", binary=rule != "multiclass"), 12, 12)
    recipe = networks.perceptron(rule, 20, 16)._replace(epochs=60, stages=0)
    return stationary.train(data.secret, recipe).released


def attacked(released, **settings):
    """What twenty steps of the stationarity attack make of noise."""
    start = starts.normal(10, 3072, 0.0197, 0)
    return decoreco.attack(released, start, iterations=20, **settings)


@pytest.fixture(scope="session")
def photos():
    """One hundred secret and one hundred known views, and the victim's network at μ = 0.01."""
    data = images.split(images.load("photos"), 100, 100)
    return data, stationary.train(data.secret, networks.affine(1e-2)).released.network


@pytest.fixture(scope="session")
def toy_npz(tmp_path_factory):
    """The path of an .npz file with eighty images of 8×8×3 pixels in two classes."""
    path, generator = tmp_path_factory.mktemp("data") / "toy.npz", np.random.default_rng(0)
    labels = np.arange(80) % 2 + 3
    pictures = generator.random((80, 8, 8, 3)) * 0.5 + 0.3 * (labels == 4)[:, None, None, None]
    np.savez(path, images=pictures, labels=labels)
    return path


def write_notebook(path, *cells):
    """Write a notebook with these cells of code; the first of several is that of the parameters."""
    cells = [nbformat.v4.new_code_cell(text, id=f"cell-{number}") for number, text in enumerate(cells)]
    if len(cells) > 1:
        cells[0].metadata["tags"] = ["parameters"]
    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    nbformat.write(nbformat.v4.new_notebook(cells=cells, metadata={"kernelspec": kernel}), path)


def small_project(place):
    """A folder with `lab`, a lock, and a small `utils` that is loaded in no time."""
    shutil.copytree(ROOT / "lab", place / "lab", ignore=shutil.ignore_patterns("__pycache__"))
    for folder in ("notebook", "attacks"):
        (place / "utils" / folder).mkdir(parents=True)
    for name in UTILS:
        shutil.copy(ROOT / "utils" / f"{name}.py", place / "utils" / f"{name}.py")
    (place / "utils" / "sums.py").write_text(SUMS)
    (place / "requirements.lock").write_text("x==1 \\\n    --hash=sha256:0\n")
    return place


def processes(place):
    """The command lines of all processes that name a folder."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            found.append(path.read_bytes().replace(b"\0", b" ").decode())
        except OSError:  # it has just ended
            continue
    return [line for line in found if str(place) in line]


def wait_until(condition):
    for _ in range(12_000):
        if condition():
            return
        time.sleep(0.1)
    raise AssertionError("this took more than twenty minutes")
