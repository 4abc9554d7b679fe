"""Every combination of choices has one recorded case, or the nearest, with the numbers of the records."""

import itertools
import re
import shlex
import sys
from pathlib import Path

import pytest
import yaml

from audit import command
from utils.errors import InputError

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "book" / "_extensions"))

import chooser  # noqa: E402

TABLE = chooser.load()
QUESTIONS, CASES = TABLE["questions"], TABLE["cases"]
SIZES = {"one": 1, "four": 4, "six": 6, "ten": 10, "twelve": 12, "fifty": 50, "five hundred": 500}
LINES = {"network": command.network_line(), "words": command.words_line()}


def test_every_combination_has_one_case_or_says_in_what_the_nearest_differs():
    for chosen, (place, differing) in zip(
        itertools.product(*QUESTIONS.values()), chooser.answers(TABLE), strict=True
    ):
        off = [
            [name for name, one in zip(QUESTIONS, chosen) if one not in getattr(case, name).split()]
            for case in CASES
        ]
        assert off[place] == differing and off.count([]) == (not differing), chosen


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.network}-{case.file}")
def test_every_quantity_of_a_case_is_recorded_and_no_count_exceeds_its_whole(case):
    for of, (how, records, names, *where) in case.counts.items():
        of_all = (
            1 if how == "percents" else next(n for one, n in SIZES.items() if f"of {one}" in of)
        )
        for record, name in itertools.product(records.split(), names.split()):
            found = chooser.sentences.values(record, name, dict(*where), "value")
            assert 0 <= min(found) <= max(found) <= of_all, of


@pytest.mark.parametrize("told", TABLE["commands"].values())
def test_a_command_is_one_of_the_audit(told):
    verb, *words = shlex.split(told)
    assert LINES[verb].parse_args(words)


@pytest.mark.parametrize(
    ("changed", "sentence"),
    [
        ({"start": "known near"}, "start is 'near', but it must be one of 'torch', "),
        ({"remedy": "hope"}, "remedy is 'hope', but it must be one of 'fixed', "),
        ({"counts": {}}, "counts is missing."),
        ({"pages": "text"}, "there is no field pages; use network, "),
    ],
)
def test_a_mistake_in_a_case_is_said_in_a_sentence(changed, sentence, tmp_path):
    table = yaml.safe_load(chooser.FILE.read_text(encoding="utf-8"))
    table["cases"][1] |= changed
    path = tmp_path / "chooser.yaml"
    path.write_text(yaml.safe_dump(table, sort_keys=False))
    with pytest.raises(InputError, match=re.escape(f"chooser.yaml, case 2: {sentence}")):
        chooser.load(path)


def test_an_unknown_quantity_is_refused():
    with pytest.raises(
        InputError, match="^files has 0 values of files/sgd/lost, but 5 are needed.$"
    ):
        chooser.count("of fifty", "ends", "files", "files/sgd/lost")
