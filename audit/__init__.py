"""An audit: from a network and pictures to what it gives away, in one call, `audit`, or `python -m audit`."""

import importlib

import utils  # noqa: F401  (before torch: how threads wait)


def __getattr__(name):
    """`audit`, loaded when asked for: `__main__` must outlive a library that cannot be loaded."""
    if name == "audit":
        return importlib.import_module("audit.run").audit
    raise AttributeError(f"audit has no {name}")
