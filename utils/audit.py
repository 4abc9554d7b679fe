"""The audit has a package of its own: `python -m utils.audit` says so, and goes on."""

import importlib
import runpy
import sys


def __getattr__(name):
    """What others import from here, from where it is now."""
    return getattr(importlib.import_module("audit"), name)


if __name__ == "__main__":
    print("The audit has moved: python -m audit", file=sys.stderr)
    runpy.run_module("audit", run_name="__main__", alter_sys=True)
