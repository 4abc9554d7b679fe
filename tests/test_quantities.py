"""The registry of RESULTS is well formed, holds what was recorded, and refuses all else."""

import csv
import json
import math
from pathlib import Path

import pytest
import yaml

from utils import quantities
from utils.errors import InputError

ROOT = Path(__file__).parent.parent
RECORDS = sorted((ROOT / "data" / "results").glob("*.csv"))


def test_a_name_is_found_by_its_placeholders():
    found = quantities.find("decoreco/margin/untuned/steps/2000/leak_auc")
    assert found.name == "<tracked_attack>/steps/<steps>/leak_auc" and found.kind.name == "area" and found.baseline
    found = quantities.find("landscape/bilevel/0.25/1/distance_to_noise")
    assert found.name == "landscape/<formulation>/<λ₁>/<λ₂>/distance_to_<image_set>" and found.kind.bounds == "[0, ∞)"
    assert quantities.find("rank/0.0001/neurons").most == "WIDTH"


@pytest.mark.parametrize(
    "name",
    [
        "bilevel/affine/typo",
        "bilevel/affine/untuned/leak_auc",
        "bilevel/one_hidden/random/leak_auc",
        "bilevel/one_hidden/random/from_weights/steps/100/leak_auc",
        "landscape/bilevel/x/1/distance_to_noise",
        "landscape/bilevel/0.25/distance_to_noise",
        "own/unmixing/leak_auc/",
        "",
    ],
)
def test_other_names_are_refused(name):
    with pytest.raises(InputError, match="is not registered: add it to data/quantities.yaml"):
        quantities.find(name)


@pytest.mark.parametrize(
    "kind, inside, outside",
    [
        ("area", (0, 0.5, 1), (-0.01, 1.01, math.nan, math.inf)),
        ("p-value", (1 / 2001, 1), (0, -1e-9, 1.01)),
        ("similarity", (-1, 0, 1 + 1e-7), (-1.1, 1.1)),
        ("count", (0, 7, 7.0), (-1, 0.5, math.inf)),
        ("mean count", (0, 0.5), (-0.5,)),
        ("flag", (0, 1), (0.5, 2)),
        ("condition number", (1, 1e6), (0.9,)),
        ("distance", (0, -1e-16, 1e6), (-0.01,)),
        ("number", (-1e300, 0), (math.nan, -math.inf)),
    ],
)
def test_a_kind_bounds_its_numbers(kind, inside, outside):
    holds = quantities.load().kinds[kind].holds
    assert all(map(holds, inside)) and not any(map(holds, outside))


@pytest.mark.parametrize(
    "name, value, baseline, sentence",
    [
        ("own/unmixing/leak_auc", 1.5, None, "own/unmixing/leak_auc is 1.5, but its kind, area, is in [0, 1]."),
        ("own/unmixing/alike", 51, 0, "own/unmixing/alike is 51, but its kind, count, is in [0, ∞), at most IMAGES"),
        ("own/unmixing/alike", 50, 0.5, "The baseline of own/unmixing/alike is 0.5, but its kind, count, is in"),
        ("own/unmixing/leak_auc", 1.0, 0.5, "own/unmixing/leak_auc has no baseline: say in data/quantities.yaml"),
        ("own/network/loss", math.nan, None, "own/network/loss is nan"),
    ],
)
def test_a_number_that_its_entry_does_not_allow_is_refused(name, value, baseline, sentence):
    quantities.check("own/unmixing/alike", 50, 0, {"IMAGES": 50})  # which is allowed
    with pytest.raises(InputError) as caught:
        quantities.check(name, value, baseline, {"IMAGES": 50})
    assert str(caught.value).startswith(sentence)


@pytest.mark.parametrize("path", RECORDS, ids=lambda path: path.stem)
def test_recorded_numbers_are_what_their_entries_allow(path):
    grid = json.loads(path.with_suffix(".json").read_text(encoding="utf-8"))["grid"]
    with open(path, newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            crossed = {name: int(row[name]) for name in row if row[name].isdigit()}
            baseline = float(row["baseline"]) if row["baseline"] else None
            quantities.check(row["name"], float(row["value"]), baseline, grid["parameters"] | crossed)


SOUND = """
kinds:
  share: {meaning: A share., least: 0, most: 1}
placeholders:
  k: {meaning: How many., values: [<number>]}
  attack: {meaning: An attack., values: [one, two/<k>]}
topics:
  - title: All
    about: Of all.
    quantities:
      - {name: <attack>/loss, kind: share, meaning: A loss.}
      - {name: rest/<k>/loss, kind: share, meaning: Another one., baseline: the start}
"""


@pytest.mark.parametrize(
    "old, new, sentence",
    [
        ("kind: share", "kind: area", "<attack>/loss is of the kind 'area', but it must be one of share."),
        ("<attack>/loss", "<attac>/loss", "<attac>/loss has <attac>, which is not defined: add it to the placeholders"),
        ("[one, two/<k>]", "[one, <attack>]", "<attack> has <attack>, which is not defined"),
        ("rest/<k>/loss", "one/loss", "one/loss is registered twice, by <attack>/loss and by one/loss: leave one."),
        ("rest/<k>", "two/<number>", "two/<number>/loss is registered twice"),
        ("rest/<k>/loss", "rest/5/loss", "rest/5/loss has a number that is not <number> between two slashes"),
        ("rest/<k>/loss", "rest/loss_<k>", "rest/loss_<number> has a number that is not <number> between two slashes"),
        ("baseline: the start", "base: the start", "must have name, kind, meaning, perhaps baseline, perhaps most"),
        (", meaning: A loss.", "", "must have name, kind, meaning"),
        ("least: 0", "lowest: 0", "must have name, meaning, perhaps least"),
        ("topics:", "topic:", "cannot be read ('topics'): mend it."),
        ("kinds:\n", "kinds: [\n", "cannot be read"),
    ],
)
def test_a_wrong_entry_is_refused_in_one_sentence(old, new, sentence, tmp_path):
    sound, path = tmp_path / "sound.yaml", tmp_path / "wrong.yaml"
    sound.write_text(SOUND, encoding="utf-8")
    assert set(quantities.load(sound).names) == {"one/loss", "two/<number>/loss", "rest/<number>/loss"}
    path.write_text(SOUND.replace(old, new, 1), encoding="utf-8")
    with pytest.raises(InputError) as caught:
        quantities.load(path)
    assert sentence in str(caught.value) and "\n" not in str(caught.value)


def test_nothing_is_defined_twice():
    """YAML keeps the last one of two equal keys, and says nothing."""
    loader = yaml.compose(quantities.FILE.read_text(encoding="utf-8"))
    sections = {key.value: part for key, part in loader.value}
    for name in ("kinds", "placeholders"):
        keys = [key.value for key, _ in sections[name].value]
        assert len(keys) == len(set(keys)), name


def test_how_a_quantity_repeats_is_said_beforehand():
    assert quantities.find("certificate/needed").repeats == "exactly"
    assert quantities.find("landscape/bilevel/0.25/1/distance_to_noise").repeats == "within the spread"
    with pytest.raises(InputError, match="repeats of a is 'sometimes'"):
        quantities.quantity({"name": "a", "kind": "k", "meaning": "m", "repeats": "sometimes"}, {"k": None})
