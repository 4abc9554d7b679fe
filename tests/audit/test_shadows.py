"""Reference networks: who is in which, and what their two scores tell."""

from collections import Counter

import pytest
import torch
from helpers import audit, batch, checked, mlp
from known_files import learned

from audit import report, shadows
from conftest import M
from utils.errors import InputError


def trained(pictures, labels, seed=0):
    """A network that has learned pictures (n, C, H, W) by heart."""
    network = mlp(seed=seed)
    optimiser = torch.optim.Adam(network.parameters(), 1e-3)
    return learned(network, pictures.flatten(1), labels, optimiser=optimiser)


def test_a_function_trains_on_both_sides_alike_and_the_report_says_what_it_told(sides):
    seen = Counter()

    def train(pictures, labels, seed):
        seen.update(one.numpy().tobytes() for one in pictures)
        network = trained(pictures, labels, seed)
        return lambda x: network(x.flatten(1))

    target = trained(batch(sides[0][0]), sides[0][1])
    found = audit(lambda x: target(x.flatten(1)), *sides, shadows=4, train=train)
    assert len(seen) == 2 * M and {*seen.values()} == {2}
    content = checked(found)
    assert content["by_name"][shadows.BY_SHADOWS]["state"] == "ran"
    told = {one["name"]: one["training"] for one in content["comparisons"]}
    assert all(told[f"likelihood ratio, {name}"] > 0.8 for name in ("LiRA", "RMIA"))


@pytest.mark.parametrize("start", [None, mlp(seed=1).state_dict()])
def test_a_fully_connected_file_needs_no_function_and_a_stranger_to_both_sides_is_not_blamed(
    start, sides
):
    found = audit(mlp().state_dict(), *sides, start, shadows=4, steps=1)
    stage = checked(found)["by_name"][shadows.BY_SHADOWS]
    assert shadows.GUESS in stage["said"] and found.status != report.LEAKS


def test_reference_networks_need_the_classes(sides):
    with pytest.raises(InputError, match="need the classes of the pictures"):
        audit(mlp().state_dict(), *(pixels for pixels, _ in sides), shadows=4)
