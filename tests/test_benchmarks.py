"""What benchmarks write is read, compared and recorded as it is; no time is measured here."""

import json
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

from utils.errors import InputError

ROOT = Path(__file__).parent.parent
SPEED = sorted((ROOT / "data" / "speed").glob("*.json"))
REPORT = runpy.run_path(str(ROOT / "benchmarks" / "report.py"))
LIMITS = {"float32": 100.0, "float64": 50.0, "copy": 10.0}
ABOUT = {"device": "cpu", "processor": "a processor", "cores": 2, "threads": 2}
ABOUT |= {"versions": {"python": "3.11.0", "torch": "2.11.0", "numpy": "2.0.0"}}


def benchmark(kernel, version, median, size=None, dtype="float32", scale=1, **work):
    """One benchmark as pytest-benchmark writes it."""
    about = {"kernel": kernel, "version": version, "size": size or {"candidates": 50}, "dtype": dtype, "note": ""}
    about |= {"flops": None, "bytes": None, "scale": scale} | work
    stats = {"min": 0.8 * median, "q1": 0.9 * median, "median": median, "q3": 1.2 * median, "rounds": 5}
    return {"name": f"test_{kernel}", "stats": stats, "extra_info": about}


def whole():
    """A made run with two versions of every kernel, and the limits."""
    found = [benchmark("limits", name, 1.0, flops=8e10) for name in ("float32", "float64")]
    found += [benchmark("limits", "copy", 1.0, bytes=8e9)]
    for kernel, ours in REPORT["OURS"].items():
        found += [benchmark(kernel, ours, 0.02, flops=5e8, bytes=1e6), benchmark(kernel, "plain", 0.001, scale=60)]
    return {"machine_info": ABOUT | {"node": "a-host"}, "benchmarks": found, "datetime": "2026"}


def test_rows_count_what_was_extrapolated():
    row = REPORT["row_of"](benchmark("step", "plain", 0.002, scale=4000, note="extrapolated"))
    assert list(row) == list(REPORT["ROW"])
    assert (row["low"], row["seconds"], row["high"], row["rounds"]) == (7.2, 8.0, 9.6, 5)


def test_limits_are_the_fastest_rounds():
    record = REPORT["record_of"](whole(), "make bench")
    assert record["limits"] == {"float32": 100.0, "float64": 100.0, "copy": 10.0}
    assert "a-host" not in json.dumps(record) and "2026" not in json.dumps(record)


def test_ratios_compare_the_same_size_and_precision():
    given = [
        benchmark("step", "pixels", 0.1), benchmark("step", "pixels", 0.3, dtype="float64"),
        benchmark("step", "pixels", 0.5, {"candidates": 200}), benchmark("step", "plain", 0.6),
        benchmark("step", "plain", 0.6, dtype="float64"), benchmark("step", "plain", 0.6, {"candidates": 9}),
        benchmark("attack", "ours", 2.0), benchmark("attack", "published steps", 30.0, dtype="float64"),
    ]  # fmt: skip
    rows = [REPORT["row_of"](one) for one in given]
    expected = [1, 1, 1, 6, 2, None, 1, 15]
    assert [REPORT["ratio"](row, rows) for row in rows] == [e and pytest.approx(e) for e in expected]


def test_the_nearer_limit_counts():
    """0.02 s for 5e8 operations at 100 GFLOP/s, 5 ms; and for 1e6 bytes at 10 GB/s, 0.1 ms, or 1e8, 10 ms."""
    for size, part in ((None, 0.25), (1e6, 0.25), (1e8, 0.5)):
        row = REPORT["row_of"](benchmark("step", "pixels", 0.02, flops=5e8, bytes=size))
        assert REPORT["share"](row, LIMITS) == pytest.approx(part)
    assert REPORT["share"](row | {"flops": None, "bytes": None}, LIMITS) is None
    assert REPORT["share"](row, {}) is None


def test_report_prints_a_table_and_draws(tmp_path, capsys):
    path = tmp_path / "bench.json"
    path.write_text(json.dumps(whole()))
    assert REPORT["main"]([str(path)]) is None
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "a processor, cpu, threads 2; torch 2.11.0"
    line = next(line for line in lines if " pixels " in line).split()
    assert line == ["candidates", "50", "pixels", "float32", "20", "ms", "1", "25"]
    assert next(line for line in lines if " plain " in line).split()[-3:] == ["60", "ms", "3"]
    assert path.with_suffix(".png").stat().st_size > 10_000


def test_a_whole_run_is_recorded(tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(REPORT["keep"].__globals__, "SPEED", tmp_path / "speed")
    path = tmp_path / "bench.json"
    path.write_text(json.dumps(whole()))
    assert REPORT["main"]([str(path), "--record", "cpu"]) is None
    record = json.loads((tmp_path / "speed" / "cpu.json").read_text())
    complete(record)
    assert record["command"] == "make bench RECORD=cpu" and record["about"] == ABOUT
    assert record == REPORT["record_of"](whole(), record["command"])


@pytest.mark.parametrize("left", ["step", "ssim", "limits"])
def test_a_part_of_a_run_is_not_recorded(left, tmp_path, monkeypatch):
    monkeypatch.setitem(REPORT["keep"].__globals__, "SPEED", tmp_path)
    run = whole()
    run["benchmarks"] = [one for one in run["benchmarks"] if one["extra_info"]["kernel"] != left]
    with pytest.raises(InputError, match=f"nothing on {left}"):
        REPORT["keep"](REPORT["record_of"](run, ""), "cpu")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["../x", "a/b", "CPU 1", "-", "x.json", ""])
def test_a_wrong_name_is_refused_in_one_sentence(name, capsys):
    said = REPORT["main"](["--record", name] if name != "-" else ["--record=-"])
    assert said == f"RECORD is {name!r}: give a word of small letters and digits, such as cpu."
    assert not capsys.readouterr().out


def test_make_refuses_a_wrong_name_before_it_measures():
    command = [sys.executable, "benchmarks/report.py", "--record", "../x"]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert ended.returncode == 1 and ended.stderr.startswith("RECORD is '../x'") and ended.stderr.count("\n") == 1
    command = ["make", "-n", "--no-print-directory", "-o", ".venv/ready", "bench", "RECORD=../x", "ONLY=step"]
    planned = subprocess.run(command, cwd=ROOT, capture_output=True, text=True).stdout
    assert planned.startswith('.venv/bin/python benchmarks/report.py --record "../x"\n')
    assert '-k "limits or (step)"' in planned


@pytest.mark.parametrize("text", [None, "{", '{"machine_info": {}}'])
def test_a_missing_or_damaged_file_is_told_in_one_sentence(text, tmp_path):
    path = tmp_path / "bench.json"
    if text:
        path.write_text(text)
    assert REPORT["main"]([str(path)]).endswith("run `make bench` first.")


def test_a_name_that_no_benchmark_has_is_told(tmp_path):
    path = tmp_path / "bench.json"
    path.write_text(json.dumps(whole() | {"benchmarks": []}))
    assert REPORT["main"]([str(path)]).startswith("No benchmark has such a name")


def complete(record):
    """A record holds all that it promises: every kernel in ours and another version, positive numbers, one row each."""
    assert set(record) == {"command", "about", "limits", "rows"}
    assert set(record["about"]) == set(ABOUT) and set(record["about"]["versions"]) == set(ABOUT["versions"])
    assert {"float32", "float64", "copy"} <= set(record["limits"]) and min(record["limits"].values()) > 0
    cpu = record["about"]["device"] == "cpu"
    for kernel, ours in REPORT["OURS"].items():
        versions = {row["version"] for row in record["rows"] if row["kernel"] == kernel}
        assert versions - {ours, *REPORT["PARTS"]} and ours in versions or kernel == "threads" and not cpu, kernel
    keys = [(row["kernel"], row["version"], row["dtype"], str(row["size"])) for row in record["rows"]]
    assert len(keys) == len(set(keys))
    for row in record["rows"]:
        assert tuple(row) == REPORT["ROW"] and row["size"] and row["kernel"] in REPORT["OURS"]
        assert 0 < row["low"] <= row["seconds"] <= row["high"] and row["rounds"] >= 1
        assert all(row[name] is None or row[name] > 0 for name in ("flops", "bytes"))
        assert REPORT["ratio"](row, record["rows"]) > 0


@pytest.mark.parametrize("path", SPEED, ids=lambda path: path.stem)
def test_recorded_speed_is_whole(path):
    record = json.loads(path.read_text())
    complete(record)
    assert record["command"] == f"make bench RECORD={path.stem}"
