"""The attackers: they see what was released, and never a training image, a trainer or an evaluator.

ATTACKS, which begin at images and return a `contract.Attack`, are values of ATTACK in experiments; no torch is loaded.
"""

from importlib import import_module
from types import ModuleType

import utils  # noqa: F401  (before torch: how threads wait)

RULES = ("signed", "margin", "multiclass", "tied")  # of the coefficients of decoreco
ATTACKS = {  # value of ATTACK: the module
    "affine": "bilevel",
    "one_hidden": "bilevel",
    **dict.fromkeys(RULES, "decoreco"),
}


def load(name: str) -> ModuleType:
    """The module of one of ATTACKS."""
    return import_module(f"attacks.{ATTACKS[name]}")
