"""What an experiment leaves behind: victim, start and attack beside each other, for the evaluator."""

from typing import NamedTuple

import torch

from utils.attacks.contract import Attack
from utils.images import Split
from utils.training.victim import Victim

# Table 1 of the first paper: ‖θ* − θ‖².
TABLE_1 = {
    "affine": {"random": 1.1214e-3, "ground_truth": 1.3888e-3, "partition": 2.9749e-3},
    "one_hidden": {"random": 6.1157e-5, "ground_truth": 1.7055e-3, "partition": 6.3629e-3},
}


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


class Row(NamedTuple):
    """One number of a notebook, for RESULTS."""

    name: str  # registered in data/quantities.yaml
    seed: int
    value: float
    paper: float | None = None  # the paper's value
    baseline: float | None = None  # the same number without an attack, or for held-out images
