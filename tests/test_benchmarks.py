"""Benchmarks run, and what pytest-benchmark writes of a whole run is a record; no time is compared here."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SPEED = sorted((ROOT / "data" / "speed").glob("*.json"))
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


def of(record, kernel):
    """What is kept of the benchmarks of a kernel."""
    return [one["extra_info"] for one in record["benchmarks"] if one["extra_info"]["kernel"] == kernel]


def test_what_is_written_says_how_long_what_took_on_which_machine(measured):
    record = measured[0]
    assert [*record["machine_info"]] == ["device", "processor", "cores", "threads", "versions"]
    assert "commit_info" not in record and not any("data" in one["stats"] for one in record["benchmarks"])
    assert {"float32", "float64", "copy"} <= {limit["version"] for limit in of(record, "limits")}
    versions = [row["version"] for row in of(record, "threads")]
    assert versions in (["1 thread", "2 threads"], [])  # on one core
    assert len({one["group"] for one in record["benchmarks"] if one["extra_info"]["kernel"] == "threads"}) <= 1
    assert sorted(row["version"] for row in of(record, "paper")) == PAPER
    check_rows(record["benchmarks"])


def check_rows(rows):
    """No two rows are of the same, and their numbers are positive."""
    keys = [str([row["extra_info"][name] for name in ("kernel", "version", "dtype", "size")]) for row in rows]
    assert len(keys) == len(set(keys))
    for row in rows:
        assert min(value for value in row["stats"].values() if isinstance(value, (int, float))) >= 0
        assert all(row["extra_info"][name] is None or row["extra_info"][name] > 0 for name in ("flops", "bytes"))
        assert {"note"} <= row["extra_info"].keys()


@pytest.mark.parametrize("path", SPEED, ids=lambda path: path.stem)
def test_a_record_has_every_benchmark(path, measured):
    record = json.loads(path.read_text())
    check_rows(record["benchmarks"])
    if record["machine_info"]["device"] == "cpu":
        assert len(record["benchmarks"]) == measured[1] - len(PAPER)


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
