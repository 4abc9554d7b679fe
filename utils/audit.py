"""The audit has a package of its own: `python -m utils.audit` says so, and goes on."""

import runpy
import sys

if __name__ == "__main__":
    print("The audit has moved: python -m audit", file=sys.stderr)
    runpy.run_module("audit", run_name="__main__", alter_sys=True)
