"""Directives for what pages show of `data`: `quantities` of the registry of names, and `verdicts` of the ledger."""

from pathlib import Path

from sphinx.util.docutils import SphinxDirective

from lab import ledger, ledger_page
from utils.quantities import load


def kinds(registry):
    """A table with a line for each kind."""
    yield from ("| kind | values | what it is |", "| --- | --- | --- |")
    for kind in registry.kinds.values():
        yield f"| {kind.name} | {kind.bounds}{', whole' * kind.whole} | {kind.meaning} |"


def placeholders(registry):
    """An item for each placeholder."""
    for one in registry.placeholders.values():
        values = ", ".join("any number" if value == "<number>" else f"`{value}`" for value in one.values)
        yield from (f"- `<{one.name}>`: {values}\\", f"  {one.meaning}")


def names(registry):
    """A section for each topic, with an item for each quantity."""
    for topic in registry.topics:
        yield from (f"## {topic.title}", "", topic.about, "")
        for one in topic.quantities:
            bounds = one.kind.bounds.replace("∞)", f"`{one.most}`]") if one.most else one.kind.bounds
            baseline = f" Baseline: {one.baseline}." * bool(one.baseline)
            exactly = " Repeats exactly." * (one.repeats == "exactly")
            yield from (f"- `{one.name}`\\", f"  *{one.kind.name}* in {bounds}. {one.meaning}{baseline}{exactly}")
        yield ""


class Quantities(SphinxDirective):
    """{quantities} kinds, placeholders or names."""

    required_arguments = 1

    def run(self):
        """The nodes of the part."""
        path = Path(self.env.srcdir) / "data" / "quantities.yaml"
        self.env.note_dependency(str(path))
        part = {"kinds": kinds, "placeholders": placeholders, "names": names}[self.arguments[0]]
        return self.parse_text_to_nodes("\n".join(part(load(path))), allow_section_headings=True)


class Verdicts(SphinxDirective):
    """{verdicts} counts or lists."""

    required_arguments = 1

    def run(self):
        """The nodes of the part."""
        self.env.note_dependency(str(ledger.FILE))
        part = {"counts": ledger_page.counts, "lists": ledger_page.lists}[self.arguments[0]]
        return self.parse_text_to_nodes(part(), allow_section_headings=True)


def setup(app):
    """Called by Sphinx."""
    app.add_directive("quantities", Quantities)
    app.add_directive("verdicts", Verdicts)
    return {"parallel_read_safe": True}
