"""The page that `make lab` opens leads to every notebook of the book."""

import re
import subprocess
import sys
from pathlib import Path

import nbformat

ROOT = Path(__file__).parent.parent


def test_the_start_page_links_every_notebook_and_names_its_question(tmp_path):
    path = tmp_path / "deep" / "start.ipynb"
    subprocess.run([sys.executable, "scripts/start_page.py", path], cwd=ROOT, check=True)
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    [cell] = notebook.cells
    linked = re.findall(r"^\| \[([\w-]+)\]\(\.\./book/([\w-]+\.ipynb)\) \| .+ \|$", cell.source, re.M)
    pages = re.findall(r"file: book/(\S+)", (ROOT / "_toc.yml").read_text())
    assert {name for name, _ in linked} == {page for page in pages if (ROOT / "book" / f"{page}.ipynb").exists()}
    assert all(file == f"{name}.ipynb" for name, file in linked) and "{doc}" not in cell.source
