"""What the conclusion says of the ledger: a count of verdicts, the sentences that fail, and the rest by section."""

import re
from collections import Counter
from itertools import groupby

from lab import ledger
from utils.notebook import report

PAPERS = {1: "First paper", 2: "Second paper"}
FAILED = ledger.FAILED, ledger.REFUTED, ledger.MISSED


def in_words(rows):
    """How many of some sentences have each verdict that is among theirs, as in 2 held, 1 open."""
    found = Counter(map(ledger.verdict, rows))
    return ", ".join(f"{found[word]} {word}" for word in ledger.WORDS if word in found)


def counts():
    """How many sentences have each verdict, in one sentence."""
    rows = ledger.load()
    settings = sum(len(row.lines) for row in rows)
    return f"The ledger, `data/claims.yaml`, judges {len(rows)} sentences in {settings} settings: {in_words(rows)}."


def table():
    """The Markdown table of the verdicts on each paper, on both, and how many of these have an open setting."""
    rows = ledger.load()
    groups = {name.lower(): [row for row in rows if row.paper == paper] for paper, name in PAPERS.items()}
    open_ = [row for row in rows if ledger.OPEN in {ledger.judge(line).word for line in row.lines}]
    groups |= {"both": rows, "of these with an open setting": open_}
    columns = [Counter(map(ledger.verdict, group)) for group in groups.values()]
    lines = [[word, *(column[word] for column in columns)] for word in ledger.WORDS]
    return report.table(["verdict", *groups], *lines, ["sentences", *map(len, groups.values())]).data


def entry(row, where=""):
    """A sentence, with where it stands and its verdict, and under it its settings: an item of a list."""
    lines = (f"**{ledger.judge(line).word}** ({line.setting}): {ledger.number(line)}" for line in row.lines)
    return "\n  - ".join([f"- {row.sentence}{where}: *{ledger.verdict(row)}*", *lines])


def section(row, name):
    """Where a sentence stands, the paper and the name of a section."""
    return f"{PAPERS[row.paper]}, {'section ' * name[0].isdigit()}{name}"


def above(row):
    """The section of a sentence, above subsections and summaries."""
    return section(row, re.split(r" \(|,| of ", row.section)[0])


def lists():
    """Markdown: the counts, the sentences that fail, and the others, closed by section."""
    rows = sorted(ledger.load(), key=lambda row: (row.paper, ledger.WORDS.index(ledger.verdict(row))))
    failed = [row for row in rows if ledger.verdict(row) in FAILED]
    parts = [table(), "### What did not hold"]
    parts += ["\n".join(entry(row, f" ({section(row, row.section)})") for row in failed), "### The rest, by section"]
    for title, group in groupby(sorted((row for row in rows if row not in failed), key=above), above):
        some = list(group)
        lines = "\n".join(map(entry, some))
        parts.append(f"```{{admonition}} {title}: {in_words(some)}\n:class: dropdown\n\n{lines}\n```")
    return "\n\n".join(parts)
