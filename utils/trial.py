"""What an experiment leaves behind: its numbers, for RESULTS."""

from typing import NamedTuple


class Row(NamedTuple):
    """One number of a notebook, for RESULTS."""

    name: str  # registered in data/quantities.yaml
    seed: int
    value: float
    paper: float | None = None  # the paper's value
    baseline: float | None = None  # the same number without an attack, or for held-out images
    where: dict | None = None  # parameters that differ within the run, {name: value}


def rows(prefix, seed, quantities, **where):
    """The Rows of {quantity: (value, baseline)} or (value, baseline, paper's value); what is None is missing.

    `where` are parameters that differ within the run.
    """
    listed = []
    for name, several in quantities.items():
        value, baseline, paper = (None if x is None else float(x) for x in (*several, None, None)[:3])
        if value is not None:
            listed.append(Row(f"{prefix}/{name}", seed, value, paper, baseline, where or None))
    return listed
