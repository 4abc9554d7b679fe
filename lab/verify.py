"""Compute runs of the records again, and compare every number: `python -m lab.verify [RECORD] [--all]`.

One run of each record, or --all, by today's code. A number is *equal* if it differs by at most a billionth of itself,
or by rounding. Unless data/quantities.yaml says that it repeats exactly, it may lie *in the spread* of its record: its
range over seeds, widened on both sides by its width, and by at least a tenth of its largest number. *New* numbers
contradict nothing. --dataset cifar10-subset, or FILE.npz, has CIFAR-10's images. What was computed on a GPU is left out
where there is none, unless the RECORD is named.
"""

import argparse
import csv
import json
import math
import shutil
from collections import Counter
from collections.abc import Sequence

from evaluation.notation import Row
from lab import grid, registry
from lab.record import RESULTS, printed
from lab.run import ROOT, sentence_of, until_interrupted
from utils.errors import InputError, choose, located

FOLDER = ROOT / "_build" / "verify"
BASELINE = " (baseline)"  # behind the name of a quantity, as in lab.recorded
# relative and absolute
EQUAL = 1e-9
ROUNDING = 1e-12
SHOWN = 5  # sentences on one run


def named(row):
    """The name of a row's quantity, and the parameters that differ within a run, which are not in capitals."""
    several = (
        key for key in sorted(row) if key.islower() and key not in Row._fields and row[key] != ""
    )
    return " ".join([row["name"], *(f"{key}={printed(row[key])}" for key in several)])


def numbers_of(rows):
    """{(quantity, seed): number} of some rows; a baseline is a quantity, too. Durations are the machine's: left out."""
    found = {}
    for row in rows:
        for column, words in {"value": "", "baseline": BASELINE}.items():
            if not row["name"].endswith("seconds") and row.get(column) not in (None, ""):
                found[named(row) + words, int(row["seed"])] = float(row[column])
    return found


def compared(name, value, now, seeds):
    """How a number now stands to the recorded one, and to those of all seeds: in words, and what is wrong, if it is."""
    width = max(max(seeds) - min(seeds), max(map(abs, seeds)) / 10)
    low = min(seeds) - width
    high = max(seeds) + width
    if now is None:
        return "outside", f"{name} is recorded, and not computed any more"
    if math.isclose(value, now, rel_tol=EQUAL, abs_tol=ROUNDING):
        return "equal", ""
    if registry.find(name.split()[0]).repeats != "exactly" and low <= now <= high:
        return "in the spread", ""
    return "outside", f"{name} is {now:g}, recorded {value:g}; its spread is {low:g} to {high:g}"


def compare(rows, crossed, again):
    """How many numbers of a run are equal, in the spread, outside and new; a sentence for each that is outside."""
    fixed = {name: str(value) for name, value in crossed.items() if name != "SEED"}
    alike = numbers_of(row for row in rows if fixed.items() <= row.items())
    now = numbers_of(again)
    of_seeds = {}
    for (name, seed), value in alike.items():
        of_seeds.setdefault(name, {})[seed] = value
    old = {key: alike[key] for key in alike if key[1] == crossed.get("SEED", key[1])}
    words = [
        compared(name, value, now.get((name, seed)), of_seeds[name].values())
        for (name, seed), value in old.items()
    ]
    counts = Counter(word for word, _ in words) + Counter(new=len(now.keys() - old.keys()))
    return counts, [why for _, why in words if why]


def code_of(commit, notebook):
    """How today's code stands to that of a commit, in words."""
    if not commit:
        return "no commit was recorded"
    changed = grid.git(
        "diff", "--shortstat", commit.removesuffix("-dirty"), "--", *grid.FOR_GIT, notebook
    )
    if changed is None:
        return f"its commit {commit[:8]} is not in this repository"
    return f"{changed or 'no file changed'} since {commit[:8]}"


def lacking(foreign, about, chosen):
    """What this machine or this call lacks to compute a record again; InputError for images that it does not use."""
    if chosen.record and chosen.dataset and not foreign:
        raise InputError("it is of the book's photographs: leave DATASET out.")
    if foreign and not chosen.dataset:
        return "it needs CIFAR-10's images: DATASET=cifar10-subset downloads them, DATASET=FILE.npz has them."
    if "cuda" in about["devices"] and not chosen.record:
        import torch  # which takes seconds

        if not torch.cuda.is_available():
            return "it was recorded on a GPU, and there is none here; RECORD names it for the CPU, for hours."
    return ""


def runs_of(record, about, chosen):
    """{key: what it needs} of the cheapest run of a record, or of all; none if something lacks, which is printed."""
    stated = grid.read(ROOT / "experiments" / f"{record}.yaml")
    foreign = not stated.get("parameters", {}).get("DATASET", "photos").startswith("photos")
    if lacks := lacking(foreign, about, chosen):
        print(f"{record} was not computed: {lacks}")
        return {}
    plan = grid.plan_of(stated, {"DATASET": chosen.dataset} if foreign else {})
    cheapest = about.get("cheapest") or {
        name: values[0] for name, values in stated["cross"].items()
    }
    code = about.get("code") or [{"commit": "", "threads": 1}]  # the oldest records do not say
    more = {"record": record, "recorded": code[0]["commit"], "threads": code[0]["threads"]}
    return {
        f"{record}-{key}": run | more | {"label": f"{record} {run['label']}"}
        for key, run in plan["runs"].items()
        if chosen.all or run["crossed"] == cheapest
    }


def judge(run, about, content):
    """Print how a run that was computed again stands to its record, and what does not hold; return whether all does."""
    with open(RESULTS / f"{run['record']}.csv", newline="", encoding="utf-8") as file:
        counts, why = compare(list(csv.DictReader(file)), run["crossed"], content["rows"])
    images = about["data_sha256_by_seed"].get(str(content["parameters"]["SEED"]), [])
    if content["provenance"]["data_sha256"] not in (
        [images] if isinstance(images, str) else images
    ):
        why.insert(0, "its images are others than those recorded")
    words = ", ".join(
        f"{counts[word]} {word}" for word in ("equal", "in the spread", "outside", "new")
    )
    holds = "does not hold" if why else "holds"
    code = code_of(run["recorded"], run["notebook"])
    print(f"{run['label']}: {words}: {holds}; {code}", *why[:SHOWN], sep="\n  ")
    return not why


def verify(chosen: argparse.Namespace) -> int:
    """Compute runs of records again, and print how they compare; return 0 if all hold that can be computed here."""
    there = sorted(path.stem for path in RESULTS.glob("*.json"))
    names = [choose("RECORD", chosen.record, there)] if chosen.record else there
    records = {
        name: json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8")) for name in names
    }
    runs = {}
    for name, about in records.items():
        with located(name):
            runs |= runs_of(name, about, chosen)
    done = grid.drive(grid.planned(runs), FOLDER)[0] if runs else {}
    hold = [
        judge(runs[key], records[runs[key]["record"]], content) for key, content in done.items()
    ]
    shutil.rmtree(FOLDER / "runs", ignore_errors=True)  # so that the next call computes them again
    return int(not all(hold) or len(done) < max(len(runs), bool(chosen.record)))


def main(words: Sequence[str]) -> int | str:
    """Return the status to exit with: a number, or one sentence."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("record", nargs="?")
    parser.add_argument("--all", action="store_true")
    parser.add_argument("--dataset")
    return sentence_of(lambda: verify(parser.parse_args(words)), "verify")


if __name__ == "__main__":
    until_interrupted(main)
