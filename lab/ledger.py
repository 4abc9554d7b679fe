"""The ledger: every sentence of a paper that this book judges, once, and how the records in `data/results` judge it.

`data/claims.yaml` holds the sentences, and its head says what the fields mean: a line per setting names recorded
quantities, a formula and a threshold; or where a proof stands; or which experiment is missing.

A sentence is true of a seed if the seed's number is on its side of the threshold. It *held* if it is true of all seeds,
it *did not hold* if of none, and is *open* in between. Where all of five seeds agree, the median is on their side with
a confidence of 94 %.
"""

import functools
import operator
import re
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, NamedTuple

import pandas as pd
import yaml

from evaluation import notation
from lab import recorded, report
from lab.grid import refuse_twice
from utils.errors import InputError, from_fields, located

FILE = Path(__file__).parents[1] / "data" / "claims.yaml"
AHEAD = 3  # so many more changes like that since halfway must leave a verdict as it is
WORDS = HELD, FAILED, PROVED, REFUTED, MISSED, OPEN, SPLIT = (
    "held", "did not hold", "proved", "refuted", "not reproduced", "open", "split",
)  # fmt: skip
RULES = {"above": operator.gt, "below": operator.lt}  # of the number of one seed and the threshold
WITHOUT = {
    "proof": PROVED,
    "refutation": REFUTED,
    "open": OPEN,
}  # rules that need no record, and their verdicts
COUNTED = "at", "measure", "record", "quantities", "threshold", "stated", "needs_convergence"
NEEDED = {
    "proof": ["place"],
    "refutation": ["place"],
    "open": ["experiment", "cost"],
} | dict.fromkeys(RULES, COUNTED)
PAPERS = {1: "first paper", 2: "second paper"}
SAME = {PROVED: HELD, REFUTED: FAILED}  # what a count may say beside a proof, and agree with it
FUNCTIONS = {"__builtins__": {"min": min, "max": max, "abs": abs}}  # of a formula
record_of = functools.cache(recorded.load)  # a page judges many lines by the same few records


class Judged(NamedTuple):
    """The verdict on a line."""

    word: str  # one of WORDS
    reason: str  # why its record leaves it open; empty if it does not
    values: dict  # {seed: number}, {} where it rests on no record


@dataclass(frozen=True, kw_only=True, eq=False)
class Line:
    """A setting of a sentence, with the verdict as it was committed, and what its rule needs."""

    setting: str
    rule: Literal["proof", "refutation", "open", "above", "below"]
    judged: str
    not_shown: str
    place: str = ""  # where a proof stands
    experiment: str = ""  # that would close an open line
    cost: str = ""
    at: Literal["paper", "ours"] = ""  # this and what follows is of a line that a record decides
    measure: str = ""
    record: str = ""
    quantities: dict = field(default_factory=dict)
    threshold: float | None = None
    stated: Literal["before", "after"] = ""
    needs_convergence: Literal["nothing", "victim", "attack"] = ""
    where: dict = field(default_factory=dict)
    formula: str = ""  # without one it is the first of the quantities
    halfway: str = ""
    otherwise: Literal["did not hold", "not reproduced"] = FAILED
    all_adversaries: bool = False

    def __post_init__(self):
        if missing := [name for name in NEEDED[self.rule] if getattr(self, name) in (None, "", {})]:
            raise InputError(f"{missing[0]} is missing.")
        if self.stated == "before" and not (self.experiment and self.cost):
            raise InputError(
                "a rule that was stated before has an experiment and a cost; one of them is missing."
            )


@dataclass(frozen=True, kw_only=True, eq=False)
class Sentence:
    """A sentence of a paper, and its lines; the first is the paper's own setting, as near as we come to it."""

    id: str
    paper: Literal[1, 2]
    section: str
    sentence: str
    chapters: list
    lines: list

    def __post_init__(self):
        if not re.fullmatch("“[^“”]+”", self.sentence):
            raise InputError("give the paper's own words in “…”, and nothing else.")


@functools.cache
def load(path: Path = FILE) -> list[Sentence]:
    """The sentences of the ledger, checked; InputError says in one sentence what is missing or unknown."""
    with recorded.readable(path):
        rows = yaml.safe_load(path.read_text(encoding="utf-8"))
    refuse_twice(FILE.name, [row.get("id") for row in rows])
    return [sentence(row) for row in rows]


def sentence(fields):
    """The Sentence, with its lines, of the fields {name: value} of a file; InputError for a mistake, with its place."""
    at = f"{FILE.name}, {fields.get('id', 'a sentence without an id')}"
    lines = []
    for k, line in enumerate(fields.get("lines") or [], 1):
        with located(f"{at}, line {k}"):
            lines.append(from_fields(Line, line))
    with located(at):
        return from_fields(Sentence, fields | {"lines": lines})


def runs_of(line, record="", where=None):
    """The runs of a line's record, or of another, with the line's parameters and these."""
    runs = record_of(record or line.record)
    for name, value in (line.where | (where or {})).items():
        runs = runs[runs[name] == value]
    return runs


def of_seeds(line, formula):
    """{seed: number} by a formula of a line's quantities; InputError if one of them is not in the record."""
    found = {}
    for name, quantity in line.quantities.items():
        of = quantity if isinstance(quantity, dict) else {"name": quantity}
        runs = runs_of(line, of.get("record"), of.get("where"))
        found[name] = recorded.numbers(runs, of["name"], of.get("column", "value"))
        if found[name].empty:
            where = line.where | of.get("where", {})
            raise InputError(
                f"{of.get('record', line.record)} has no {of['name']} with "
                f"{where or 'any parameters'}: see {FILE.name}."
            )
    of_all = pd.DataFrame(found).dropna().to_dict("index")
    return {seed: eval(formula, FUNCTIONS, numbers) for seed, numbers in of_all.items()}


def unconverged(line, seeds):
    """How many of these runs or victims have not converged, where the sentence needs it."""
    if line.needs_convergence == "nothing":
        return 0
    prefix = next(iter(line.quantities.values())).rsplit("/", 1)[0]
    converged = recorded.stationary if line.needs_convergence == "victim" else recorded.converged
    done = converged(runs_of(line), prefix)
    return sum(not done.get(seed, False) for seed in seeds)


@functools.cache
def judge(line):
    """The verdict on a line, from the record alone: Judged."""
    if line.rule in WITHOUT:
        return Judged(WITHOUT[line.rule], "", {})
    if line.stated == "before" and not (recorded.DATA / "results" / f"{line.record}.json").exists():
        return Judged(OPEN, "not recorded yet", {})
    values = of_seeds(line, line.formula or next(iter(line.quantities)))
    before = of_seeds(line, line.halfway) if line.halfway else {}
    rule = RULES[line.rule]
    paths = [
        (soon, values[seed], values[seed] + AHEAD * (values[seed] - soon))
        for seed, soon in before.items()
    ]
    turning = sum(len({rule(value, line.threshold) for value in path}) > 1 for path in paths)
    true = sum(rule(value, line.threshold) for value in values.values())
    n = len(values)
    reasons = {
        f"{n} of {notation.SEEDS} seeds": n < notation.SEEDS,
        "not at the paper's size": line.at == "paper"
        and not record_of(line.record).attrs["full_size"],
        f"{(late := unconverged(line, values))} of {n} runs have not converged": late > 0,
        f"true in {true} of {n} seeds": 0 < true < n,
        f"drifts across the threshold in {turning} of {n} seeds": turning > 0,
        "that one adversary fails does not show it of all": line.all_adversaries and true == n,
    }
    reason = ", ".join(text for text, holds in reasons.items() if holds)
    return Judged(OPEN if reason else HELD if true == n else line.otherwise, reason, values)


def verdict(row):
    """The verdict on a sentence: that of its first line, but *split* if a decided line says something else."""
    words = [judge(line).word for line in row.lines]
    decided = {SAME.get(word, word) for word in words if word != OPEN}
    return OPEN if words[0] == OPEN else SPLIT if len(decided) > 1 else words[0]


def number(line):
    """What a line rests on, in words: a number, where a proof stands, or what is missing."""
    judged = judge(line)
    parts = [judged.reason] if judged.reason else []
    if judged.values:
        n = len(judged.values)
        sign = {"above": ">", "below": "<"}[line.rule]
        bound = f"{n} seed{'s' * (n > 1)}, true if {sign} {report.typeset(f'{line.threshold:g}')}"
        parts.append(f"{line.measure}: {notation.mean_with_range(judged.values.values())}, {bound}")
    if judged.word == OPEN:
        parts.append(f"to close it: {line.experiment} ({line.cost})")
    return "; ".join(parts) or line.place


def counts():
    """A Markdown table: how many sentences of each paper have each verdict, and how many settings of all."""
    times = [Counter(verdict(row) for row in load() if row.paper == paper) for paper in PAPERS]
    times.append(Counter(judge(line).word for row in load() for line in row.lines))
    rows = ([word, *(some[word] for some in times)] for word in WORDS)
    lines = [row for row in rows if any(row[1:])]
    papers = [f"sentences of the {paper}" for paper in PAPERS.values()]
    head = ["verdict", *papers, "settings of both"]
    return report.table(head, *lines, ["in all", *map(Counter.total, times)]).data


def summed(chapter):
    """What a chapter judges, in a sentence: how many sentences, and how many have each verdict; empty for none."""
    times = Counter(verdict(row) for row in load() if chapter in row.chapters)
    parts = ", ".join(f"{times[word]} {word}" for word in WORDS if times[word])
    return f"This chapter judges {times.total()} of the papers' sentences: {parts}." * bool(times)


def lists():
    """Markdown: every sentence with its settings in a container, whose classes say what a reader may filter by."""
    rows = sorted(load(), key=lambda row: (row.paper, row.section))
    return "\n\n".join(
        f"(claim-{row.id})=\n:::{{container}} verdict {classes(row)}\n{item(row)}\n:::"
        for row in rows
    )


def card(row):
    """Markdown: a sentence in brief, with its verdict and its first setting, which leads to its place in `lists`."""
    setting = row.lines[0].setting.partition(";")[0]
    return (
        f"**{verdict(row)}**\n\n[{row.sentence}](#claim-{row.id})\n\n{PAPERS[row.paper]}: {setting}"
    )


def classes(row):
    """By what a sentence can be found: paper-1 section-3-1 is-held on-affine-model."""
    section = row.section.split()[0].strip(",")
    about = [
        f"paper-{row.paper}",
        f"section-{section}",
        f"is-{verdict(row)}",
        *(f"on-{page}" for page in row.chapters),
    ]
    return " ".join(re.sub(r"\W+", "-", name) for name in about)


def item(row):
    """A sentence with where it stands and its verdict, and its settings as a list."""
    where = f"{PAPERS[row.paper]}, {'section ' * row.section[0].isdigit()}{row.section}"
    lines = (f"- **{judge(line).word}** ({line.setting}): {number(line)}" for line in row.lines)
    return "\n".join([f"**{verdict(row)}** {row.sentence} ({where})\n", *lines])
