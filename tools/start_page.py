"""Write the page that `make lab` opens: every notebook of the book and its question, from the map of book/reference.md.

.venv/bin/python tools/start_page.py _build/start.ipynb
"""

import re
import sys
from pathlib import Path

import nbformat

BOOK = Path(__file__).resolve().parent.parent / "book"
ROW = re.compile(r"^\| \{doc\}`([\w-]+)` \| (.+?) \|$", re.M)
HEAD = """# Training data reconstruction

Choose a notebook. In each of them the second code cell holds the parameters; change them, then *Run → Run All Cells*.
Most take about a minute. Your own pictures, or published weights: [try-your-own](../book/try-your-own.ipynb).

| notebook | question |
| --- | --- |
"""


def page():
    """The notebook: one cell with a link to every other one, and its question without roles such as {doc}."""
    rows = ROW.findall((BOOK / "reference.md").read_text(encoding="utf-8"))
    rows = [(name, re.sub(r"\{[\w:]+\}`([^`]+)`", r"\1", asked)) for name, asked in rows]
    there = [(name, asked) for name, asked in rows if (BOOK / f"{name}.ipynb").exists()]
    lines = "\n".join(f"| [{name}](../book/{name}.ipynb) | {asked} |" for name, asked in there)
    kernel = {"kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"}}
    return nbformat.v4.new_notebook(
        cells=[nbformat.v4.new_markdown_cell(HEAD + lines)], metadata=kernel
    )


if __name__ == "__main__":
    target = Path(sys.argv[1])
    target.parent.mkdir(parents=True, exist_ok=True)
    nbformat.write(page(), target)
