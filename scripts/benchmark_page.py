"""Attack the victims of data/victims by this book's attacks, and put the table of all entries into book/benchmark.md.

`python -m scripts.benchmark_page` makes the table; `--attack` runs our attacks first, about a minute.
"""

import argparse
from pathlib import Path

from utils import images, networks
from utils.attacks import bilevel, decoreco, known_start, starts, unmixing
from utils.audit import benchmark
from utils.errors import InputError

FILE = Path(__file__).parent.parent / "book" / "benchmark.md"
MARKS = "<!-- entries -->\n", "<!-- end -->"
BAR = 0.9  # of |NCC|, of the counts on the page
HEADER = f"| victim, attack | >&nbsp;{BAR} | held out | leak AUC | p |\n" + "| --- " * 5 + "|"
SCALE, STEPS = 0.02, 2000  # of the noise at which our stationarity attack begins, and of its steps


def strangers(victim):
    """No attack: as many photographs that no victim saw."""
    return images.split(images.load("photos"), 20, 20, 0, held_out=20).known.images


def unmixed(victim):
    """Unmix the first layer, told the count if the layer does not tell it."""
    return unmixing.attempt(victim.released, victim.shape, len(victim.released.labels)).images


def behind_start(victim):
    """Unmix what training changed, and make exact what zeros allow."""
    if not victim.start:
        return None
    found, alpha = known_start.attempt(victim.released, victim.start, victim.shape, len(victim.released.labels))
    if found.images is None:
        return None
    return known_start.exact(victim.released, victim.start, alpha, found, victim.shape).images


def stationary(victim):
    """The stationarity attack, from noise, with twice as many candidates."""
    released, start = victim.released, starts.normal(2 * len(victim.released.labels), 3072, SCALE, 0)
    if len(released.network) < 2:
        return None
    basis = networks.span(released.network)
    return decoreco.attack(released, start, rule="signed", basis=basis, iterations=STEPS).images


def trained(victim):
    """The bilevel attack on the affine classifier, from noise."""
    if len(victim.released.network) > 1:
        return None
    start = starts.random(len(victim.released.labels), 3072, 0)
    return bilevel.attack(victim.released, start).images


OURS = {
    "other photographs (no attack)": strangers,
    "unmixing": unmixed,
    "unmixing of the change": behind_start,
    "stationarity": stationary,
    "bilevel": trained,
}


def scores():
    """The Scores of our attacks on all victims, where they apply."""
    for name in benchmark.index():
        for attack, run in OURS.items():
            try:
                found = run(benchmark.load(name))
            except InputError as error:
                print(f"{name}, {attack}: {error}")
                continue
            if found is not None:
                yield benchmark.evaluate(name, found, attack)


def page(text, rows):
    """The page with a line for every entry."""
    lines = []
    for row in rows:
        counts = row[f"above_{BAR}"], row[f"held_out_above_{BAR}"]
        cells = [f"{row['victim']}, {row['attack']}", *counts, f"{float(row['auc']):.2f}", row["p"]]
        lines.append(f"| {' | '.join(cells)} |")
    before, after = text.split(MARKS[0])[0], text.split(MARKS[1])[1]
    return "\n".join([before + MARKS[0], HEADER, *lines, "", MARKS[1] + after])


if __name__ == "__main__":
    given = argparse.ArgumentParser(description=__doc__)
    given.add_argument("--attack", action="store_true", help="run our attacks first")
    if given.parse_args().attack:
        benchmark.enter(list(scores()))
    if FILE.exists():
        FILE.write_text(page(FILE.read_text(encoding="utf-8"), benchmark.entries()), encoding="utf-8")
