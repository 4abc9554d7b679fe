"""How a chapter reads: a figure opens it, its length stands under its title, and what is folded has a name.

The first figure that a chapter names before its first section moves there. Cells tagged `setup` are one fold. Every
other fold is named after the figure or the table that it makes.
"""

import itertools
import math

from docutils import nodes
from myst_nb.sphinx_ import HideCodeCellNode

SPEED = 220  # words a minute, with equations between them


def lay_out(app, document):
    """Called by Sphinx when a page was read, before its figures are numbered."""
    cells = [
        node for node in document.findall(nodes.container) if node.get("nb_element") == "cell_code"
    ]
    if cells:
        open_with_figure(next(document.findall(nodes.section)))
        tell_time(document)
        fold_setup(cells)


def open_with_figure(chapter):
    """Move the first figure that the chapter names before its sections behind the paragraph that names it."""
    figures = {name: figure for figure in chapter.findall(nodes.figure) for name in figure["ids"]}
    head = itertools.takewhile(lambda node: not isinstance(node, nodes.section), chapter.children)
    for line in list(head):
        for link in line.findall(
            lambda node: isinstance(node, nodes.Element) and node.get("reftype") == "numref"
        ):
            if (figure := figures.get(link["reftarget"])) and figure.parent is not chapter:
                figure.parent.remove(figure)
                chapter.insert(chapter.index(line) + 1, figure)
                return


def tell_time(document):
    """Put how long the page takes to read, from its words, under its title; previews of links leave out what is raw."""
    words = sum(len(part.astext().split()) for part in document.findall(nodes.paragraph))
    minutes = math.ceil(words / SPEED)
    title = next(document.findall(nodes.title))
    told = f'<p class="reading">{minutes} minutes to read</p>'
    title.parent.insert(1, nodes.raw("", told, format="html"))


def fold_setup(cells):
    """One fold for neighbouring cells tagged `setup`."""
    for cell in [cell for cell in cells if "tag_setup" in cell["classes"]]:
        above = cell.parent[cell.parent.index(cell) - 1]
        if above.get("prompt_show") == "Setup":
            above += cell.children
            cell.parent.remove(cell)
        else:
            cell.update_all_atts(
                {"hide_mode": "all", "prompt_show": "Setup", "prompt_hide": "Setup"}, replace=True
            )


def name_folds(app, document, page):
    """Called by Sphinx when figures have numbers: say of each fold what its code makes."""
    numbers = app.env.toc_fignumbers.get(page, {}).get("figure", {})
    for cell in document.findall(
        lambda node: isinstance(node, nodes.container) and "cell_metadata" in node
    ):
        figure = cell["cell_metadata"].get("mystnb", {}).get("figure", {}).get("name")
        if figure in numbers:
            name = f"Code for Fig. {'.'.join(map(str, numbers[figure]))}"
        else:
            name = "Code for the table" if next(cell.findall(nodes.table), None) else "Code"
        for fold in cell.findall(HideCodeCellNode):
            if fold["prompt_show"].startswith("Show code cell"):
                fold["prompt_show"] = fold["prompt_hide"] = name


def setup(app):
    """Called by Sphinx."""
    app.connect("doctree-read", lay_out)
    app.connect("doctree-resolved", name_folds)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
