"""The attackers: they see what was released, and never a training image, a trainer or an evaluator.

ATTACKS are those that begin at images: functions `attack(released, start)` that return a `contract.Attack`. A line here
makes one a value of ATTACK in experiments. It loads no torch, so that grids are fast.
"""

from importlib import import_module

RULES = ("signed", "margin", "multiclass", "tied")  # of the coefficients of decoreco
ATTACKS = {  # value of ATTACK: the module
    "affine": "bilevel",
    "one_hidden": "bilevel",
    **dict.fromkeys(RULES, "decoreco"),
}


def load(name):
    """The module of one of ATTACKS."""
    return import_module(f"utils.attacks.{ATTACKS[name]}")
