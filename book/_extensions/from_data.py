"""What pages show of `data`, of the code and of each other: directives for names, verdicts, docstrings and widgets."""

import json
import re
from pathlib import Path

from docutils import nodes
from docutils.parsers.rst import directives
from sphinx.util.docutils import SphinxDirective

from lab import ledger, registry, report


def kinds():
    """A table with a line for each kind."""
    rows = [
        [one.name, one.bounds + ", whole" * one.whole, one.meaning]
        for one in registry.load().kinds.values()
    ]
    yield report.table(["kind", "values", "what it is"], *rows).data


def placeholders():
    """An item for each placeholder."""
    for name, (values, meaning) in registry.load().placeholders.items():
        listed = ", ".join(
            {"<number>": "any number", "": "nothing"}.get(v, f"`{v}`") for v in alternatives(values)
        )
        yield from (f"- `<{name}>`: {listed}\\", f"  {meaning}")


def names():
    """A section for each topic, with an item for each quantity."""
    for one in registry.load().entries:
        if isinstance(one, dict):
            yield from ("", f"### {one['topic']}", "", one["about"], "")
            continue
        bounds = one.kind.bounds.replace("∞)", f"`{one.most}`]") if one.most else one.kind.bounds
        baseline = f" Baseline: {one.baseline}." * bool(one.baseline)
        where = f" For each {', '.join(f'`{name}`' for name in one.where)}." * bool(one.where)
        exactly = " Repeats exactly." * (one.repeats == "exactly")
        yield "- " + ", ".join(f"`{name}`" for name in alternatives(one.name)) + "\\"
        yield f"  *{one.kind.name}* in {bounds}. {one.meaning}{baseline}{where}{exactly}"


def alternatives(pattern):
    """The alternatives of a pattern."""
    return pattern.replace(" ", "").split("|")


ROOT = Path(__file__).parents[2]
FUNCTIONS = """
<details><summary><code>{name}</code></summary>

```{{eval-rst}}
.. automodule:: {module}
```

</details>
"""


class Modules(SphinxDirective):
    """The functions of files, {modules} utils/kernels/*.py, for example, each of which opens."""

    required_arguments, final_argument_whitespace = 1, True

    def run(self):
        """The nodes of the files."""
        files = [
            path for pattern in self.arguments[0].split() for path in sorted(ROOT.glob(pattern))
        ]
        modules = [
            ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
            for path in files
        ]
        return self.parse_text_to_nodes(
            "\n".join(FUNCTIONS.format(name=name, module=name) for name in modules)
        )


PARTS = {
    "quantities": {"kinds": kinds, "names": names, "placeholders": placeholders},
    "verdicts": {"counts": lambda: [ledger.counts()], "lists": lambda: [ledger.lists()]},
}


class Part(SphinxDirective):
    """A part of a page, {quantities} kinds, for example."""

    required_arguments = 1

    def run(self):
        """The nodes of the part."""
        for file in (registry.FILE, ledger.FILE):
            self.env.note_dependency(str(file))
        text = "\n".join(PARTS[self.name][self.arguments[0]]())
        return self.parse_text_to_nodes(text, allow_section_headings=True)


class Claims(SphinxDirective):
    """Sentences of the papers as cards that lead to their verdicts, {claims} no-breach luck, for example."""

    required_arguments, final_argument_whitespace = 1, True

    def run(self):
        """A list of the cards."""
        self.env.note_dependency(str(ledger.FILE))
        rows = {row.id: row for row in ledger.load()}
        chosen = [rows[name] for name in self.arguments[0].split()]
        return [nodes.bullet_list("", *map(self.card, chosen), classes=["claims"])]

    def card(self, row):
        """An item whose classes say the verdict."""
        parts = self.parse_text_to_nodes(ledger.card(row))
        return nodes.list_item("", *parts, classes=ledger.classes(row).split())


class Widget(SphinxDirective):
    """What a chapter shows as the element with an id, {widget} affine-model plant, for example.

    `only` names the pictures that are shown of it, by the first words of their texts; `file` holds its first picture,
    which takes a quarter less there than in the page.
    """

    required_arguments = 2
    option_spec = {"only": directives.unchanged, "file": directives.unchanged}

    def run(self):
        """The HTML that the chapter made."""
        chapter, name = self.arguments
        path = ROOT / "book" / f"{chapter}.ipynb"
        self.env.note_dependency(str(path))
        [text] = [text for text in made_by(path) if f'<div id="{name}"' in text]
        if words := self.options.get("only"):
            text = "".join(re.findall(f'<img alt="{words}[^>]*>', text))
        if file := self.options.get("file"):
            above, alt, below = re.split(r'<img src="data:[^"]*" alt="([^"]*)">', text, maxsplit=1)
            picture = nodes.image("", uri=file, alt=alt)
            return [html(above), picture, html(below)]
        return [html(text)]


def html(text):
    """A part of a page that is HTML already."""
    return nodes.raw("", text, format="html")


def made_by(path):
    """The HTML of every output of a notebook."""
    for cell in json.loads(path.read_text("utf-8"))["cells"]:
        for output in cell.get("outputs", []):
            yield "".join(output.get("data", {}).get("text/html", ""))


def close(app, document):
    """Called by Sphinx when a page was read: at the end of a chapter, what it judges, and where each verdict stands."""
    page = app.env.docname.rpartition("/")[2]
    if judged := ledger.summed(page):
        address = f"reference.html?on={page}#sec-verdicts"
        link = nodes.reference("", "Each sentence, with its numbers", refuri=address, internal=True)
        line = nodes.paragraph("", "", nodes.Text(f"{judged} "), link, nodes.Text("."))
        title = nodes.title("", "Verdicts")
        next(document.findall(nodes.section)).append(
            nodes.admonition("", title, line, classes=["verdicts"])
        )


def setup(app):
    """Called by Sphinx."""
    app.connect("doctree-read", close)
    app.add_directive("modules", Modules)
    app.add_directive("claims", Claims)
    app.add_directive("widget", Widget)
    for name in PARTS:
        app.add_directive(name, Part)
    return {"parallel_read_safe": True}
