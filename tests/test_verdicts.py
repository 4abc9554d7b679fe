"""Numbers by seed have an interval, and questions have answers."""

import math

import pytest

from utils.notebook.verdicts import above, answers, extent, interval, within, words

FIVE = [0.8, 0.81, 0.83, 0.85, 0.86]


def test_the_interval_is_students():
    mean, low, high = interval([1.0, 2.0, 3.0, 4.0, 5.0])
    assert mean == 3 and math.isclose(high - mean, 2.7764451 * 1.5811388 / 5**0.5, rel_tol=1e-6)
    assert math.isclose(mean - low, high - mean) and interval([0.3]) == (0.3, -math.inf, math.inf)


def test_the_extent_stays_within_the_values():
    assert extent([0.0, 0.0, 0.0, 0.0, 1.0]) == (0.2, 0.0, 1.0) and interval([0.0, 0.0, 0.0, 0.0, 1.0])[1] < 0
    assert words([0.0, 0.0, 0.0, 0.0, 1.0], extent) == "0.20 [0.00, 1.00]"


def test_questions_have_answers_and_no_verdicts():
    own = answers(["planted?", 0.5 < 1, "≤ 10⁻¹²"], ["seen?", False, ""], ["how far?", "3", ""]).data.splitlines()
    assert own[0] == "| our question | answer | number |" and own[2] == "| planted? | yes | ≤ 10⁻¹² |"
    assert own[3:] == ["| seen? | no |  |", "| how far? | 3 |  |"]
    with pytest.raises(ValueError, match="verdicts of the ledger are for sentences of papers"):
        answers(["does it hold?", "held", "0.83"])


def test_above_is_open_where_the_interval_contains_the_level():
    assert above(FIVE, 0.5) is True and above(FIVE, 0.9) is False and above(FIVE, 0.82) == above([0.9], 0.5) == "open"


def test_an_interval_that_would_leave_the_range_is_the_extent():
    few = [0.0, 0.0, 0.0, 0.0, 1.0]
    assert within(few, least=0) == extent(few) and within(few) == interval(few) != extent(few)
    assert within(FIVE, 0, 1) == interval(FIVE) and within([0.9, 1.0], most=1) == (0.95, 0.9, 1.0)
