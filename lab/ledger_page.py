"""What the conclusion says of the ledger: a count of verdicts, the sentences that fail, and the rest by section."""

import functools
import re
from collections import Counter
from itertools import groupby

from lab import ledger
from utils.notebook import report, verdicts

PAPERS = {1: "First paper", 2: "Second paper"}
FAILED = ledger.FAILED, ledger.REFUTED, ledger.MISSED
SHORT = {  # settings, as the page says them once above its lists
    "one hidden layer with softplus and": "softplus,",
    "one hidden layer with 6144": "6144",
    "three layers with ReLU": "three layers",
    "two layers with ReLU": "two layers",
    "100 images, bilevel from": "from",
    " as in the paper": "",
    "area under the ROC curve": "area",
    "the stationarity attack": "stationarity",
    "relative distance of the weights": "relative distance",
    "share of the reconstructions alike to": "share alike to",
    "share of the reconstructions that are no longer": "share no longer",
}


def counts():
    """How many sentences have each verdict, in one sentence."""
    rows = ledger.load()
    settings = sum(len(row.lines) for row in rows)
    return f"The ledger, `data/claims.yaml`, judges {len(rows)} sentences in {settings} settings: {in_words(rows)}."


def in_words(rows):
    """How many of some sentences have each verdict that is among theirs, as in 2 held, 1 open."""
    found = Counter(map(ledger.verdict, rows))
    return ", ".join(f"{found[word]} {word}" for word in ledger.WORDS if word in found)


def table():
    """The Markdown table of the verdicts on each paper, on both, and how many of these have an open setting."""
    rows = ledger.load()
    groups = {name.lower(): [row for row in rows if row.paper == paper] for paper, name in PAPERS.items()}
    groups["both"] = rows
    groups["of these with an open setting"] = [
        row for row in rows if any(ledger.judge(line).word == ledger.OPEN for line in row.lines)
    ]
    columns = [Counter(map(ledger.verdict, group)) for group in groups.values()]
    lines = [[word, *(column[word] for column in columns)] for word in ledger.WORDS]
    return report.table(["verdict", *groups], *lines, ["sentences", *map(len, groups.values())]).data


def told(line, measure=""):
    """A line of the ledger: verdict, number and measure (unless it is that of the line before), or what it rests on."""
    judged = ledger.judge(line)
    if judged.values:
        what = "" if line.measure == measure else f" {line.measure}"
        text = f"**{judged.word}, {verdicts.words(judged.values.values())}**{what} ({line.setting})"
    elif judged.word == ledger.OPEN:
        text = f"**{judged.word}**, {judged.reason or 'not tried'} ({line.setting})"
    else:
        text = f"**{judged.word}**, {line.setting}: {line.place}"
    return functools.reduce(lambda text, words: text.replace(*words), SHORT.items(), text)


def entry(row, where=False):
    """A sentence with its verdict and its lines, as an item of a list; `where` adds paper and section."""
    head = f"- {row.sentence}" + f" ({section(row, row.section)})" * where
    if len(row.lines) == 1:
        return f"{head}: {told(row.lines[0])}"
    measures = ["", *(line.measure or None for line in row.lines)]
    lines = [f"{head}: *{ledger.verdict(row)}*", *map(told, row.lines, measures)]
    return "\n  - ".join(lines)


def section(row, name=None):
    """Where a sentence stands: the paper, and a name; without one, its section above subsections and summaries."""
    name = name or re.split(r" \(|,| of ", row.section)[0]
    return f"{PAPERS[row.paper]}, {'section ' * name[0].isdigit()}{name}"


def lists():
    """Markdown: the counts, the sentences that fail, and the others, closed by section."""
    rows = sorted(ledger.load(), key=lambda row: (row.paper, ledger.WORDS.index(ledger.verdict(row))))
    parts = [table(), "### What did not hold"]
    parts.append("\n".join(entry(row, where=True) for row in rows if ledger.verdict(row) in FAILED))
    parts.append("### The rest, by section")
    rest = sorted((row for row in rows if ledger.verdict(row) not in FAILED), key=section)
    for title, group in groupby(rest, section):
        some = list(group)
        lines = "\n".join(map(entry, some))
        parts.append(f"```{{admonition}} {title}: {in_words(some)}\n:class: dropdown\n\n{lines}\n```")
    return "\n\n".join(parts)
