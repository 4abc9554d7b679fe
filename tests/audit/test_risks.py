"""The risk of each picture: its false-positive rates hold, the table holds all, and the summary counts truly."""

import csv
import io

import numpy as np
import pytest
import torch
from helpers import audit, checked, knowing

from audit import judge, risks
from conftest import drawn


def test_false_positive_rates_hold_for_pictures_that_nobody_saw():
    """Of two thousand strangers a share of at most r has a rate of at most r, as far as chance allows."""
    held_out, strangers = drawn(500), drawn(2000, seed=1)
    found = risks.rates_of(judge.Scored(strangers, held_out, None, 1.0, 1.0))
    for rate in (0.01, 0.05, 0.2, 0.5):
        error = 4 * (rate * (1 - rate) * (1 / 500 + 1 / 2000)) ** 0.5
        assert (found[0] <= rate).double().mean() == pytest.approx(rate, abs=error)
        assert (found[1] <= rate).double().mean() <= rate
    assert found[0].min() >= 1 / 501 and found[1].min() == 1 / 500


def test_equal_scores_are_no_evidence():
    same = risks.rates_of(judge.Scored(torch.ones(3), torch.ones(9), None, 1.0, 1.0))
    assert same[0].tolist() == [1, 1, 1] and same[1].unique().tolist() == [1]


def test_each_picture_stands_in_the_table_and_the_most_exposed_first(sides):
    found = audit(knowing(*sides[0], 2), *sides)
    content = checked(found)
    rows = [*csv.DictReader(io.StringIO(risks.table(content["images"])))]
    assert [row["name"] for row in rows] == [one["name"] for one in content["images"]]
    rates = [float(row["false-positive rate of membership by loss"]) for row in rows]
    assert content["clearest"] == "membership by loss" and rates == sorted(rates)
    known = {one["name"] for one in content["images"] if one["side"] == "training"}
    assert {row["name"] for row in rows[: len(known)]} == known
    count = len(known)
    assert f"tells {count} of {count} training pictures more clearly" in content["summary"]
    assert "can be rebuilt was not tested" in content["summary"]
    assert {one["returned"] for one in content["images"]} == {None}
    assert len(found.exposed) == min(10, count)


def test_a_report_without_pictures_shows_none_and_names_all(sides):
    network = knowing(*sides[0], 2)
    full, bare = (audit(network, *sides, pictures=shown) for shown in (True, False))
    assert "<img" in full.html() and "<img" not in bare.html()
    assert bare.content["images"] == full.content["images"]


@pytest.mark.parametrize(
    "back, words",
    [
        ((3, 0), "3 came back almost exactly"),
        ((2, 1), "So did 1 of 4 pictures that were never used"),
    ],
)
def test_the_summary_counts_what_came_back_on_either_side(back, words):
    sides = [[{"returned": k < count} for k in range(4)] for count in back]
    assert words in risks.rebuilt("network", *sides)


def test_an_audit_without_an_answer_clears_no_picture(sides):
    content = checked(audit(lambda batch: torch.zeros(len(batch), 2), *sides))
    assert content["summary"].endswith("gave no answer, so it clears no picture.")
    assert np.isfinite([one["loss"] for one in content["images"]]).all()
