"""Benchmarks run, and what pytest-benchmark writes is recorded, if it is of a whole run; no time is compared here."""

import json
import os
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SPEED = sorted((ROOT / "data" / "speed").glob("*.json"))
RECORD = runpy.run_path(str(ROOT / "benchmarks" / "record.py"))
PAPER = ["ours"] * 5 + ["published", "unmixing", "unmixing", "victim"]


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    """What pytest-benchmark wrote of the limits, of a kernel and of a rehearsal of a GPU's attacks; all benchmarks."""
    path = tmp_path_factory.mktemp("bench") / "bench.json"
    command = [sys.executable, "-m", "pytest", "-q", "benchmarks", "-k", "limits or paper or threads and 20-200"]
    command += ["--benchmark-min-rounds=1", "--benchmark-max-time=0.01", f"--benchmark-json={path}"]
    alone = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}  # no worker of xdist
    alone |= {"DEVICE": "cpu", "REHEARSE": "yes"}
    said = subprocess.run(command, cwd=ROOT, env=alone, capture_output=True, text=True).stdout
    assert re.search(r"^\d+ passed, .*deselected", said, re.M), said
    return json.loads(path.read_text()), sum(map(int, re.findall(r"(\d+) (?:passed|skipped|deselected)", said)))


def test_benchmarks_become_the_rows_of_a_record(measured):
    record = RECORD["record_of"](measured[0], "cpu")
    assert record["command"] == "make bench RECORD=cpu" and [*record["about"]] == [*RECORD["MACHINE"]]
    assert {"float32", "float64", "copy"} <= record["limits"].keys() and min(record["limits"].values()) > 0
    versions = [row["version"] for row in record["rows"] if row["kernel"] == "threads"]
    assert versions in (["1 thread", "2 threads"], [])  # on one core
    assert len({one["group"] for one in measured[0]["benchmarks"] if one["extra_info"]["kernel"] == "threads"}) <= 1
    assert sorted(row["version"] for row in record["rows"] if row["kernel"] == "paper") == PAPER
    check_rows(record["rows"])
    assert json.loads(RECORD["text_of"](record)) == record and "node" not in RECORD["text_of"](record)


def check_rows(rows):
    """No two rows are of the same, and their numbers are positive."""
    keys = [(row["kernel"], row["version"], row["dtype"], str(row["size"])) for row in rows]
    assert len(keys) == len(set(keys))
    for row in rows:
        assert tuple(row) == RECORD["ROW"] and 0 < row["low"] <= row["seconds"] <= row["high"] and row["rounds"] >= 1
        assert all(row[name] is None or row[name] > 0 for name in ("flops", "bytes"))


@pytest.mark.parametrize("path", SPEED, ids=lambda path: path.stem)
def test_a_record_has_every_benchmark(path, measured):
    record = json.loads(path.read_text())
    assert record["command"] == f"make bench RECORD={path.stem}" and min(record["limits"].values()) > 0
    check_rows(record["rows"])
    if record["about"]["device"] == "cpu":
        assert len(record["rows"]) + len(record["limits"]) == measured[1] - len(PAPER)


def bench(folder, status, *words):
    """What `make bench` says if pytest ends with this status."""
    (folder / "pytest").write_text(f"#!/bin/sh\nexit {status}\n")
    (folder / "pytest").chmod(0o755)
    given = [f"BIN={folder}", "WHOLE=echo yes", *words]
    command = ["make", "--no-print-directory", "-o", ".venv/ready", "bench", *given]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert ended.returncode
    return ended.stdout + ended.stderr


@pytest.mark.parametrize("status, words, sentence", [
    (0, ["RECORD=../x"], 'RECORD is "../x": give a word of small letters and digits, such as cpu'),
    (0, ["RECORD=a b"], 'RECORD is "a b": give a word'),
    (0, ["RECORD=x", "ONLY=step"], "Only a whole run is recorded: leave ONLY away"),
    (1, ["RECORD=toy"], "Error 1"),
    (5, ["ONLY=nothing"], "No benchmark has such a name"),
])  # fmt: skip
def test_what_cannot_be_measured_or_recorded_is_said_in_one_sentence(status, words, sentence, tmp_path):
    said = bench(tmp_path, status, *words)
    assert sentence in said and len(said.splitlines()) <= 2
    assert sorted((ROOT / "data" / "speed").glob("*.json")) == SPEED
