"""The attacker: every attack is given a `contract.Released` and a start, and returns a `contract.Attack`."""
