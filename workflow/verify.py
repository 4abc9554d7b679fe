"""Compute runs of the records again, and compare every number: `python -m workflow.verify [RECORD] [--all]`.

One run of each record, or --all, with the threads that were recorded, by today's code, and nothing from the cache. A
number is *equal* if it differs by at most a billionth of itself, or by rounding. Unless data/quantities.yaml says that
it repeats exactly, it may also lie *within the spread* of its record: its range over the seeds for the same parameters,
widened on both sides by its width, and by at least a tenth of its largest number. Numbers that today's code writes in
addition are counted as *new*: they contradict nothing. --dataset FILE.npz holds CIFAR-10's images, for those in need.
What was computed on a GPU is left out where there is none, unless the RECORD is named.
"""

import argparse
import csv
import json
import math
import shutil
from collections import namedtuple
from urllib.parse import quote

from utils import quantities
from utils.errors import InputError, choose
from workflow import commits, grid, plan
from workflow.record import RESULTS
from workflow.run import sentence_of, until_interrupted

FOLDER = plan.ROOT / "_build" / "verify"
EQUAL, ROUNDING = 1e-9, 1e-12  # relative and absolute
SHOWN = 5  # sentences on one run
HEADER = "record", "run", "numbers", "equal", "in the spread", "outside", "new", "code", "holds"
Number = namedtuple("Number", "name recorded again low high equal holds")  # again is nan if it is missing


def repeats(name):
    """Whether a quantity repeats "exactly" or "within the spread", as data/quantities.yaml states beforehand."""
    found = quantities.load().names.get(quantities.general(name.removesuffix(" (baseline)")))
    return found.repeats if found else "exactly"


def lasts(name):
    """Whether a quantity is a duration."""
    found = quantities.load().names.get(quantities.general(name))
    return found is not None and found.kind.name == "seconds"


def number(name, recorded, again, seeds):
    """A number beside the recorded one, given those of all its seeds."""
    equal = math.isclose(recorded, again, rel_tol=EQUAL, abs_tol=ROUNDING)
    low = high = recorded
    if seeds and repeats(name) == "within the spread":
        width = max(max(seeds) - min(seeds), max(map(abs, seeds)) / 10)
        low, high = min(seeds) - width, max(seeds) + width
    return Number(name, recorded, again, low, high, equal, equal or low <= again <= high)


def numbers_of(rows):
    """{(quantity, seed): number} of some rows; a baseline is a quantity, too. Durations are the machine's: left out."""
    columns = {"value": "", "baseline": " (baseline)"}
    cells = [(row, column) for row in rows for column in columns if row.get(column) not in (None, "")]
    cells = [(row, column) for row, column in cells if not lasts(row["name"])]
    return {(row["name"] + columns[column], str(row["seed"])): float(row[column]) for row, column in cells}


def compare(rows, crossed, again):
    """The Numbers recorded of the run with these crossed parameters, beside its own rows now."""
    alike = [row for row in rows if all(row[name] == str(value) for name, value in crossed.items() if name != "SEED")]
    recorded = numbers_of(row for row in alike if row["seed"] == str(crossed.get("SEED", row["seed"])))
    seeds, again = numbers_of(alike), numbers_of(again)
    for (name, seed), value in recorded.items():
        values = [value for (other, _), value in seeds.items() if other == name]
        yield number(name, value, again.get((name, seed), math.nan), values)


def load(name):
    """What was recorded: its .json, and a dict for each line of its .csv."""
    with open(RESULTS / f"{name}.csv", newline="", encoding="utf-8") as file:
        return json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8")), list(csv.DictReader(file))


def part_of(about, label):
    """What computed a run of a record: fingerprint, commit, threads; of records before fingerprints, nothing."""
    return next((part for part in about.get("code", ()) if part["runs"] == "all" or label in part["runs"]), {})


def experiment_of(record, stated):
    """The notebook of a record's runs; where it names a chapter, that of today's grid, if this crosses the same."""
    path = plan.ROOT / "experiments" / f"{record}.yaml"
    today = plan.read(path) if "chapter" in stated and path.exists() else {}
    same = today.get("cross", {}).keys() == stated["cross"].keys()
    return today["experiment"] if same else stated.get("experiment") or stated["chapter"]


def runs_of(record, about, images, everything):
    """{name: what it needs} of the cheapest run of a record, or of all; InputError if they cannot be computed today."""
    stated = about["grid"]
    cheapest = about.get("cheapest") or {name: values[0] for name, values in stated["cross"].items()}
    asked = {"experiment": experiment_of(record, stated)}
    asked["parameters"] = stated.get("parameters", {}) | images
    asked["cross"] = stated["cross"] if everything else {name: [value] for name, value in cheapest.items()}
    runs = {}
    for run in plan.plan_of(asked, {})["runs"].values():
        label, threads = run["label"], part_of(about, run["label"]).get("threads", 1)
        names = {"crossed": {"record": record, "run": label}, "label": f"{record} {label}", "space": run["crossed"]}
        settings = {"threads": threads}
        runs[f"record={quote(record)},run={quote(label)}"] = run | names | settings
    return runs


def code_of(about, run):
    """How the code of a recorded run stands to that of its commit and to today's, and whether its commit has it."""
    if not (part := part_of(about, run["crossed"]["run"])):
        return "unverifiable: recorded before fingerprints", True
    there, commit = commits.fingerprint_at(part["commit"], about["notebook"], tuple(run["given"])), part["commit"][:8]
    if there != part["fingerprint"]:
        return (f"not that of {commit}", False) if there else (f"{commit} is not in this repository", True)
    return ("today's" if there == run["fingerprint"] else f"of {commit}, other than today's"), True


def sentence(number):
    """What is wrong with a number."""
    if math.isnan(number.again):
        return f"{number.name} is recorded, and not computed any more"
    return f"{number.name} is {number.again:g}, recorded {number.recorded:g}; {number.low:g} to {number.high:g} holds"


def line_of(run, about, rows, content):
    """The line of the table for a run that was computed again, and sentences on what does not hold."""
    found = [*compare(rows, run["space"], content["rows"])]
    outside, equal = [each for each in found if not each.holds], sum(each.equal for each in found)
    code, named = code_of(about, run)
    record, label = run["crossed"].values()
    why = [] if named else ["its commit has other code than its runs had"]
    recorded = about["data_sha256_by_seed"].get(str(content["parameters"]["SEED"]), [])
    if content["provenance"]["data_sha256"] not in ([recorded] if isinstance(recorded, str) else recorded):
        why += ["its images are others than those recorded"]
    why += map(sentence, outside)
    new = len(numbers_of(content["rows"])) - sum(not math.isnan(each.again) for each in found)
    counts = len(found), equal, len(found) - equal - len(outside), len(outside), new
    line = record, label, *counts, code, "no" if why else "yes"
    return line, [f"{record} {label}: {each}" for each in why[:SHOWN]]


def embedded(about):
    """Whether a record is of the embedded photographs, and needs no other images."""
    return about["grid"].get("parameters", {}).get("DATASET", "photos") == "photos"


def lacks(about, dataset, named):
    """What is missing to compute a record's runs again, in words, or nothing; `named` ones need no GPU."""
    if not embedded(about) and not dataset:
        return "it needs CIFAR-10's images, as DATASET=FILE.npz."
    if "cuda" in about.get("devices", ()) and not named and not gpu():
        return "it was recorded on a GPU, and torch finds none here; RECORD=, its name, takes the processor, for hours."
    return ""


def gpu():
    """Whether torch finds a GPU."""
    import torch  # which takes seconds

    return torch.cuda.is_available()


def verify(records, dataset, everything, named=False):
    """Compute runs of records again, print how they compare; return which were not computed, and what does not hold."""
    loaded, runs, lines, absent, wrong = {name: load(name) for name in records}, {}, [HEADER], [], []
    for name, (about, _) in loaded.items():
        try:
            if missing := lacks(about, dataset, named):
                absent.append(f"{name} was not computed: {missing}")
            else:
                runs |= runs_of(name, about, {} if embedded(about) else {"DATASET": dataset}, everything)
        except InputError as error:
            wrong.append(f"{name} cannot be computed: {error}")
    done = grid.drive(plan.planned(runs), FOLDER)[0] if runs else {}
    wrong += [f"{run['label']} could not be computed: see above." for name, run in runs.items() if name not in done]
    for name, content in done.items():
        about, rows = loaded[runs[name]["crossed"]["record"]]
        line, why = line_of(runs[name], about, rows, content)
        lines.append(line)
        wrong += why
        (FOLDER / "runs" / f"{name}.json").unlink(missing_ok=True)  # the next call computes it again
        shutil.rmtree(FOLDER / "finished" / runs[name]["key"], ignore_errors=True)
    widths = [max(len(str(cell)) for cell in column) for column in zip(*lines)]
    print(*("  ".join(f"{cell!s:{width}}" for cell, width in zip(line, widths)).rstrip() for line in lines), sep="\n")
    print(*absent, *wrong, sep="\n")
    return absent, wrong


def main(words):
    """Return the status to exit with: a number, or one sentence."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("record", nargs="?")
    parser.add_argument("--all", action="store_true")
    parser.add_argument("--dataset")
    chosen, there = parser.parse_args(words), sorted(path.stem for path in RESULTS.glob("*.json"))

    def act():
        names = [choose("RECORD", chosen.record, there)] if chosen.record else there
        absent, wrong = verify(names, chosen.dataset, chosen.all, bool(chosen.record))
        return int(bool(wrong or absent and chosen.record))

    return sentence_of(act)


if __name__ == "__main__":
    until_interrupted(main)
