"""Keep what a grid gave in data/results/, for the chapters: `python -m lab.record GRID.yaml [NAME=VALUE …]`.

Give what was given to lab.grid, when all runs are finished. NAME.csv has a line per number, NAME.json the grid, the
command and what the numbers depend on, NAME.npz the pictures that the grid names under `pictures`.
"""

import csv
import io
import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from evaluation.notation import Row
from lab.grid import arguments_of, finished, plan_of, read
from lab.run import OWN, ROOT, sentence_of, until_interrupted
from utils.errors import InputError, write

RESULTS = ROOT / "data" / "results"
HOW = "threads", "device", "products"  # of the provenance of the cheapest run


def printed(value):
    """A parameter that differs within a run, as a record holds it: a number with six digits, or words."""
    try:
        return f"{float(value):g}"
    except ValueError:
        return value


def table_of(plan, done):
    """The lines of a .csv, one per number: the crossed parameters but SEED, then name, seed, value, baseline.

    Parameters that differ within a run stand behind the crossed ones.
    """
    several = sorted(
        {name for content in done.values() for row in content["rows"] for name in row}
        - {*Row._fields}
    )
    for key, run in plan["runs"].items():
        crossed = {name: value for name, value in run["crossed"].items() if name != "SEED"}
        for row in done[key]["rows"]:
            numbers = {
                name: f"{row[name]:.13g}" if name in row else "" for name in ("value", "baseline")
            }
            where = {name: printed(row[name]) if name in row else "" for name in several}
            yield crossed | where | {"name": row["name"], "seed": row["seed"]} | numbers


def provenance(plan, done):
    """What the numbers depend on, without a word of where they were computed; threads are those of the cheapest run."""
    all_of = {key: content["provenance"] for key, content in done.items()}
    key = min(all_of, key=lambda key: all_of[key]["duration_seconds"])
    run = plan["runs"][key]
    cheapest = all_of[key]
    images = {}
    for content in done.values():
        images.setdefault(content["parameters"]["SEED"], set()).add(
            content["provenance"]["data_sha256"]
        )
    return {
        "notebook": str(Path(run["notebook"]).relative_to(ROOT)),
        "code": [
            {"commit": run["commit"], "runs": "all"} | {name: cheapest.get(name) for name in HOW}
        ],
        "data_sha256_by_seed": {seed: sorted(hashes) for seed, hashes in images.items()},
        "versions": cheapest["versions"],
        "devices": sorted({each["device"] for each in all_of.values()}),
        "runs": len(all_of),
        "hours": round(sum(each["duration_seconds"] for each in all_of.values()) / 3600, 2),
        "cheapest": run["crossed"],
    }


def pictures_of(plan, folder, wanted):
    """{"LABEL/what": array} of the runs with these parameters, at most `first` pictures and the last one of each."""
    arrays = {}
    for where in wanted:
        for key, run in plan["runs"].items():
            if where.items() <= (run["crossed"] | {"first": where["first"]}).items():
                with np.load(folder / "runs" / key / OWN["PICTURES"]) as archive:
                    for what, array in archive.items():
                        places = sorted({*range(min(where["first"], len(array))), len(array) - 1})
                        arrays[f"{run['label']}/{what}"] = array[places]
    return arrays


def record(path: Path, given: Mapping[str, str], folder: Path, dirty: bool = False) -> None:
    """Record a grid whose runs are all finished, and whose code is committed, or `dirty` all the same."""
    plan = plan_of(stated := read(path), given)
    done = finished(plan, folder)
    run = next(iter(plan["runs"].values()))
    if missing := len(plan["runs"]) - len(done):
        raise InputError(
            f"{missing} of {len(plan['runs'])} runs are not finished: `make grid GRID={path}` goes on."
        )
    if not stated.get("label"):
        raise InputError("it has no label: say what the chapters are to call its results.")
    if not dirty and (not run["commit"] or run["commit"].endswith("-dirty")):
        raise InputError(
            "the code of its runs is not committed: commit it first, or record all the same with DIRTY=1."
        )
    rows = list(table_of(plan, done))
    table = csv.DictWriter(text := io.StringIO(), rows[0], lineterminator="\n")
    table.writeheader()
    table.writerows(rows)
    write(RESULTS / f"{path.stem}.csv", text.getvalue().encode())
    fixed = {
        name: run["parameters"][name] for name in given if name != "DATASET"
    }  # whose path is of this machine
    about = {
        "command": f"make grid record GRID=experiments/{path.name}",
        "label": stated["label"],
        "full_size": stated.get("full_size", False),
        "grid": stated | {"parameters": stated.get("parameters", {}) | fixed},
    } | provenance(plan, done)
    write(
        RESULTS / f"{path.stem}.json",
        (json.dumps(about, indent=1, ensure_ascii=False) + "\n").encode(),
    )
    if arrays := pictures_of(plan, folder, stated.get("pictures", [])):
        np.savez_compressed(buffer := io.BytesIO(), **arrays)
        write(RESULTS / f"{path.stem}.npz", buffer.getvalue())
    print(f"{path}: {len(rows)} numbers of {len(done)} runs, {len(arrays)} arrays of pictures.")


def main(words: Sequence[str]) -> str | None:
    """Return the status to exit with: nothing, or one sentence."""
    chosen = arguments_of(words)
    return sentence_of(
        lambda: record(Path(chosen.grid), chosen.given, chosen.folder, chosen.dirty), chosen.grid
    )


if __name__ == "__main__":
    until_interrupted(main)
