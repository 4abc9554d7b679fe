"""The numbers that recorded seeds give, with an interval, and answers to the book's own questions."""

import math

import torch
from scipy.stats import t

from utils.notebook import report

SEEDS, CONFIDENCE = 5, 0.95  # recorded runs that an answer needs, and of the interval of their mean


def interval(values):
    """The mean and both ends of its interval by Student's t; a single value has none."""
    values, n = torch.tensor(values, dtype=torch.float64), len(values)
    reach = t.ppf((1 + CONFIDENCE) / 2, n - 1) * values.std().item() / n**0.5 if n > 1 else math.inf
    return values.mean().item(), values.mean().item() - reach, values.mean().item() + reach


def extent(values):
    """The mean, and the smallest and the largest value: an interval that no kind of number leaves."""
    return sum(values) / len(values), min(values), max(values)


def within(values, least=-math.inf, most=math.inf):
    """Student's interval, or the extent where that would leave the range of such numbers, as a count below zero."""
    mean, low, high = interval(values)
    return (mean, low, high) if least <= low and high <= most else extent(values)


def words(values, ends_of=interval):
    """The mean with its interval, 0.82 [0.80, 0.84], as precise as the interval is wide; a single value alone."""
    mean, low, high = ends = ends_of(values)
    if mean % 1 == 0 and (low == high or len(values) == 1):
        return f"{mean:g}"
    digits = math.ceil(-math.log10(high - mean)) if low < mean < high < math.inf else 0
    places = min(4, max(digits, 0 if abs(mean) > 1 else 2))
    plain = 1e-3 < abs(mean) < 1e4 and len(values) > 1
    mean, low, high = (f"{x:.{places}f}" if plain else report.number(x) for x in ends)
    return mean if len(values) == 1 or low == high else f"{mean} [{low}, {high}]"


def above(values, level):
    """Whether the mean is above a level, for `answers`; open if the interval contains it."""
    _, low, high = interval(values)
    return "open" if low <= level <= high else bool(low > level)


def answers(*rows):
    """A Markdown table of the book's own questions: (question, text or whether, here). ValueError for verdicts."""
    if any(answer in ("held", "did not hold", "proved", "refuted") for _, answer, _ in rows):
        raise ValueError(
            "The book's own questions have answers; the verdicts of the ledger are for sentences of papers."
        )
    said = {True: "yes", False: "no"}
    return report.table(["our question", "answer", "number"], *([a, said.get(b, b), c] for a, b, c in rows))
