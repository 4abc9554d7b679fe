import errno
import json
import math
import os
import subprocess
import sys
from pathlib import Path
from unittest.mock import Mock

import pytest
import torch

import attacks
from conftest import refused
from evaluation.notation import mean_with_range
from lab import parameters, report
from training import images
from utils.errors import check_writable, write_all
from utils.kernels import coefficients

ROOT = Path(__file__).parents[1]


def plain(text):
    return text.replace("\u00a0", " ")


NUMBERS = {3e-20: "< 10⁻¹²", 0.01234: "0.012", 2.34e-7: "2.3·10⁻⁷"}
SPREADS = {
    (1e-20, 2e-25): "< 10⁻¹²",
    (21.0, 33.0, 45.0): "33 ± 10",
    (None, 0.25): "0.25",
    (): "–",
}
RANGES = {
    (3.0, 3.0): "3",
    (3.0, 5.0): "4 [3, 5]",
    (0.8, 0.81, 0.83, 0.86): "0.82 [0.80, 0.86]",
    (): "–",
}


def test_numbers_are_printed_to_what_is_known_of_them():
    assert [plain(report.number(x)) for x in NUMBERS] == [*NUMBERS.values()]
    assert [plain(report.mean_sd(list(values))) for values in SPREADS] == [*SPREADS.values()]
    assert [mean_with_range(values) for values in RANGES] == [*RANGES.values()]
    assert report.joined([3, 12.0]) == "3, 12"
    assert report.table(["a"], ["|λ|"]).data.splitlines()[-1] == "| \\|λ\\| |"  # no bar ends a cell


@pytest.fixture
def results(tmp_path):
    """The path of results that are there already."""
    (tmp_path / "results.json").write_text("{}")
    return tmp_path / "results.json"


def save(results, value):
    """Save one number, a norm."""
    run = report.Run({"RESULTS": str(results)}, torch.device("cpu"), 0.0)
    report.save(run, [report.Row("collapse/decay/gradient_norm", 0, value)], "")


@pytest.mark.parametrize(
    "value, sentence",
    [(1 / 3, "No space left on device"), (-1.0, "its kind, norm, is in "), (math.nan, "nan")],
)
def test_numbers_that_cannot_be_written_are_printed_and_the_old_file_stays(
    value, sentence, results, monkeypatch, capsys
):
    """The disk is full when all is computed, or the registry refuses the number."""
    monkeypatch.setattr(
        os, "replace", Mock(side_effect=OSError(errno.ENOSPC, "No space left on device"))
    )
    said = refused(save, results, value)
    assert sentence in said and said.endswith("The numbers are printed above.")
    assert json.loads(capsys.readouterr().out)["rows"][0]["value"] == pytest.approx(
        value, nan_ok=True
    )
    assert results.read_text() == "{}"


def test_a_disk_that_fills_leaves_no_file_and_no_folder(tmp_path, monkeypatch):
    full = Mock(side_effect=OSError(errno.ENOSPC, "No space left on device"))
    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(OSError):
        write_all({tmp_path / "a" / "b" / name: b"" for name in "xy"})
    assert full.called and not [*tmp_path.iterdir()]


def test_of_several_files_none_is_written_where_one_cannot_be(tmp_path):
    (tmp_path / "y").mkdir()
    with pytest.raises(OSError, match="it is there, but is no file"):
        write_all({tmp_path / name: b"" for name in "xy"})
    assert [one.name for one in tmp_path.iterdir()] == ["y"]


def test_where_nothing_can_be_written_is_known_and_the_check_leaves_no_trace(results):
    for path in ("/dev/null/results.json", ".", "results\0.json"):
        assert "RESULTS cannot be written to " in refused(check_writable, "RESULTS", path)
    for path in (results, results.with_name("new.json"), results.parent / "a" / "b" / "c.json"):
        check_writable("RESULTS", str(path))
    assert [*results.parent.iterdir()] == [results] and results.read_text() == "{}"


def test_a_full_disk_is_known_at_the_start(tmp_path):
    """A limit on the size of files stands for a disk that fills while the probe is written."""
    path = str(tmp_path / "results.json")
    code = f"from utils.errors import check_writable; check_writable('RESULTS', {path!r})"
    command = f'ulimit -f 8; trap "" XFSZ; "{sys.executable}" -c "{code}"'
    ended = subprocess.run(["sh", "-c", command], cwd=ROOT, capture_output=True, text=True)
    assert "RESULTS cannot be written to" in ended.stderr and "File too large" in ended.stderr
    assert not list(tmp_path.iterdir())


def test_a_device_that_is_not_there_ends_in_a_sentence(monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    assert report.choose_device("auto").type == "cpu"
    assert "torch finds no GPU here: use DEVICE=" in refused(report.choose_device, "cuda")


DECLARED: dict = {
    "SEED": 0,
    "IMAGES": 100,
    "SHARPNESS": 10.0,
    "RULE": "signed",
    "DEVICE": "auto",
    "MEAN": "0",
}
CHOICES = {"RULE": ("signed", "margin")}
WRONG = [
    ("SEEED", 1, "There is no parameter SEEED; this chapter has SEED, IMAGES"),
    ("SEED", True, "SEED is True; it must be a whole number, like its default 0."),
    ("SEED", 2**63, f"SEED is {2**63}; it must be 0 or larger, and less than 2⁶³."),
    ("IMAGES", 0, "IMAGES is 0; it must be larger than 0."),
    ("IMAGES", 2.5, "IMAGES is 2.5; it must be a whole number"),
    ("SHARPNESS", math.nan, "SHARPNESS is nan; it must be larger than 0"),
    ("SHARPNESS", 1e-300, "SHARPNESS is 1e-300; it must be 1e-12 or larger."),
    ("SHARPNESS", math.inf, "SHARPNESS is inf; it must be larger than 0, and less than 10¹²."),
    ("IMAGES", 2**62, "it must be larger than 0, and less than 10¹²."),
    ("SHARPNESS", -1.0, "SHARPNESS is -1.0; it must be larger than 0."),
    ("MEAN", 0.5, "it must be text, like its default '0' (papermill: -r MEAN 0.5)."),
    ("MEAN", "0.5 abc", "MEAN is '0.5 abc'; it must be numbers, like its default '0'."),
    ("MEAN", "", "MEAN is ''; it must be numbers"),
    ("RULE", "best", "RULE is 'best', but it must be one of 'signed', 'margin'."),
]


@pytest.mark.parametrize("name, value, sentence", WRONG)
def test_wrong_parameters_end_in_a_sentence(name, value, sentence):
    assert sentence in refused(parameters.check, DECLARED, CHOICES, name, value)


def test_other_parameters_and_the_words_of_a_table_of_attacks_are_taken():
    for name, value in {
        "SEED": 0,
        "SHARPNESS": 1,
        "RULE": "margin",
        "DEVICE": "cpu",
        "MEAN": "0.4 .5 1e-1",
    }.items():
        parameters.check(DECLARED, CHOICES, name, value)
    cell = "run = report.begin(RULE=RULES, BODY=('frozen', 'trained'))\nattack(1, RULE=2)"
    assert parameters.choices(cell) == {"RULE": attacks.RULES, "BODY": ("frozen", "trained")}
    assert tuple(coefficients.RULES) == attacks.RULES and images.DATASETS == parameters.DATASETS


NOT_PLAIN = {
    "A = 2**10": "line A = 2 ** 10",
    "A, B = 1, 2": "line A, B = (1, 2)",
    "%matplotlib inline": "not Python (invalid syntax, line 1)",
}


def test_a_cell_of_parameters_that_does_more_than_assign_ends_in_a_sentence():
    for cell, shown in NOT_PLAIN.items():
        assert shown in refused(parameters.assignments, cell)
    found = parameters.assignments("# Parameters\nA = float('-inf')\nB = -2")
    assert found == {"A": -math.inf, "B": -2}
