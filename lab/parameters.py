"""What the parameters of a chapter may be. Loads no torch: thousands of runs are checked in seconds."""

import ast
import contextlib

from attacks import ATTACKS, RULES
from utils.errors import InputError, choose

FROM_ZERO = ("SEED", "SHIFT", "PRETRAINED", "UNTIL")  # parameters that may be zero
MOST = 2**63  # what a generator of random numbers takes as its seed
DATASETS = (
    "photos",
    "cifar10",
    "cifar10-subset",
    "cifar10-fresh",
)  # as in training/images.py, beside a path
INITIAL_NETWORKS = (
    "torch",
    "pretrained",
    "elsewhere",
)  # torch's own, or trained before on other images
CHOICES = {
    "DEVICE": ("auto", "cpu", "cuda"),
    "THETA_START": ("uniform", "standard"),
    "RULE": RULES,
    "ATTACK": tuple(ATTACKS),
    "KNOWLEDGE": ("from_weights", "known_theta0", "unknown_theta0"),
    "START": ("random", "untuned", "ground_truth", "partition"),  # of an attack
    "INITIAL": INITIAL_NETWORKS,
    # What the attacker has of a known start.
    "KNOWN": (
        "start",
        "half",
        "later",
        "noise 0.1 %",
        "noise 1 %",
        "noise 10 %",
        "rescaled",
        "another",
        "state",
    )
    + ("found",),  # read from the generator
    # How a start is drawn: as experiments/generator.py says, or by numpy, or its neurons are permuted.
    "DRAWN": (
        "torch",
        "kaiming_normal",
        "kaiming_uniform",
        "xavier_normal",
        "xavier_uniform",
        "normal",
        "uniform",
    )
    + ("trunc_normal", "truncated at two", "orthogonal", "elsewhere", "permuted"),
    "SPACE": ("span", "pixels"),
    "PRECISION": ("exact", "bfloat16", "TF32"),
    "BODY": ("frozen", "trained"),
    "NETWORK": ("residual", "lenet"),
    "ACTIVATION": ("gelu", "relu"),
    "HEAD": ("flat", "pooled"),
    "NORM": ("none", "group", "batch"),
    "GUESS": ("simulated", "straight", "start"),  # of the way that training took
    # What is asked of a training's files.
    "FILES": ("every entry", "the state", "the states", "settings", "many images"),
    "GENERATOR": ("torch", "other"),  # what draws a start and the noise of private gradients
    **dict.fromkeys(("RESTART", "UNMIX", "MEASURE", "CONTROLS", "RATE_KNOWN"), ("yes", "no")),
}


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
    match statement:
        case ast.Assign(
            [ast.Name(name)], ast.Call(ast.Name("float"), [ast.Constant(str(text))], [])
        ):
            with contextlib.suppress(ValueError):
                return name, float(text)
        case ast.Assign([ast.Name(name)], value):
            with contextlib.suppress(ValueError, TypeError):  # TypeError: {[]: 1}
                return name, ast.literal_eval(value)
    line = ast.unparse(statement).splitlines()[0]
    raise InputError(
        f"The cell of parameters has the line {line}: write NAME = VALUE, with a number or a text."
    )


def check(declared, name, value):
    """Raise InputError unless a parameter has a known name, and the value its type and a place in its range."""
    if name not in declared:
        raise InputError(
            f"There is no parameter {' '.join(name.split())}; this chapter has {', '.join(declared)}."
        )
    default = declared[name]
    if type(value) is not type(default) and (type(default), type(value)) != (float, int):
        kind = {int: "a whole number", float: "a number"}.get(type(default), "text")
        raise InputError(f"{name} is {value!r}; it must be {kind}, like its default {default!r}.")
    choose(name, value, CHOICES.get(name, (value,)))
    if type(value) in (int, float) and not (0 < value < MOST or name in FROM_ZERO and value == 0):
        least = "0 or larger" if name in FROM_ZERO else "larger than 0"
        raise InputError(
            f"{name} is {value!r}; it must be {least}{'' if value < MOST else ', and less than 2⁶³'}."
        )


def check_parameters(declared, injected):
    """Raise InputError if a parameter, declared or injected, has an unknown name, a wrong type, or is out of range."""
    for name, value in {**declared, **injected}.items():
        check(declared, name, value)
