"""What is recorded can be read, is refused if it is damaged, and comes out again if it is computed again."""

import csv
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from conftest import refused
from lab import recorded

ROOT = Path(__file__).parent.parent
KEPT = sorted(path.stem for path in (ROOT / "data" / "results").glob("*.json"))
IMAGES = Path(os.environ.get("CIFAR10_SUBSET", ROOT / "data" / "cifar10-subset.npz"))
AT = "decoreco/signed/random"
NUMBERS = {
    "leak_auc": 0.8,
    "alike": 10,
    "victim_error": 0.01,
    "steps/300/leak_auc": 0.79,
    "steps/300/alike": 12,
}
LINES = [
    (f"{AT}/{name}", seed, x + seed / 100, 0.5) for seed in range(5) for name, x in NUMBERS.items()
] + [(f"{AT}/one_of_them", 3, 0.1, "")]


@pytest.fixture
def made(tmp_path, monkeypatch):
    """A folder of recorded results with one grid, of five seeds in two spaces."""
    monkeypatch.setattr(recorded, "DATA", tmp_path)
    (tmp_path / "results").mkdir()
    with open(tmp_path / "results" / "made.csv", "w", newline="") as file:
        csv.writer(file).writerows([("SPACE", "name", "seed", "value", "baseline")])
        csv.writer(file).writerows((space, *line) for space in ("span", "none") for line in LINES)
    grid = {
        "parameters": {"STEPS": 600},
        "cross": {"SPACE": ["span", "none"], "SEED": [*range(5)]},
    }
    about = {"full_size": True, "runs": 10, "grid": grid}
    (tmp_path / "results" / "made.json").write_text(json.dumps(about))
    pictures = {f"SEED=0/{what}": np.full((2, 8, 8, 3), 51, np.uint8) for what in recorded.PAIR}
    np.savez(tmp_path / "results" / "made.npz", **pictures)
    return tmp_path / "results"


def test_a_record_is_a_table_by_name_and_seed(made):
    record = recorded.load("made")
    span = record.query("SPACE == 'span'")
    assert span.value[f"{AT}/leak_auc"].to_dict() == pytest.approx(
        {k: 0.8 + k / 100 for k in range(5)}
    )
    assert record.SPACE.unique().tolist() == ["span", "none"]  # as in the grid
    assert "has several values per seed" in refused(recorded.numbers, record, f"{AT}/leak_auc")
    assert recorded.converged(span, AT).all()
    shown, shape = recorded.pictures("made", "SEED=0")
    assert shape == (8, 8, 3) and torch.equal(
        shown["reconstructions"], torch.full((2, 192), 51 / 255, dtype=torch.float64)
    )
    assert "/made.npz cannot be read for SEED=1" in refused(recorded.pictures, "made", "SEED=1")


def test_a_summary_says_each_quantity(made):
    runs = {"span": (recorded.load("made").query("SPACE == 'span'"), AT)}
    cells = [("alike", "both"), "nothing", ("leak_auc", "value", max), "one_of_them"]
    lines = recorded.summary("runs", runs, {str(cell): cell for cell in cells}).data.splitlines()
    assert lines[2] == "| span | 10.02 [10.00, 10.04]; 0.50 | – | 0.84 | 0.1 (1 of 5 seeds) |"


@pytest.mark.parametrize(
    "old, new", [("0.01", "0.3"), ("0.79", "0.6"), ("12.0", "16")], ids=["error", "area", "count"]
)
def test_a_run_that_has_not_converged_is_told_apart(made, old, new):
    path = made / "made.csv"
    path.write_text(path.read_text().replace(f",0,{old},", f",0,{new},"))
    done = recorded.converged(recorded.load("made").query("SPACE == 'span'"), AT)
    assert done.tolist() == [False, True, True, True, True]


def damaged(kind, content):
    """What may have become of the bytes of a file."""
    yield from (b"", b"{}", content[: len(content) // 2])
    if kind == "csv":
        yield b"".join(content.splitlines(True)[:26])  # half, at the end of a line
        yield content.rstrip()[:-1]  # cut within the last number
        yield content.replace(b"SPACE,", b"").replace(b"span,", b"").replace(b"none,", b"")
        yield from (content.replace(b"0.8,", new) for new in (b"much,", b"nan,"))
        yield content.replace(b",0,", b",,")


@pytest.mark.parametrize("kind", ["csv", "json", "npz"])
def test_a_damaged_file_is_refused_by_name(made, kind):
    def read():
        return recorded.load("made"), recorded.pictures("made", "SEED=0")

    path = made / f"made.{kind}"
    for content in damaged(kind, path.read_bytes()):
        path.write_bytes(content)
        said = refused(read)
        assert f"/made.{kind} cannot be read" in said and "from the repository again" in said
    path.unlink()
    assert f"/made.{kind} cannot be read" in refused(read)


@pytest.mark.parametrize("name", KEPT)
def test_recorded_results_are_whole_and_say_where_they_come_from(name):
    record = recorded.load(name)
    about = record.attrs
    numbers = record.drop(columns=["value", "baseline"]).reset_index()
    assert len(numbers) and not numbers.duplicated().any()
    assert about["command"] == f"make grid record GRID=experiments/{name}.yaml"
    assert (ROOT / "experiments" / f"{name}.yaml").exists()
    assert {"data_sha256_by_seed", "versions", "devices", "runs", "hours", "label"} <= about.keys()
    assert "/work" not in json.dumps(about) and "/tmp" not in json.dumps(about)


@pytest.mark.chapters
@pytest.mark.parametrize("words", [["small-kkt"], ["knowledge", "--dataset", str(IMAGES)]])
def test_a_record_holds(words):
    if IMAGES.name in words[-1] and not IMAGES.exists():
        pytest.skip(f"the images of the recorded runs, {IMAGES.name}, are not here")
    ended = subprocess.run(
        [sys.executable, "-m", "lab.verify", *words], cwd=ROOT, capture_output=True, text=True
    )
    assert ended.returncode == 0 and words[0] in ended.stdout, ended.stdout + ended.stderr
