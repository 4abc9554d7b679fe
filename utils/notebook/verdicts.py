"""What a chapter may say at its end: verdicts on a paper's own sentences, and answers to the book's questions."""

import math
import re
from collections import namedtuple
from functools import partial

import torch
from scipy.stats import t

from utils.notebook import report

SEEDS, CONFIDENCE = 5, 0.95  # recorded runs that a verdict needs, and of the interval of their mean
WORDS = HELD, FAILED, OPEN, PROVED, REFUTED = "held", "did not hold", "cannot be checked", "proved", "refuted by proof"
# Of recorded runs: a value and a boolean per seed; whether all is as large as the paper's; the measure in words.
Evidence = namedtuple("Evidence", "values converged full_size what")
Range = namedtuple("Range", "low high", defaults=(-math.inf, math.inf))  # true if the measure is between


class Judged(list):
    """A row of `table`: sentence, verdict, and the number, the place of a proof, or why nothing can be said."""

    def __init__(self, word, sentence, recorded):
        if not re.fullmatch("“[^“”]+”", sentence) or not recorded.strip():
            raise ValueError(f"{sentence}: a verdict needs a paper's own words, in “…”, and something to rest on.")
        super().__init__([sentence, word, recorded])


proved, disproved = partial(Judged, PROVED), partial(Judged, REFUTED)  # (sentence, where in the book) -> row


def interval(values):
    """The mean and both ends of its interval by Student's t; a single value has none."""
    values, n = torch.tensor(values, dtype=torch.float64), len(values)
    reach = t.ppf((1 + CONFIDENCE) / 2, n - 1) * values.std().item() / n**0.5 if n > 1 else math.inf
    return values.mean().item(), values.mean().item() - reach, values.mean().item() + reach


def words(values):
    """The mean with its interval, 0.82 [0.80, 0.84], as precise as the interval is wide; a single value alone."""
    mean, low, high = ends = interval(values)
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


def verdict(sentence, evidence=None, true_if=Range(), because="no recorded runs"):  # noqa: B008
    """Judge a sentence by Evidence; without any it cannot be checked, `because`. ValueError: the author's mistake."""
    if evidence is None or not evidence.values:
        return Judged(OPEN, sentence, because)
    values, converged, full_size, what = evidence
    if len(values) != len(converged) or not true_if.low < true_if.high or true_if == Range():
        raise ValueError(f"{sentence}: {len(values)} values, {len(converged)} runs that converged or not, {true_if}.")
    (_, low, high), n = interval(values), len(values)
    lost = sum(not (ended and math.isfinite(value)) for value, ended in zip(values, converged))
    ends = " and ".join(f"{end:g}" for end in true_if if low <= end <= high and n >= SEEDS)
    reasons = {f"{n} of {SEEDS} seeds": n < SEEDS, "not at the paper's size": not full_size}
    reasons |= {f"{lost} of {n} runs have not converged": lost > 0, f"the interval contains {ends}": ends != ""}
    told = ", ".join(reason for reason, holds in reasons.items() if holds)
    number = f"{what}: {words(values)}" + (f", {n} seeds" if n > 1 else "")
    word = OPEN if told else HELD if true_if.low < low and high < true_if.high else FAILED
    return Judged(word, sentence, f"{told}; {number}" if told else number)


def table(*rows):
    """A Markdown table of verdicts; ValueError for a row that no function above has made."""
    if not all(isinstance(row, Judged) for row in rows):
        raise ValueError("Only verdict, proved and disproved make rows of verdicts; all else gets an answer.")
    return report.table(["sentence", "verdict", "recorded"], *rows)


def answers(*rows):
    """A Markdown table of the book's own questions: (question, text or whether, here). ValueError for verdicts."""
    if any(answer in WORDS for _, answer, _ in rows):
        raise ValueError("The book's own questions have answers; verdicts are for the sentences of a paper.")
    said = {True: "yes", False: "no"}
    return report.table(["our question", "answer", "number"], *([a, said.get(b, b), c] for a, b, c in rows))
