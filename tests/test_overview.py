"""The numbers that are drawn in the overview figure are those of the recorded runs."""

from pathlib import Path
from statistics import mean

import pytest

from utils.notebook import recorded

DRAWING = (Path(__file__).parent.parent / "book" / "overview.svg").read_text(encoding="utf-8")
DRAWN = [
    ("small", "decoreco/signed/random/alike", {"START": "random"}, "{} of 50 come back"),
    ("small", "decoreco/signed/partition/alike", {"START": "partition"}, "{} of 50 come back"),
    ("small", "decoreco/signed/ground_truth/alike", {"START": "ground_truth"}, "moves away: {} of 50 left"),
    ("decoreco", "decoreco/signed/untuned/alike", {"START": "untuned", "SPACE": "span"}, ">{} of 500<"),
    ("decoreco", "decoreco/signed/random/alike", {"START": "random", "SPACE": "span"}, "{} of 500, faint"),
    ("decoreco", "decoreco/signed/partition/alike", {"START": "partition", "SPACE": "span"}, "{} of 500, faint"),
    ("decoreco", "decoreco/signed/ground_truth/alike", {"START": "ground_truth", "SPACE": "span"}, "{} of 500<"),
    ("unmixing-images", "unmixing/two_layers/signed/ncc_above_0.7", {"IMAGES": 500}, "{} of 500 come back"),
    ("unmixing", "unmixing/three_layers/signed/ncc_above_0.7", {"LAYERS": 3, "NEURONS": 500}, "{} of 50 come back"),
]


@pytest.mark.parametrize("grid, name, where, text", DRAWN, ids=lambda value: str(value)[:40])
def test_a_drawn_number_is_the_mean_of_the_recorded_ones(grid, name, where, text):
    values = recorded.values(recorded.load(grid), name, **where).values()
    assert len(values) >= 5 and text.format(round(mean(values))) in DRAWING
    assert text.format(round(mean(values)) + 100) not in DRAWING
