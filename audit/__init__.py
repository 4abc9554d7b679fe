"""An audit: from a network and pictures to what it gives away, in one call, `audit`, or `python -m audit`."""

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
