"""What the parameters of a notebook may be, as its cells say. Loads no torch: a grid is checked in seconds."""

import ast
import contextlib
import math

import attacks
from utils.errors import InputError, choose

FROM_ZERO = ("SEED", "SHIFT", "PRETRAINED", "UNTIL", "DROPOUT")  # parameters that may be zero
SEEDS = 2**63  # of a generator of random numbers
LARGE = 10**12  # of other numbers: none is as large
SMALL = 1e-12  # of real ones: less is lost in double precision
# As in training/images.py, beside a path.
DATASETS = (
    *("photos", "photos-64", "photos-128", "photos-224"),
    *("cifar10", "cifar10-subset", "cifar10-fresh"),
)
DEVICES = {"DEVICE": ("auto", "cpu", "cuda")}


def assignments(source):
    """The names and literal values that a cell assigns; InputError if it does anything else."""
    try:
        statements = ast.parse(source).body
    except SyntaxError as error:
        where = f"{error.msg}, line {error.lineno}"
        raise InputError(
            f"The cell of parameters is not Python ({where}): write lines NAME = VALUE."
        ) from error
    return dict(map(assignment, statements))


def assignment(statement):
    """The name and the value of a statement NAME = VALUE; papermill writes infinity and NaN as float('inf')."""
    with contextlib.suppress(ValueError, TypeError):  # TypeError: {[]: 1}
        match statement:
            case ast.Assign(
                [ast.Name(name)], ast.Call(ast.Name("float"), [ast.Constant(str(text))])
            ):
                return name, float(text)
            case ast.Assign([ast.Name(name)], value):
                return name, ast.literal_eval(value)
    line = ast.unparse(statement).splitlines()[0]
    raise InputError(
        f"The cell of parameters has the line {line}: write NAME = VALUE, with a number or a text."
    )


def choices(source):
    """The values of parameters {name: several} that a cell gives to report.begin: literals, or a table of `attacks`."""
    return {
        given.arg: eval(ast.unparse(given.value), vars(attacks))
        for call in ast.walk(ast.parse(source))
        if isinstance(call, ast.Call) and ast.unparse(call.func) == "report.begin"
        for given in call.keywords
    }


def check(declared, choices, name, value):
    """Raise InputError unless a parameter has a known name, and the value its type and a place among its values."""
    if name not in declared:
        raise InputError(
            f"There is no parameter {' '.join(f'{name}'.split())}; this chapter has {', '.join(declared)}."
        )
    default = declared[name]
    if type(value) is not type(default) and (type(default), type(value)) != (float, int):
        kind = {int: "a whole number", float: "a number"}.get(type(default), "text")
        how = f" (papermill: -r {name} {value})" if kind == "text" else ""
        raise InputError(
            f"{name} is {value!r}; it must be {kind}, like its default {default!r}{how}."
        )
    choose(name, value, (DEVICES | choices).get(name, [value]))
    if isinstance(value, str):
        if are_numbers(default) and not are_numbers(value):
            raise InputError(
                f"{name} is {value!r}; it must be numbers, like its default {default!r}."
            )
        return
    if 0 < value < SMALL:
        raise InputError(f"{name} is {value!r}; it must be {SMALL:g} or larger.")
    limit, words = (SEEDS, "2⁶³") if name == "SEED" else (LARGE, "10¹²")
    if not (0 < value < limit or name in FROM_ZERO and value == 0):
        least = "0 or larger" if name in FROM_ZERO else "larger than 0"
        most = "" if value < limit else f", and less than {words}"
        raise InputError(f"{name} is {value!r}; it must be {least}{most}.")


def are_numbers(text):
    """Whether a text is one finite number, or several with spaces between them."""
    try:
        return bool(text.split()) and all(math.isfinite(float(part)) for part in text.split())
    except ValueError:
        return False
