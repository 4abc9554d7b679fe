"""Numbers for RESULTS and for a page, one by one, and those of several seeds with their extent."""

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

SEEDS = 5  # recorded runs that an answer needs


class Row(NamedTuple):
    """One number of a notebook, for RESULTS."""

    name: str  # registered in data/quantities.yaml
    seed: int
    value: float
    paper: float | None = None  # the paper's value
    baseline: float | None = None  # the same number without an attack, or for held-out images
    where: dict | None = None  # parameters that differ within the run, {name: value}


def rows(prefix: str, seed: int, quantities: Mapping[str, Sequence], **where: Any) -> list[Row]:
    """Rows of {quantity: (value, baseline, paper's value)}, the last two or None; `where` differs within the run."""
    listed = []
    for name, several in quantities.items():
        numbers = [None if x is None else float(x) for x in several]
        value, baseline, paper = (*numbers, None, None)[:3]
        if value is not None:
            listed.append(Row(f"{prefix}/{name}", seed, value, paper, baseline, where or None))
    return listed


def typeset(text):
    """Write 2e-06 as 2·10⁻⁶, and keep the parts of a number on one line."""
    superscript = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
    text = re.sub(
        r"e([+-]\d+)", lambda power: "·10" + str(int(power[1])).translate(superscript), text
    )
    return text.replace("< 1·", "< ").replace(" ", "\u00a0")


def number(value, floor=1e-12):
    """Print a number with two digits; what lies below `floor` is rounding, and printed so."""
    return typeset(f"< {floor:.0e}" if abs(value) < floor else f"{value:.2g}")


def extent(values):
    """The mean, the smallest and the largest value: an interval that no kind of number leaves."""
    return sum(values) / len(values), min(values), max(values)


def mean_with_range(values, places=None):
    """The mean with the extent, as precise as that is wide, or to so many `places`: 0.82 [0.80, 0.84]; none is –."""
    if len(values) == 0:
        return "–"
    mean, low, high = ends = extent(values)
    if all(value % 1 == 0 and abs(value) < 1e4 for value in values):  # counts
        return f"{round(mean, 1):g}" + (f" [{low:g}, {high:g}]" if low < high else "")
    if places is not None:
        mean, low, high = (f"{x:.{places}f}" for x in ends)
        return mean if low == high else f"{mean} [{low}, {high}]"
    digits = math.ceil(-math.log10(high - mean)) if low < mean < high < math.inf else 0
    leading = math.floor(math.log10(abs(mean))) if 0 < abs(mean) < math.inf else 0
    places = min(4, max(digits, 1 - leading, 0))
    plain = (
        1e-3 < abs(mean) < 1e4
        and len(values) > 1
        and not any(x and abs(x) < 0.5 * 0.1**places for x in ends)
    )
    mean, low, high = (f"{x:z.{places}f}" if plain else number(x) if x else "0" for x in ends)
    return mean if len(values) == 1 or low == high else f"{mean} [{low}, {high}]"
