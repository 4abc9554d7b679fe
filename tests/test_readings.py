"""Training that is cut short: its derivative, the attack on it, and the readings of Table 1 that need it."""

import math

import pytest
import torch

from experiments import readings
from utils import images, networks
from utils.attacks import starts, truncated
from utils.attacks.contract import Released
from utils.errors import InputError
from utils.kernels import one_hidden

Y = torch.tensor([0.0, 0.0, 0.0, 1.0, 1.0, 1.0], dtype=torch.float64)
X = starts.random(6, 20, 1)


def weights(seed, decay=0.01, sharpness=10.0, draw="standard"):
    recipe = networks.one_hidden(5, decay, sharpness, draw)
    return one_hidden.weights(networks.initial(recipe, 20, seed), sharpness)


@pytest.mark.parametrize("sharpness", [10.0, math.inf])
def test_steps_in_the_span_are_steps_of_the_whole_network(sharpness):
    start = weights(0, sharpness=sharpness)
    v = one_hidden.pack(start)
    for _ in range(4):
        v = v - 0.3 * one_hidden.energy(v, X, Y, 0.01, sharpness)[1]
    found = truncated.trained(X, Y, 0.01, start, 4, "descent", 0.3)
    assert torch.allclose(one_hidden.pack(found), v, rtol=1e-10, atol=1e-12)


def test_quasi_newton_gets_further_than_descent():
    ends = (truncated.trained(X, Y, 0.01, weights(0), 10, method) for method in ("quasi-Newton", "descent"))
    energies = [one_hidden.energy(one_hidden.pack(end), X, Y, 0.01, 10.0)[0] for end in ends]
    assert energies[0] < energies[1]


@pytest.mark.parametrize("method", ["descent", "quasi-Newton", "stationary"])
def test_the_hypergradient_agrees_with_differences(method):
    recipe, begun = networks.one_hidden(5, 0.1), weights(0, 0.1)
    released = Released(one_hidden.network(weights(3, 0.1)), Y, recipe)
    objective = truncated.objective_of(released, X.shape, begun, truncated.Inner(5, method, 0.2))
    flat, step = X.flatten(), 1e-5 * starts.normal(1, X.numel(), 1.0, 2)[0]
    ends = [objective(flat + sign * step)[0] for sign in (1, -1)]
    assert torch.isclose((ends[0] - ends[1]) / 2, objective(flat)[1] @ step, rtol=1e-5)


@pytest.mark.parametrize("fixed", [True, False])
def test_the_attack_lowers_every_distance_and_tells_it(fixed):
    recipe, theta0 = networks.one_hidden(5, 0.01), one_hidden.network(weights(0))
    target, inner = truncated.trained(X, Y, 0.01, weights(0), 10), truncated.Inner(10, "descent", 1e-2)
    released, start = Released(one_hidden.network(target), Y, recipe), torch.stack([X, starts.random(6, 20, 4)])
    found, before, after = truncated.attack(released, start, theta0, inner, iterations=5, fixed=fixed)
    assert before[0] < 1e-20 and after[1] < before[1]
    for x, told in zip(found, after):
        assert torch.isclose(
            one_hidden.square_distance(truncated.trained(x, Y, 0.01, weights(0), 10), target), told, atol=1e-15
        )


def test_training_that_diverges_is_told():
    released = Released(one_hidden.network(weights(3)), Y, networks.one_hidden(5, 0.01))
    inner = truncated.Inner(400, "descent", 1e6)
    with pytest.raises(InputError, match="The inner training diverges at a rate of 1e.06"):
        truncated.attack(released, X[None], one_hidden.network(weights(0)), inner)


def test_a_reading_differs_from_its_base_in_what_it_names():
    sizes = {"images": 20, "width": 12, "steps": 3}
    assert readings.reading_of("lazy", **sizes) == readings.Reading(20, 12, steps=3)
    told = readings.reading_of("trained, from θ*", **sizes)
    assert told == readings.reading_of("trained", **sizes)._replace(knowledge="weights", steps=40)
    with pytest.raises(InputError, match="READING"):
        readings.reading_of("lazier")


def test_a_reading_gives_its_rows_for_every_start(toy_npz):
    reading = readings.reading_of("lazy, from θ*", images=10, width=4, steps=2)
    rows = [*readings.rows_of(reading, images.load(str(toy_npz)), 1)]
    assert len({row.name for row in rows}) == len(rows) == 3 * 8
    assert all(row.seed == 1 and math.isfinite(row.value) for row in rows)
