"""What an experiment leaves behind: victim, start and attack beside each other, for the evaluator."""

from typing import NamedTuple

import torch

from utils.attacks.contract import Attack
from utils.images import Split
from utils.victims import Victim


class Name(NamedTuple):
    """What was attacked, how, and from where."""

    attack: str  # bilevel or decoreco
    model: str  # affine or one_hidden; for decoreco the rule of its coefficients
    start: str  # random, ground_truth or partition
    knowledge: str = ""  # known_theta0 or unknown_theta0, where it matters

    @property
    def prefix(self):
        """The name in RESULTS, before the quantity."""
        return "/".join(part for part in self if part)


class Trial(NamedTuple):
    """One attack on one victim, with all that the evaluation needs; no attack ever sees it."""

    name: Name
    seed: int
    data: Split
    victim: Victim
    start: torch.Tensor  # x₀ (n, d) as it was drawn: for decoreco without a mean, and not yet within any basis
    attack: Attack
    basis: torch.Tensor | None = None  # (d, r), if the attack searched the span of the first layer
    again: Attack | None = None  # an independent attack from a random start, which any adversary can make
