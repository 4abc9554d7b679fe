"""The directive `opening`, which shows a figure of the page where the page opens: its answer, before the code of it.

    ```{opening} fig-name
    ```

The picture is that of the figure with this name, further down, and a link to it. The line below it names the figure,
whose caption explains what is seen.
"""

from docutils import nodes
from sphinx.addnodes import pending_xref
from sphinx.transforms.post_transforms import SphinxPostTransform
from sphinx.util import logging
from sphinx.util.docutils import SphinxDirective


class Place(nodes.General, nodes.Element):
    """Where the picture will be; its attribute `figure` names it."""


class Opening(SphinxDirective):
    """{opening} NAME of a figure of the same page."""

    required_arguments = 1

    def run(self):
        """The place."""
        return [Place(figure=self.arguments[0])]


def picture(figure):
    """A copy of a figure's first image, as a link to the figure."""
    image = next(figure.findall(nodes.image)).deepcopy()
    image["ids"], image["names"] = [], []
    return nodes.reference("", "", image, internal=True, refid=figure["ids"][0])


def caption(name, page):
    """The line "Fig. 4.1, explained below", with the number as a link, which Sphinx fills in."""
    number = {"refdomain": "std", "reftype": "numref", "reftarget": name, "refdoc": page}
    link = pending_xref("", nodes.inline(), refexplicit=False, refwarn=True, **number)
    return nodes.inline("", "", link, nodes.Text(", explained below"))


class Pictures(SphinxPostTransform):
    """Fills the places, once it is known which form of an output is shown."""

    default_priority = 5  # myst_nb chooses that at 4, and Sphinx resolves references at 10

    def run(self):
        """Called by Sphinx for every page."""
        figures = {name: one for one in self.document.findall(nodes.figure) for name in one["ids"]}
        for place in [*self.document.findall(Place)]:
            name = place["figure"]
            if name in figures:
                shown = picture(figures[name]), caption(name, self.env.docname)
                place.replace_self(nodes.paragraph("", "", *shown, classes=["opening"]))
            else:
                place.replace_self([])
                logging.getLogger(__name__).warning("The page has no figure %s", name, location=place)


def setup(app):
    """Called by Sphinx."""
    app.add_directive("opening", Opening)
    app.add_node(Place)
    app.add_post_transform(Pictures)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
