"""What the parameters of a chapter may be. Loads no torch: thousands of runs are checked in seconds."""

import ast
import math

from utils.choices import CHOICES
from utils.errors import InputError, choose

FROM_ZERO = ("SEED", "SHIFT")  # parameters that may be zero


def assignments(source):
    """Return the names and literal values that a cell assigns."""
    return {node.targets[0].id: ast.literal_eval(node.value) for node in ast.parse(source).body}


def check_parameters(declared, given):
    """Raise InputError if a given parameter has an unknown name, the wrong type, or a number out of range."""
    for name, value in {**declared, **given}.items():
        if name not in declared:
            raise InputError(f"There is no parameter {' '.join(name.split())}; this chapter has {', '.join(declared)}.")
        default = declared[name]
        if type(value) is not type(default) and (type(default), type(value)) != (float, int):
            kind = {int: "a whole number", float: "a number"}.get(type(default), "text")
            raise InputError(f"{name} is {value!r}; it must be {kind}, like its default {default!r}.")
        choose(name, value, CHOICES.get(name, [value]))
        if type(value) in (int, float) and not (0 < value < math.inf or name in FROM_ZERO and value == 0):
            least = "0 or larger" if name in FROM_ZERO else "larger than 0"
            raise InputError(f"{name} is {value!r}; it must be {least}.")
