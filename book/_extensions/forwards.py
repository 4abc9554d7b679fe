"""Old addresses of pages lead to the pages of book/moved.yaml: a small file for each, written beside them."""

from pathlib import Path

import yaml

PAGE = """<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><title>This page has moved</title>
<meta http-equiv="refresh" content="0; url={new}.html"><link rel="canonical" href="{new}.html"></head>
<body><main><h1>This page has moved</h1><p>Its contents are in <a href="{new}.html">{new}</a>.</p></main></body></html>
"""


def write(folder, moved):
    """A page for each old name of {old: new} in a folder; none takes the place of a page that is there."""
    for old, new in moved.items():
        if not (folder / f"{old}.html").exists():
            (folder / f"{old}.html").write_text(PAGE.format(new=new), encoding="utf-8")


def finish(app, exception):
    """Called when all pages are written."""
    if exception is None and app.builder.name == "html":
        text = (Path(app.srcdir) / "book" / "moved.yaml").read_text(encoding="utf-8")
        write(Path(app.outdir) / "book", yaml.safe_load(text))


def setup(app):
    """Called by Sphinx."""
    app.connect("build-finished", finish)
    return {"parallel_read_safe": True}
