"""A paragraph of the class `opening` shows the figure that it names further up: a page's answer, before its code."""

from docutils import nodes


def add(app, document, page):
    """Called by Sphinx for every page, when its references are resolved."""
    figures = {name: figure for figure in document.findall(nodes.figure) for name in figure["ids"]}
    for line in document.findall(nodes.paragraph):
        if "opening" in line["classes"]:
            link = next(line.findall(nodes.reference))
            name = (link.get("refid") or link["refuri"]).rpartition("#")[2]
            image = next(figures[name].findall(nodes.image)).deepcopy()
            image["ids"], image["names"] = [], []
            line[:] = [nodes.reference("", "", image, internal=True, refid=name), nodes.inline("", "", *line.children)]


def setup(app):
    """Called by Sphinx."""
    app.connect("doctree-resolved", add)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
