"""Every notebook at toy size, run by papermill: what must be true of its numbers on every machine.

A short attack is chaotic: the last bits of its first step decide where it ends, and every processor has its own. So a
number is compared with a reference (toy_references.json) only where rounding cannot move it: closed forms, counts of
operations, problems solved to the end. All others must lie in the bounds of their kind, which `report.save` enforces,
and keep the relations of tests/relations.py.
"""

import itertools
import json
import math
import re
from pathlib import Path

import nbformat
import papermill
import pytest
import yaml
from relations import RELATIONS, Number, Others

from utils.notebook import parameters

pytestmark = pytest.mark.chapters
ROOT = Path(__file__).parent.parent
NOTEBOOKS = sorted([*(ROOT / "book").glob("*.ipynb"), *(ROOT / "experiments").glob("*.ipynb")])
REFERENCES = json.loads((ROOT / "tests" / "toy_references.json").read_text())
WRITTEN = yaml.safe_load((ROOT / "tests" / "toy_runs.yaml").read_text())
WORDS = WRITTEN.pop("words")
IMAGES = 20
SIZES = {"IMAGES": IMAGES, "NETWORK_IMAGES": IMAGES, "FEW_IMAGES": 10, "CANDIDATES": 2 * IMAGES, "POINTS": IMAGES}
SIZES |= {"NEURONS": 40, "WIDTH": 12, "DIMENSIONS": 30, "GRID": 3, "SIDE": 8, "SAMPLES": 9}
SIZES |= {"LINES": 1, "SEEDS": 1, "STARTS": 2}
STEPS = {"STEPS": 12, "ATTACK_STEPS": 30, "PRODUCTS": 2000, "EPOCHS": 300}
SMALL = SIZES | STEPS  # for the notebooks that have these parameters


def declared(path):
    """The parameters {name: default} of a notebook."""
    cells = nbformat.read(path, as_version=4).cells
    return parameters.assignments(next(c.source for c in cells if "parameters" in c.metadata.get("tags", [])))


def run(path, output, **given):
    patient = dict(start_timeout=600, execution_timeout=1200)  # seconds; the machine may be busy
    papermill.execute_notebook(str(path), str(output), given, progress_bar=False, **patient)


def expanded(pattern):
    """The names that a pattern such as plant/noise|drawing/relative_distance stands for."""
    pattern = re.sub(r"<(\w+)>", lambda name: WORDS[name[1]], pattern).replace(" ", "")
    return ["/".join(words) for words in itertools.product(*(part.split("|") for part in pattern.split("/")))]


def key_of(path):
    """The name of a notebook with its folder, as in experiments/one-attack."""
    return f"{path.parent.name}/{path.stem}"


@pytest.mark.parametrize("path", NOTEBOOKS, ids=key_of)
def test_what_a_toy_run_writes_is_true_on_every_machine(path, toy_npz, tmp_path):
    results, small = tmp_path / "deep" / "results.json", {k: SMALL[k] for k in declared(path) if k in SMALL}
    given = {"DATASET": str(toy_npz), "SEED": 3, "RESULTS": str(results), **small}
    run(path, tmp_path / "out.ipynb", **given)
    written = json.loads(results.read_text())
    assert set(written) == {"parameters", "provenance", "rows"}
    assert given.items() <= written["parameters"].items()
    assert [file.name for file in results.parent.iterdir()] == ["results.json"]
    rows = {row["name"]: row for row in written["rows"]}
    assert len(rows) == len(written["rows"]) and all(row["seed"] == given["SEED"] for row in written["rows"])
    assert not [*unexpected(key_of(path), rows), *broken(rows), *far_from_references(key_of(path), rows)]


def unexpected(key, rows):
    """Names that are missing or new, and baselines that are, as sentences."""
    expected = {
        kind: set(itertools.chain(*map(expanded, WRITTEN[key].get(kind, [])))) for kind in ("alone", "paired", "may")
    }
    for name in expected["alone"] | expected["paired"]:
        if name not in rows:
            yield f"{name} is missing"
        elif ("baseline" in rows[name]) != (name in expected["paired"]):
            yield f"{name}: whether it has a baseline has changed"
    yield from (f"{name} is new" for name in rows.keys() - set().union(*expected.values()))


def far_from_references(key, rows):
    """Numbers that are not those of the reference, which rounding does not move."""
    for name, fields in REFERENCES.get(key, {}).items():
        for field, (value, tolerance) in fields.items():
            if not math.isclose(rows[name][field], value, rel_tol=tolerance):
                yield f"{name}: the {field} is {rows[name][field]}, not {value}"


def broken(rows):
    """Relations that do not hold, as sentences."""
    for name, row in rows.items():
        for pattern, sentence, holds in RELATIONS:
            if (found := re.fullmatch(pattern, name)) and not holds(Number(row), Others(rows, found)):
                yield f"{name} is {row.get('value')} ({row.get('baseline')}), against “{sentence}”"


def test_every_relation_is_about_a_number_that_is_written():
    names = {
        name for kinds in WRITTEN.values() for listed in kinds.values() for each in listed for name in expanded(each)
    }
    for pattern, sentence, _ in RELATIONS:
        assert any(re.fullmatch(pattern, name) for name in names), sentence
