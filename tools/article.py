"""Builds the article: writes recorded numbers into article/article.typ, draws its figures, and calls Typst.

There ⟨name⟩ is a number of data/numbers.yaml or article/numbers.yaml, ⟨name:.1f⟩ the same in a format of Python.
⟨id.verdict⟩, ⟨id.words⟩ and ⟨id.2⟩ are of a sentence in data/claims.yaml: its verdict, its words, and the numbers of
its second line.
"""

import datetime
import json
import os
import re
import sys
import tomllib
from collections import ChainMap, Counter
from itertools import chain
from pathlib import Path

import yaml

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "book" / "_extensions")]

import article_figures  # noqa: E402
import sentences  # noqa: E402

from evaluation import evaluate, notation  # noqa: E402
from lab import ledger  # noqa: E402

MARK = re.compile(r"⟨([\w-]+)(?:\.(\w+)|:(\S+))?⟩")
NEEDED = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]


def numbers():
    """{name: number} of the book and the article; counts of verdicts and records; what the paper's Table 1 prints."""
    told = [(row.paper, ledger.verdict(row).replace(" ", "_")) for row in ledger.load()]
    counted: dict[str, int | float | str] = {
        f"{word}_{paper}": told.count((paper, word)) for paper, word in {*told}
    }
    files = (ROOT / "data" / "results").glob("*.json")
    about = [json.loads(path.read_text("utf-8")) for path in files]
    counted |= {"records": len(about), "runs": sum(one["runs"] for one in about)}
    counted |= {f"sentences_{paper}": [of for of, _ in told].count(paper) for paper in (1, 2)}
    for model, row in evaluate.TABLE_1.items():
        counted |= {f"printed_{model}_{place}": f"{1000 * one:.5g}" for place, one in row.items()}
    counted["hours"] = sum(one["hours"] for one in about)
    counted["hours_gpu"] = sum(one["hours"] for one in about if "cuda" in one["devices"])
    parts = [sentences.numbers(), sentences.numbers(article_figures.OWN), counted]
    if twice := [name for name, of in Counter(chain(*parts)).items() if of > 1]:
        raise KeyError(f"two numbers have one name: {twice}")
    return dict(ChainMap(*parts))


def of_claim(name, part):
    """The verdict, the words or the numbers of a line of a sentence in the ledger."""
    row = {row.id: row for row in ledger.load()}[name]
    if part == "verdict":
        return ledger.verdict(row)
    if part == "words":
        return re.sub(
            r"\$(.*?)\$", lambda math: "$" + math[1].replace("\\", "") + "$", row.sentence
        )
    if not (values := ledger.judge(row.lines[int(part) - 1]).values):
        raise KeyError(f"{name}.{part} rests on no number")
    return notation.mean_with_range(values.values())


def filled(text):
    """The text with its numbers; KeyError for a name that is unknown, or that article/numbers.yaml has for nothing."""
    known, used = numbers(), {name for name, *_ in MARK.findall(text)}
    if unused := {*sentences.numbers(article_figures.OWN)} - used:
        raise KeyError(
            f"{article_figures.OWN} has names that the article does not use: {sorted(unused)}"
        )

    def write(mark):
        name, part, form = mark.groups()
        told = of_claim(name, part) if part else format(known[name], form or "")
        if part in ("verdict", "words"):
            return told
        return re.sub(r"(?<!\d)-(?=\d)", "−", told).replace(" ", "\u00a0")  # stays on one line

    return MARK.sub(write, text)


def build(target=ROOT / "_build" / "article.pdf"):
    """Write the article as a PDF, with Typst's own fonts."""
    try:
        import typst
    except ModuleNotFoundError:
        sys.exit(
            f"Typst is missing: run .venv/bin/uv pip install {NEEDED['article'][0]}, and call make again."
        )
    folder = ROOT / "_build" / "article"
    folder.mkdir(parents=True, exist_ok=True)
    source = folder / "article.typ"
    source.write_text(filled((ROOT / "article" / "article.typ").read_text("utf-8")), "utf-8")
    article_figures.draw(folder)
    date = yaml.safe_load((ROOT / "CITATION.cff").read_text("utf-8"))["date-released"]
    day = datetime.datetime(date.year, date.month, date.day, tzinfo=datetime.UTC)
    typst.compile(source, output=target, root=ROOT, ignore_system_fonts=True, timestamp=day)
    print(f"The article is ready: {os.path.relpath(target)}")


if __name__ == "__main__":
    build()
