"""The attacker: every attack is given a `contract.Released` and a start, and returns a `contract.Attack`."""

from utils.attacks import bilevel, decoreco

ATTACKS = {"bilevel": bilevel.attack, "decoreco": decoreco.attack}
