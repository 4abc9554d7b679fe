"""Recorded numbers in sentences: each is followed by a comment that names it, `47 to 50<!-- plain -->`, and is checked.

A reader of a page, of a notebook in Jupyter or of a file on GitHub sees no comment. `data/numbers.yaml` says what the
names stand for.
"""

import functools
import json
import operator
import re
from fnmatch import fnmatch
from pathlib import Path
from statistics import mean

import pandas
import yaml
from docutils import nodes
from sphinx.util import logging

from evaluation import notation
from lab import ledger
from utils.errors import InputError

DATA = Path(__file__).parents[2] / "data"
MARK = re.compile(r"(?<=[\w%\])])<!-- (\w+):?(\S*) -->")  # attached to what it names


def ends(found):
    """“41 to 46”, or one number for all."""
    return f"{min(found):g}" if min(found) == max(found) else f"{min(found):g} to {max(found):g}"


HOW = {
    "ends": ends,
    "percents": lambda found: f"{ends([round(100 * share) for share in found])} %",
    "thousandths": lambda found: ends([round(1000 * share) for share in found]),
    "areas": lambda found: f"{min(found):.2f} to {max(found):.2f}",
    "words": notation.mean_with_range,
    "mean": mean,
    "count": len,
    "sum": sum,
}
COUNTED = {"is": operator.eq, "above": operator.gt, "below": operator.lt}  # “is 50”: how many are


def values(records, names, where, column):
    """The numbers of a column of all quantities whose names match; `where` names parameters of the runs."""
    rows = pandas.concat(map(ledger.record_of, records.split())).reset_index()
    rows["gain"] = rows.value - rows.baseline
    wanted = [one for one in rows.name.unique() if any(fnmatch(one, of) for of in names.split())]
    matches = rows.name.isin(wanted)
    for key, value in where.items():
        matches &= rows[key] == value
    found = rows[column][matches].tolist()
    if len(found) < (least := notation.SEEDS):
        raise InputError(f"{records} has {len(found)} values of {names}, but {least} are needed.")
    return found


def said(how, records, names, where=None):
    """What is said of recorded numbers, of their null or of the gain on it, as `data/numbers.yaml` names them."""
    columns = {"null": "baseline", "gain": "gain"}
    first, _, rest = how.partition(" ")
    word, _, number = (rest if first in columns else how).partition(" ")
    some = values(records, names, where or {}, columns.get(first, "value"))
    return sum(COUNTED[word](one, float(number)) for one in some) if number else HOW[word](some)


@functools.cache
def numbers(file=DATA / "numbers.yaml"):
    """{name: number, or what is said of it} of a file."""
    found = {}
    for name, of in yaml.safe_load(file.read_text("utf-8"))["numbers"].items():
        found[name] = eval(of, {}, found) if isinstance(of, str) else said(*of)
    return found


def mistakes(path):
    """A sentence for each named number of a file that is not the recorded one."""
    text = Path(path).read_text("utf-8")
    if str(path).endswith(".ipynb"):
        cells = json.loads(text)["cells"]
        text = "\n".join("".join(one["source"]) for one in cells if one["cell_type"] == "markdown")
    text = " ".join(text.split())
    for mark in MARK.finditer(text):
        name, form = mark.groups()
        right = format(numbers()[name], form) if name in numbers() else "in no record"
        told = text[: mark.start()]
        if not re.search(rf"(?<![\d.,])(?<!\d to ){re.escape(right)}$", told):
            yield f"“{told[-40:]}” is named {name}, which is {right}"


def check(app, env, pages):
    """Called by Sphinx before it reads pages: a wrong number is a warning."""
    for page in pages:
        for mistake in mistakes(env.doc2path(page)):
            logging.getLogger(__name__).warning(mistake, location=page)


def clear(app, document):
    """Called by Sphinx when a page was read: leave the comments out."""
    for part in [*document.findall(nodes.raw)]:
        if part.astext().startswith("<!--"):
            part.parent.remove(part)


def setup(app):
    """Called by Sphinx."""
    app.connect("env-before-read-docs", check)
    app.connect("doctree-read", clear)
    return {"parallel_read_safe": True}
