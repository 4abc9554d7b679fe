"""What an experiment leaves behind: its numbers, for RESULTS."""

from typing import NamedTuple


class Row(NamedTuple):
    """One number of a notebook, for RESULTS."""

    name: str  # registered in data/quantities.yaml
    seed: int
    value: float
    paper: float | None = None  # the paper's value
    baseline: float | None = None  # the same number without an attack, or for held-out images


def rows(prefix, seed, quantities):
    """The Rows of {quantity: (value, baseline)} or (value, baseline, paper's value); what is None is missing."""

    def numbers(value, baseline=None, paper=None):
        return [None if number is None else float(number) for number in (value, paper, baseline)]

    named = {name: numbers(*several) for name, several in quantities.items()}
    return [Row(f"{prefix}/{name}", seed, *ours) for name, ours in named.items() if ours[0] is not None]
