"""Docstrings here are plain text: keep Sphinx from reading marks of reStructuredText in them, and show fields."""

import inspect
import itertools
import re


def plain(line):
    """The line with every mark escaped, but `names` as code."""
    escaped = re.sub(r"([\\*_|])", r"\\\1", line)
    return re.sub(
        r"`([^`]+)`", lambda name: r"\ ``" + re.sub(r"\\(.)", r"\1", name[1]) + r"``\ ", escaped
    )


def paragraphs(lines):
    """Text as it is, and blocks that are indented as they stand."""
    shown = []
    for indented, block in itertools.groupby(lines, lambda line: line.startswith("    ")):
        text = [line if indented else plain(line) for line in block]
        shown += ["", "::", "", *text, ""] if indented else text
    return shown


def fields(thing):
    """What the comments of a tuple with names say of its fields, as a list."""
    field = r"^(?:    # (.*)\n)?    (\w+): .*?(?:  # (.*))?$"
    parts = re.findall(field, inspect.getsource(thing), re.M)
    return [
        f"- ``{name}``: {plain(above or text)}".removesuffix(": ") for above, name, text in parts
    ]


def process(app, what, name, thing, options, lines):
    """Replace the lines of a docstring by what reads the same as reStructuredText."""
    lines[:] = paragraphs(lines)
    if what == "class" and hasattr(thing, "_fields"):
        lines += ["", *fields(thing), ""]


def skip(app, what, name, thing, skipped, options):
    """Leave out what every tuple with names has."""
    return True if name.startswith("_") or type(thing).__name__ == "_tuplegetter" else None


def setup(app):
    """Called by Sphinx."""
    app.connect("autodoc-process-docstring", process)
    app.connect("autodoc-skip-member", skip)
    return {"parallel_read_safe": True}
