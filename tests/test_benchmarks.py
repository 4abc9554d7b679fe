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


def test_what_is_written_says_how_long_what_took_on_which_machine(tmp_path):
    """Of the limits and of a rehearsal of a GPU's attacks."""
    path = tmp_path / "bench.json"
    command = [sys.executable, "-m", "pytest", "-q", "tests/benchmarks", "-k", "limits or paper"]
    command += ["--benchmark-min-rounds=1", "--benchmark-max-time=0.01", f"--benchmark-json={path}"]
    # No worker of xdist.
    alone = {name: of for name, of in os.environ.items() if not name.startswith("PYTEST_")}
    alone |= {"DEVICE": "cpu", "REHEARSE": "yes"}
    ended = subprocess.run(command, cwd=ROOT, env=alone, capture_output=True, text=True)
    assert re.search(r"^\d+ passed, .*deselected", ended.stdout, re.M), ended.stdout
    record = json.loads(path.read_text())
    assert "commit_info" not in record
    versions = checked(record["benchmarks"])
    assert {"float32 by numpy", "bfloat16 by torch", "copy"} <= {*versions["limits"]}
    assert sorted(versions["paper"]) == ["published", "unmixing", "unmixing", "victim"]


def checked(rows):
    """Of rows that differ and whose numbers are positive: {kernel: versions}."""
    keys, versions = set(), {}
    for about, stats in ((row["extra_info"], row["stats"]) for row in rows):
        keys.add(str([about[name] for name in ("kernel", "version", "dtype", "size")]))
        versions.setdefault(about["kernel"], []).append(about["version"])
        assert "data" not in stats and "note" in about and stats["median"] > 0
    assert len(keys) == len(rows)
    return versions


@pytest.mark.parametrize("path", SPEED, ids=lambda path: path.stem)
def test_a_record_has_each_number_once(path):
    assert checked(json.loads(path.read_text())["benchmarks"])
