"""Results that are kept on disk: under all that they depend on, to the last bit, and without code."""

import json
import math
import os
import pickle
import runpy
import subprocess
import sys

import numpy as np
import pytest
import torch

from conftest import Bomb
from utils import cache, entries, images, networks, victims
from utils.attacks import bilevel, decoreco, starts
from utils.kernels.layers import Layer, parted

MU = 0.05


def same(one, two):
    """Whether two values are equal in type, contents, and the layout of their tensors."""
    if type(one) is not type(two):
        return False
    if torch.is_tensor(one):
        alike = one.dtype == two.dtype and one.shape == two.shape and one.stride() == two.stride()
        return alike and torch.equal(one.nan_to_num(), two.nan_to_num())
    if isinstance(one, (list, tuple)):
        return len(one) == len(two) and all(map(same, one, two))
    return repr(one) == repr(two)


@pytest.fixture
def stored(tmp_path, monkeypatch):
    """Everything is kept, in a folder of the test's own."""
    monkeypatch.setattr(cache, "FOLDER", tmp_path)
    monkeypatch.setattr(cache, "SECONDS", -1.0)
    return tmp_path


@pytest.fixture
def part(small):
    return images.Part(*small[:2])


def test_every_kind_of_result_is_kept_and_comes_back_to_the_last_bit(part, stored, monkeypatch):
    start, made = starts.random(12, 30, 0), []
    smooth = networks.one_hidden(5, MU, 10.0)
    relu = networks.perceptron("signed", 8, 7)._replace(epochs=30, stages=0)

    def run():
        victim, other = victims.train(part, smooth), victims.train(part, relu)
        settings = {"basis": networks.span_of(start), "iterations": 6, "until": 3}
        return [
            victim,
            other,
            victims.stationarity(other, part),
            bilevel.attack(victim.released, start, iterations=3),
            decoreco.attack(other.released, start, **settings),
            decoreco.attack(other.released, start.expand(2, -1, -1), **settings),
        ]

    first = run()
    assert len(list(stored.iterdir())) == len(first)
    monkeypatch.setattr(cache, "write", lambda *given: made.append(given))
    assert all(map(same, first, run())) and not made


@cache.cached
def layer(x) -> Layer:
    return parted(2 * x)


def test_results_are_kept_under_all_that_they_depend_on(small, stored):
    calls = []

    @cache.cached
    def slow(x, scale=1.0, progress=False, watch=None):
        calls.append(scale)
        return x * scale

    x = small[0]
    for arguments, named in (((x,), {}), ((x, 1.0), {"progress": True}), ((x.clone(),), {"scale": 1.0})):
        assert torch.equal(slow(*arguments, **named), x)
    assert calls == [1.0] and len(list(stored.iterdir())) == 1
    slow(x, 2.0), slow(x + 1e-12), slow(x[:1]), slow(x.float())
    assert len(calls) == 5
    slow(x, watch=print)
    assert len(calls) == 6
    for path in stored.iterdir():
        path.write_bytes(b"torn")
    assert torch.equal(slow(x), x) and len(calls) == 7


def test_an_edited_function_is_called_again_and_one_with_a_new_comment_is_not(stored, tmp_path_factory):
    path, calls = tmp_path_factory.mktemp("code") / "slow.py", []
    head = "from utils.cache import cached\n\n\n@cached\ndef slow(x):\n    calls.append(x)\n"
    for line in ("    return x", "    return x  # as it is", "    return 2 * x", "    return x"):
        path.write_text(f"{head}{line}\n")
        slow = runpy.run_path(str(path), {"calls": calls})["slow"]
        assert slow(3) == (6 if "2" in line else 3)
    assert calls == [3, 3]
    slow(4)
    assert calls == [3, 3, 4]


def test_the_cache_can_be_left_aside():
    code = "import sys; from utils import cache; sys.exit(cache.FOLDER is not None)"
    for settings, status in (({"NO_CACHE": "1"}, 0), ({}, 1)):
        environment = {name: value for name, value in os.environ.items() if name != "NO_CACHE"} | settings
        ended = subprocess.run([sys.executable, "-c", code], cwd=cache.fingerprint.ROOT, env=environment)
        assert ended.returncode == status


def bombs(path):
    bomb = Bomb("exploded")
    yield pickle.dumps(bomb)
    np.savez(path, description=np.array([bomb], dtype=object))
    yield path.read_bytes()
    torch.save(bomb, path)
    yield path.read_bytes()


def test_no_code_in_an_entry_is_run(stored, monkeypatch):
    monkeypatch.chdir(stored)
    x = torch.rand(3, 4)
    found = layer(x)
    [path] = stored.iterdir()
    for bomb in list(bombs(path)):
        path.write_bytes(bomb)
        assert same(layer(x), found) and not (stored / "exploded").exists()
        assert same(entries.unpacked(path, path.stem), found)  # and the entry is a sound one again


DESCRIPTIONS = {
    "another type": {"tuple": [1, 2]},
    "another named tuple": {"utils.images.Part": [1, 2]},
    "fewer fields": {"utils.kernels.layers.Layer": [1]},
    "a function": {"os.mkdir": ["exploded"]},
    "a function of utils": {"utils.cache.write": ["exploded", "x"]},
    "what utils imports": {"utils.cache.os.mkdir": ["exploded"]},
    "a class that is no named tuple": {"utils.errors.InputError": ["x"]},
    "no type of numbers": {"utils.kernels.layers.Layer": [{"dtype": "load"}, None]},
    "a tensor that is not there": {"utils.kernels.layers.Layer": [{"tensor": ["7", [1], "cpu"]}, None]},
    "overlapping strides": {"utils.kernels.layers.Layer": [{"tensor": ["0", [0, 1], "cpu"]}, None]},
    "two kinds": {"list": [], "tuple": []},
    "a number": 3,
}


@pytest.mark.parametrize("what", DESCRIPTIONS)
def test_an_entry_that_does_not_fit_is_computed_anew(what, stored, monkeypatch):
    monkeypatch.chdir(stored)
    x = torch.rand(3, 4)
    found = layer(x)
    [path] = stored.iterdir()
    text = json.dumps([path.stem, DESCRIPTIONS[what]]).encode()
    np.savez(path, description=np.frombuffer(text, np.uint8), **{"0": np.ones((2, 2))})
    assert same(layer(x), found) and os.listdir() == [path.name]
    assert same(entries.unpacked(path, path.stem), found)


def test_an_entry_of_another_call_is_computed_anew(stored):
    x = torch.rand(3, 4)
    layer(x), layer(x + 1)
    one, two = stored.iterdir()
    one.write_bytes(two.read_bytes())
    assert same(layer(x), parted(2 * x)) and same(layer(x + 1), parted(2 * (x + 1)))


def test_plain_values_come_back_as_they_were(tmp_path):
    value = [None, True, -3, 2**70, math.inf, -0.0, 0.1, "λ\0", torch.float64, (), [(1, [])], torch.tensor(True)]
    (tmp_path / "entry").write_bytes(entries.packed(value, "key"))
    assert same(entries.unpacked(tmp_path / "entry", "key"), value)


@pytest.mark.parametrize(
    "value", [{1}, {"a": 1}, np.float64(1), print, torch.zeros(2).bfloat16(), torch.ones(2, requires_grad=True)]
)
def test_what_cannot_be_described_is_returned_and_not_kept(value, stored):
    assert cache.cached(lambda k: value)(3) is value
    assert not list(stored.iterdir())
