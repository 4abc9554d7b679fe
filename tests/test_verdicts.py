"""Numbers by seed have an extent, and questions have answers."""

import pytest

from utils.notebook.verdicts import above, answers, compared, extent, words

FIVE = [0.8, 0.81, 0.83, 0.85, 0.86]


def test_the_extent_stays_within_the_values():
    assert extent([0.0, 0.0, 0.0, 0.0, 1.0]) == (0.2, 0.0, 1.0)
    assert words([0.0, 0.0, 0.0, 0.0, 1.0]) == "0.2 [0, 1]"
    assert words([3.0, 3.0]) == "3" and words([0.3]) == "0.3" and words([3.0, 5.0]) == "4 [3, 5]"
    assert words([]) == "–" and words(FIVE, 1) == "0.8 [0.8, 0.9]" and words([0.8, 0.801], 2) == "0.80"


def test_questions_have_answers_and_no_verdicts():
    own = answers(["planted?", 0.5 < 1, "≤ 10⁻¹²"], ["seen?", False, ""], ["how far?", "3", ""]).data.splitlines()
    assert own[0] == "| our question | answer | number |" and own[2] == "| planted? | yes | ≤ 10⁻¹² |"
    assert own[3:] == ["| seen? | no |  |", "| how far? | 3 |  |"]
    with pytest.raises(ValueError, match="verdicts of the ledger are for sentences of papers"):
        answers(["does it hold?", "held", "0.83"])


def test_above_is_open_where_only_some_values_are():
    assert above(FIVE, 0.5) is True and above(FIVE, 0.9) is above([0.9], 0.9) is False and above(FIVE, 0.82) == "open"


def test_differences_are_compared_with_a_least_one_if_there_are_enough_seeds():
    assert compared("more?", FIVE, 0.5, "by {}") == ["more?", True, "by 0.83 [0.80, 0.86]"]
    assert compared("more?", FIVE, 0.9)[1] is False and compared("more?", FIVE[:4])[1] == "open"
