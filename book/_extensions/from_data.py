"""What pages show of `data` and of the code: directives for the registry of names, the ledger and the docstrings."""

from pathlib import Path

from docutils import nodes
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
    for name in PARTS:
        app.add_directive(name, Part)
    return {"parallel_read_safe": True}
