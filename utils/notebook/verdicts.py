"""Numbers of recorded seeds, with their extent."""

import math

from utils.notebook import report

SEEDS = 5  # recorded runs that an answer needs


def extent(values):
    """The mean, the smallest and the largest value: an interval that no kind of number leaves."""
    return sum(values) / len(values), min(values), max(values)


def words(values, places=None):
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
    plain = 1e-3 < abs(mean) < 1e4 and len(values) > 1 and not any(x and abs(x) < 0.5 * 0.1**places for x in ends)
    mean, low, high = (f"{x:z.{places}f}" if plain else report.number(x) if x else "0" for x in ends)
    return mean if len(values) == 1 or low == high else f"{mean} [{low}, {high}]"
