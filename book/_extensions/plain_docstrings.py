"""Docstrings here are plain text: keep Sphinx from reading marks of reStructuredText in them, and show fields."""

import inspect
import itertools
import re
import sys


def plain(line):
    """The line with every mark escaped, but `names` as code."""
    escaped = re.sub(r"([\\*_|])", r"\\\1", line)
    return re.sub(r"`([^`]+)`", lambda name: r"\ ``" + re.sub(r"\\(.)", r"\1", name[1]) + r"``\ ", escaped)


def paragraphs(lines):
    """Text as it is, and blocks that are indented as they stand."""
    shown = []
    for indented, block in itertools.groupby(lines, lambda line: line.startswith("    ")):
        said = [line if indented else plain(line) for line in block]
        shown += ["", "::", "", *said, ""] if indented else said
    return shown


def fields(found):
    """What the comments of its file say of a tuple with names: a paragraph, or a list of the fields."""
    source = inspect.getsource(sys.modules[found.__module__]).splitlines()
    for k, line in enumerate(source):
        if line.startswith(f"{found.__name__} = namedtuple("):
            above = [*itertools.takewhile(lambda text: text.startswith("#"), reversed(source[:k]))]
            return [" ".join(plain(part.partition("# ")[2]) for part in [*reversed(above), line])]
        if line.startswith(f"class {found.__name__}("):
            parts = re.findall(r"^    (\w+): .*?(?:  # (.*))?$", inspect.getsource(found), re.M)
            return [f"- ``{name}``: {plain(said)}" if said else f"- ``{name}``" for name, said in parts]
    return []


def process(app, what, name, found, options, lines):
    """Replace the lines of a docstring by what reads the same as reStructuredText."""
    lines[:] = paragraphs(lines)
    if what == "class" and hasattr(found, "_fields"):
        if found.__doc__.startswith(f"{found.__name__}("):  # made by namedtuple
            lines.clear()
        lines += ["", *fields(found), ""]


def skip(app, what, name, found, skipped, options):
    """Leave out what every tuple with names has."""
    return True if name.startswith("_") or type(found).__name__ == "_tuplegetter" else None


def setup(app):
    """Called by Sphinx."""
    app.connect("autodoc-process-docstring", process)
    app.connect("autodoc-skip-member", skip)
    return {"parallel_read_safe": True}
