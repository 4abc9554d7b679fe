"""Every notebook is built like the others, and at toy size writes what the registry knows, in numbers that agree.

A short attack is chaotic: the last bits of its first step decide where it ends, and every processor has its own. So no
number is compared with a reference: `report.save` refuses a name that is not registered, and a number that is not one
of its kind, and RELATIONS say what must be true between the numbers of one run on every machine. The toy sizes of a
notebook stand in the metadata of its cell of parameters.
"""

import json
import math
import re
from functools import partial
from pathlib import Path

import nbformat
import papermill
import pytest
from papermill.exceptions import PapermillExecutionError

from lab.grid import declared_by
from lab.verify import named

ROOT = Path(__file__).parent.parent
NOTEBOOKS = sorted([*(ROOT / "book").glob("*.ipynb"), *(ROOT / "experiments").glob("*.ipynb")])
COMMON = {"DATASET", "SEED", "DEVICE", "RESULTS"}
LARGEST = 150_000 * 1.05  # bytes of a picture


def alike(a, b, tolerance=1e-5):
    """Whether two numbers are the same but for sums in single precision."""
    return math.isclose(a, b, rel_tol=tolerance)


# What is true of a number v and its baseline b, by a pattern of names; other(name) is another number of the same run.
RELATIONS = {
    r"(bilevel|reading|as_written)/.*/(relative_distance|square_gradient)": "v <= b + 1e-25",
    r"(.*)/(mean_)?square_distance": (
        r"alike(v / b, other(r'\1/relative_distance') / base(r'\1/relative_distance'), 1e-9)"
    ),
    r"bilevel/.*/nearest_start_l2": "b == 0",
    r"bilevel/.*/ground_truth/.*nearest_training_l2": "b == 0",
    r".*/ground_truth/.*leak_auc": "b == 1",
    r"(.*)/outer_converged": r"v == (other(r'\1/relative_distance') <= 1e-6)",
    r".*/inner_gradient_norm": "v <= 1e-8",
    r"(.*leak_auc)_low": r"v <= other(r'\1') + 1e-9",
    r"(.*)/steps/12/leak_auc": r"v == other(r'\1/leak_auc')",
    r"(landscape/cost/.*)/0.001/reached": r"v <= other(r'\1/0.1/reached')",
    r"landscape/(?!bilevel).*/moved lambda_1=1 lambda_2=1": "v <= 1e-3",  # it stays at a minimum
    r"reading/ground_truth/(relative_distance|moved)": "v <= 1e-20",
    r"collapse/no_decay/.*": "v < b",  # a collapsed set is stationary
    r"collapse/decay/.*": "b <= 1e-7 < 1e-3 < v",
    r"certificate/(planted|split)/residual": "alike(v, other('certificate/original/residual'))",
    r"certificate/original/(margin|agreement|cosine|like_truth)": "alike(v, 1)",
    r"kkt/.*/stationarity": "v < b / 3",  # as good as the truth, and better than strangers
    r"plant_network/.*/relative_distance": "v < b / 100",
    r"known_start/sgd/alpha": "alike(v, 1)",  # no decay: all of the start is left
    r"speed/agreement/float64": "v <= 1e-11",
    r"rank/.*/outside": "v < b",  # training images lie in the rows
    r"natural/span/trainer/auc": "b < v",  # a twin does not know these pictures
    r"text/.*/trained/.*/bag_(precision|recall)": "v == 1",  # no other rows move
    r"(prior/.*)/kkt_at_kinks": r"v <= other(r'\1/kkt') + 1e-12",  # free slopes are no worse
}


def cells_of(path):
    """The cells of code of a notebook, which opens with a heading, and its cell of parameters."""
    first, *others = nbformat.read(path, as_version=4).cells
    assert first.source.startswith("# ")
    code = [cell for cell in others if cell.cell_type == "code"]
    (parameters,) = [cell for cell in code if "parameters" in cell.metadata.get("tags", [])]
    return code, parameters


def run(path, output, **given):
    """Execute a notebook; the machine may be busy, so that it gets minutes."""
    papermill.execute_notebook(
        path, output, given, progress_bar=False, start_timeout=600, execution_timeout=1200
    )


@pytest.mark.chapters
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_what_a_toy_run_writes_is_true_on_every_machine(path, toy_npz, tmp_path):
    results = tmp_path / "deep" / "results.json"
    toy = cells_of(path)[1].metadata.get("toy", {})
    given = {"DATASET": str(toy_npz), "SEED": 3, "RESULTS": str(results), **toy}
    run(path, tmp_path / "out.ipynb", **given)
    written = json.loads(results.read_text())
    assert given.items() <= written["parameters"].items()
    assert [file.name for file in results.parent.iterdir()] == ["results.json"]
    rows = {named(row): row for row in written["rows"]}
    assert len(rows) == len(written["rows"])
    assert {row["seed"] for row in rows.values()} <= {3}
    assert rows or path.stem == "recorded"  # which reads records alone
    assert not [*broken(rows)]


def broken(rows):
    """The numbers of which a relation does not hold, as sentences."""
    for name, row in rows.items():
        for pattern, relation in RELATIONS.items():
            if found := re.fullmatch(pattern, name):

                def named_as(template, column, found=found):
                    return rows[found.expand(template)][column]

                known = {
                    "v": row["value"],
                    "b": row.get("baseline"),
                    "other": partial(named_as, column="value"),
                    "base": partial(named_as, column="baseline"),
                }
                if not eval(relation, {"alike": alike}, known):
                    yield f"{name} is {row['value']} ({row.get('baseline')}), against {relation}"


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_built_like_the_others(path):
    code, parameters = cells_of(path)
    declared = declared_by(path).keys()
    assert parameters.source.startswith("# Parameters of this ")
    assert {*COMMON, *parameters.metadata.get("toy", {})} <= declared
    assert sum("from lab import" in cell.source for cell in code[:2]) == 1
    for cell in code:
        for output in cell.outputs:
            assert output.output_type != "error" and output.get("name") != "stderr", cell.source
            if picture := output.get("data", {}).get("image/png", ""):
                assert len(picture) * 3 / 4 < LARGEST
                shown = cell.metadata["mystnb"]
                assert shown["figure"]["caption"] and shown["image"]["alt"]
        if path.parent.name == "experiments":  # it reads no record and judges nothing
            judging = re.search(r"\b(recorded|ledger|results/|data/speed)\b", cell.source)
            assert not cell.outputs and not judging


@pytest.mark.chapters
@pytest.mark.parametrize(
    "chapter, given, sentence",
    [
        ("inside-the-solver", {"IMAGES": 20, "LEARNING_RATE": 1e4}, "LEARNING_RATE 10000 is too"),
        ("try-your-own", {"FOLDER": "/nowhere"}, "FOLDER is for your own network: give WEIGHTS"),
        ("try-your-own", {"REPORT": "/dev/null"}, "REPORT cannot be written to"),
        ("text", {"WIDTH": 10**11}, "The memory is full: take smaller sizes"),
    ],
)
def test_a_mistake_ends_in_one_sentence_and_leaves_no_file(chapter, given, sentence, tmp_path):
    given |= {"RESULTS": str(tmp_path / "results.json")}
    with pytest.raises(PapermillExecutionError, match=f"InputError: {sentence}.*$") as caught:
        run(ROOT / "book" / f"{chapter}.ipynb", tmp_path / "out.ipynb", **given)
    assert len(caught.value.traceback) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["out.ipynb"]


@pytest.mark.chapters
def test_the_run_of_the_readmes_grid_whose_signals_depend_most_on_each_other_passes(tmp_path):
    sizes = {"WIDTH": 8, "IMAGES": 20, "SEEDS": 1}
    run(ROOT / "book" / "rank-decides.ipynb", tmp_path / "out.ipynb", SEED=1, **sizes)
