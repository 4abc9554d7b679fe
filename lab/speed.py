"""What was timed: the files of pytest-benchmark in `data/speed`; and how many operations a call takes."""

import json
from typing import NamedTuple

from torch.utils.flop_counter import FlopCounterMode

from lab.recorded import readable
from training import images
from utils.errors import InputError


def counted(function, *given):
    """How many operations the products of matrices in a call take, as torch counts them."""
    with FlopCounterMode(display=False) as counter:
        function(*given)
    return counter.get_total_flops()


def duration(seconds):
    """A time in the largest unit that it reaches."""
    for unit, size in (("h", 3600), ("min", 60), ("s", 1)):
        if seconds >= size:
            return f"{seconds / size:.3g} {unit}"
    return f"{1e3 * seconds:.3g} ms"


class Record(NamedTuple):
    """What was timed on a machine, and its limits."""

    machine: list  # processor, cores and threads
    limits: dict  # {version: operations or bytes in a second}
    rows: list  # {kernel, version, dtype, size, flops, note, seconds} each

    def row(self, kernel, version, dtype="float32", **size):
        """A row; InputError if it is not there."""
        wanted = {"kernel": kernel, "version": version, "dtype": dtype, "size": size}
        for row in self.rows:
            if wanted.items() <= row.items():
                return row
        raise InputError(
            f"There is no {[*wanted.values()]} in the record: write it with `make bench RECORD=NAME`."
        )

    def took(self, *which, **size):
        """The seconds of a row."""
        return self.row(*which, **size)["seconds"]


def load(name: str) -> Record:
    """The Record `data/speed/NAME.json`; InputError if it is missing or damaged."""
    path = images.DATA / "speed" / f"{name}.json"
    limits = {}
    rows = []
    with readable(path, f" (`make bench RECORD={name}` writes it)"):
        content = json.loads(path.read_text(encoding="utf-8"))
        for about, stats in ((one["extra_info"], one["stats"]) for one in content["benchmarks"]):
            if about["kernel"] == "limits":
                kind = about["version"].split(" by ")[0]  # of any library, the best
                limits[kind] = max(
                    limits.get(kind, 0.0), (about["flops"] or about["bytes"]) / stats["min"]
                )
            else:
                rows.append(about | {"seconds": float(stats["median"])})
        return Record(
            [content["machine_info"][what] for what in ("processor", "cores", "threads")],
            limits,
            rows,
        )
