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


def test_what_is_written_says_how_long_what_took_on_which_machine(tmp_path):
    """Of the limits, of a kernel and of a rehearsal of a GPU's attacks."""
    path = tmp_path / "bench.json"
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "tests/benchmarks",
        "-k",
        "limits or paper or threads and 20-200",
    ]
    command += ["--benchmark-min-rounds=1", "--benchmark-max-time=0.01", f"--benchmark-json={path}"]
    alone = {
        name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")
    }  # no worker of xdist
    alone |= {"DEVICE": "cpu", "REHEARSE": "yes"}
    ended = subprocess.run(command, cwd=ROOT, env=alone, capture_output=True, text=True)
    assert re.search(r"^\d+ passed, .*deselected", ended.stdout, re.M), ended.stdout
    record = json.loads(path.read_text())
    assert [*record["machine_info"]] == [
        "device",
        "processor",
        "cores",
        "threads",
        "versions",
        "products",
    ]
    assert "commit_info" not in record and not any(
        "data" in one["stats"] for one in record["benchmarks"]
    )
    versions = checked(record["benchmarks"])
    assert {"float32 by numpy", "float64 by torch", "bfloat16 by torch", "copy"} <= {
        *versions["limits"]
    } and sorted(versions["paper"]) == PAPER
    assert versions.get("threads", []) in (["1 thread", "2 threads"], [])  # on one core
    assert (
        len(
            {
                one["group"]
                for one in record["benchmarks"]
                if one["extra_info"]["kernel"] == "threads"
            }
        )
        <= 1
    )


def checked(rows):
    """Of rows that differ and whose numbers are positive: {kernel: versions}."""
    keys, versions = set(), {}
    for about, stats in ((row["extra_info"], row["stats"]) for row in rows):
        keys.add(str([about[name] for name in ("kernel", "version", "dtype", "size")]))
        versions.setdefault(about["kernel"], []).append(about["version"])
        assert (
            min(value for value in stats.values() if isinstance(value, (int, float))) >= 0
            and "note" in about
        )
        assert all(about[name] is None or about[name] > 0 for name in ("flops", "bytes"))
    assert len(keys) == len(rows)
    return versions


@pytest.mark.parametrize("path", SPEED, ids=lambda path: path.stem)
def test_a_record_has_each_number_once(path):
    assert checked(json.loads(path.read_text())["benchmarks"])


@pytest.mark.parametrize("status, words, sentence", [
    (0, ["RECORD=../x"], 'RECORD is "../x": give a word of small letters and digits, such as cpu'),
    (0, ["RECORD=a b"], 'RECORD is "a b": give a word'),
    (0, ["RECORD=x", "ONLY=step"], "Only a whole run is recorded: leave ONLY away"),
    (1, ["RECORD=toy"], "Error 1"),
    (5, ["ONLY=nothing"], "No benchmark has such a name"),
])  # fmt: skip
def test_what_cannot_be_measured_or_recorded_is_said(status, words, sentence, tmp_path):
    (tmp_path / "pytest").write_text(f"#!/bin/sh\nexit {status}\n")
    (tmp_path / "pytest").chmod(0o755)
    command = [
        "make",
        "--no-print-directory",
        "-o",
        ".venv/ready",
        "bench",
        f"BIN={tmp_path}",
        "WHOLE=echo yes",
    ]
    ended = subprocess.run([*command, *words], cwd=ROOT, capture_output=True, text=True)
    printed = ended.stdout + ended.stderr
    assert ended.returncode and sentence in printed and len(printed.splitlines()) <= 2
    assert sorted((ROOT / "data" / "speed").glob("*.json")) == SPEED
