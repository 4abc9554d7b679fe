"""An audit: from a network and pictures to what it gives away, in one call, `audit`, or `python -m utils.audit`."""

import importlib


def __getattr__(name):
    """`audit`, loaded when it is asked for: `__main__` must outlive a library that cannot be loaded."""
    if name == "audit":
        return importlib.import_module("utils.audit.run").audit
    raise AttributeError(f"utils.audit has no {name}")
