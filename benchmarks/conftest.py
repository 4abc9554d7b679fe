"""The frame of all benchmarks: how a call is timed, and what is written beside its times."""

import os
import platform
import time

import numpy as np
import pytest
import torch
from problems import DEVICE

from utils import kept

ROUNDS = int(os.environ.get("BENCH_ROUNDS", 0))  # of every benchmark; 0: as many as are worth their time
SECONDS, FEWEST, MOST = 0.7, 3, 51  # how long the rounds of a benchmark take together, and how many they are


def finished(function):
    """Call a function, and wait until the device has done what it was given."""
    result = function()
    if DEVICE.type == "cuda":
        torch.cuda.synchronize()
    return result


def first_call(function):
    """Seconds of a call that warms up."""
    begun = time.perf_counter()
    finished(function)
    return time.perf_counter() - begun


@pytest.fixture
def measure(benchmark):
    """A function that times another one and returns its last result; what is kept on disk counts for nothing.

    `rounds` 0 is as many as fit into SECONDS after a call that warms up, 1 is a slow function without such a call.
    `size` {name: number}; `flops` and `bytes` of the whole work; seconds count `scale` times, where only a part is run.
    """

    def run(function, kernel, version, size, dtype, rounds=0, flops=None, bytes=None, scale=1, note=""):
        about = {"kernel": kernel, "version": version, "size": size, "dtype": dtype, "note": note}
        benchmark.extra_info |= about | {"flops": flops, "bytes": bytes, "scale": scale}
        folder, kept.FOLDER = kept.FOLDER, None
        try:
            if rounds != 1:
                rounds = rounds or min(MOST, max(FEWEST, int(SECONDS / first_call(function))))
            return benchmark.pedantic(finished, (function,), rounds=ROUNDS or rounds)
        finally:
            kept.FOLDER = folder

    return run


@pytest.fixture
def threads():
    """A function that sets how many threads torch uses, until the end of the test."""
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


def pytest_benchmark_update_machine_info(config, machine_info):
    """Say what the times depend on, and not whose machine it is."""
    processor = machine_info["cpu"].get("brand_raw") or platform.machine()
    versions = {"python": platform.python_version(), "torch": torch.__version__, "numpy": np.__version__}
    machine_info.clear()
    machine_info["device"] = DEVICE.type
    machine_info["processor"] = torch.cuda.get_device_name() if DEVICE.type == "cuda" else processor
    machine_info |= {"cores": os.cpu_count(), "threads": torch.get_num_threads(), "versions": versions}
