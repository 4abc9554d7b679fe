"""Keep what a grid gave in data/results/, where the chapters read it.

    python scripts/record.py GRID.yaml [NAME=VALUE …]

Give what was given to scripts/grid.py, when all runs are finished. NAME.csv has a line per number, NAME.json the grid,
the command and the provenance, NAME.npz the pictures that the grid names under `pictures`.
"""

import csv
import io
import json
import sys
from pathlib import Path

import numpy as np
from grid import arguments_of
from grid_plan import finished, plan_of, read
from run_chapters import ROOT, key_of

from utils.errors import InputError
from utils.kept import write

RESULTS = ROOT / "data" / "results"


def lines_of(plan, done):
    """A dict per number: the crossed parameters but SEED, then name, seed, value and baseline, with 13 digits."""
    for key, run in plan["runs"].items():
        crossed = {name: value for name, value in run["crossed"].items() if name != "SEED"}
        for row in done[key]["rows"]:
            numbers = {name: f"{row[name]:.13g}" if name in row else "" for name in ("value", "baseline")}
            yield crossed | {"name": row["name"], "seed": row["seed"]} | numbers


def provenance(plan, done):
    """What the numbers depend on, without a word of where they were computed."""
    found = [content["provenance"] for content in done.values()]
    seeds = {content["parameters"]["SEED"]: content["provenance"]["data_sha256"] for content in done.values()}
    return {
        "code_sha256": key_of(Path(plan["chapter"]), {}),
        "data_sha256_by_seed": seeds,
        "versions": found[0]["versions"],
        "devices": sorted({part["device"] for part in found}),
        "runs": len(found),
        "hours": round(sum(part["duration_seconds"] for part in found) / 3600, 2),
    }


def pictures_of(plan, folder, wanted):
    """{"LABEL/what": array} of the runs with these parameters, at most `first` pictures and the last one of each."""
    arrays = {}
    for chosen in wanted or []:
        first, where = chosen["first"], {name: value for name, value in chosen.items() if name != "first"}
        for key, run in plan["runs"].items():
            if where.items() <= run["crossed"].items():
                with np.load(folder / f"{key}.npz") as archive:
                    for what in archive:
                        places = sorted({*range(min(first, len(archive[what]))), len(archive[what]) - 1})
                        arrays[f"{run['label']}/{what}"] = archive[what][places]
    return arrays


def record(path, given, grids=ROOT / "_build" / "grids", book=ROOT / "book"):
    """Record a grid whose runs are all finished; return one sentence that says what was written."""
    stated = read(path)
    plan, folder = plan_of(stated, given, book), grids / path.stem
    done = finished(plan, folder)
    if len(done) < len(plan["runs"]):
        missing = len(plan["runs"]) - len(done)
        raise InputError(f"{missing} of {len(plan['runs'])} runs are not finished: `make grid GRID={path}` goes on.")
    lines, table = list(lines_of(plan, done)), io.StringIO()
    writer = csv.DictWriter(table, list(lines[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(lines)
    write(RESULTS / f"{path.stem}.csv", table.getvalue().encode())
    about = {"command": f"make grid record GRID=grids/{path.name}", "label": stated["label"]}
    about |= {"full_size": stated.get("full_size", False), "grid": stated} | provenance(plan, done)
    write(RESULTS / f"{path.stem}.json", (json.dumps(about, indent=1, ensure_ascii=False) + "\n").encode())
    if arrays := pictures_of(plan, folder, stated.get("pictures")):
        buffer = io.BytesIO()
        np.savez_compressed(buffer, **arrays)
        write(RESULTS / f"{path.stem}.npz", buffer.getvalue())
    return f"{path}: {len(lines)} numbers of {len(done)} runs, {len(arrays)} arrays of pictures."


def main(words):
    """Return the status to exit with."""
    chosen = arguments_of(words)
    try:
        print(record(Path(chosen.path), chosen.given))
    except (InputError, OSError) as error:
        return f"{chosen.path}: {error}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
