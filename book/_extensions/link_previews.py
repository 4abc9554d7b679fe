"""What a shared link to a page shows: its title, its first sentences, and the picture of the first page."""

from html import escape

from docutils import nodes

PICTURE = "_static/preview.jpg"  # drawn by scripts/opening.py
MOST = 200  # characters of a description


def first_words(document):
    """The beginning of a page's first paragraph that is no quotation, at most so long, in whole words."""
    free = (one for one in document.findall(nodes.paragraph) if isinstance(one.parent, nodes.section | nodes.document))
    text = " ".join(next(free, nodes.paragraph()).astext().split())
    return text if len(text) <= MOST else text[:MOST].rsplit(" ", 1)[0] + " …"


def tags(title, words, picture):
    """The elements <meta> of a page, for search engines and for previews of links."""
    named = {"og:title": title, "og:description": words, "og:type": "website", "og:image": picture}
    yield f'<meta name="description" content="{escape(words)}">'
    yield '<meta name="twitter:card" content="summary_large_image">'
    yield from (f'<meta property="{name}" content="{escape(value)}">' for name, value in named.items())


def add(app, name, template, context, document):
    """Called by Sphinx for every page. A preview of a link needs the picture's full address, hence the book's own."""
    if document is not None:
        address = app.config.html_baseurl.rstrip("/")
        picture = f"{address}/{PICTURE}" if address else context["pathto"](PICTURE, 1)
        title = document.next_node(nodes.title).astext()
        context["metatags"] = "\n".join([context.get("metatags", ""), *tags(title, first_words(document), picture)])


def setup(app):
    """Called by Sphinx."""
    app.connect("html-page-context", add)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
