"""Each sentence is judged once, by a rule that can say everything, from the records alone."""

import json
import re
from pathlib import Path

import pytest
import yaml

from conftest import refused
from lab import grid, ledger, recorded

BOOK = Path(__file__).parent.parent / "book"
LINES = [(row.id, k, line) for row in ledger.load() for k, line in enumerate(row.lines, 1)]
AT, OF = "bilevel/affine/random", {"value": "bilevel/affine/random/alike"}
LINE = {
    "setting": "affine", "at": "paper", "measure": "images", "record": "made", "quantities": OF, "rule": "above",
    "threshold": 2, "stated": "after", "needs_convergence": "nothing", "judged": "held", "not_shown": "all else",
}  # fmt: skip
ROW = {
    "id": "one",
    "paper": 1,
    "section": "1",
    "sentence": "“it leaks”",
    "chapters": ["a"],
    "lines": [LINE],
}


def judged(**change):
    """What is judged of LINE with other fields."""
    return ledger.judge(ledger.Line(**LINE | change))


@pytest.fixture
def made(tmp_path, monkeypatch):
    """A function that records numbers, {name: [value of each seed]}, as the grid `made`."""
    monkeypatch.setattr(recorded, "DATA", tmp_path)
    (tmp_path / "results").mkdir()

    def write(full_size=True, **numbers):
        numbers = {"victim_error": [1e-9] * 5, "relative_distance": [1e-13] * 5, **numbers}
        rows = [
            f"{AT}/{name},{k},{x},1\n"
            for name, values in numbers.items()
            for k, x in enumerate(values)
        ]
        (tmp_path / "results" / "made.csv").write_text("name,seed,value,baseline\n" + "".join(rows))
        runs = max(map(len, numbers.values()))
        about = {
            "full_size": full_size,
            "runs": runs,
            "grid": {"parameters": {}, "cross": {"SEED": [*range(runs)]}},
        }
        (tmp_path / "results" / "made.json").write_text(json.dumps(about))
        ledger.record_of.cache_clear()

    ledger.record_of.cache_clear()
    yield write
    ledger.record_of.cache_clear()


@pytest.mark.parametrize("sentence, k, line", LINES)
def test_the_records_alone_give_the_verdict_that_was_committed(sentence, k, line):
    assert ledger.judge(line).word == line.judged, ledger.number(line)
    assert line.judged != "open" or (line.experiment and line.cost), (
        "say what would close it, and at what cost"
    )


def test_every_sentence_stands_once_and_is_judged_by_chapters_that_are_there():
    rows, page = ledger.load(), ledger.lists()
    assert len(rows) >= 40 and all(page.count(f"** {row.sentence} (") == 1 for row in rows)

    for chapter in {chapter for row in rows for chapter in row.chapters}:
        total, *parts = map(int, re.findall(r"\d+", ledger.summed(chapter)))
        assert total == sum(parts) == sum(chapter in row.chapters for row in rows)
        assert (BOOK / f"{chapter}.ipynb").exists()


@pytest.mark.parametrize(
    "change, sentence",
    [
        ({"record": None}, "claims.yaml, one, line 1: record is missing."),
        ({"rule": "larger"}, "claims.yaml, one, line 1: rule is 'larger', but it must be one of"),
        ({"rule": "proof"}, "claims.yaml, one, line 1: place is missing."),
        ({"verdict": "held"}, "claims.yaml, one, line 1: there is no field verdict; use setting"),
        ({"lines": []}, "claims.yaml, one: lines is missing."),
    ],
)
def test_what_is_not_whole_ends_in_one_sentence(change, sentence):
    change = change if change.keys() <= ROW.keys() else {"lines": [LINE | change]}
    assert sentence in refused(ledger.sentence, ROW | change)


def test_a_ledger_that_names_an_id_twice_ends_in_one_sentence(tmp_path):
    path = tmp_path / "claims.yaml"
    path.write_text(json.dumps([ROW, ROW]))
    assert refused(ledger.load, path) == "claims.yaml has 'one' twice: take one out."


def test_a_record_is_waited_for_where_its_rule_was_stated_before_and_else_missed(made):
    before = LINE | {"stated": "before", "experiment": "five seeds", "cost": "minutes"}
    assert "not recorded yet; to close it: five" in ledger.number(ledger.Line(**before))
    assert "made.json cannot be read: take it from the repository again." in refused(judged)
    made(alike=[3] * 5)
    assert judged(**before).word == "held"
    missing = refused(judged, quantities={"value": f"{AT}/nothing"})
    assert "made has no bilevel/affine/random/nothing with any parameters" in missing


def renamed(quantity):
    """A quantity of an older ledger as records name it now: λ₁ and λ₂ were parts of its name."""
    if found := re.fullmatch(r"landscape/(\w+)/([\d.]+)/([\d.]+)/(\w+)", str(quantity)):
        where = {"lambda_1": float(found[2]), "lambda_2": float(found[3])}
        return {"name": f"landscape/{found[1]}/{found[4]}", "where": where}
    return quantity


@pytest.mark.parametrize(
    "sentence, k, line", [each for each in LINES if each[-1].stated == "before"]
)
def test_a_rule_that_was_stated_before_its_runs_is_that_of_their_commit(sentence, k, line):
    if ledger.judge(line).reason == "not recorded yet":
        pytest.skip("not recorded yet")
    for part in recorded.load(line.record).attrs["code"]:
        if not (text := grid.git("show", f"{part['commit']}:data/claims.yaml")):
            pytest.skip(f"{part['commit'][:8]} is not in this repository")
        stood = [
            each for row in yaml.safe_load(text) if row["id"] == sentence for each in row["lines"]
        ]
        for each in stood:
            each["quantities"] = {
                name: renamed(one) for name, one in each.get("quantities", {}).items()
            }
        rule = {
            name: getattr(line, name)
            for name in ("rule", "threshold", "quantities", "formula", "halfway")
        }
        assert any(all(each.get(name, "") == rule[name] for name in rule) for each in stood), part[
            "commit"
        ]


CASES = [
    ([3, 4, 5, 6, 7], {}, "held", ""),
    ([0, 0, 1, 1, 2], {"otherwise": "not reproduced"}, "not reproduced", ""),
    ([1, 3, 3, 3, 3], {}, "open", "true in 4 of 5 seeds"),
    ([3, 3, 3, 3], {}, "open", "4 of 5 seeds"),
    ([2, 3, 3, 3, 3], {"rule": "below"}, "did not hold", ""),
    ([3, 3, 3, 3, 3], {"all_adversaries": True}, "open", "one adversary"),
    ([0, 0, 0, 0, 0], {"all_adversaries": True}, "did not hold", ""),
    ([9, 9, 9, 9, 9], {"formula": "min(value, 4) / max(1, 2)"}, "did not hold", ""),
]


@pytest.mark.parametrize("values, change, word, reason", CASES)
def test_every_rule_can_say_every_verdict(made, values, change, word, reason):
    made(alike=values)
    found = judged(**change)
    assert found.word == word and reason in found.reason and bool(found.reason) == (word == "open")


def test_a_baseline_or_another_record_can_be_taken_off(made):
    made(full_size=False, alike=[3] * 5)
    assert judged().reason == "not at the paper's size" and judged(at="ours").word == "held"
    for path in [*(recorded.DATA / "results").iterdir()]:
        path.with_stem("other").write_text(path.read_text().replace(",3,1", ",1,1"))
    for of in ({"column": "baseline"}, {"record": "other"}):
        both = OF | {"less": {"name": f"{AT}/alike"} | of}
        found = judged(at="ours", quantities=both, formula="value - less")
        assert [*found.values.values()] == [2] * 5 and found.word == "did not hold"


@pytest.mark.parametrize(
    "needs, victim, distance, word",
    [
        ("nothing", 1, 1, "held"),
        ("victim", 1, 1e-13, "open"),
        ("victim", 1e-9, 1, "held"),
        ("attack", 1e-9, 1, "open"),
        ("attack", 1, 1e-13, "open"),
    ],
)
def test_convergence_counts_where_the_sentence_needs_it(made, needs, victim, distance, word):
    made(
        alike=[3] * 5,
        victim_error=[victim] + [1e-9] * 4,
        relative_distance=[distance] + [1e-13] * 4,
    )
    found = judged(needs_convergence=needs)
    assert found.word == word and found.reason.startswith("1 of 5" * (word == "open"))


@pytest.mark.parametrize(
    "early, word", [(1, "open"), (2.5, "held"), (11.9, "held"), (12.1, "open")]
)
def test_a_drift_matters_where_it_could_turn_the_verdict(made, early, word):
    made(alike=[3 if early < 3 else 9.525] * 5, early=[early] * 5)
    found = judged(quantities={"now": f"{AT}/alike", "soon": f"{AT}/early"}, halfway="soon")
    assert found.word == word


REST = dict.fromkeys(["setting", "not_shown", "place", "experiment", "cost"], "x") | {
    "judged": "open"
}
KINDS = {"held": LINE, "failed": LINE | {"threshold": 9}}
KINDS |= {rule: REST | {"rule": rule} for rule in ("open", "proof", "refutation")}


@pytest.mark.parametrize(
    "lines, word",
    [
        ("held open", "held"),
        ("refutation failed held", "split"),
        ("open held", "open"),
        ("proof held", "proved"),
        ("refutation failed", "refuted"),
    ],
)
def test_a_sentence_is_split_where_its_decided_lines_differ(made, lines, word):
    made(alike=[3] * 5)
    row = ROW | {"lines": [KINDS[kind] for kind in lines.split()]}
    assert ledger.verdict(ledger.sentence(row)) == word
