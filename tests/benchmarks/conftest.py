"""The frame of all benchmarks: how a call is timed, and what is written beside its times."""

import os
import platform
import time
from contextlib import ExitStack

import numpy as np
import pytest
import torch
from problems import DEVICE

from utils.kernels.products import LIBRARY, use_precision

START, MINUTES = time.monotonic(), float(os.environ.get("MINUTES", "inf"))


def pytest_runtest_setup():
    """What does not begin within so many MINUTES is not measured."""
    if time.monotonic() - START > 60 * MINUTES:
        pytest.skip(f"not measured: the {MINUTES:g} minutes are over")


def finished(function):
    """Call a function, and wait until the device has done what it was given."""
    result = function()
    if DEVICE.type == "cuda":
        torch.cuda.synchronize()
    return result


@pytest.fixture
def measure(benchmark):
    """A function that times another one and returns its last result.

    Versions of a kernel with the same `size` {name: number}, and the same precision if that is `apart`, are a group.
    `flops` and `bytes` are of the whole work. Where only a part is run, times count `scale` times, and are marked ~.
    What takes minutes is run `once`.
    """

    def run(function, kernel, version, size, dtype, apart=False, scale=1, once=False, **work):
        about = {"kernel": kernel, "version": version, "size": size, "dtype": dtype}
        benchmark.extra_info |= about | {"flops": None, "bytes": None, "note": ""} | work
        benchmark.group = ", ".join(
            [kernel, *(f"{name} {size[name]}" for name in size), *[dtype] * apart]
        )
        benchmark.name += " ~" * (scale != 1)
        result = (
            benchmark.pedantic(finished, (function,)) if once else benchmark(finished, function)
        )
        if benchmark.enabled:
            benchmark.stats.stats.data[:] = [
                scale * seconds for seconds in benchmark.stats.stats.data
            ]
        return result

    return run


@pytest.fixture
def rounding():
    """A function that has the factors of single-precision products rounded as a kind says, until the test ends."""
    with ExitStack() as stack:
        yield lambda kind: stack.enter_context(
            use_precision({"tf32": "TF32", "bfloat16": "bfloat16"}.get(kind, "exact"))
        )


def pytest_benchmark_update_machine_info(config, machine_info):
    """Say what the times depend on, and not whose machine it is."""
    processor = machine_info["cpu"].get("brand_raw") or platform.machine()
    versions = {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
    }
    processor = torch.cuda.get_device_name() if DEVICE.type == "cuda" else processor
    machine_info.clear()
    machine_info |= {"device": DEVICE.type, "processor": processor, "cores": os.cpu_count()}
    machine_info |= {"threads": torch.get_num_threads(), "versions": versions, "products": LIBRARY}


def pytest_benchmark_update_json(config, benchmarks, output_json):
    """Keep no single round, nor whose copy of the repository this is."""
    del output_json["commit_info"]
    for one in output_json["benchmarks"]:
        one["stats"].pop("data", None)
