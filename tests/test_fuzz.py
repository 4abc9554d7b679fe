"""Whatever a user hands in is taken, or refused in one sentence; nothing else happens, and no code of a file is run."""

import os
import warnings
import zipfile

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from attacks import bilevel, decoreco
from attacks.contract import Attack
from audit import weights
from conftest import Bomb
from training import images, stationary
from utils import networks
from utils.errors import InputError
from utils.networks import Released

pytestmark = pytest.mark.filterwarnings("ignore:Detected pickle protocol")
# The same examples in every run; `FUZZ=2000 pytest tests/test_fuzz.py` draws that many new ones for each test.
DRAWN = int(os.environ.get("FUZZ", "0"))
FUZZ = settings(max_examples=DRAWN or 40, derandomize=not DRAWN)
NUMBERS = st.sampled_from([0.0, 0.5, -1.0, 255.0, 1e-320, 1e300, np.nan, np.inf, -np.inf])
KINDS = st.sampled_from(["u1", "i1", "i8", "f2", "f4", "f8", "c16", "?", "U3", "M8[s]"])
SHAPES = hnp.array_shapes(min_dims=0, max_dims=5, min_side=0, max_side=9)


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    """The path of a file .npz that every example writes anew."""
    return tmp_path_factory.mktemp("fuzz") / "file.npz"


def array(shape, fill, kind):
    """An array of one number, in whatever kind of numbers, texts or times that becomes."""
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return np.full(shape, fill).astype("i8" if kind == "M8[s]" else "f8").astype(kind)


ARRAYS = st.builds(array, SHAPES, NUMBERS, KINDS)


def taken(function, *given, **named):
    """What a call returns, or None if it is refused in one sentence; all else fails the test."""
    try:
        return function(*given, **named)
    except InputError as error:
        assert str(error).strip() and "\n" not in str(error) and str(error)[-1] in ".:"
        return None


def loaded(path, pictures, labels):
    """The images of an archive of these arrays, or None."""
    np.savez(path, images=pictures, labels=labels)
    return taken(images.load, str(path))


@FUZZ
@given(contents=st.binary(max_size=400))
def test_random_bytes_are_neither_images_nor_weights(contents, path):
    other = path.with_suffix(".pth")
    other.write_bytes(contents)
    assert taken(weights.read, other, (8, 8, 3)) is None
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("images.npy", contents)
        archive.writestr("labels.npy", b"\x93NUMPY" + contents)
    assert taken(images.load, str(path)) is None


@FUZZ
@given(pictures=ARRAYS, labels=ARRAYS)
def test_arrays_of_any_shape_and_kind_are_images_or_refused(pictures, labels, path):
    found = loaded(path, pictures, labels)
    if found is not None:
        assert found.images.ndim == 4 and len(found.images) == len(found.labels)
        assert found.images.min() >= 0 and found.images.max() <= 255


def test_a_pickle_in_place_of_images_is_not_loaded(tmp_path):
    bombs = np.array([Bomb(tmp_path / "exploded")] * 4)
    assert loaded(tmp_path / "bombs.npz", bombs, np.arange(4) % 2) is None
    assert not (tmp_path / "exploded").exists()


def full(*sizes, **lengths):
    """Tensors of one number, of the shapes that can be made of some sizes."""
    shapes = st.lists(st.sampled_from(sizes), **lengths)
    return st.builds(torch.full, shapes, NUMBERS, dtype=st.just(torch.float64))


NAMES = st.sampled_from([f"layers.{k}.{part}" for k in (0, 1, 2) for part in ("weight", "bias")])
DTYPES = st.sampled_from([torch.float32, torch.float64, torch.float16])
TENSORS = st.builds(torch.Tensor.to, full(0, 1, 2, 5, 12, max_size=3), DTYPES)


@FUZZ
@given(state=st.dictionaries(NAMES, TENSORS | st.integers() | st.text(max_size=3), max_size=5))
def test_any_state_is_a_network_for_these_images_or_refused(state):
    found = taken(weights.read, state, (2, 2, 3))
    if found is not None:
        assert found.layers[0].weight.shape[1] == 12
        assert {layer.weight.dtype for layer in found.layers} == {torch.float64}
        assert networks.flatten(found.layers).isfinite().all()


def released(*hidden):
    """An untrained network on 8×8 grey pictures."""
    recipe = networks.perceptron("signed", *hidden)._replace(initial=0.1, loss="square")
    labels = torch.tensor([0.0, 0.0, 1.0, 1.0], dtype=torch.float64)
    return Released(networks.initial(recipe, 64, 0), labels, recipe)


STARTS = full(0, 1, 2, 4, 63, 64, min_size=2, max_size=3)


@FUZZ
@given(start=STARTS, optimiser=st.sampled_from(["sgd", "adam", "projection"]), decay=NUMBERS)
def test_both_attacks_take_a_start_or_refuse_it(start, optimiser, decay):
    settings = decoreco.SETTINGS[optimiser]._replace(iterations=3)
    found = taken(decoreco.attack, released(6), start, settings)
    assert found is None or isinstance(found, Attack) and found.images.shape == start.shape
    victim = released()._replace(recipe=networks.affine(0.01)._replace(weight_decay=decay))
    found = taken(bilevel.attack, victim, start, iterations=2)
    assert found is None or found.images.shape == start.shape and decay > 0


@pytest.mark.parametrize("labels", [[0, 1], [0, 0, 1, np.nan], [0.5, 0, 1, 1], []])
def test_training_on_labels_that_are_none(labels):
    part = images.Part(torch.rand(4, 64, dtype=torch.float64), torch.tensor(labels).double())
    recipe = networks.perceptron("signed", 6)._replace(epochs=5, stages=0)
    assert taken(stationary.train, part, recipe) is None
