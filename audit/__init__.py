"""An audit: from a network and pictures to what it gives away, in one call, `audit`, or by the command `audit`.

What happens to a file, from the command line to the exit status, in the order of the modules:

1. `__main__` starts a process of its own for all that follows; `command` reads the line. Its options are the fields of
   `showing`, how a network saw pictures and what is asked. `run.audit` then calls one module after the other:
2. `files` opens what a stranger hands over, `weights` reads the network in it, and `modules` builds it by a stranger's
   code where that is asked for. `pictures` reads both sides, but for those that `copies` takes for copies. `states`
   finds an optimiser's state.
3. `before` takes the network from before the training, given, or read by `start`.
4. `shadows`, `stages` and `whole` plan attacks and tests, each a function that returns an Outcome; `run` makes them.
   Each calls `judge` to compare what it gave for both sides, under one null.
5. `fit` asks whether the pictures were shown as in training, and doubts the rest if not.
6. `report.reported` calls `judge` again, to correct the comparisons for their number (`holm`) and to ask whether both
   sides differ by themselves (`control`). It decides the status in `finding`; `promise` tests an ε, `risks` lists each
   picture's, and `page` draws the report. `command` writes all files, says the finding, and returns the status.

`words` is the audit of language models, `outputs` that of a table of outputs, `benchmark` the count of what anybody's
attack returned.
"""

import importlib
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))  # where Python runs there may be another utils
import utils  # noqa: E402, F401  (before torch: how threads wait)

del sys.path[0]


def __getattr__(name):
    """`audit`, loaded when asked for: `__main__` must outlive a library that cannot be loaded."""
    if name == "audit":
        return importlib.import_module("audit.run").audit
    raise AttributeError(f"audit has no {name}")
