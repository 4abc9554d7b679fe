"""The registry of RESULTS is well formed, holds what was recorded, and refuses all else."""

import csv
import itertools
import json
import math
import re
from pathlib import Path

import pytest
from test_notebooks import RELATIONS

from conftest import refused
from evaluation.notation import Row
from lab import grid, registry

ROOT = Path(__file__).parent.parent
RECORDS = sorted((ROOT / "data" / "results").glob("*.csv"))


@pytest.mark.parametrize(
    "kind, inside, outside",
    [
        ("area", (0, 0.5, 1), (-0.01, 1.01, math.nan, math.inf)),
        ("p-value", (1 / 2001, 1), (0, 1.01)),
        ("similarity", (-1, 1 + 1e-7), (-1.1, 1.1)),
        ("count", (0, 7.0), (-1, 0.5, math.inf)),
        ("flag", (0, 1), (0.5, 2)),
        ("condition number", (1, 1e6), (0.9,)),
        ("number", (-1e300, 0), (math.nan, -math.inf)),
    ],
)
def test_a_kind_bounds_its_numbers(kind, inside, outside):
    holds = registry.load().kinds[kind].holds
    assert all(map(holds, inside)) and not any(map(holds, outside))


@pytest.mark.parametrize(
    "name, value, baseline, where, sentence",
    [
        ("own/unmixing/leak_auc", 1.5, None, (), "is 1.5, but its kind, area, is in [0, 1]"),
        ("own/unmixing/alike", 51, 0, (), "is in [0, ∞), at most IMAGES"),
        ("own/unmixing/alike", 50, 0.5, (), "The baseline of own/unmixing/alike is 0.5"),
        ("own/unmixing/leak_auc", 1.0, 0.5, (), "has no baseline: say in data/quantities.yaml"),
        ("own/network/loss", math.nan, None, (), "own/network/loss is nan"),
        ("own/unmixing/leak_auc", 1.0, None, ["lambda_1"], "has the parameters ['lambda_1'], but"),
        ("own/unmixing/leak_auc/", 1.0, None, (), "is registered 0 times: data/quantities.yaml"),
        ("", 1.0, None, (), "is registered 0 times: data/quantities.yaml"),
    ],
)
def test_a_number_that_its_entry_does_not_allow_is_refused(name, value, baseline, where, sentence):
    registry.check("own/unmixing/alike", 50, 0, {"IMAGES": 50})  # which is allowed
    assert sentence in refused(registry.check, name, value, baseline, {"IMAGES": 50}, where)


@pytest.mark.parametrize("path", RECORDS, ids=lambda path: path.stem)
def test_recorded_numbers_are_what_their_entries_allow(path):
    grid = json.loads(path.with_suffix(".json").read_text(encoding="utf-8"))["grid"]
    with open(path, newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            crossed = {name: int(row[name]) for name in row if row[name].isdigit()}
            baseline = float(row["baseline"]) if row["baseline"] else None
            where = {name for name in row.keys() - Row._fields if name.islower() and row[name]}
            given = row["name"], float(row["value"]), baseline
            registry.check(*given, grid["parameters"] | crossed, where)


SOUND = """
kinds:
  share: {meaning: A share., bounds: "[0, 1]"}
placeholders:
  k: {<number>: How many.}
  attack: {one|two/<k>: An attack.}
quantities:
  - {topic: All, about: Of all.}
  - {name: <attack>/loss, share: A loss.}
  - {name: rest/<k>/loss|rest/gain, share ≤ IMAGES: Another one., baseline: the start}
"""


@pytest.mark.parametrize(
    "old, new, sentence",
    [
        (", share:", ", area:", "<attack>/loss: it has 0 kinds, but it must have one of "),
        (", share:", ", share ≤ IMAGES: A loss., share:", "<attack>/loss: it has 2 kinds, but"),
        ("<attack>/loss", "<attac>/loss", "<attac>/loss has <attac>, which is not defined"),
        ("baseline: the start", "base: the start", "loss|rest/gain: there is no field base; use "),
        ("share: A loss.", "share: ", "<attack>/loss: meaning is missing."),
        ("baseline: the start", "repeats: often", "gain: repeats is 'often', but it must be one"),
        ("kinds:\n", "kinds: [\n", "cannot be read"),
    ],
)
def test_a_wrong_entry_is_refused_in_one_sentence(old, new, sentence, tmp_path):
    path = tmp_path / "quantities.yaml"
    path.write_text(SOUND, encoding="utf-8")
    one, other = registry.load(path).entries[1:]
    assert one.pattern.fullmatch("two/0.5/loss") and not one.pattern.fullmatch("two/x/loss")
    assert other.pattern.fullmatch("rest/gain") and other.most == "IMAGES"
    assert other.baseline and not one.baseline
    (tmp_path / "wrong.yaml").write_text(SOUND.replace(old, new, 1), encoding="utf-8")
    assert sentence in refused(registry.load, tmp_path / "wrong.yaml")


def expanded(text, values):
    """Every name that a pattern gives, with each of `values` {placeholder: [text]} in it."""
    for choice in text.replace(" ", "").split("|"):
        parts = re.split("<(.*?)>", choice)
        yield from map(
            "".join, itertools.product(*(values[p] if k % 2 else [p] for k, p in enumerate(parts)))
        )


def registered(*numbers):
    """Every registered name with its entry, with each of these numbers for <number>."""
    found, values = registry.load(), {"number": numbers}
    for name, (text, _) in found.placeholders.items():
        values[name] = [*expanded(text, values)]
    return [
        (name, one)
        for one in found.entries
        for name in expanded(getattr(one, "name", ""), values)
        if name
    ]


def test_no_name_is_registered_twice():
    names = registered("0.5")
    assert len(names) > 1800 and all(registry.find(name) is one for name, one in names)
    grid.read(registry.FILE)  # which refuses two equal keys, where YAML says nothing


def test_every_relation_of_toy_runs_is_about_a_registered_name():
    names = [name for name, _ in registered("0.001", "1", "12")]
    for pattern in RELATIONS:
        assert any(re.fullmatch(pattern.split()[0], name) for name in names), pattern
