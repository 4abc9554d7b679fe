"""Keep what chapter 13 reads of pytest-benchmark's JSON: `record.py BENCH.json data/speed/NAME.json`."""

import json
import sys
from pathlib import Path

MACHINE = "device", "processor", "cores", "threads", "versions"
ROW = "kernel", "version", "size", "dtype", "seconds", "low", "high", "rounds", "flops", "bytes", "note"


def digits(number):
    """Four significant digits."""
    return float(f"{number:.4g}")


def row_of(benchmark):
    """What was measured, its median and quartiles in seconds, and its work."""
    stats = benchmark["stats"]
    times = {name: digits(stats[key]) for name, key in zip(ROW[4:7], ("median", "q1", "q3"))}
    found = benchmark["extra_info"] | times | {"rounds": stats["rounds"]}
    return {name: found[name] for name in ROW}


def limit_of(benchmark):
    """10⁹ operations or bytes per second, by the fastest round."""
    about = benchmark["extra_info"]
    return digits((about["flops"] or about["bytes"]) / benchmark["stats"]["min"] / 1e9)


def record_of(measured, name):
    """The command, the machine and its limits, and a row for every other benchmark."""
    limits = [one for one in measured["benchmarks"] if one["extra_info"]["kernel"] == "limits"]
    return {
        "command": f"make {'gpu' if measured['machine_info']['device'] == 'cuda' else 'bench'} RECORD={name}",
        "about": {what: measured["machine_info"][what] for what in MACHINE},
        "limits": {one["extra_info"]["version"]: limit_of(one) for one in limits},
        "rows": [row_of(one) for one in measured["benchmarks"] if one not in limits],
    }


def text_of(record):
    """A record as JSON, each row in a line of its own."""
    rows = ",\n".join(f"  {json.dumps(row, ensure_ascii=False)}" for row in record["rows"])
    head = json.dumps(record | {"rows": []}, indent=1, ensure_ascii=False)
    return f"{head[:-4]}[\n{rows}\n ]\n}}\n"


if __name__ == "__main__":
    source, target = map(Path, sys.argv[1:])
    target.write_text(text_of(record_of(json.loads(source.read_text()), target.stem)), encoding="utf-8")
