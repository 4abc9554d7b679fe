"""What is recorded can be read, is refused if it is damaged, and comes out again if it is computed again."""

import csv
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

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
]


@pytest.fixture
def made(tmp_path, monkeypatch):
    """A folder of recorded results with one grid, of five seeds in two spaces."""
    monkeypatch.setattr(recorded, "DATA", tmp_path)
    (tmp_path / "results").mkdir()
    with open(tmp_path / "results" / "made.csv", "w", newline="") as file:
        csv.writer(file).writerows([("SPACE", "name", "seed", "value", "baseline")])
        csv.writer(file).writerows((space, *line) for space in ("span", "pixels") for line in LINES)
    grid = {
        "parameters": {"STEPS": 600},
        "cross": {"SPACE": ["span", "pixels"], "SEED": [*range(5)]},
    }
    about = {"full_size": True, "runs": 10, "grid": grid}
    (tmp_path / "results" / "made.json").write_text(json.dumps(about))
    pictures = {f"SEED=0/{what}": np.full((2, 8, 8, 3), 51, np.uint8) for what in recorded.PAIR}
    np.savez(tmp_path / "results" / "made.npz", **pictures)
    return tmp_path / "results"


def test_values_are_those_of_the_named_runs(made):
    found = recorded.load("made")
    assert recorded.values(found, f"{AT}/leak_auc", SPACE="span") == pytest.approx(
        {k: 0.8 + k / 100 for k in range(5)}
    )
    assert recorded.values(found, f"{AT}/nothing", SPACE="span") == {}
    assert "has several values per seed" in refused(recorded.values, found, f"{AT}/leak_auc")
    assert recorded.result(found, f"{AT}/leak_auc", SPACE="span") == "0.82 [0.80, 0.84]"
    found.about["grid"]["cross"]["SEED"].append(5)
    assert (
        recorded.result(found, f"{AT}/leak_auc", SPACE="span") == "0.82 [0.80, 0.84] (5 of 6 seeds)"
    )
    assert recorded.result(found, f"{AT}/leak_auc, largest", SPACE="span") == "0.84 (5 of 6 seeds)"
    assert [*recorded.on_the_way(found, AT, "leak_auc", SPACE="span")] == [300]
    assert recorded.converged(found, AT, SPACE="span") == dict.fromkeys(range(5), True)
    assert recorded.beyond(found, f"{AT}/alike", SPACE="span") == pytest.approx(
        [9.5 + k / 100 for k in range(5)]
    )
    shown, shape = recorded.pictures(found, "SEED=0")
    assert (
        shape == (8, 8, 3)
        and shown["reconstructions"].shape == (2, 192)
        and shown["reconstructions"].max() == 0.2
    )
    assert "/made.npz cannot be read for SEED=1" in refused(recorded.pictures, found, "SEED=1")


def test_a_summary_says_each_quantity_of_each_run(made):
    found = recorded.load("made")
    runs = {f"in the {space}": (found, AT, {"SPACE": space}) for space in ("span", "pixels")}
    table = recorded.summary(
        "runs", runs, {"leak": "leak_auc", "alike; null": "alike; alike (baseline)"}
    ).data
    said, both = "0.82 [0.80, 0.84]", "10.02 [10.00, 10.04]; 0.50"
    assert [line.strip("| ").split(" | ") for line in table.splitlines()] == [
        ["runs", "leak", "alike; null"], ["---"] * 3, ["in the span", said, both], ["in the pixels", said, both]
    ]  # fmt: skip
    table = recorded.summary(
        "", runs, {"leak": "leak_auc"}, across=True, say=lambda _, name, SPACE: SPACE + name
    )
    assert table.data.splitlines()[2] == f"| leak | span{AT}/leak_auc | pixels{AT}/leak_auc |"


@pytest.mark.parametrize("change", ["error", "unsettled", "count"])
def test_a_run_that_has_not_converged_is_told_apart(made, change):
    old, new = {"error": ("0.01", "0.3"), "unsettled": ("0.79", "0.6"), "count": ("12.0", "16")}[
        change
    ]
    path = made / "made.csv"
    path.write_text(path.read_text().replace(f",0,{old},", f",0,{new},"))
    assert recorded.converged(recorded.load("made"), AT, SPACE="span") == dict.fromkeys(
        range(5), True
    ) | {0: False}


def damaged(kind, content):
    """What may have become of the bytes of a file."""
    yield from (
        b"",
        bytes(500),
        b"[]",
        b"{}",
        b'{"grid": {"cross": {}}}',
        content[: len(content) // 2],
    )
    if kind == "csv":
        yield b"".join(content.splitlines(True)[:26])  # half, at the end of a line
        yield content.rstrip()[:-1]  # cut within the last number
        yield (
            content.replace(b"SPACE,", b"").replace(b"span,", b"").replace(b"pixels,", b"")
        )  # a column less
        for old, new in (
            (b"0.8,", b"much,"),
            (b"0.8,", b"nan,"),
            (b",0,", b",,"),
            (b"span", b"sp\xff"),
        ):
            yield content.replace(old, new)


@pytest.mark.parametrize("kind", ["csv", "json", "npz"])
def test_a_damaged_file_is_refused_by_name(made, kind):
    path, said = made / f"made.{kind}", []
    for content in damaged(kind, path.read_bytes()):
        path.write_bytes(content)
        said.append(refused(lambda: recorded.pictures(recorded.load("made"), "SEED=0")))
    path.unlink()
    said.append(refused(lambda: recorded.pictures(recorded.load("made"), "SEED=0")))
    assert all(
        f"/made.{kind} cannot be read" in each and "take it from the repository again" in each
        for each in said
    )


@pytest.mark.parametrize("name", KEPT)
def test_recorded_results_are_whole_and_say_where_they_come_from(name):
    found = recorded.load(name)
    about, lines = found.about, {(*row.values(),)[:-2] for row in found.rows}
    assert len(lines) == len(found.rows) > 0  # no number twice
    assert about["command"] == f"make grid record GRID=experiments/{name}.yaml"
    assert (ROOT / "experiments" / f"{name}.yaml").exists()
    assert {"data_sha256_by_seed", "versions", "devices", "runs", "hours", "label"} <= about.keys()
    assert all(np.isfinite(float(row["value"])) for row in found.rows)
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
