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


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    """What pytest-benchmark wrote of the limits and of two kernels, and how many benchmarks there are."""
    path = tmp_path_factory.mktemp("bench") / "bench.json"
    command = [sys.executable, "-m", "pytest", "-q", "benchmarks", "-k", "limits or torchmetrics or threads and 20-200"]
    command += ["--benchmark-min-rounds=1", "--benchmark-max-time=0.01", f"--benchmark-json={path}"]
    alone = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}  # no worker of xdist
    said = subprocess.run(command, cwd=ROOT, env=alone, capture_output=True, text=True).stdout
    assert re.search(r"^[46] passed, .*deselected", said, re.M), said
    return json.loads(path.read_text()), sum(map(int, re.findall(r"(\d+) (?:passed|skipped|deselected)", said)))


def test_benchmarks_of_a_kernel_are_a_group_and_become_rows(measured):
    record = RECORD["record_of"](measured[0], "cpu")
    assert record["command"] == "make bench RECORD=cpu" and [*record["about"]] == [*RECORD["MACHINE"]]
    assert {"float32", "float64", "copy"} <= record["limits"].keys() and min(record["limits"].values()) > 0
    versions = [row["version"] for row in record["rows"]]
    assert versions in (["torchmetrics", "1 thread", "2 threads"], ["torchmetrics"])  # on one core, or with a GPU
    assert len({one["group"] for one in measured[0]["benchmarks"] if one["extra_info"]["kernel"] == "threads"}) <= 1
    check_rows(record["rows"])
    assert record["rows"][0]["seconds"] > 10  # of 500,000 pairs
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
        assert len(record["rows"]) + len(record["limits"]) == measured[1]


def test_what_a_gpu_is_to_show_is_rehearsed_at_toy_size():
    command = ["make", "--no-print-directory", "-o", ".venv/ready", "gpu", "DEVICE=cpu", "RECORD=rehearsal"]
    alone = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    ended = subprocess.run(command, cwd=ROOT, env=alone, capture_output=True, text=True)
    assert not ended.returncode, ended.stdout + ended.stderr
    record = json.loads((ROOT / "_build" / "rehearsal.json").read_text())
    check_rows(record["rows"])
    versions = [row["version"] for row in record["rows"] if row["kernel"] == "paper"]
    assert sorted(versions) == ["ours"] * 5 + ["published", "unmixing", "unmixing", "victim"]
    assert sorted((ROOT / "data" / "speed").glob("*.json")) == SPEED


def test_without_a_gpu_its_measurement_says_how_to_rehearse():
    command = ["make", "--no-print-directory", "-o", ".venv/ready", "gpu"]
    hidden = os.environ | {"CUDA_VISIBLE_DEVICES": ""}
    ended = subprocess.run(command, cwd=ROOT, env=hidden, capture_output=True, text=True)
    assert ended.returncode and "There is no GPU here: make gpu DEVICE=cpu rehearses it" in ended.stdout + ended.stderr


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
