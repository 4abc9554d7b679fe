"""An attacker tunes the stationarity attack by its own loss: of what was tried, the smallest loss counts; no truth."""

from typing import NamedTuple

from utils.attacks import decoreco
from utils.attacks.contract import Attack


class Tuned(NamedTuple):
    """The attack with the smallest loss."""

    attack: Attack
    rate: float  # its learning rate


def by_rate(released, start, rates, **settings):
    """Attack from the candidates `start` (n, d) at each of these learning rates, with these settings of `decoreco`."""
    tried = [Tuned(decoreco.attack(released, start, learning_rate=rate, **settings), rate) for rate in rates]
    return min(tried, key=lambda one: one.attack.loss)
