"""Keep what a grid gave in data/results/, for the chapters: `python -m lab.record GRID.yaml [NAME=VALUE …]`.

Give what was given to lab.grid, when all runs are finished. NAME.csv has a line per number, NAME.json the grid, the
command and what the numbers depend on, NAME.npz the pictures that the grid names under `pictures`.
"""

import csv
import io
import json
from pathlib import Path

import numpy as np

from lab.grid import arguments_of, finished, plan_of, read
from lab.run import OWN, ROOT, sentence_of, until_interrupted
from utils.errors import InputError, write

RESULTS = ROOT / "data" / "results"


def table_of(plan, done):
    """The lines of a .csv, one per number: the crossed parameters but SEED, then name, seed, value, baseline."""
    crossed = [name for name in next(iter(plan["runs"].values()))["crossed"] if name != "SEED"]
    yield *crossed, "name", "seed", "value", "baseline"
    for key, run in plan["runs"].items():
        for row in done[key]["rows"]:
            numbers = (f"{row[name]:.13g}" if name in row else "" for name in ("value", "baseline"))
            yield *(run["crossed"][name] for name in crossed), row["name"], row["seed"], *numbers


def provenance(plan, done):
    """What the numbers depend on, without a word of where they were computed."""
    runs, found = plan["runs"], {key: content["provenance"] for key, content in done.items()}
    groups: dict[tuple, list] = {}  # runs by what computed them
    for key, run in runs.items():
        groups.setdefault((run["commit"], found[key]["threads"], found[key]["device"]), []).append(run["label"])
    by = [dict(commit=commit, threads=threads, device=device) for commit, threads, device in groups]
    hashes: dict[int, set] = {}  # of the images, by seed
    for content in done.values():
        hashes.setdefault(content["parameters"]["SEED"], set()).add(content["provenance"]["data_sha256"])
    seconds = {key: each["duration_seconds"] for key, each in found.items()}
    cheapest = runs[min(seconds, key=lambda key: seconds[key])]
    return {
        "notebook": str(Path(cheapest["notebook"]).relative_to(ROOT)),
        "code": [part | {"runs": labels if len(by) > 1 else "all"} for part, labels in zip(by, groups.values())],
        "data_sha256_by_seed": {seed: sorted(all_) if len(all_) > 1 else min(all_) for seed, all_ in hashes.items()},
        "versions": next(iter(found.values()))["versions"],
        "devices": sorted({each["device"] for each in found.values()}),
        "runs": len(found),
        "hours": round(sum(seconds.values()) / 3600, 2),
        "cheapest": cheapest["crossed"],
    }


def pictures_of(plan, folder, wanted):
    """{"LABEL/what": array} of the runs with these parameters, at most `first` pictures and the last one of each."""
    arrays = {}
    for chosen in wanted:
        first, where = chosen["first"], {name: value for name, value in chosen.items() if name != "first"}
        for key, run in plan["runs"].items():
            if where.items() <= run["crossed"].items():
                with np.load(folder / "runs" / key / OWN["PICTURES"]) as archive:
                    for what, array in archive.items():
                        places = sorted({*range(min(first, len(array))), len(array) - 1})
                        arrays[f"{run['label']}/{what}"] = array[places]
    return arrays


def record(path, given, folder, dirty=False):
    """Record a grid whose runs are all finished, and whose code is committed, or `dirty` all the same."""
    plan = plan_of(stated := read(path), given)
    done, run = finished(plan, folder), next(iter(plan["runs"].values()))
    if missing := len(plan["runs"]) - len(done):
        raise InputError(f"{missing} of {len(plan['runs'])} runs are not finished: `make grid GRID={path}` goes on.")
    if not stated.get("label"):
        raise InputError("it has no label: say what the chapters are to call its results.")
    if not dirty and (not run["commit"] or run["commit"].endswith("-dirty")):
        raise InputError("the code of its runs is not committed: commit it first, or record all the same with DIRTY=1.")
    csv.writer(table := io.StringIO(), lineterminator="\n").writerows(table_of(plan, done))
    write(RESULTS / f"{path.stem}.csv", table.getvalue().encode())
    fixed = {name: run["parameters"][name] for name in given if name != "DATASET"}  # whose path is of this machine
    about = {
        "command": f"make grid record GRID=experiments/{path.name}",
        "label": stated["label"],
        "full_size": stated.get("full_size", False),
        "grid": stated | {"parameters": stated.get("parameters", {}) | fixed},
    } | provenance(plan, done)
    write(RESULTS / f"{path.stem}.json", (json.dumps(about, indent=1, ensure_ascii=False) + "\n").encode())
    if arrays := pictures_of(plan, folder, stated.get("pictures", [])):
        np.savez_compressed(buffer := io.BytesIO(), **arrays)
        write(RESULTS / f"{path.stem}.npz", buffer.getvalue())
    lines = table.getvalue().count("\n") - 1
    print(f"{path}: {lines} numbers of {len(done)} runs, {len(arrays)} arrays of pictures.")


def main(words):
    """Return the status to exit with: nothing, or one sentence."""
    chosen = arguments_of(words)
    return sentence_of(lambda: record(Path(chosen.grid), chosen.given, chosen.folder, chosen.dirty), chosen.grid)


if __name__ == "__main__":
    until_interrupted(main)
