"""What pages say of the book itself: how it is cloned, how each page is cited, and where a dead link leads.

A fork writes its addresses into `_config.yml`; without them pages speak of a clone, and a citation has no address.
"""

import re
from pathlib import Path

import yaml
from docutils import nodes

FILE = Path(__file__).parents[2] / "CITATION.cff"
CLONE = re.compile("^git clone ADDRESS.*\n", re.M)


def cited(page, title, address):
    """BibTeX of a page, or of the whole book where it has no title; an empty address is left out."""
    book = yaml.safe_load(FILE.read_text("utf-8"))
    fields = {
        "author": " and ".join(map(author, book["authors"])),
        "title": title or book["title"],
        "booktitle": title and book["title"],
        "note": f"Version {book['version']}",
        "year": book["date-released"].year,
        "url": address,
    }
    lines = [f"  {name} = {{{value}}}," for name, value in fields.items() if value]
    kind = "incollection" if title else "misc"
    return "\n".join([f"@{kind}{{reconstruction-{page.rpartition('/')[2]},", *lines, "}"])


def author(one):
    """An author of the file as BibTeX: a name that stays whole, or that of a person."""
    return f"{{{one['name']}}}" if "name" in one else f"{one['family-names']}, {one['given-names']}"


def place(app, page, template, context, document):
    """Called by Sphinx before it writes a page."""
    base = app.config.html_baseurl
    if title := app.env.titles.get(page):
        whole = page == app.config.root_doc
        context["citation"] = cited(
            page, "" if whole else title.astext(), base and f"{base}{page}.html"
        )
    if page == "404" and base:  # its links hold at any depth
        context["metatags"] = f'<base href="{base}">'


def clone(app, document):
    """Called by Sphinx when a page was read: commands begin with the clone where its address is known."""
    address = app.config.html_theme_options.get("repository_url")
    for block in document.findall(nodes.literal_block):
        if CLONE.search(text := block.astext()):
            block.rawsource = text.replace("ADDRESS", address) if address else CLONE.sub("", text)
            block[:] = [nodes.Text(block.rawsource)]


def setup(app):
    """Called by Sphinx."""
    app.connect("html-page-context", place)
    app.connect("doctree-read", clone)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
