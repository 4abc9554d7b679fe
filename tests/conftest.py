import ast
import os
from pathlib import Path

import nbformat
import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, settings
from PIL import Image

from attacks import generator, starts
from training import images, stationary
from utils import networks
from utils.errors import InputError

ROOT = Path(__file__).parent.parent
BOOK = ROOT / "book"
SIDE, M = 16, 12  # of the pictures of an audit, and their number on each side
SHAPE = (SIDE, SIDE, 3)
# Examples that are the same in every run, however busy the machine is.
settings.register_profile(
    "same", deadline=None, derandomize=True, suppress_health_check=list(HealthCheck)
)
settings.load_profile("same")


def pytest_runtest_setup():
    """What a test draws without a generator of its own is the same in every run."""
    torch.manual_seed(0)


@pytest.fixture(autouse=True)
def unread(request, monkeypatch):
    """No audit takes half a minute to read a start, but in the tests of that."""
    if request.path.parent.name == "audit" and request.path.stem != "test_start":

        def refuse(*_):
            raise InputError(generator.NONE)

        monkeypatch.setattr(generator, "read", refuse)


def chapter_functions(stem):
    """What a chapter or an experiment defines: its imports, parameters and other constants, functions and classes.

    Only cells are executed that hold nothing else, so that no experiment runs.
    """
    names = {"__name__": stem}
    (path,) = (
        path for folder in (BOOK, ROOT / "experiments") for path in folder.glob(f"{stem}.ipynb")
    )
    for cell in nbformat.read(path, as_version=4).cells:
        if cell.cell_type == "code" and all(map(only_defines, ast.parse(cell.source).body)):
            exec(compile(cell.source, f"{stem}: {cell.source.splitlines()[0]}", "exec"), names)
    return names


def only_defines(statement):
    """Whether a statement is an import, a function, a class, or the assignment of a value that calls nothing."""
    if isinstance(statement, ast.Assign):
        return not any(isinstance(node, (ast.Call, ast.Name)) for node in ast.walk(statement.value))
    return isinstance(statement, (ast.Import, ast.ImportFrom, ast.FunctionDef, ast.ClassDef))


@pytest.fixture
def x():
    """Twelve random images of thirty pixels (12, 30)."""
    return torch.rand(12, 30, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


@pytest.fixture
def y():
    """Their labels, six of each class (12,)."""
    return torch.tensor([0.0] * 6 + [1.0] * 6, dtype=torch.float64)


@pytest.fixture(scope="session")
def sides():
    """Small photographs (12, 16, 16, 3) of each side of an audit, with the labels of two classes."""
    found = images.load("photos")
    small = [
        np.asarray(Image.fromarray(one).resize((SIDE, SIDE), Image.Resampling.BOX))
        for one in found.images
    ]
    rows = np.concatenate([np.flatnonzero(found.labels == kind)[:M] for kind in (0, 1)])
    # Half of each class on either side.
    order = rows.reshape(2, 2, -1).transpose(1, 0, 2).reshape(2, M)
    return [(np.stack([small[k] for k in some]), found.labels[some]) for some in order]


def drawn(*shape, seed=0, dtype=torch.float64):
    """Normal numbers, the same in every run."""
    return torch.randn(*shape, dtype=dtype, generator=torch.Generator().manual_seed(seed))


def slope(function, x, way, step=1e-5):
    """The derivative of a function at x along a way, by differences."""
    return (function(x + step * way) - function(x - step * way)) / (2 * step)


def refused(function, *given, **named):
    """The one sentence in which a call is refused; a call that is not fails the test."""
    with pytest.raises(InputError) as caught:
        function(*given, **named)
    assert "\n" not in str(caught.value)
    return str(caught.value)


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


def victim_of_twelve(rule, *hidden, device="cpu", **training):
    """A ReLU network, and twelve photographs that it was trained on: of four classes if the rule is for several."""
    data = images.split(
        images.load("photos", binary=rule != "multiclass"), 12, 12, 0, torch.device(device)
    )
    return stationary.train(
        data.secret, networks.perceptron(rule, *hidden)._replace(stages=0, **training)
    )


@pytest.fixture(scope="session")
def photos():
    """One hundred secret and one hundred known views, and the victim's network at μ = 0.01."""
    data = images.split(images.load("photos"), 100, 100)
    return data, stationary.train(data.secret, networks.affine(1e-2)).released.network


@pytest.fixture(scope="session")
def views():
    """Forty secret views of photographs, forty known and forty held-out ones."""
    return images.split(images.load("photos"), 40, 40, held_out=40)


@pytest.fixture(scope="session")
def data():
    """Twenty secret views of photographs, a hundred known and twenty held-out ones."""
    return images.split(images.load("photos"), 20, 100, 1, held_out=20)


@pytest.fixture(scope="session")
def toy_npz(tmp_path_factory):
    """The path of an .npz file with eighty images of 8×8×3 pixels in two classes."""
    path, generator = tmp_path_factory.mktemp("data") / "toy.npz", np.random.default_rng(0)
    labels = np.arange(80) % 2 + 3
    pictures = generator.random((80, 8, 8, 3)) * 0.5 + 0.3 * (labels == 4)[:, None, None, None]
    np.savez(path, images=pictures, labels=labels)
    return path


@pytest.fixture(scope="session")
def toy(toy_npz):
    """Ten secret images of 8×8×3 pixels, twenty known ones and ten held-out ones."""
    return images.split(images.load(str(toy_npz)), 10, 20, held_out=10)
