"""Keep what a grid gave in data/results/, for the chapters: `python -m workflow.record GRID.yaml [NAME=VALUE …]`.

Give what was given to workflow.grid, when all runs are finished. NAME.csv has a line per number, NAME.json the grid,
the command and what the numbers depend on, NAME.npz the pictures that the grid names under `pictures`. The commit is
the one that is checked out: the fingerprint of the runs can be computed again there.
"""

import csv
import io
import json
from pathlib import Path

import numpy as np

from utils.errors import InputError
from utils.files import write
from workflow.grid import arguments_of, finished
from workflow.plan import ROOT, plan_of, read
from workflow.run import OWN, sentence_of, until_interrupted

RESULTS = ROOT / "data" / "results"
CODE = "fingerprint", "commit", "threads", "device"


def lines_of(plan, done):
    """A dict per number: the crossed parameters but SEED, then name, seed, value and baseline, with 13 digits."""
    for key, run in plan["runs"].items():
        crossed = {name: value for name, value in run["crossed"].items() if name != "SEED"}
        for row in done[key]["rows"]:
            numbers = {name: f"{row[name]:.13g}" if name in row else "" for name in ("value", "baseline")}
            yield crossed | {"name": row["name"], "seed": row["seed"]} | numbers


def provenance(plan, done):
    """What the numbers depend on, without a word of where they were computed."""
    found = {run["label"]: done[name]["provenance"] | {"commit": run["commit"]} for name, run in plan["runs"].items()}
    groups: dict[tuple, list] = {}  # runs by what computed them
    for label, parts in found.items():
        groups.setdefault(tuple(parts[name] for name in CODE), []).append(label)
    seconds = {name: content["provenance"]["duration_seconds"] for name, content in done.items()}
    return {
        "notebook": str(Path(next(iter(plan["runs"].values()))["notebook"]).relative_to(ROOT)),
        "code": [dict(zip(CODE, by)) | {"runs": runs if len(groups) > 1 else "all"} for by, runs in groups.items()],
        "data_sha256_by_seed": data_of(done),
        "versions": next(iter(found.values()))["versions"],
        "devices": sorted({parts["device"] for parts in found.values()}),
        "runs": len(found),
        "hours": round(sum(seconds.values()) / 3600, 2),
        "cheapest": plan["runs"][min(seconds, key=lambda name: seconds[name])]["crossed"],
    }


def data_of(done):
    """{seed: the hash of its images}; a list of them where other parameters choose the images, too."""
    found: dict = {}
    for content in done.values():
        found.setdefault(content["parameters"]["SEED"], set()).add(content["provenance"]["data_sha256"])
    return {seed: sorted(hashes) if len(hashes) > 1 else min(hashes) for seed, hashes in found.items()}


def pictures_of(plan, folder, wanted):
    """{"LABEL/what": array} of the runs with these parameters, at most `first` pictures and the last one of each."""
    arrays = {}
    for chosen in wanted or []:
        first, where = chosen["first"], {name: value for name, value in chosen.items() if name != "first"}
        for run in (run for run in plan["runs"].values() if where.items() <= run["crossed"].items()):
            with np.load(folder / "finished" / run["key"] / OWN["PICTURES"]) as archive:
                for what in archive:
                    places = sorted({*range(min(first, len(archive[what]))), len(archive[what]) - 1})
                    arrays[f"{run['label']}/{what}"] = archive[what][places]
    return arrays


def record(path, given, folder, dirty=False):
    """Record a grid whose runs are all finished, and whose code is committed, or `dirty` all the same."""
    stated = read(path)
    plan = plan_of(stated, given)
    done, run = finished(plan, folder), next(iter(plan["runs"].values()))
    if missing := len(plan["runs"]) - len(done):
        raise InputError(f"{missing} of {len(plan['runs'])} runs are not finished: `make grid GRID={path}` goes on.")
    if not stated.get("label"):
        raise InputError("it has no label: say what the chapters are to call its results.")
    if not dirty and (not run["commit"] or run["commit"].endswith("-dirty")):
        raise InputError("the code of its runs is not committed: commit it first, or record all the same with DIRTY=1.")
    lines, table = list(lines_of(plan, done)), io.StringIO()
    writer = csv.DictWriter(table, list(lines[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(lines)
    write(RESULTS / f"{path.stem}.csv", table.getvalue().encode())
    fixed = {name: run["parameters"][name] for name in given if name != "DATASET"}  # whose path is of this machine
    about = {"command": f"make grid record GRID=experiments/{path.name}", "label": stated["label"]}
    about |= {"full_size": stated.get("full_size", False)}
    about |= {"grid": stated | {"parameters": stated.get("parameters", {}) | fixed}} | provenance(plan, done)
    write(RESULTS / f"{path.stem}.json", (json.dumps(about, indent=1, ensure_ascii=False) + "\n").encode())
    if arrays := pictures_of(plan, folder, stated.get("pictures")):
        np.savez_compressed(buffer := io.BytesIO(), **arrays)
        write(RESULTS / f"{path.stem}.npz", buffer.getvalue())
    print(f"{path}: {len(lines)} numbers of {len(done)} runs, {len(arrays)} arrays of pictures.")


def main(words):
    """Return the status to exit with: nothing, or one sentence."""
    chosen = arguments_of(words)
    said = sentence_of(lambda: record(Path(chosen.grid), chosen.given, chosen.folder, chosen.dirty))
    return said and f"{chosen.grid}: {said}"


if __name__ == "__main__":
    until_interrupted(main)
