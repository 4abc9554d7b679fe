import math

import pytest

from utils.notebook.verdicts import Evidence, Range, above, answers, disproved, interval, proved, table, verdict

SENTENCE, FIVE = "“this distance is small”", [0.8, 0.81, 0.83, 0.85, 0.86]


def evidence(values=FIVE, converged=True, full_size=True):
    return Evidence(values, [converged] * len(values), full_size, "distance")


def test_the_interval_is_students():
    mean, low, high = interval([1.0, 2.0, 3.0, 4.0, 5.0])
    assert mean == 3 and math.isclose(high - mean, 2.7764451 * 1.5811388 / 5**0.5, rel_tol=1e-6)
    assert math.isclose(mean - low, high - mean) and interval([0.3]) == (0.3, -math.inf, math.inf)


@pytest.mark.parametrize("word, ranges", [
    ("held", [Range(low=0.5), Range(high=0.9), Range(0.7, 0.9)]),
    ("did not hold", [Range(high=0.5), Range(low=0.9), Range(0.1, 0.2)]),
])  # fmt: skip
def test_a_verdict_needs_the_interval_on_one_side(word, ranges):
    for range_ in ranges:
        row = verdict(SENTENCE, evidence(), range_)
        assert row == [SENTENCE, word, "distance: 0.83 [0.80, 0.86], 5 seeds"]


@pytest.mark.parametrize(
    "given, reason",
    [
        ({"values": FIVE[:3]}, "3 of 5 seeds; "),
        ({"values": FIVE[:1]}, "1 of 5 seeds; distance: 0.8"),
        ({"full_size": False}, "not at the paper's size; "),
        ({"converged": False}, "5 of 5 runs have not converged; "),
        ({"values": [0.3, 0.4, 0.5, 0.6, 0.7]}, "the interval contains 0.5; "),
        ({"values": [0.5] * 5}, "the interval contains 0.5; "),
        ({"values": [*FIVE[:4], math.nan]}, "1 of 5 runs have not converged; "),
        ({"values": [*FIVE[:4], math.inf]}, "1 of 5 runs have not converged; "),
        ({"values": FIVE[:2], "full_size": False}, "2 of 5 seeds, not at the paper's size; "),
    ],
)
def test_all_else_cannot_be_checked_and_says_why(given, reason):
    row = verdict(SENTENCE, evidence(**given), Range(low=0.5))
    assert row[1] == "cannot be checked" and row[2].startswith(reason)


def test_one_run_that_has_not_converged_is_enough():
    some = evidence()._replace(converged=[True, False, True, True, True])
    row = verdict(SENTENCE, some, Range(high=2.0))
    assert row[1] == "cannot be checked" and row[2].startswith("1 of 5 runs have not converged; distance: 0.83 ")


def test_without_runs_there_is_a_reason():
    for none in (None, evidence([])):
        assert verdict(SENTENCE, none, Range(low=0.5)) == [SENTENCE, "cannot be checked", "no recorded runs"]
    assert verdict(SENTENCE, because="no attack is run")[2] == "no attack is run"
    with pytest.raises(ValueError, match="something to rest on"):
        verdict(SENTENCE, because=" ")


@pytest.mark.parametrize("sentence", ["this distance is small", "“small” or so", "(ours) “small”", "", "“”", "“a” “b”"])
def test_only_a_quotation_is_judged(sentence):
    for judge in (verdict, lambda said: verdict(said, evidence(), Range(low=0.5)), lambda said: proved(said, "here")):
        with pytest.raises(ValueError, match="a paper's own words"):
            judge(sentence)


def test_evidence_that_cannot_decide_is_a_mistake():
    short = evidence()._replace(converged=[True])
    for given, *range_ in ((evidence(),), (evidence(), 0.5, 0.5), (evidence(), 0.6, 0.5), (short, 0.5)):
        with pytest.raises(ValueError, match="values"):
            verdict(SENTENCE, given, Range(*range_))


def test_a_proof_names_its_place():
    assert proved(SENTENCE, "{eq}`eq-set`") == [SENTENCE, "proved", "{eq}`eq-set`"]
    assert disproved(SENTENCE, "section “Split”") == [SENTENCE, "refuted by proof", "section “Split”"]
    for judge in (proved, disproved):
        with pytest.raises(ValueError, match="something to rest on"):
            judge(SENTENCE, "")


def test_tables_keep_verdicts_and_answers_apart():
    shown = table(verdict(SENTENCE), proved(SENTENCE, "{eq}`eq-set`")).data.splitlines()
    assert shown[0] == "| sentence | verdict | recorded |" and len(shown) == 4
    own = answers(["planted?", 0.5 < 1, "≤ 10⁻¹²"], ["seen?", False, ""], ["how far?", "3", ""]).data.splitlines()
    assert own[0] == "| our question | answer | number |" and own[2] == "| planted? | yes | ≤ 10⁻¹² |"
    assert own[3:] == ["| seen? | no |  |", "| how far? | 3 |  |"]
    with pytest.raises(ValueError, match="all else gets an answer"):
        table([SENTENCE, "held", "0.83"])
    for row in (verdict(SENTENCE), ["does it hold?", "held", "0.83"]):
        with pytest.raises(ValueError, match="verdicts are for the sentences of a paper"):
            answers(row)


def test_above_is_open_where_the_interval_contains_the_level():
    assert above(FIVE, 0.5) is True and above(FIVE, 0.9) is False and above(FIVE, 0.82) == above([0.9], 0.5) == "open"
