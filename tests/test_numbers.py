"""Recorded numbers that stand in sentences and drawings are those of the records, as data/numbers.yaml names them."""

import re
import sys
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "book" / "_extensions"))

import sentences  # noqa: E402

PAGES = [ROOT / "README.md", *(ROOT / "book").glob("*.[mi]*"), *(ROOT / "book").glob("*/*.svg")]
NUMBERS = ROOT / "data" / "numbers.yaml"


def test_sentences_have_the_numbers_of_the_records():
    told = [mark for path in PAGES for mark in sentences.MARK.findall(path.read_text("utf-8"))]
    assert len(told) > 250
    assert not [mistake for path in PAGES for mistake in sentences.mistakes(path)]
    for name, number in yaml.safe_load(NUMBERS.read_text("utf-8"))["words"].items():
        assert float(sentences.numbers()[name]) == number, name


def test_every_named_number_stands_somewhere():
    table = yaml.safe_load(NUMBERS.read_text("utf-8"))
    told = {name for path in PAGES for name, _ in sentences.MARK.findall(path.read_text("utf-8"))}
    sums = " ".join(of for of in table["numbers"].values() if isinstance(of, str))
    assert not table["numbers"].keys() - told - table["words"].keys() - {*re.findall(r"\w+", sums)}


@pytest.mark.parametrize("told", ["48 to 50", "147 to 50", "47 to\n50 of", "5 to 47 to 50"])
def test_a_number_that_is_not_the_recorded_one_is_shown(told, tmp_path):
    page = tmp_path / "page.md"
    page.write_text(f"Of fifty, 47 to\n50<!-- plain --> come back, or {told}<!-- plain -->.")
    (mistake,) = sentences.mistakes(page)
    assert mistake.endswith(f"{' '.join(told.split())}” is named plain, which is 47 to 50")
