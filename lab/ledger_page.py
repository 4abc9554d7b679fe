"""What the conclusion says of the ledger: a count of verdicts, the sentences that fail, and the rest by section."""

import re
from collections import Counter
from itertools import groupby

from lab import ledger
from utils.notebook import report

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
    rows, settings = ledger.load(), sum(len(row.lines) for row in ledger.load())
    listed = in_words(rows, ledger.WORDS)
    return f"The ledger, `data/claims.yaml`, judges {len(rows)} sentences in {settings} settings: {listed}."


def in_words(rows, words):
    """How many of some sentences have each verdict, as in 2 held, 1 open."""
    found = Counter(map(ledger.verdict, rows))
    return ", ".join(f"{found[word]} {word}" for word in words)


def table():
    """The Markdown table of the verdicts on each paper, on both, and how many of these have an open setting."""
    rows = ledger.load()
    groups = [[row for row in rows if row.paper == paper] for paper in PAPERS]
    groups += [rows, [row for row in rows if any(ledger.judge(line).word == ledger.OPEN for line in row.lines)]]
    columns = [Counter(map(ledger.verdict, group)) for group in groups]
    header = ["verdict", "first paper", "second paper", "both", "of these with an open setting"]
    lines = [[word, *(column[word] for column in columns)] for word in ledger.WORDS]
    return report.table(header, *lines, ["sentences", *map(len, groups)]).data


def brief(text):
    """A setting or a measure in few words."""
    for long, short in SHORT.items():
        text = text.replace(long, short)
    return text


def told(line, measure=""):
    """A line of the ledger: verdict, number and measure (unless it is that of the line before), or what it rests on."""
    judged, setting = ledger.judge(line), brief(line.setting)
    if judged.values:
        what = "" if line.measure == measure else f" {brief(line.measure)}"
        return f"**{judged.word}, {ledger.words(judged.values)}**{what} ({setting})"
    if judged.word == ledger.OPEN:
        return f"**{judged.word}**, {judged.reason or 'not tried'} ({setting})"
    return f"**{judged.word}**, {setting}: {line.place}"


def entry(row, where=False):
    """A sentence with its verdict and its lines, as an item of a list; `where` adds paper and section."""
    head = f"- {row.sentence}" + f" ({section(row, row.section)})" * where
    if len(row.lines) == 1:
        return f"{head}: {told(row.lines[0])}"
    measures = ["", *(getattr(line, "measure", None) for line in row.lines)]
    lines = "\n".join(f"  - {told(line, before)}" for line, before in zip(row.lines, measures))
    return f"{head}: *{ledger.verdict(row)}*\n{lines}"


def section(row, name):
    """Where a sentence stands: the paper, and the name of a section, or what quotes it."""
    return f"{PAPERS[row.paper]}, {'section ' * name[0].isdigit()}{name}"


def group(row):
    """The section without its subsection; summaries of the second paper are one."""
    return section(row, re.split(r" \(|,| of ", row.section)[0])


def folded(title, rows):
    """A block of a section, closed, with how many of its sentences have which verdict."""
    said = set(map(ledger.verdict, rows))
    listed, entries = in_words(rows, [word for word in ledger.WORDS if word in said]), "\n".join(map(entry, rows))
    return f"```{{admonition}} {title}: {listed}\n:class: dropdown\n\n{entries}\n```"


def lists():
    """The counts, the sentences that fail, and below them the others, folded by section: Markdown."""
    rows = sorted(ledger.load(), key=lambda row: (row.paper, ledger.WORDS.index(ledger.verdict(row))))
    failed = [entry(row, where=True) for row in rows if ledger.verdict(row) in FAILED]
    rest = sorted((row for row in rows if ledger.verdict(row) not in FAILED), key=group)
    blocks = [folded(title, [*some]) for title, some in groupby(rest, group)]
    return "\n\n".join([table(), "### What did not hold", "\n".join(failed), "### The rest, by section", *blocks])
