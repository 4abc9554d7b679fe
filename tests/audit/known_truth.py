"""How often the audit is wrong on networks of which it is known whether they leak: `python tests/known_truth.py 200`.

A second number is that of the first run, and so gives other networks.

Every kind of file comes from four worlds. In the first the network was trained on the members, and leaks. In the others
it saw neither side, a random half of both, or nothing: members and held-out pictures can be exchanged, so it does not.
"""

import itertools
import sys
import tempfile
import time
from collections import Counter, namedtuple
from pathlib import Path

from known_files import KINDS, toy
from scipy.stats import binom

from audit import audit
from audit.__main__ import FAULT
from audit.report import FOUND_NOTHING, LEAKS, NO_ANSWER
from utils.errors import InputError

WORLDS = (
    "members",
    "others",
    "members",
    "both sides",
    "members",
    "untrained",
)  # half of all runs leak
LEVEL, ERROR = 0.05, 1e-3  # of a false alarm, and of more of them than `allowed`
STATUSES = FOUND_NOTHING, LEAKS, NO_ANSWER, FAULT
COLUMNS = "kind", "leaks", "runs", *map(str, STATUSES), "wrong", "seconds"
# The exit status of an audit, what it said, and whether that is wrong.
Run = namedtuple("Run", "kind world leaks status sentence seconds wrong")


def run(kind, world, seed, **settings):
    """The Run of one kind of file from one world."""
    make, options, given, can_leak = KINDS[kind]
    leaks, started = can_leak and world == "members", time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        arguments = make(toy(world, seed, Path(folder), **options))
        try:
            found = audit(
                *arguments,
                seed=seed,
                level=LEVEL,
                progress=False,
                **{"steps": 5} | given | settings,
            )
            status, sentence = found.status, found.sentence
        except InputError as error:
            status, sentence = NO_ANSWER, str(error)
        except Exception as error:
            status, sentence = FAULT, repr(error)
    wrong = status in (FAULT, FOUND_NOTHING if leaks else LEAKS)
    return Run(kind, world, leaks, status, sentence, time.monotonic() - started, wrong)


def runs(count, first=0):
    """So many Runs: each kind in one world after the other, the next kind one world further."""
    for k in range(first, first + count):
        turn, place = divmod(k, len(KINDS))
        yield run([*KINDS][place], WORLDS[(turn + place) % len(WORLDS)], seed=k)


def allowed(count):
    """The most false alarms in so many runs that do not leak, which chance exceeds in ERROR of all cases."""
    return int(binom.ppf(1 - ERROR, count, LEVEL))


def row(name, leaks, some):
    """A row of the table: how some Runs ended."""
    ends = Counter(one.status for one in some)
    wrong, seconds = sum(one.wrong for one in some), sum(one.seconds for one in some) / len(some)
    return name, leaks, len(some), *(ends[status] for status in STATUSES), wrong, f"{seconds:.1f}"


def table(found):
    """A text: a row of each kind that leaks or not, and of all."""
    rows = [COLUMNS]
    for leaks, name in itertools.product((True, False), [*KINDS, "all"]):
        some = [one for one in found if one.leaks == leaks and name in (one.kind, "all")]
        rows += [row(name, "yes" if leaks else "no", some)] if some else []
    widths = [max(len(str(cell)) for cell in column) for column in zip(*rows)]
    return "\n".join(
        "| " + " | ".join(f"{cell!s:{width}}" for cell, width in zip(one, widths)) + " |"
        for one in rows
    )


def main(count, first=0):
    """Audit so many networks, and print the table, what is wrong, and why leaks ended without an answer."""
    found = []
    for one in runs(count, first):
        found.append(one)
        print(
            f"{'WRONG ' * one.wrong}{one.kind}, {one.world}: {one.status} {one.sentence}",
            file=sys.stderr,
            flush=True,
        )
    print(table(found))
    leaky, safe = ([one for one in found if one.leaks == leaks] for leaks in (True, False))
    cleared, alarms = (
        sum(one.status == wrong for one in some) for some, wrong in ((leaky, 0), (safe, LEAKS))
    )
    print(f"\n{cleared} of {len(leaky)} leaking networks were cleared.")
    print(
        f"{alarms} of {len(safe)} others raised an alarm; up to {allowed(len(safe))} are chance at the level {LEVEL}."
    )
    unanswered = Counter((one.kind, one.sentence[:90]) for one in leaky if one.status == NO_ANSWER)
    print(
        "\n".join(
            f"no answer, {times} times: {kind}: {said}…"
            for (kind, said), times in unanswered.items()
        )
    )


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
