"""The frame of all benchmarks: how a call is timed, and what is written beside its times."""

import os
import platform

import numpy as np
import pytest
import torch
from problems import DEVICE

from utils import cache


def finished(function):
    """Call a function, and wait until the device has done what it was given."""
    result = function()
    if DEVICE.type == "cuda":
        torch.cuda.synchronize()
    return result


@pytest.fixture
def measure(benchmark, monkeypatch):
    """A function that times another one and returns its last result; what is kept on disk counts for nothing.

    Versions of a kernel with the same `size` {name: number}, and the same precision if that is `apart`, are a group.
    `flops` and `bytes` are of the whole work. Where only a part is run, times count `scale` times, and are marked ~.
    """

    def run(function, kernel, version, size, dtype, apart=False, scale=1, note="", flops=None, bytes=None):
        about = {"kernel": kernel, "version": version, "size": size, "dtype": dtype}
        benchmark.extra_info |= about | {"flops": flops, "bytes": bytes, "note": note}
        benchmark.group = ", ".join([kernel, *(f"{name} {size[name]}" for name in size), *[dtype] * apart])
        benchmark.name += " ~" * (scale != 1)
        monkeypatch.setattr(cache, "FOLDER", None)
        found = benchmark(finished, function)
        if benchmark.enabled:
            times = benchmark.stats.stats.data
            times[:] = [scale * seconds for seconds in times]
        return found

    return run


def pytest_benchmark_update_machine_info(config, machine_info):
    """Say what the times depend on, and not whose machine it is."""
    processor = machine_info["cpu"].get("brand_raw") or platform.machine()
    versions = {"python": platform.python_version(), "torch": torch.__version__, "numpy": np.__version__}
    machine_info.clear()
    machine_info["device"] = DEVICE.type
    machine_info["processor"] = torch.cuda.get_device_name() if DEVICE.type == "cuda" else processor
    machine_info |= {"cores": os.cpu_count(), "threads": torch.get_num_threads(), "versions": versions}
