import json

import pytest
import torch

from utils import report


def plain(text):
    return text.replace("\u00a0", " ")


def test_numbers_below_rounding_are_said_to_be():
    assert plain(report.number(3e-20)) == "< 10⁻¹²"
    assert plain(report.number(0.01234)) == "0.012"
    assert plain(report.number(2.34e-7)) == "2.3·10⁻⁷"
    assert plain(report.mean_sd([1e-20, 2e-25])) == "< 10⁻¹²"
    assert plain(report.mean_sd([1.0, 2.0, 3.0])) == "2 ± 1"
    assert plain(report.mean_sd([0.5])) == "0.5 ± 0"
    assert plain(report.mean_sd([21.0, 33.0, 45.0])) == "33 ± 10"


def test_an_interrupted_write_leaves_the_old_file(tmp_path):
    path = tmp_path / "results.json"
    report.write_atomically(path, {"a": 1})
    with pytest.raises(ValueError):
        report.write_atomically(path, {"a": float("nan")})
    assert json.loads(path.read_text()) == {"a": 1}
    assert [file.name for file in tmp_path.iterdir()] == ["results.json"]


def test_unlisted_names_are_refused(tmp_path):
    run = report.Run({"RESULTS": str(tmp_path / "results.json")}, torch.device("cpu"), 0.0)
    with pytest.raises(ValueError, match="bilevel/affine/typo is not listed"):
        report.save(run, [report.Row("bilevel/affine/typo", 0, 1.0)], "")
    assert not list(tmp_path.iterdir())


def test_a_bar_in_a_cell_does_not_end_it():
    assert report.table(["a"], ["|λ|"]).data.splitlines()[-1] == "| \\|λ\\| |"


def test_numbers_in_names_stand_for_any_number():
    assert report.general("landscape/bilevel/0.25/1/distance_to_noise") in report.NAMES
    assert report.general("landscape/bilevel/x/1/distance_to_noise") not in report.NAMES
    assert report.general("bilevel/affine/random/nearest_training_l2") == "bilevel/affine/random/nearest_training_l2"
