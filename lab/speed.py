"""What a step of the stationarity attack costs: by formula, as torch counts it, and as it was timed.

A product of matrices of a×b and b×c entries takes 2abc operations; all else, slopes, sums and masks, is not counted.
Networks are given by their widths (n₀, …, n_L), with biases in the first layer alone, as in the attacked ones. The
records in `data/speed` are files of pytest-benchmark.
"""

import json
from typing import NamedTuple

from torch.utils.flop_counter import FlopCounterMode

from lab.recorded import readable
from utils import images
from utils.errors import InputError

MACHINE = "processor", "cores", "threads"


def operations(n, widths, form="cheaper"):
    """F(n): the operations of a step of n candidates; shares of R in the `gram`, `direct` or `cheaper` form."""
    total = 0
    for layer, (inputs, outputs) in enumerate(zip(widths, widths[1:])):
        share = {"gram": 4 * n**2 * (inputs + outputs), "direct": 6 * n * inputs * outputs}
        share["cheaper"] = min(share.values())
        total += (8 if layer else 4) * n * inputs * outputs + share[form]
    return total


def plain_operations(n, widths):
    """The operations of `naive.residual`: the direct form, but for a product by zeros in the last layer."""
    return operations(n, widths, "direct") - 2 * n * widths[-2] * widths[-1]


def least_bytes(n, widths, number=4):
    """B(n): the bytes to read weights, candidates and λ once, and write two gradients, with `number` bytes each."""
    weights = sum(a * b for a, b in zip(widths, widths[1:])) + widths[1]
    return number * (weights + 2 * n * widths[0] + 2 * n)


def counted(function, *given):
    """How many operations the products of a call take, as torch counts them."""
    with FlopCounterMode(display=False) as counter:
        function(*given)
    return counter.get_total_flops()


def words(seconds):
    """A time in the largest unit that it reaches."""
    for unit, size in (("h", 3600), ("min", 60), ("s", 1)):
        if seconds >= size:
            return f"{seconds / size:.3g} {unit}"
    return f"{1e3 * seconds:.3g} ms"


def key_of(kernel, version, dtype, size, **_):
    """What tells a row of a record from the others."""
    return kernel, version, dtype, *sorted(size.items())


def size_of(row):
    """The size of what was timed, in words."""
    return ", ".join(f"{unit} {value}" for unit, value in row["size"].items())


class Record(NamedTuple):
    """A machine, its limits {version: operations or bytes in a second}, and what was timed on it {key: row}."""

    machine: list  # processor, cores and threads
    limits: dict
    rows: dict

    def row(self, kernel, version, dtype="float32", **size):
        """A row; InputError if it is not there."""
        if found := self.rows.get(key_of(kernel, version, dtype, size)):
            return found
        what = f"{kernel} of {version}, {dtype}, {size}"
        raise InputError(f"The record has no {what}: write it with `make bench RECORD=NAME`.")

    def took(self, *which, **size):
        """The seconds of a row."""
        return self.row(*which, **size)["seconds"]

    def beside(self, kernel, slow, fast):
        """Every size of a kernel in two versions, for a table; ≈ if one was extrapolated."""
        for quick in [one for key, one in self.rows.items() if key[:2] == (kernel, fast)]:
            plain = self.row(kernel, slow, quick["dtype"], **quick["size"])
            times = plain["seconds"], quick["seconds"]
            about = "≈ " * ("extrapolated" in plain["note"])
            yield [size_of(quick), about + words(times[0]), words(times[1]), f"{times[0] / times[1]:.1f}"]

    def listed(self, *kernels):
        """What was timed of some kernels, each with its seconds, for a table."""
        for one in self.rows.values():
            if one["kernel"] in kernels:
                what = f"{one['kernel']} of {one['version']}, {one['dtype']}, {size_of(one)}"
                yield [what, f"{one['seconds']:.3g}"]


def load(name):
    """The Record `data/speed/NAME.json`; InputError if it is missing or damaged."""
    path, limits, rows = images.DATA / "speed" / f"{name}.json", {}, {}
    with readable(path, f" (`make bench RECORD={name}` writes it)"):
        content = json.loads(path.read_text(encoding="utf-8"))
        for one in content["benchmarks"]:
            about, stats = one["extra_info"], one["stats"]
            if about["kernel"] == "limits":
                limits[about["version"]] = (about["flops"] or about["bytes"]) / stats["min"]
            else:
                rows[key_of(**about)] = about | {"seconds": float(stats["median"])}
        return Record([content["machine_info"][what] for what in MACHINE], limits, rows)


def on_gpus():
    """The Records of GPUs, which alone round to TF32."""
    records = map(load, sorted(path.stem for path in (images.DATA / "speed").glob("*.json")))
    return [record for record in records if "tf32" in record.limits]
