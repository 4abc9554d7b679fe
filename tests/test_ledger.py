"""Each sentence is judged once, by a rule that can say everything, from the records alone."""

import json
from pathlib import Path

import nbformat
import pytest
import yaml

from lab import grid, ledger, recorded
from utils.errors import InputError

ROOT = Path(__file__).parent.parent
LINES = [pytest.param(line, id=f"{row['id']}-{k}") for row in ledger.load() for k, line in enumerate(row["lines"], 1)]
BEFORE = [
    pytest.param(row["id"], line, id=f"{row['id']}-{k}")
    for row in ledger.load()
    for k, line in enumerate(row["lines"], 1)
    if line.get("stated") == "before"
]
AT, OF = "bilevel/affine/random", {"value": "bilevel/affine/random/alike"}
LINE = {
    "setting": "affine", "at": "paper", "measure": "images", "record": "made", "quantities": OF, "rule": "above",
    "threshold": 2, "stated": "after", "needs_convergence": "nothing", "judged": "held", "not_shown": "all else",
}  # fmt: skip
ROW = {"id": "one", "paper": 1, "section": "1", "sentence": "“it leaks”", "chapters": ["a"], "lines": [LINE]}


@pytest.fixture
def made(tmp_path, monkeypatch):
    """A function that records numbers, {name: [value of each seed]}, as the grid `made`."""
    monkeypatch.setattr(recorded, "DATA", tmp_path)
    (tmp_path / "results").mkdir()

    def write(full_size=True, **numbers):
        numbers = {"victim_error": [1e-9] * 5, "relative_distance": [1e-13] * 5, **numbers}
        rows = [f"{AT}/{name},{k},{x},1\n" for name, values in numbers.items() for k, x in enumerate(values)]
        (tmp_path / "results" / "made.csv").write_text("name,seed,value,baseline\n" + "".join(rows))
        runs = max(map(len, numbers.values()))
        about = {"full_size": full_size, "runs": runs, "grid": {"parameters": {}, "cross": {"SEED": [*range(runs)]}}}
        (tmp_path / "results" / "made.json").write_text(json.dumps(about))
        ledger.record_of.cache_clear()

    ledger.record_of.cache_clear()
    yield write
    ledger.record_of.cache_clear()


@pytest.mark.parametrize("line", LINES)
def test_the_records_alone_give_the_verdict_that_was_committed(line, judge):
    found = judge(line)
    assert found.word == line["judged"], ledger.number(line)
    assert found.word != "open" or {"experiment", "cost"} <= line.keys(), "say what would close it, and at what cost"


def test_every_sentence_stands_once_and_is_printed_by_the_chapters_that_it_names(judged):
    rows = ledger.load()
    assert len({row["sentence"] for row in rows}) == len(rows) >= 40
    for name in sorted({chapter for row in rows for chapter in row["chapters"]}):
        cells = nbformat.read(ROOT / "book" / f"{name}.ipynb", as_version=4).cells
        call = [cell for cell in cells if f'ledger.table("{name}")' in cell.source]
        assert len(call) == 1, name
        shown = call[0].outputs[0]["data"]["text/markdown"]
        assert shown == ledger.table(name).data, f"{name}: execute its last cells again"
    for path in sorted((ROOT / "book").glob("*.ipynb")):
        if f'ledger.table("{path.stem}")' in path.read_text(encoding="utf-8").replace("\\", ""):
            assert any(path.stem in row["chapters"] for row in rows), path


@pytest.mark.parametrize(
    "change, sentence",
    [
        ({"setting": None}, "claims.yaml, one, line 1: setting is missing."),
        ({"record": None}, "claims.yaml, one, line 1: record is missing."),
        ({"threshold": None}, "claims.yaml, one, line 1: threshold is missing."),
        ({"not_shown": ""}, "claims.yaml, one, line 1: not_shown is missing."),
        ({"rule": "larger"}, "there is no rule larger; use above, below, between, proof, refutation, open."),
        ({"rule": "proof"}, "claims.yaml, one, line 1: place is missing."),
        ({"rule": "open"}, "claims.yaml, one, line 1: cost is missing."),
        ({"rule": "between"}, "one, line 1: a threshold is a number, or for the rule between a list of two."),
        ({"judged": "likely"}, "one, line 1: judged is likely; use held, did not hold, proved, "),
        ({"needs_convergence": "all"}, "one, line 1: needs_convergence is all; use nothing, victim, attack."),
        ({"verdict": "held"}, "claims.yaml, one, line 1: there is no field verdict."),
        ({"stated": "before"}, "claims.yaml, one, line 1: cost is missing."),
    ],
)
def test_a_line_that_is_not_whole_ends_in_one_sentence(change, sentence):
    with pytest.raises(InputError) as caught:
        ledger.check(ROW | {"lines": [LINE | change]})
    assert sentence in str(caught.value) and str(caught.value).count("\n") == 0


@pytest.mark.parametrize(
    "change, sentence",
    [
        ({"paper": 3}, "claims.yaml, one: there is no paper 3."),
        ({"sentence": "it leaks"}, "claims.yaml, one: give the paper's own words in “…”, and nothing else."),
        ({"sentence": "(ours) “it leaks”"}, "claims.yaml, one: give the paper's own words in “…”, and nothing else."),
        ({"sentence": "“a” “b”"}, "claims.yaml, one: give the paper's own words in “…”, and nothing else."),
        ({"lines": []}, "claims.yaml, one: lines is missing."),
        ({"chapters": None}, "claims.yaml, one: chapters is missing."),
    ],
)
def test_a_sentence_that_is_not_whole_ends_in_one_sentence(change, sentence):
    with pytest.raises(InputError, match=sentence.replace(".", r"\.")):
        ledger.check(ROW | change)


def test_a_ledger_that_is_damaged_or_names_an_id_twice_ends_in_one_sentence(tmp_path):
    path = tmp_path / "claims.yaml"
    path.write_text("[: ")
    with pytest.raises(InputError, match=r"claims.yaml cannot be read: take it from the repository again\."):
        ledger.load(path)
    path.write_text(json.dumps([ROW, ROW]))
    with pytest.raises(InputError, match=r"claims.yaml, one: the id stands twice\."):
        ledger.load(path)


def test_a_record_or_a_quantity_that_is_missing_ends_in_one_sentence(made):
    with pytest.raises(InputError, match=r"made.json cannot be read: take it from the repository again\."):
        ledger.judge(LINE)
    made(alike=[3] * 5)
    with pytest.raises(InputError, match="made has no bilevel/affine/random/nothing with any parameters"):
        ledger.judge(LINE | {"quantities": {"value": f"{AT}/nothing"}})


def test_a_rule_that_was_stated_before_its_record_waits_for_it(made):
    line = LINE | {"stated": "before", "experiment": "five seeds", "cost": "minutes"}
    assert ledger.judge(line).word == "open"
    assert ledger.number(line) == "not recorded yet; to close it: five seeds (minutes)"
    made(alike=[3] * 5)
    assert ledger.judge(line).word == "held"


@pytest.mark.parametrize("sentence, line", BEFORE)
def test_a_rule_that_was_stated_before_its_runs_is_that_of_their_commit(sentence, line):
    if not recorded.exists(line["record"]):
        pytest.skip("not recorded yet")
    rule = "rule", "threshold", "quantities", "formula", "halfway"
    for part in recorded.load(line["record"]).about["code"]:
        if not (text := grid.git("show", f"{part['commit']}:data/claims.yaml")):
            pytest.skip(f"{part['commit'][:8]} is not in this repository")
        stood = [each for row in yaml.safe_load(text) if row["id"] == sentence for each in row["lines"]]
        assert any(all(each.get(name) == line.get(name) for name in rule) for each in stood), part["commit"]


WHOLE = {"rule": "between", "threshold": [2, 4]}
DRIFT = {"quantities": {"now": f"{AT}/alike", "soon": f"{AT}/early"}, "halfway": "soon"}
CASES = [
    ([3, 4, 5, 6, 7], {}, "held", ""),
    ([0, 0, 1, 1, 2], {}, "did not hold", ""),
    ([0, 0, 1, 1, 2], {"otherwise": "not reproduced"}, "not reproduced", ""),
    ([1, 3, 3, 3, 3], {}, "open", "true in 4 of 5 seeds"),
    ([3, 3, 3, 3], {}, "open", "4 of 5 seeds"),
    ([0, 0, 1, 1, 1], {"rule": "below"}, "held", ""),
    ([3, 3, 3, 3, 3], {"rule": "below"}, "did not hold", ""),
    ([2, 3, 3, 3, 4], WHOLE, "held", ""),
    ([5, 5, 5, 5, 5], WHOLE, "did not hold", ""),
    ([1, 3, 3, 3, 3], WHOLE, "open", "true in 4 of 5 seeds"),
    ([3, 3, 3, 3, 3], {"all_adversaries": True}, "open", "one adversary"),
    ([0, 0, 0, 0, 0], {"all_adversaries": True}, "did not hold", ""),
    ([9, 9, 9, 9, 9], {"formula": "value / 3 - 1"}, "did not hold", ""),
]


@pytest.mark.parametrize("values, change, word, reason", CASES)
def test_every_rule_can_say_every_verdict(made, values, change, word, reason):
    made(alike=values)
    found = ledger.judge(LINE | change)
    assert found.word == word and reason in found.reason and bool(found.reason) == (word == "open")


def test_a_baseline_can_be_taken_off(made):
    made(alike=[3] * 5)
    both = {"alike": f"{AT}/alike", "held_out": {"name": f"{AT}/alike", "column": "baseline"}}
    line = LINE | {"quantities": both, "formula": "alike - held_out"}
    assert [*ledger.judge(line).values.values()] == [2] * 5 and ledger.judge(line).word == "did not hold"


def test_the_papers_setting_needs_the_papers_size_and_ours_does_not(made):
    made(full_size=False, alike=[3] * 5)
    assert ledger.judge(LINE).reason == "not at the paper's size"
    assert ledger.judge(LINE | {"at": "ours"}).word == "held"


@pytest.mark.parametrize(
    "needs, victim, distance, word",
    [
        ("nothing", 1, 1, "held"),
        ("victim", 1, 1e-13, "open"),
        ("victim", 1e-9, 1, "held"),
        ("attack", 1e-9, 1, "open"),
        ("attack", 1, 1e-13, "open"),
        ("attack", 1e-9, 1e-13, "held"),
    ],
)
def test_convergence_counts_where_the_sentence_needs_it(made, needs, victim, distance, word):
    made(alike=[3] * 5, victim_error=[victim] + [1e-9] * 4, relative_distance=[distance] + [1e-13] * 4)
    found = ledger.judge(LINE | {"needs_convergence": needs})
    assert found.word == word and (word == "held" or found.reason == "1 of 5 runs have not converged")


@pytest.mark.parametrize("early, word", [(1, "open"), (2.5, "held"), (9, "held"), (11.9, "held"), (12.1, "open")])
def test_a_drift_matters_where_it_could_turn_the_verdict(made, early, word):
    now = 3 if early < 3 else 9 + (early > 10) * 0.525
    made(alike=[now] * 5, early=[early] * 5)
    assert ledger.judge(LINE | DRIFT).word == word


def test_a_sentence_is_split_where_its_decided_lines_differ(made):
    made(alike=[3] * 5)
    held, failed = LINE, LINE | {"threshold": 9}
    still = {"rule": "open", "setting": "all", "experiment": "x", "cost": "y", "judged": "open", "not_shown": "z"}
    proof = {"rule": "proof", "setting": "all", "place": "x", "judged": "proved", "not_shown": "z"}
    words = [
        ledger.verdict({"lines": lines}) for lines in ([held], [held, failed], [held, still], [still, held], [proof])
    ]
    assert words == ["held", "split", "held", "open", "proved"]
    refutation = proof | {"rule": "refutation"}
    words = [ledger.verdict({"lines": [refutation, *lines]}) for lines in ([], [failed], [failed, held])]
    assert words == ["refuted", "refuted", "split"]
    assert [ledger.has_open({"lines": lines}) for lines in ([held, still], [held])] == [True, False]


@pytest.mark.parametrize(
    "formula", ["value.real", "open(value)", "value ** 2", "other", "'a'", "[value]", "max(value=1)"]
)
def test_a_formula_knows_arithmetic_and_nothing_else(formula):
    with pytest.raises(ValueError, match="is no part of a formula"):
        ledger.calculated(formula, {"value": 1.0})
    assert ledger.calculated("max(value, 3) - min(2, value) / abs(0 - value)", {"value": 1.0}) == 2


def test_a_chapter_without_a_sentence_prints_no_table():
    with pytest.raises(InputError, match="No sentence of claims.yaml is printed by nowhere"):
        ledger.table("nowhere")
