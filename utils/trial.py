"""What an experiment leaves behind: its numbers, for RESULTS and for a page."""

import re
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
    """Rows of {quantity: (value, baseline, paper's value)}, the last two or None; `where` differs within the run."""
    listed = []
    for name, several in quantities.items():
        value, baseline, paper = (None if x is None else float(x) for x in (*several, None, None)[:3])
        if value is not None:
            listed.append(Row(f"{prefix}/{name}", seed, value, paper, baseline, where or None))
    return listed


def typeset(text):
    """Write 2e-06 as 2·10⁻⁶, and keep the parts of a number on one line."""
    superscript = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
    text = re.sub(r"e([+-]\d+)", lambda power: "·10" + str(int(power[1])).translate(superscript), text)
    return text.replace("< 1·", "< ").replace(" ", "\u00a0")


def number(value, floor=1e-12):
    """Print a number with two digits; what lies below `floor` is rounding, and printed so."""
    return typeset(f"< {floor:.0e}" if abs(value) < floor else f"{value:.2g}")
