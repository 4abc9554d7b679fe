"""Put the verdicts of all chapters into book/conclusion.md, from the outputs that the chapters have."""

import json
import re
from pathlib import Path

BOOK = Path(__file__).parent.parent / "book"
HEAD = "| sentence | verdict | recorded |"
MARKS = "<!-- verdicts -->\n", "<!-- end -->"
ORDER = ("held", "did not hold", "proved", "refuted by proof", "cannot be checked")


def verdicts(path):
    """The rows of a chapter's tables of verdicts: pairs of a sentence and its verdict."""
    for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
        for output in cell.get("outputs", []):
            text = "".join(output.get("data", {}).get("text/markdown", ""))
            if text.startswith(HEAD):
                for line in text.splitlines()[2:]:
                    yield [part.strip() for part in re.split(r"(?<!\\)\|", line)[1:3]]


def short(stem):
    """The number of a chapter, or the name of another page."""
    number = stem.split("-")[0]
    return str(int(number)) if number.isdigit() else stem.replace("-", " ")


def page(text, chapters):
    """The conclusion with a table of every verdict, in the order of ORDER, and how many there are of each."""
    rows = [(*row, path.stem) for path in chapters for row in verdicts(path)]
    rows.sort(key=lambda row: ORDER.index(row[1]))  # stable: chapters stay in order
    counts = [f"{sum(row[1] == word for row in rows)} {word}" for word in ORDER]
    lines = [f"| {sentence} | {verdict} | {{doc}}`{short(stem)} <{stem}>` |" for sentence, verdict, stem in rows]
    table = "\n".join(["| sentence | verdict | chapter |", "| --- | --- | --- |", *lines])
    before, after = text.split(MARKS[0])[0], text.split(MARKS[1])[1]
    said = f"Of {len(rows)} entries: {', '.join(counts)}."
    return f"{before}{MARKS[0]}\n{said}\n\n{table}\n\n{MARKS[1]}{after}"


if __name__ == "__main__":
    file = BOOK / "conclusion.md"
    file.write_text(page(file.read_text(encoding="utf-8"), sorted(BOOK.glob("*.ipynb"))), encoding="utf-8")
