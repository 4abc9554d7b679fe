"""How a table reads: what is printed above it becomes its caption, and the range of a number is in lighter type."""

import re

from docutils import nodes

RANGE = re.compile(r"(\[[^\[\]]*\d[^\[\]]*\])")  # as in 24.4 [18, 29]


def lay_out(app, document):
    """Called by Sphinx when a page was read, before its tables are numbered."""
    for table in document.findall(nodes.table):
        above = table.parent[table.parent.index(table) - 1]
        if printed(table.parent) and isinstance(above, nodes.paragraph):
            table.parent.remove(above)
            table.insert(0, nodes.title("", "", *above.children))
            document.set_id(table)  # without one Sphinx gives no number
    for entry in document.findall(nodes.entry):
        for text in list(entry.findall(nodes.Text)):
            lighten(text)


def printed(parent):
    """Whether a node is what one cell printed as Markdown."""
    return parent.get("mime_type") == "text/markdown"


def lighten(text):
    """Give a class to the ranges in the text of a cell of a table."""
    parts = RANGE.split(text)
    if len(parts) > 1 and isinstance(text.parent, nodes.paragraph | nodes.strong | nodes.entry):
        marked = [
            nodes.inline("", part, classes=["range"]) if RANGE.fullmatch(part) else nodes.Text(part)
            for part in parts
            if part
        ]
        text.parent.replace(text, marked)


def setup(app):
    """Called by Sphinx."""
    app.connect("doctree-read", lay_out)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
