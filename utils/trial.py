"""What an experiment leaves behind: victim, start and attack beside each other, and its numbers for RESULTS."""

from typing import NamedTuple

import torch

from utils.attacks.contract import Attack
from utils.images import Split
from utils.training.victim import Victim

DEPTHS = {2: "two_layers", 3: "three_layers"}  # of a network, in names of RESULTS


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


def rows(prefix, seed, quantities):
    """The Rows of {quantity: (value, baseline)} or (value, baseline, paper's value); what is None is missing."""

    def numbers(value, baseline=None, paper=None):
        return [None if number is None else float(number) for number in (value, paper, baseline)]

    named = {name: numbers(*several) for name, several in quantities.items()}
    return [Row(f"{prefix}/{name}", seed, *ours) for name, ours in named.items() if ours[0] is not None]
