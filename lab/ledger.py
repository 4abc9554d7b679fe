"""The ledger: every sentence of a paper that this book judges, once, and how the records in `data/results` judge it.

`data/claims.yaml` holds the sentences. A sentence has lines, one per setting: a model, a start, a size and a measure. A
line names a record, the quantities in it, a formula of them, and a threshold; or where a proof stands; or which
experiment is missing. No verdict is written there but as `judged`, which a test compares with what the record says.

The rules are strict and need no distribution: a sentence is true of a seed if the number of this seed is on its side
of the threshold. It *held* if it is true of all seeds, it *did not hold* if of none, and it is *open* in between. Where
all of five seeds agree, the median is on their side with a confidence of 94 %.
"""

import ast
import functools
import operator
import re
from collections import Counter, namedtuple
from collections.abc import Callable
from pathlib import Path

import yaml

from lab import recorded, verdicts
from utils.errors import InputError
from utils.notebook import report

FILE = Path(__file__).parents[2] / "data" / "claims.yaml"
SEEDS = 5  # fewest recorded seeds that decide
AHEAD = 3  # so many more changes like that since halfway must leave a verdict as it is
WORDS = HELD, FAILED, PROVED, REFUTED, MISSED, OPEN, SPLIT = (
    "held", "did not hold", "proved", "refuted", "not reproduced", "open", "split",
)  # fmt: skip
PAPERS = {1: "runkel2024", 2: "noprior2025"}
RULES = {  # whether a sentence is true of one seed, by its number and the threshold
    "above": lambda value, least: value > least,
    "below": lambda value, most: value < most,
    "between": lambda value, ends: ends[0] <= value <= ends[1],
}
PLACES = {"proof": PROVED, "refutation": REFUTED}  # rules that need no record
SAME = {PROVED: HELD, REFUTED: FAILED}  # what a count may say beside a proof, and agree with it
SENTENCE = {"id", "paper", "section", "sentence", "chapters", "lines"}
COMMON = {"setting", "rule", "judged", "not_shown"}
COUNTED = {"at", "measure", "record", "quantities", "threshold", "stated", "needs_convergence"}
NEEDED = {rule: COMMON | COUNTED for rule in RULES} | {rule: COMMON | {"place"} for rule in PLACES}
NEEDED |= {"open": COMMON | {"experiment", "cost"}}
OPTIONAL = {"where", "formula", "halfway", "otherwise", "all_adversaries", "experiment", "cost"}
CHOICES = {
    "at": ("paper", "ours"),  # whose size and attack the setting has
    "stated": ("before", "after"),  # whether the rule is older than the record, or younger
    "needs_convergence": ("nothing", "victim", "attack"),  # what must have converged
    "otherwise": (FAILED, MISSED),  # a sentence that an attack succeeds is not reproduced where ours does not
    "judged": WORDS[:-1],
}
OPERATORS: dict[type, Callable] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv,
}  # fmt: skip
FUNCTIONS: dict[str, Callable] = {"min": min, "max": max, "abs": abs}
record_of = functools.cache(recorded.load)  # a page judges many lines by the same few records
Judged = namedtuple("Judged", "word reason values")  # of a line; values by seed, {} where it rests on no record


def wrong(where, what):
    """The InputError for a mistake in the ledger."""
    return InputError(f"{FILE.name}, {where}: {what}.")


@functools.cache
def load(path=FILE):
    """The sentences of the ledger, checked; InputError says in one sentence what is missing or unknown."""
    with recorded.readable(path):
        sentences = yaml.safe_load(path.read_text(encoding="utf-8"))
    for name, times in Counter(row.get("id") for row in sentences).items():
        if times > 1:
            raise wrong(name, "the id stands twice")
    for row in sentences:
        check(row)
    return sentences


def check(row):
    """Raise InputError unless a sentence and all its lines are whole."""
    at = row.get("id", "a sentence without an id")
    compare(at, row, SENTENCE)
    if row["paper"] not in PAPERS:
        raise wrong(at, f"there is no paper {row['paper']}")
    if not re.fullmatch("“[^“”]+”", row["sentence"]):
        raise wrong(at, "give the paper's own words in “…”, and nothing else")
    for place, line in enumerate(row["lines"], 1):
        check_line(f"{at}, line {place}", line)


def compare(at, fields, needed, optional=()):
    """Raise InputError if fields are missing, empty or unknown."""
    if missing := [name for name in sorted(needed) if fields.get(name) in (None, "", {}, [])]:
        raise wrong(at, f"{missing[0]} is missing")
    if unknown := sorted(fields.keys() - needed - set(optional)):
        raise wrong(at, f"there is no field {unknown[0]}")


def check_line(at, line):
    """Raise InputError unless a line has a rule of RULES or PLACES, and what this rule needs."""
    if line.get("rule") not in NEEDED:
        raise wrong(at, f"there is no rule {line.get('rule')}; use {', '.join(NEEDED)}")
    compare(at, line, NEEDED[line["rule"]], OPTIONAL if line["rule"] in RULES else ())
    for name, allowed in CHOICES.items():
        if name in line and line[name] not in allowed:
            raise wrong(at, f"{name} is {line[name]}; use {', '.join(allowed)}")
    if line.get("stated") == "before":
        compare(at, line, {"experiment", "cost"}, line)
    if line["rule"] in RULES and (line["rule"] == "between") != isinstance(line["threshold"], list):
        raise wrong(at, "a threshold is a number, or for the rule between a list of two")


def calculated(formula, numbers):
    """The value of a formula of named numbers, with + − · /, min, max and abs; ValueError for anything else."""

    def value(node):
        match node:
            case ast.Constant(float() | int() as constant):
                return constant
            case ast.Name(name) if name in numbers:
                return numbers[name]
            case ast.BinOp(left, sign, right) if type(sign) in OPERATORS:
                return OPERATORS[type(sign)](value(left), value(right))
            case ast.Call(ast.Name(name), arguments, []) if name in FUNCTIONS:
                return FUNCTIONS[name](*map(value, arguments))
        raise ValueError(f"{ast.unparse(node)} is no part of a formula")

    return value(ast.parse(formula, mode="eval").body)


def of_seeds(line, formula):
    """{seed: number} by a formula of a line's quantities; InputError if one of them is not in the record."""
    found, record = {}, record_of(line["record"])
    for name, quantity in line["quantities"].items():
        of = quantity if isinstance(quantity, dict) else {"name": quantity}
        where = line.get("where", {}) | of.get("where", {})
        found[name] = recorded.values(record, of["name"], of.get("column", "value"), **where)
        if not found[name]:
            raise InputError(f"{record.name} has no {of['name']} with {where or 'any parameters'}: see {FILE.name}.")
    seeds = sorted(set.intersection(*map(set, found.values())))
    return {seed: calculated(formula, {name: by_seed[seed] for name, by_seed in found.items()}) for seed in seeds}


def unconverged(line, seeds):
    """How many of these runs, or of their victims, have not converged, where the sentence needs it."""
    kind, record, where = line["needs_convergence"], record_of(line["record"]), line.get("where", {})
    if kind == "nothing":
        return 0
    prefix = next(iter(line["quantities"].values())).rsplit("/", 1)[0]
    ended = (recorded.stationary if kind == "victim" else recorded.converged)(record, prefix, **where)
    return sum(not ended.get(seed, False) for seed in seeds)


def returning(line, values):
    """How many seeds were on the other side halfway, or would be there after three more changes like the last one."""
    if "halfway" not in line:
        return 0
    halfway, true = of_seeds(line, line["halfway"]), RULES[line["rule"]]

    def kept(seed):
        now, soon = values[seed], halfway[seed]
        sides = {true(value, line["threshold"]) for value in (soon, now, now + AHEAD * (now - soon))}
        return len(sides) == 1

    return sum(not kept(seed) for seed in values)


def judge(line):
    """The verdict on a line, from the record alone: Judged."""
    if line["rule"] not in RULES:
        return Judged(PLACES.get(line["rule"], OPEN), "", {})
    if line["stated"] == "before" and not recorded.exists(line["record"]):
        return Judged(OPEN, "not recorded yet", {})
    values = of_seeds(line, line.get("formula", next(iter(line["quantities"]))))
    true, n = sum(RULES[line["rule"]](value, line["threshold"]) for value in values.values()), len(values)
    confirmed = line.get("all_adversaries", False) and true == n
    reasons = {
        f"{n} of {SEEDS} seeds": n < SEEDS,
        "not at the paper's size": line["at"] == "paper" and not record_of(line["record"]).about["full_size"],
        f"{unconverged(line, values)} of {n} runs have not converged": unconverged(line, values) > 0,
        f"true in {true} of {n} seeds": 0 < true < n,
        f"drifts across the threshold in {returning(line, values)} of {n} seeds": returning(line, values) > 0,
        "that one adversary fails does not show it of all": confirmed,
    }
    told = ", ".join(reason for reason, holds in reasons.items() if holds)
    word = OPEN if told else HELD if true == n else line.get("otherwise", FAILED)
    return Judged(word, told, values)


def verdict(row):
    """The verdict on a sentence: that of its first line, but *split* if a decided line says something else."""
    words = [judge(line).word for line in row["lines"]]
    decided = {SAME.get(word, word) for word in words if word != OPEN}
    return OPEN if words[0] == OPEN else SPLIT if len(decided) > 1 else words[0]


def has_open(row):
    """Whether a line of a sentence is open."""
    return any(judge(line).word == OPEN for line in row["lines"])


def number(line):
    """What a line rests on, in words: a number, where a proof stands, or what is missing."""
    judged, sign = judge(line), {"above": ">", "below": "<", "between": "within"}.get(line["rule"])
    told = [judged.reason] if judged.reason else []
    if judged.values:
        seeds = f"{len(judged.values)} seed{'s' * (len(judged.values) > 1)}"
        bound = f"true if {sign} {threshold(line['threshold'])}"
        told.append(f"{line['measure']}: {words(judged.values)}, {seeds}, {bound}")
    if judged.word == OPEN:
        told.append(f"to close it: {line['experiment']} ({line['cost']})")
    return "; ".join(told) or line["place"]


def words(values):
    """The mean of numbers by seed, with the smallest and the largest."""
    return verdicts.words([*values.values()])


def threshold(value):
    """A threshold in words."""
    return " to ".join(map(threshold, value)) if isinstance(value, list) else report.typeset(f"{value:g}")


def table(chapter):
    """The Markdown table of the sentences that a chapter prints, one row per setting."""
    rows = [row for row in load() if chapter in row["chapters"]]
    if not rows:
        raise InputError(f"No sentence of {FILE.name} is printed by {chapter}.")
    return report.table(
        ["sentence", "setting", "verdict", "what it rests on"],
        *([row["sentence"] if k == 0 else "…", line["setting"], judge(line).word, number(line)]
          for row in rows for k, line in enumerate(row["lines"])),
    )  # fmt: skip


def by_verdict(paper):
    """The sentences of a paper, in the order of WORDS."""
    return sorted((row for row in load() if row["paper"] == paper), key=lambda row: WORDS.index(verdict(row)))


def details():
    """A header and a tuple for each line of the ledger, with thresholds, seeds and what it does not show."""
    yield "paper", "section", "sentence", "verdict", "setting", "here", "what it rests on", "what this does not show"
    for paper in PAPERS:
        for row in by_verdict(paper):
            told = paper, row["section"], row["sentence"], verdict(row)
            yield from ((*told, line["setting"], judge(line).word, number(line), line["not_shown"])
                        for line in row["lines"])  # fmt: skip


def counts(paper=None):
    """How many sentences have each verdict, and how many of these have an open line: {word: (number, open)}."""
    rows = [row for row in load() if paper in (None, row["paper"])]
    found, still = Counter(map(verdict, rows)), Counter(verdict(row) for row in rows if has_open(row))
    return {word: (found[word], still[word]) for word in WORDS}


def counted():
    """The Markdown table of these counts, per paper and of both."""
    columns = {"first paper": 1, "second paper": 2, "both": None}
    found = [counts(paper) for paper in columns.values()]
    lines = [[word, *(of[word][0] for of in found), found[-1][word][1]] for word in WORDS]
    total = ["sentences", *(sum(column) for column in zip(*(line[1:] for line in lines)))]
    return report.table(["verdict", *columns, "of these with an open setting"], *lines, total)
