"""Where the arithmetic runs changes nothing but its speed, and what cannot be had is said in one sentence."""

import resource
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from conftest import attacked, relu_released
from utils.errors import InputError
from utils.kernels import devices
from utils.kernels.residual import Stationarity

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def released():
    return relu_released()


def test_small_steps_take_one_thread_and_the_others_come_back(released):
    before, network = torch.get_num_threads(), released.network
    few, many = (torch.zeros(n, 3072) for n in (1, int(devices.SMALL / 12 / 3072)))
    torch.set_num_threads(2)
    try:
        with pytest.raises(KeyError), devices.tuned(few, network):
            assert torch.get_num_threads() == 1
            raise KeyError
        assert torch.get_num_threads() == 2
        with devices.tuned(many, network):
            assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def test_more_candidates_than_fit_are_refused_with_the_number_that_fits(released, monkeypatch):
    monkeypatch.setattr(devices, "room", lambda device: 1e6)
    with pytest.raises(InputError, match=r"10 candidates do not fit into the memory: choose at most (\d+)") as refused:
        attacked(released)
    most = int(str(refused.value).split("at most ")[1].split()[0])
    assert 0 < most < 10 and devices.needed(released.network, most) <= 1e6


def test_a_machine_has_memory_and_a_container_may_have_less(monkeypatch):
    assert 1e8 < devices.room(torch.device("cpu")) < 1e14
    monkeypatch.setattr(Path, "read_text", lambda path: "1000000")
    assert devices.room() == 1e6
    monkeypatch.setattr(Path, "read_text", lambda path: "max")
    assert devices.room() > 1e8
    monkeypatch.setattr(resource, "getrlimit", lambda kind: (5e7, 5e7))
    assert devices.room() == 5e7


def test_a_memory_too_small_for_torch_is_named():
    """As in a chapter's kernel, in which the import of utils comes first."""
    command = f'ulimit -v 1500000; exec "{sys.executable}" -m IPython --no-banner -c "from utils import images"'
    ended = subprocess.run(["sh", "-c", command], cwd=ROOT, capture_output=True, text=True)
    lines = (ended.stdout + ended.stderr).split("InputError: ")[1:]
    assert len(lines) == 1 and lines[0].startswith("There is too little memory to load PyTorch"), ended.stderr
    assert "Traceback" not in ended.stdout + ended.stderr


FULL = [
    torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB."),
    RuntimeError("[enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't allocate memory: you tried"),
    MemoryError("Unable to allocate 7.45 GiB for an array with shape (1000000000,) and data type float64"),
]


@pytest.mark.parametrize(
    "error, kind, said",
    [(error, InputError, "^The memory is full: .* choose at most 5 CANDIDATES or IMAGES.$") for error in FULL]
    + [(RuntimeError("the shapes cannot be multiplied"), RuntimeError, "^the shapes cannot")],
    ids=lambda value: type(value).__name__,
)
def test_a_memory_that_fills_on_the_way_is_told_in_one_sentence(released, monkeypatch, error, kind, said):
    monkeypatch.setattr(Stationarity, "__call__", lambda *given: (_ for _ in ()).throw(error))
    with pytest.raises(kind, match=said):
        attacked(released)
