"""Put every sentence with its verdict into book/conclusion.md, from the ledger: `python -m tools.verdict_page`.

A count comes first, then the sentences that fail, then the rest, folded by section. All that the ledger says of each
line goes into book/verdicts.csv, which the page hands out.
"""

import csv
import io
import re
from collections import Counter
from itertools import groupby
from pathlib import Path

from lab import ledger

FILE = Path(__file__).parent.parent / "book" / "conclusion.md"
TABLE = FILE.with_name("verdicts.csv")
MARKS = "<!-- verdicts -->\n", "<!-- end -->"
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


def brief(text):
    """A setting or a measure in few words."""
    for long, short in SHORT.items():
        text = text.replace(long, short)
    return text


def told(line, measure=""):
    """A line of the ledger: verdict, number and measure, or where a proof stands, or what is missing.

    The measure is left out where it is that of the line before.
    """
    judged, setting = ledger.judge(line), brief(line["setting"])
    if judged.values:
        what = "" if line["measure"] == measure else f" {brief(line['measure'])}"
        return f"**{judged.word}, {ledger.words(judged.values)}**{what} ({setting})"
    if judged.word == ledger.OPEN:
        return f"**{judged.word}**, {judged.reason or 'not tried'} ({setting})"
    return f"**{judged.word}**, {setting}: {line['place']}"


def entry(row, where=False):
    """A sentence with its verdict and its lines, as an item of a list; `where` adds paper and section."""
    head = f"- {row['sentence']}" + f" ({section(row, row['section'])})" * where
    if len(row["lines"]) == 1:
        return f"{head}: {told(row['lines'][0])}"
    measures = ["", *(line.get("measure") for line in row["lines"])]
    return f"{head}: *{ledger.verdict(row)}*\n" + "\n".join(
        f"  - {told(line, before)}" for line, before in zip(row["lines"], measures)
    )


def section(row, name):
    """Where a sentence stands: the paper, and the name of a section, or what quotes it."""
    return f"{PAPERS[row['paper']]}, {'section ' * name[0].isdigit()}{name}"


def group(row):
    """The section without its subsection; summaries of the second paper are one."""
    return section(row, re.split(r" \(|,| of ", row["section"])[0])


def folded(title, rows):
    """A block of a section, closed, with how many of its sentences have which verdict."""
    found = Counter(map(ledger.verdict, rows))
    counts = ", ".join(f"{found[word]} {word}" for word in ledger.WORDS if found[word])
    entries = "\n".join(map(entry, rows))
    return f"```{{admonition}} {title}: {counts}\n:class: dropdown\n\n{entries}\n```"


def lists():
    """The sentences that fail, and below them the others, folded by section."""
    rows = [row for paper in PAPERS for row in ledger.by_verdict(paper)]
    failed = [entry(row, where=True) for row in rows if ledger.verdict(row) in FAILED]
    rest = sorted((row for row in rows if ledger.verdict(row) not in FAILED), key=group)
    blocks = [folded(title, [*some]) for title, some in groupby(rest, group)]
    return ["### What did not hold", "\n".join(failed), "### The rest, by section", *blocks]


def page(text):
    """The conclusion with the counts of the ledger, and its sentences."""
    before, after = text.split(MARKS[0])[0], text.split(MARKS[1])[1]
    return "\n\n".join([before + MARKS[0].strip(), ledger.counted().data, *lists(), MARKS[1] + after])


def table():
    """The lines of the ledger as CSV."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(ledger.details())
    return text.getvalue()


if __name__ == "__main__":
    TABLE.write_text(table(), encoding="utf-8")
    FILE.write_text(page(FILE.read_text(encoding="utf-8")), encoding="utf-8")
