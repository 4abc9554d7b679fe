"""Put every sentence with its verdict into book/conclusion.md, from the ledger: `python -m scripts.verdict_page`.

All that the ledger says of each line goes into book/verdicts.csv, which the page hands out.
"""

import csv
import io
from pathlib import Path

from utils.notebook import ledger

FILE = Path(__file__).parent.parent / "book" / "conclusion.md"
TABLE = FILE.with_name("verdicts.csv")
MARKS = "<!-- verdicts -->\n", "<!-- end -->"
PAPERS = {1: "The first paper", 2: "The second paper"}


def page(text):
    """The conclusion with the counts of the ledger, and a table for each paper."""
    tables = [f"### {title}\n\n{ledger.page(paper).data}" for paper, title in PAPERS.items()]
    before, after = text.split(MARKS[0])[0], text.split(MARKS[1])[1]
    return "\n\n".join([before + MARKS[0].strip(), ledger.counted().data, *tables, MARKS[1] + after])


def table():
    """The lines of the ledger as CSV."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(ledger.details())
    return text.getvalue()


if __name__ == "__main__":
    TABLE.write_text(table(), encoding="utf-8")
    FILE.write_text(page(FILE.read_text(encoding="utf-8")), encoding="utf-8")
