"""Every chapter of the book at toy size, run by papermill, against the numbers it gave when they were last looked at.

REFERENCE=write .venv/bin/pytest tests/test_chapters.py -k toy      takes new references; look at their diff
"""

import json
import os
import re
from pathlib import Path

import nbformat
import papermill
import pytest
from papermill.exceptions import PapermillExecutionError

from utils.notebook import parameters

pytestmark = pytest.mark.chapters
ROOT = Path(__file__).parent.parent
REFERENCES = Path(__file__).parent / "reference"
PAGES = re.findall(r"file: (book/\S+)", (ROOT / "_toc.yml").read_text())
CHAPTERS = [page for page in PAGES if (ROOT / f"{page}.ipynb").exists()]
COMMON = ["DATASET", "SEED", "DEVICE", "RESULTS"]
SMALL = {
    "IMAGES": 20,
    "NETWORK_IMAGES": 20,
    "SEEDS": 1,
    "NEURONS": 40,
    "WIDTH": 12,
    "STEPS": 12,
    "ATTACK_STEPS": 30,
    "CANDIDATES": 40,
    "GRID": 3,
    "SAMPLES": 9,
    "FEW_IMAGES": 10,
    "LINES": 1,
    "PRODUCTS": 2000,
    "EPOCHS": 300,
    "POINTS": 20,
    "DIMENSIONS": 30,
}  # for the chapters that have these parameters

# How far a quantity may be from its reference: (relative, absolute); the first pattern that fits decides. Attacks in
# single precision and attacks on a network with a hidden layer amplify rounding; exact solutions are compared to zero.
TOLERANCES = [
    (r"/seconds$", None),
    (r"affine/.*/relative_distance|affine/.*/mean_square_distance|^plant/", (0.0, 1e-11)),
    (r"affine/.*/victim_error$", (0.0, 1e-10)),  # the solver stops at ‖∇E‖ ≤ 1e-12, and this is divided by μ = 0.01
    (r"^decoreco/.*/victim_error$", (0.05, 1e-4)),  # rounding in a training in single precision; converged is 0.05
    (r"^landscape/.*/towards_truth$", (0.1, 0.05)),
    (r"^landscape/cost/", (0.3, 0.0)),  # products until a stop: steps differ between two processors
    (r"^landscape/barriers/", (0.0, 1.0)),
    (r"^landscape/decoreco/", (0.1, 1e-6)),  # single precision: 8 % between two processors after 30 steps
    (r"/(good_\w+)$", (0.0, 2.0)),
    (r"^decoreco/.*/mean_ssim", (0.02, 0.02)),
    (r"/outer_converged$|/inner_gradient_norm$|^kkt/.*/stationarity$", (0.0, 1e-6)),
    (r"^bilevel/one_hidden/.*/known_theta0/", (0.05, 1e-9)),
    (r"^bilevel/one_hidden/", (0.15, 1e-9)),
    (r"^plant_network/", (0.15, 1e-2)),
    (r"^certificate/.*/(like_truth|like_chosen|agreement)$|^certificate/alone$", (0.0, 0.3)),
    (r"^certificate/(kinks|step/.*|covered/.*)$", (0.2, 0.3)),  # a kink more or less, 0.01 away
    (r"^certificate/", (0.05, 1e-3)),
    (r"^reading/", (0.05, 1e-9)),
    (r"^prior/.*(alike|alike_held_out)$", (0.0, 3.0)),
    (r"^prior/.*leak_auc$", (0.0, 0.1)),
    (r"^prior/.*/victim_loss$", (0.5, 1e-9)),
    (r"^prior/.*/averages$", (0.0, 0.05)),
    (r"^prior/shift/.*/(diluted|reverse|estimate)$", (0.2, 0.05)),
    (r"^prior/", (0.1, 1e-3)),
    (r"^(decoreco|landscape)/", (0.05, 1e-6)),
    (r"^rank/.*/(planted_\w+|gradient_error)$", None),
    (r"^unmixing/", (0.05, 2.0)),
    (r"^rank/|^collapse/fewest/", (0.05, 1e-6)),
    (r"^speed/agreement/", (0.0, 1e-5)),  # rounding alone
    (r"^speed/digits/.*/(leak_auc|alike)$", (0.0, 0.05)),
    (r"^speed/digits/", (0.1, 1e-5)),
    (r"^own/.*/alike$", (0.0, 2.0)),
    (r"^own/network/loss$", (0.5, 1e-9)),  # trained in single precision
    (r"^own/.*(auc|leak_p)$", (0.0, 0.1)),
    (r"", (1e-4, 1e-11)),
]


def read(chapter):
    return nbformat.read(ROOT / f"{chapter}.ipynb", as_version=4)


def run(chapter, output, **parameters):
    papermill.execute_notebook(
        str(ROOT / f"{chapter}.ipynb"), str(output), parameters, progress_bar=False, execution_timeout=600
    )


def differences(rows, reference):
    """What is missing, new or too far away, as sentences."""
    known = {(row["name"], row["seed"]): row for row in reference}
    given = {(row["name"], row["seed"]): row for row in rows}
    told = [f"{key} is {'missing' if key in known else 'new'}" for key in known.keys() ^ given.keys()]
    for key in known.keys() & given.keys():
        tolerance = next(limit for pattern, limit in TOLERANCES if re.search(pattern, key[0]))
        for field in ("value", "baseline") if tolerance else ():
            ours, theirs = given[key].get(field), known[key].get(field)
            if (ours is None) != (theirs is None) or (
                ours is not None and abs(ours - theirs) > tolerance[1] + tolerance[0] * abs(theirs)
            ):
                told.append(f"{key} has the {field} {ours}, not {theirs}")
    return told


def test_the_book_has_chapters():
    assert len(CHAPTERS) >= 11


@pytest.mark.parametrize("chapter", CHAPTERS)
def test_toy_run_gives_the_reference(chapter, toy_npz, tmp_path):
    results = tmp_path / "deep" / "results.json"
    tagged = next(cell for cell in read(chapter).cells if "parameters" in cell.metadata.get("tags", []))
    small = {name: SMALL[name] for name in parameters.assignments(tagged.source) if name in SMALL}
    given = {"DATASET": str(toy_npz), "SEED": 3, "RESULTS": str(results), **small}
    run(chapter, tmp_path / "out.ipynb", **given)
    written = json.loads(results.read_text())
    assert set(written) == {"parameters", "provenance", "rows"}
    assert {name: written["parameters"][name] for name in given} == given
    assert set(written["provenance"]) == {"versions", "device", "duration_seconds", "data_sha256"}
    assert [path.name for path in results.parent.iterdir()] == ["results.json"]
    assert all(row["seed"] == 3 for row in written["rows"])
    reference = REFERENCES / f"{Path(chapter).name}.json"
    if os.environ.get("REFERENCE") == "write":
        reference.parent.mkdir(exist_ok=True)
        lines = [json.dumps(row, ensure_ascii=False) for row in written["rows"]]
        reference.write_text("[\n" + ",\n".join(lines) + "\n]\n")
    assert not differences(written["rows"], json.loads(reference.read_text()))


def test_a_changed_number_is_noticed():
    row = {"name": "collapse/decay/gradient_norm", "seed": 3, "value": 0.5, "baseline": 0.1}
    assert not differences([{**row, "value": 0.50001}], [row])
    assert differences([{**row, "value": 0.501}], [row]) and differences([{**row, "baseline": 0.11}], [row])
    assert differences([], [row]) and differences([row, {**row, "seed": 4}], [row])
    assert differences([{key: row[key] for key in ("name", "seed", "value")}], [row])


@pytest.mark.parametrize("chapter", CHAPTERS)
def test_chapter_is_built_like_the_others(chapter):
    cells = read(chapter).cells
    assert re.match(r"# \S", cells[0].source) and "{cite" in cells[0].source
    assert "## Overview" in cells[1].source
    said = re.search(r"\n\*Reading: about (\d+) minutes. Running: about [a-z ]+ on two cores.", cells[1].source)
    words = sum(len(cell.source.split()) for cell in cells if cell.cell_type == "markdown")
    assert words / 300 < int(said[1]) < words / 80  # 200 words a minute, and the code
    tagged = [cell for cell in cells if "parameters" in cell.metadata.get("tags", [])]
    assert len(tagged) == 1 and tagged[0].source.startswith("# Parameters of this chapter\n")
    assert set(COMMON) <= set(parameters.assignments(tagged[0].source))
    assert any("## What held" in cell.source for cell in cells)
    for cell in cells:
        if cell.cell_type == "code":
            assert len(cell.source.splitlines()) <= 25, cell.source
            for output in cell.outputs:
                assert output.output_type != "error" and output.get("name") != "stderr", cell.source
                picture = output.get("data", {}).get("image/png", "")
                assert len(picture) * 3 / 4 < 150_000 * 1.05
                if picture:
                    assert cell.metadata["mystnb"]["figure"]["caption"] and cell.metadata["mystnb"]["image"]["alt"]


WRONG = [
    ("book/07-partition-initialisation", {"SEEED": 1}, "There is no parameter SEEED; this chapter has DATASET, SEED,"),
    ("book/07-partition-initialisation", {"DATASET": "/nowhere.npz"}, "There is no file /nowhere.npz"),
    ("book/04-decoreco-solver", {"WEIGHTS": "/nowhere.pth"}, "There is no file /nowhere.pth"),
    ("book/appendix-solver", {"IMAGES": 20, "LEARNING_RATE": 1e4}, "LEARNING_RATE 10000 is too large: by step 1"),
    ("book/try-your-own", {"FOLDER": "/nowhere"}, "FOLDER is /nowhere, with no folder in it: give a folder"),
    ("book/08-landscape", {"GRID": 1}, "GRID must be at least 2."),
]


@pytest.mark.parametrize("chapter, given, sentence", WRONG, ids=lambda value: str(value)[:40])
def test_a_mistake_ends_in_one_sentence_and_leaves_no_file(chapter, given, sentence, tmp_path):
    results = tmp_path / "results.json"
    with pytest.raises(PapermillExecutionError) as caught:
        run(chapter, tmp_path / "out.ipynb", **{"RESULTS": str(results), **given})
    assert caught.value.ename == "InputError" and sentence in caught.value.evalue
    assert [re.sub(r"\x1b\[[\d;]*m", "", line) for line in caught.value.traceback] == [
        f"InputError: {caught.value.evalue}"
    ]
    assert [path.name for path in tmp_path.iterdir()] == ["out.ipynb"]
