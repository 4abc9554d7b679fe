"""Compute runs of the records again, and compare every number: `python -m lab.verify [RECORD] [--all]`.

One run of each record, or --all, with the threads that were recorded, by today's code. A number is *equal* if it
differs by at most a billionth of itself, or by rounding. Unless data/quantities.yaml says that it repeats exactly, it
may also lie *in the spread* of its record: its range over the seeds for the same parameters, widened on both sides by
its width, and by at least a tenth of its largest number. Numbers that today's code writes in addition are *new*: they
contradict nothing. --dataset FILE.npz holds CIFAR-10's images, for those in need. What was computed on a GPU is left
out where there is none, unless the RECORD is named.
"""

import argparse
import csv
import json
import math
import shutil

from lab import grid
from lab.record import RESULTS
from lab.run import ROOT, sentence_of, until_interrupted
from utils import quantities
from utils.errors import InputError, choose

FOLDER = ROOT / "_build" / "verify"
EQUAL, ROUNDING = 1e-9, 1e-12  # relative and absolute
SHOWN = 5  # sentences on one run


class Lacking(InputError):
    """What this machine or this call lacks to compute a record again."""


def numbers_of(rows):
    """{(quantity, seed): number} of some rows; a baseline is a quantity, too. Durations are the machine's: left out."""
    found = {}
    for row in rows:
        for column, words in {"value": "", "baseline": " (baseline)"}.items():
            if row.get(column) not in (None, "") and not row["name"].endswith("seconds"):
                found[row["name"] + words, str(row["seed"])] = float(row[column])
    return found


def spread_of(name, seeds):
    """From where to where a quantity holds, given its numbers of all seeds; None if it repeats, or has no entry now."""
    try:
        if quantities.find(name.removesuffix(" (baseline)")).repeats == "exactly":
            return None
    except InputError:
        return None
    width = max(max(seeds) - min(seeds), max(map(abs, seeds)) / 10)
    return min(seeds) - width, max(seeds) + width


def compare(rows, crossed, again):
    """How the numbers that were recorded of the run with these crossed parameters stand to its own rows now.

    Returns four counts: equal, in the spread, outside and new; and a sentence for each that is outside.
    """
    alike = [row for row in rows if all(row[name] == str(value) for name, value in crossed.items() if name != "SEED")]
    recorded = numbers_of(row for row in alike if row["seed"] == str(crossed.get("SEED", row["seed"])))
    everything, now, equal, why = numbers_of(alike), numbers_of(again), 0, []
    for (name, seed), value in recorded.items():
        found = now.get((name, seed))
        spread = spread_of(name, [number for (other, _), number in everything.items() if other == name])
        if found is None:
            why.append(f"{name} is recorded, and not computed any more")
        elif math.isclose(value, found, rel_tol=EQUAL, abs_tol=ROUNDING):
            equal += 1
        elif not spread:
            why.append(f"{name} is {found:g}, recorded {value:g}")
        elif not spread[0] <= found <= spread[1]:
            why.append(f"{name} is {found:g}, recorded {value:g}; {spread[0]:g} to {spread[1]:g} holds")
    return (equal, len(recorded) - equal - len(why), len(why), len(now.keys() - recorded.keys())), why


def code_of(commit, notebook):
    """How today's code stands to that of a commit, in words."""
    changed = grid.git("diff", "--shortstat", commit.removesuffix("-dirty"), "--", *grid.code_paths(notebook))
    if not commit or changed is None:
        return f"its commit {commit[:8]} is not in this repository" if commit else "no commit was recorded"
    return f"{changed or 'no file changed'} since {commit[:8]}"


def runs_of(record, about, chosen):
    """{key: what it needs} of the cheapest run of a record, or of all; InputError if they cannot be computed today."""
    cross, fixed = about["grid"]["cross"], about["grid"].get("parameters", {})
    if fixed.get("DATASET", "photos") != "photos":
        fixed = fixed | {"DATASET": chosen.dataset}
        if not chosen.dataset:
            raise Lacking("it needs CIFAR-10's images, as DATASET=FILE.npz.")
    if "cuda" in about.get("devices", ()) and not chosen.record:
        import torch  # which takes seconds

        if not torch.cuda.is_available():
            raise Lacking(
                f"it was recorded on a GPU, and there is none here; RECORD={record} takes the CPU, for hours."
            )
    if not chosen.all:
        cheapest = about.get("cheapest") or {name: values[0] for name, values in cross.items()}
        cross = {name: [value] for name, value in cheapest.items()}
    today = grid.read(ROOT / "experiments" / f"{record}.yaml")["experiment"]  # may have had another name
    runs = {}
    for key, run in grid.plan_of({"experiment": today, "parameters": fixed, "cross": cross}, {})["runs"].items():
        alike = (part for part in about.get("code", ()) if part["runs"] == "all" or run["label"] in part["runs"])
        part = next(alike, {"commit": "", "threads": 1})  # the oldest records do not say
        names = {"record": record, "label": f"{record} {run['label']}", "recorded": part["commit"]}
        runs[f"{record}-{key}"] = run | names | {"threads": part["threads"]}
    return runs


def judge(run, about, content):
    """Print how a run that was computed again stands to its record, and what does not hold; return whether all does."""
    with open(RESULTS / f"{run['record']}.csv", newline="", encoding="utf-8") as file:
        (equal, near, outside, new), why = compare(list(csv.DictReader(file)), run["crossed"], content["rows"])
    images = about["data_sha256_by_seed"].get(str(content["parameters"]["SEED"]), [])
    if content["provenance"]["data_sha256"] not in ([images] if isinstance(images, str) else images):
        why.insert(0, "its images are others than those recorded")
    counts = f"{equal} equal, {near} in the spread, {outside} outside, {new} new"
    holds = "does not hold" if why else "holds"
    print(f"{run['label']}: {counts}: {holds}; {code_of(run['recorded'], run['notebook'])}")
    print(*(f"  {each}\n" for each in why[:SHOWN]), sep="", end="")
    return not why


def verify(chosen):
    """Compute runs of records again, and print how they compare; return 0 if all hold that can be computed here."""
    there = sorted(path.stem for path in RESULTS.glob("*.json"))
    names = [choose("RECORD", chosen.record, there)] if chosen.record else there
    records = {name: json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8")) for name in names}
    runs, hold = {}, True
    for name, about in records.items():
        try:
            runs |= runs_of(name, about, chosen)
        except InputError as error:
            lacking = isinstance(error, Lacking)
            print(f"{name} {'was not' if lacking else 'cannot be'} computed: {error}")
            hold &= lacking and not chosen.record
    done = grid.drive(grid.planned(runs), FOLDER)[0] if runs else {}
    for key, content in done.items():
        hold &= judge(runs[key], records[runs[key]["record"]], content)
    shutil.rmtree(FOLDER / "runs", ignore_errors=True)  # so that the next call computes them again
    return int(not hold or len(done) < len(runs))


def main(words):
    """Return the status to exit with: a number, or one sentence."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("record", nargs="?")
    parser.add_argument("--all", action="store_true")
    parser.add_argument("--dataset")
    return sentence_of(lambda: verify(parser.parse_args(words)), "verify")


if __name__ == "__main__":
    until_interrupted(main)
