"""“Does yours leak?”: the recorded cases of data/chooser.yaml as a list, of which a form and a script show one.

The directive {chooser} computes every number from the records. Without the script the whole list is there.
"""

import itertools
import json
import re
from dataclasses import dataclass
from html import escape
from pathlib import Path

import sentences
from docutils import nodes
from sphinx.util.docutils import SphinxDirective

from lab import grid, recorded
from utils.errors import choose, from_fields, located

ROOT = Path(__file__).parents[2]
FILE = ROOT / "data" / "chooser.yaml"
PRINTED = "book/conclusion"  # where the book on one page has the list
COSTS = dict(network=8, optimiser=4, start=3, file=2)  # of a choice that a case is not about
CASE = """
::::{{container}} case
{who}

{counts}

{shown}

**What helps:** {remedy} {{doc}}`{page}` tells more.

**Test yours:**

```text
.venv/bin/python -m audit {command}
```

Every run: {runs}.
::::
"""
PICTURE = "```{{image}} {}\n:alt: Rows of small pictures\n```\n{}"
RUNS = "{{download}}`{0} <../data/results/{0}.csv>` ({1})"


@dataclass(frozen=True, kw_only=True)
class Case:
    """What is recorded for every combination of these choices, of which blanks separate several."""

    network: str
    start: str
    optimiser: str
    file: str
    counts: dict  # {of what: the recorded numbers, as sentences.said takes them}
    remedy: str
    command: str
    page: str
    shown: str = ""  # an image, or a page that prints a text that came back


def load(path=FILE):
    """The table of a file with its cases; InputError, in one sentence, if one has an unknown choice or name."""
    table = grid.read(path)
    names = {**table["questions"], "remedy": table["remedies"], "command": table["commands"]}
    for k, fields in enumerate(table["cases"]):
        with located(f"{path.name}, case {k + 1}"):
            case = table["cases"][k] = from_fields(Case, fields)
            for field, allowed in names.items():
                for one in getattr(case, field).split():
                    choose(field, one, allowed)
    return table


def answer(cases, choices):
    """The place of the case that is nearest to choices {question: choice}, and the questions in which it differs."""
    differing = [[q for q in choices if choices[q] not in getattr(one, q).split()] for one in cases]
    place = min(range(len(cases)), key=lambda k: sum(COSTS[question] for question in differing[k]))
    return place, differing[place]


def answers(table):
    """The answer to every combination of choices, of which the last question's change first."""
    questions, combinations = table["questions"], itertools.product(*table["questions"].values())
    return [answer(table["cases"], dict(zip(questions, chosen))) for chosen in combinations]


def count(of, how, *named):
    """A line on recorded numbers, and on those of held-out images or texts."""
    back, null = sentences.said(how, *named), sentences.said(f"null {how}", *named)
    return f"- **{back}** {of}; held out: {null}"


def show(pictures, name):
    """A picture with its caption, or the first text that a page has printed as one that came back."""
    if not name or name in pictures:
        return name and PICTURE.format(name, pictures[name])
    page = (ROOT / "book" / f"{name}.ipynb").read_text(encoding="utf-8")
    text = re.search(r'"… (.+?)\\n"', page)[1].replace("`", r"\`")
    return f"A text that came back: … {text}"


def item(table, case):
    """A case, in MyST."""
    names = dict.fromkeys(
        name for _, records, *_ in case.counts.values() for name in records.split()
    )
    chosen = (
        f"{question}: {' / '.join(options[one] for one in getattr(case, question).split())}"
        for question, options in table["questions"].items()
    )
    return CASE.format(
        who=" · ".join(chosen),
        counts="\n".join(count(of, *spec) for of, spec in case.counts.items()),
        shown=show(table["pictures"], case.shown),
        remedy=table["remedies"][case.remedy],
        command=table["commands"][case.command],
        page=case.page,
        runs="; ".join(RUNS.format(name, recorded.load(name).attrs["label"]) for name in names),
    )


def form(table):
    """A form with a choice for each question, which the script shows."""
    parts = []
    for question, options in table["questions"].items():
        listed = "".join(f"<option>{escape(one)}</option>" for one in options.values())
        parts.append(f"<label>{question}<select>{listed}</select></label>")
    data = escape(json.dumps(answers(table)))
    return f'<form class="filters" data-answers="{data}" hidden>{"".join(parts)}<output></output></form>'


class Chooser(SphinxDirective):
    """The form and the list of cases."""

    def run(self):
        """The nodes of both."""
        self.env.note_dependency(str(FILE))
        if self.env.app.builder.name == "singlehtml" and self.env.docname != PRINTED:
            return self.parse_text_to_nodes(f"All cases stand in {{doc}}`/{PRINTED}`.")
        table = load()
        listed = "\n".join(item(table, case) for case in table["cases"])
        script = '<script src="../_static/chooser.js"></script>'
        parts = [
            nodes.rubric("", "Does yours leak?"),
            *self.parse_text_to_nodes(table["about"]),
            nodes.raw("", form(table), format="html"),
            *self.parse_text_to_nodes(listed),
            nodes.raw("", script, format="html"),
        ]
        return [nodes.container("", *parts, classes=["chooser"])]


def setup(app):
    """Called by Sphinx."""
    app.add_directive("chooser", Chooser)
    return {"parallel_read_safe": True}
