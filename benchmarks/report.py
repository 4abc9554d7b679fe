"""Say how fast the kernels are, beside their plain versions and the limits of the machine.

    python benchmarks/report.py BENCH.json [--record NAME]

Prints a table of what pytest-benchmark wrote, and draws BENCH.png. With a NAME, all goes into data/speed/NAME.json,
where the chapter reads it; without a file, only the NAME is checked.
"""

import argparse
import json
import re
import sys
from pathlib import Path

from utils.errors import InputError
from utils.kept import write

SPEED = Path(__file__).parent.parent / "data" / "speed"
OURS = {  # kernel: the version that others are compared with
    "step": "pixels", "scaling": "pixels", "threads": "2 threads", "optimiser": "ours", "hypergradient": "ours",
    "objective": "ours", "victim": "ours", "attack": "ours",
    "bilevel": "ours", "restarts": "one call", "grid": "one call", "ssim": "ours", "ncc": "ours",
}  # fmt: skip
PARTS = ("products", "its Gram matrix alone")  # of ours: no other way to the same
ROW = ("kernel", "version", "size", "dtype", "seconds", "low", "high", "rounds", "flops", "bytes", "note")


def digits(number):
    """Four significant digits of a number; None stays."""
    return None if number is None else float(f"{number:.4g}")


def row_of(benchmark):
    """A row of the record of one benchmark: its median and quartiles in seconds, for the whole work."""
    about, stats = benchmark["extra_info"], benchmark["stats"]
    times = {name: digits(about["scale"] * stats[key]) for name, key in zip(ROW[4:7], ("median", "q1", "q3"))}
    found = about | times | {"rounds": stats["rounds"]}
    return {name: found[name] for name in ROW}


def limit_of(benchmark):
    """A limit in units of 10⁹ per second, by the fastest round: operations of a product, bytes of a copy."""
    about = benchmark["extra_info"]
    return digits((about["flops"] or about["bytes"]) / benchmark["stats"]["min"] / 1e9)


def record_of(measured, command):
    """The record of what pytest-benchmark wrote: command, machine, limits and rows."""
    kinds = {True: [], False: []}
    for benchmark in measured["benchmarks"]:
        kinds[benchmark["extra_info"]["kernel"] == "limits"].append(benchmark)
    limits = {benchmark["extra_info"]["version"]: limit_of(benchmark) for benchmark in kinds[True]}
    about = {name: measured["machine_info"][name] for name in ("device", "processor", "cores", "threads", "versions")}
    rows = [row_of(benchmark) for benchmark in kinds[False]]
    sizes, kernels = [row["size"] for row in rows], list(OURS)
    rows.sort(key=lambda row: (kernels.index(row["kernel"]), sizes.index(row["size"])))
    return {"command": command, "about": about, "limits": limits, "rows": rows}


def ratio(row, rows):
    """How many times as long as ours a row takes, for the same size, and in the same precision if ours ran in it."""
    same = [r for r in rows if (r["kernel"], r["size"]) == (row["kernel"], row["size"])]
    ours = [r for r in same if r["version"] == OURS[row["kernel"]]]
    ours = [r for r in ours if r["dtype"] == row["dtype"]] or ours
    return row["seconds"] / ours[0]["seconds"] if ours else None


def share(row, limits):
    """The least time that the machine allows, for products or for traffic, as a share of the time that was taken."""
    least = [row["flops"] / limits[row["dtype"]]] if row["flops"] and row["dtype"] in limits else []
    least += [row["bytes"] / limits["copy"]] if row["bytes"] and "copy" in limits else []
    return max(least) / 1e9 / row["seconds"] if least else None


def said(seconds):
    """A time in a unit that fits."""
    for unit, length in (("s ", 1), ("ms", 1e-3), ("µs", 1e-6)):
        if seconds >= length or unit == "µs":
            return f"{seconds / length:.3g} {unit}"


def size_of(row):
    """A size in words."""
    return ", ".join(f"{name} {value}" for name, value in row["size"].items())


def table(record):
    """The lines of a table for people."""
    about, limits = record["about"], record["limits"]
    yield f"{about['processor']}, {about['device']}, threads {about['threads']}; torch {about['versions']['torch']}"
    units = {"copy": "GB/s"}
    yield "; ".join(f"{name} {limit:.4g} {units.get(name, 'GFLOP/s')}" for name, limit in limits.items())
    wide = [3 + max(map(len, words)) for words in zip(*((size_of(row), row["version"]) for row in record["rows"]))]
    last = None
    for row in record["rows"]:
        if row["kernel"] != last:
            last = row["kernel"]
            head = f"\n{last:<{wide[0] + 2}}{'version':<{wide[1]}}{'precision':<10}"
            yield f"{head}{'median':>10}{'/ ours':>9}{'% of limit':>12}"
        times, part = ratio(row, record["rows"]), share(row, limits)
        times, part = "" if times is None else f"{times:.3g}", "" if part is None else f"{100 * part:.0f}"
        cells = f"  {size_of(row):<{wide[0]}}{row['version']:<{wide[1]}}{row['dtype']:<10}"
        star = " *" if "extrapolated" in row["note"] else ""
        yield f"{cells}{said(row['seconds']):>10}{times:>9}{part:>12}{star}"
    yield "\n* extrapolated from a part of the work"
    yield "Above 100 % of the limit: the data stay in a cache, or the machine was busy while the limit was measured."


def others(record):
    """{label: ratio} of what is not ours, and the largest first."""
    rows = [r for r in record["rows"] if r["kernel"] not in ("step", "scaling")]
    rows = [r for r in rows if r["version"] not in (OURS[r["kernel"]], *PARTS) and ratio(r, record["rows"])]
    named = {f"{r['kernel']}, {size_of(r)}: {r['version']}": ratio(r, record["rows"]) for r in rows}
    return dict(sorted(named.items(), key=lambda pair: pair[1]))


def draw(record, path):
    """Draw the step's times in single precision, and how many times as long as ours everything else takes."""
    from utils.notebook.figures import BLUE, GREY, MARKERS, ORANGE, plt

    named, rows = others(record), [r for r in record["rows"] if r["kernel"] == "step" and r["dtype"] == "float32"]
    fig, (left, right) = plt.subplots(1, 2, figsize=(16, max(4, 0.25 * len(named))), layout="constrained")
    versions = list(dict.fromkeys(row["version"] for row in rows))
    for version, marker in zip(versions, MARKERS):
        points = [(row["size"]["candidates"], row["seconds"]) for row in rows if row["version"] == version]
        left.plot(*zip(*points), marker=marker, label=version)
    if rows and "float32" in record["limits"]:
        ours = [row for row in rows if row["version"] == OURS["step"]]
        least = [(row["size"]["candidates"], share(row, record["limits"]) * row["seconds"]) for row in ours]
        left.plot(*zip(*least), color=GREY, linestyle="--", label="limit of pixels")
    left.set(xscale="log", yscale="log", xlabel="candidates", ylabel="seconds of a step, float32")
    if rows:
        left.legend()
    colours = [BLUE if value >= 1 else ORANGE for value in named.values()]
    right.barh(list(named), [value - 1 for value in named.values()], left=1, color=colours)
    right.axvline(1, color=GREY)
    right.set(xscale="log", xlabel="times as long as ours (blue: ours is faster)")
    path.parent.mkdir(parents=True, exist_ok=True)
    fig.savefig(path)
    plt.close(fig)


def checked_name(name):
    """The name of a record; InputError unless it is a plain word."""
    if not re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", name):
        raise InputError(f"RECORD is {name!r}: give a word of small letters and digits, such as cpu.")
    return name


def keep(record, name):
    """Write the record of a whole run into data/speed/."""
    missing = [kernel for kernel in OURS if kernel not in {row["kernel"] for row in record["rows"]}]
    if record["about"]["device"] != "cpu":
        missing = [kernel for kernel in missing if kernel != "threads"]  # a matter of processors
    if missing or not {"float32", "float64", "copy"} <= set(record["limits"]):
        what = ", ".join(missing) or "limits"
        raise InputError(f"Only a whole run is recorded, and there is nothing on {what}: leave ONLY away.")
    lines = ",\n".join(f"  {json.dumps(row, ensure_ascii=False)}" for row in record["rows"])
    head = json.dumps({name: value for name, value in record.items() if name != "rows"}, indent=1, ensure_ascii=False)
    write(SPEED / f"{name}.json", f'{head[:-2]},\n "rows": [\n{lines}\n ]\n}}\n'.encode())


def read(path):
    """What pytest-benchmark wrote."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        return {name: found[name] for name in ("machine_info", "benchmarks")}
    except (OSError, ValueError, KeyError) as error:
        raise InputError(f"{path} cannot be read: run `make bench` first.") from error


def main(words):
    """Return the status to exit with."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("path", nargs="?", type=Path)
    parser.add_argument("--record", metavar="NAME")
    chosen = parser.parse_args(words)
    try:
        name = chosen.record is not None and checked_name(chosen.record)
        if chosen.path is None:
            return None
        record = record_of(read(chosen.path), f"make bench{f' RECORD={name}' if name else ''}")
        if not record["rows"]:
            raise InputError(f"No benchmark has such a name: ONLY can be one of {', '.join(OURS)}.")
        print(*table(record), sep="\n")
        draw(record, chosen.path.with_suffix(".png"))
        if name:
            keep(record, name)
    except InputError as error:
        return str(error)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
