"""How often the audit is wrong where it is known whether a network leaks: `python tests/audit/known_truth.py 200`.

A second number is that of the first run, and so gives other networks.

Every kind of file comes from four worlds. In the first the network was trained on the members, and leaks. In the others
it saw neither side, a random half of both, or nothing: members and held-out pictures can be exchanged, so it does not.
"""

import sys
import tempfile
from collections import namedtuple
from pathlib import Path

import pandas as pd
from known_files import KINDS, toy
from scipy.stats import binom

from audit import audit
from audit.__main__ import FAULT
from audit.report import FOUND_NOTHING, LEAKS, NO_ANSWER
from utils.errors import InputError

# Half of all runs leak.
WORLDS = "members", "others", "members", "both sides", "members", "untrained"
LEVEL, ERROR = 0.05, 1e-3  # of a false alarm, and of more of them than `allowed`
# The exit status of an audit, what it said, and whether that is wrong.
Run = namedtuple("Run", "kind world leaks status sentence wrong")


def run(kind, world, seed, **settings):
    """The Run of one kind of file from one world."""
    make, options, given, can_leak = KINDS[kind]
    leaks = can_leak and world == "members"
    settings = {"steps": 5} | given | settings
    with tempfile.TemporaryDirectory() as folder:
        arguments = make(toy(world, seed, Path(folder), **options))
        try:
            found = audit(*arguments, seed=seed, level=LEVEL, progress=False, **settings)
            status, sentence = found.status, found.sentence
        except InputError as error:
            status, sentence = NO_ANSWER, str(error)
        except Exception as error:
            status, sentence = FAULT, repr(error)
    wrong = status in (FAULT, FOUND_NOTHING if leaks else LEAKS)
    return Run(kind, world, leaks, status, sentence, wrong)


def allowed(count):
    """The most false alarms in so many runs that do not leak, which chance exceeds in ERROR of all cases."""
    return int(binom.ppf(1 - ERROR, count, LEVEL))


def table(found):
    """How often every kind of file, leaking or not, ended with which exit status; and how often that was wrong."""
    runs = pd.DataFrame(found)
    kinds = [runs.leaks, runs.kind]
    return pd.crosstab(kinds, runs.status).assign(wrong=runs.groupby(["leaks", "kind"]).wrong.sum())


def main(count, first=0):
    """Audit so many networks, each kind in one world after the other, and print how they ended."""
    found = []
    for k in range(first, first + count):
        turn, place = divmod(k, len(KINDS))
        one = run([*KINDS][place], WORLDS[(turn + place) % len(WORLDS)], seed=k)
        print("WRONG" * one.wrong, *one, file=sys.stderr, flush=True)
        found.append(one)
    print(table(found).to_string())
    leaky, safe = ([one for one in found if one.leaks == leaks] for leaks in (True, False))
    cleared, alarms = (sum(one.wrong for one in some) for some in (leaky, safe))
    print(f"{cleared} of {len(leaky)} leaking networks were cleared.")
    print(f"{alarms} of {len(safe)} others raised an alarm; {allowed(len(safe))} are chance.")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
