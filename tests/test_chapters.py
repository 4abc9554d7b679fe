"""Every chapter of the book, run by papermill with other parameters and with wrong ones."""

import json
import re
from pathlib import Path

import nbformat
import papermill
import pytest
from papermill.exceptions import PapermillExecutionError

from utils import report

ROOT = Path(__file__).parent.parent
PAGES = re.findall(r"file: (book/\S+)", (ROOT / "_toc.yml").read_text())
CHAPTERS = [page for page in PAGES if (ROOT / f"{page}.ipynb").exists()]
COMMON = ["DATASET", "SEED", "DEVICE", "RESULTS"]
SMALL = {
    "NEURONS": 40,
    "ATTACK_STEPS": 30,
    "CANDIDATES": 40,
    "GRID": 3,
    "SAMPLES": 9,
    "RESTARTS": 2,
    "EPOCHS": 300,
}  # for the chapters that have these parameters


def read(chapter):
    return nbformat.read(ROOT / f"{chapter}.ipynb", as_version=4)


def run(chapter, output, **parameters):
    papermill.execute_notebook(
        str(ROOT / f"{chapter}.ipynb"), str(output), parameters, progress_bar=False, execution_timeout=600
    )


def test_the_book_has_chapters():
    assert len(CHAPTERS) >= 7


@pytest.mark.parametrize("chapter", CHAPTERS)
def test_chapter_takes_other_values_and_writes_its_results(chapter, toy_npz, tmp_path):
    results = tmp_path / "deep" / "results.json"
    tagged = next(cell for cell in read(chapter).cells if "parameters" in cell.metadata.get("tags", []))
    small = {name: SMALL[name] for name in report.assignments(tagged.source) if name in SMALL}
    given = {"DATASET": str(toy_npz), "SEED": 3, "IMAGES": 20, "RESULTS": str(results), **small}
    run(chapter, tmp_path / "out.ipynb", **given)
    written = json.loads(results.read_text())
    assert set(written) == {"parameters", "provenance", "rows"}
    assert {name: written["parameters"][name] for name in given} == given
    assert set(written["provenance"]) == {"versions", "device", "duration_seconds", "data_sha256"}
    assert written["rows"]
    for row in written["rows"]:
        assert report.general(row["name"]) in report.NAMES
        assert row["seed"] >= 3 and isinstance(row["value"], float)
        if row["name"].endswith("relative_distance"):
            assert "baseline" in row
            if "one_hidden" not in row["name"]:
                assert row["value"] <= 1e-12
            elif "ground_truth/known_theta0" in row["name"]:
                assert row["value"] <= 1e-6
        if row["name"].endswith("inner_gradient_norm"):
            assert row["value"] <= 1e-7
    assert [path.name for path in results.parent.iterdir()] == ["results.json"]


@pytest.mark.parametrize("chapter", CHAPTERS)
def test_chapter_is_built_like_the_others(chapter):
    cells = read(chapter).cells
    assert re.match(r"# \S", cells[0].source) and "{cite" in cells[0].source
    assert "## Overview" in cells[1].source
    tagged = [cell for cell in cells if "parameters" in cell.metadata.get("tags", [])]
    assert len(tagged) == 1 and tagged[0].source.startswith("# Parameters of this chapter\n")
    assert set(COMMON) <= set(report.assignments(tagged[0].source))
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
    ({"SEEED": 1}, "There is no parameter SEEED; this chapter has DATASET, SEED,"),
    ({"seed": 1}, "There is no parameter seed; this chapter has DATASET, SEED,"),
    ({"SEED": "one"}, "SEED is 'one'; it must be a whole number, like its default 0."),
    ({"SEED": -1}, "SEED is -1; it must be 0 or larger."),
    ({"IMAGES": 0}, "IMAGES is 0; it must be larger than 0."),
    ({"IMAGES": 2}, "IMAGES is 2, but the 2 classes of the stationarity attack need at least 4."),
    ({"IMAGES": 400}, "one class has only 148: choose at most 148 for each part, or a larger data set."),
    ({"DATASET": "imagenet"}, "it must be 'photos', 'cifar10' or the path of an .npz file."),
    ({"DATASET": "/nowhere.npz"}, "There is no file /nowhere.npz: check the path in DATASET."),
    ({"DEVICE": "tpu"}, "DEVICE is 'tpu', but it must be one of 'auto', 'cpu', 'cuda'."),
    ({"RESULTS": "/dev/null/results.json"}, "RESULTS cannot be written to /dev/null/results.json"),
    ({"WIDTH": 0}, "WIDTH is 0; it must be larger than 0."),
    ({"SHARPNESS": -1.0}, "SHARPNESS is -1.0; it must be larger than 0."),
    ({"THETA_START": "zeros"}, "THETA_START is 'zeros', but it must be one of 'uniform', 'standard'."),
    ({"RULE": "best"}, "RULE is 'best', but it must be one of 'signed', 'margin', 'multiclass', 'tied'."),
    ({"NEURONS": 0}, "NEURONS is 0; it must be larger than 0."),
    ({"WEIGHT_DECAY": 0.0}, "WEIGHT_DECAY is 0.0; it must be larger than 0."),
    ({"OPTIMISER": "adam"}, "OPTIMISER is 'adam', but it must be one of 'lbfgs', 'gradient'."),
    ({"OPTIMISER": "gradient", "LEARNING_RATE": 1e8}, "LEARNING_RATE 1e+08 is too large; try 1e+07."),
]


PARTITION = "book/07-partition-initialisation"
WRONG = [(PARTITION, *case) for case in WRONG]
LANDSCAPE = "book/08-landscape"
WRONG += [
    (LANDSCAPE, {"GRID": 1}, "GRID and RESTARTS must be at least 2, SAMPLES at least 3."),
    (LANDSCAPE, {"MEAN": "none"}, "MEAN is 'none', but it must be one of 'training', 'partition'."),
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


def test_cuda_without_a_gpu(monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    with pytest.raises(report.InputError, match="torch finds no GPU here: use DEVICE='auto' or 'cpu'"):
        report.choose_device("cuda")
