"""Every notebook is built like the others, and a mistake in its parameters ends in one sentence."""

import re
from pathlib import Path

import nbformat
import pytest
from papermill.exceptions import PapermillExecutionError
from test_toy_runs import NOTEBOOKS, run

from lab.grid import declared_by

ROOT = Path(__file__).parent.parent
COMMON = {"DATASET", "SEED", "DEVICE", "RESULTS"}
LARGEST = 150_000 * 1.05  # bytes of a picture


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_built_like_the_others(path):
    cells = nbformat.read(path, as_version=4).cells
    code = [cell for cell in cells if cell.cell_type == "code"]
    tagged = [cell for cell in code if "parameters" in cell.metadata.get("tags", [])]
    assert (
        cells[0].source.startswith("# ") and len(tagged) == 1 and tagged[0].source.startswith("# Parameters of this ")
    )
    assert declared_by(path).keys() >= COMMON
    assert sum("import" in cell.source and "from utils" in cell.source for cell in code[:2]) == 1
    for cell in code:
        for output in cell.outputs:
            assert output.output_type != "error" and output.get("name") != "stderr", cell.source
            if picture := output.get("data", {}).get("image/png", ""):
                assert len(picture) * 3 / 4 < LARGEST
                assert cell.metadata["mystnb"]["figure"]["caption"] and cell.metadata["mystnb"]["image"]["alt"]


@pytest.mark.parametrize("path", sorted((ROOT / "experiments").glob("*.ipynb")), ids=lambda path: path.stem)
def test_an_experiment_reads_no_record_and_judges_nothing(path):
    code = "\n".join(c.source for c in nbformat.read(path, as_version=4).cells if c.cell_type == "code")
    assert not re.search(r"\b(recorded|verdicts|results/|data/speed)\b", code)
    assert not any(cell.get("outputs") for cell in nbformat.read(path, as_version=4).cells)


WRONG = [
    ("book/three-starts-bilevel", {"SEEED": 1}, "There is no parameter SEEED; this chapter has DATASET, SEED,"),
    ("book/decoreco-attack", {"WEIGHTS": "/nowhere.pth"}, "There is no file /nowhere.pth"),
    ("book/inside-the-solver", {"IMAGES": 20, "LEARNING_RATE": 1e4}, "LEARNING_RATE 10000 is too large: by step 1"),
    ("book/try-your-own", {"FOLDER": "/nowhere"}, "FOLDER is for your own network: give WEIGHTS and HELD_OUT"),
    ("book/energy-landscape", {"GRID": 1}, "GRID must be at least 2."),
]


@pytest.mark.chapters
@pytest.mark.parametrize("chapter, given, sentence", WRONG, ids=lambda value: str(value)[:40])
def test_a_mistake_ends_in_one_sentence_and_leaves_no_file(chapter, given, sentence, tmp_path):
    results = tmp_path / "results.json"
    with pytest.raises(PapermillExecutionError) as caught:
        run(ROOT / f"{chapter}.ipynb", tmp_path / "out.ipynb", **{"RESULTS": str(results), **given})
    assert caught.value.ename == "InputError" and sentence in caught.value.evalue
    assert [re.sub(r"\x1b\[[\d;]*m", "", line) for line in caught.value.traceback] == [
        f"InputError: {caught.value.evalue}"
    ]
    assert [path.name for path in tmp_path.iterdir()] == ["out.ipynb"]


@pytest.mark.chapters
def test_the_run_of_the_readmes_grid_whose_signals_depend_most_on_each_other_passes(tmp_path):
    run(ROOT / "book" / "rank-decides.ipynb", tmp_path / "out.ipynb", SEED=1, WIDTH=8, IMAGES=20, SEEDS=1)
