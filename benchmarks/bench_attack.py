"""Whole attacks: to the loss of the published optimiser, and many starts in one call."""

from functools import cache, partial

import pytest
import torch
from problems import DEVICE, PUBLISHED, agree, normal, regression

from utils import networks
from utils.attacks import decoreco
from utils.kernels.coefficients import Signed
from utils.kernels.cost import plain_step
from utils.kernels.residual import Stationarity

STEPS, N, WIDTH, MANY = 4000, 100, 500, 32  # of the published optimiser; candidates; neurons; restarts
BUDGETS = 50, 100, 150, 200, 250, 300, 400, 800


@cache
def goal():
    """The loss of the published optimiser in double precision after so many steps; a minute or more, kept on disk."""
    settings = {"optimiser": "sgd", "iterations": STEPS, "dtype": torch.float64}
    return decoreco.attack(regression(WIDTH), normal(N), **settings).loss.item()


@pytest.mark.parametrize("version", ["ours", "published steps"])
def test_attack(version, measure):
    victim, size = regression(WIDTH), {"candidates": N, "width": WIDTH}
    if version == "ours":
        attack = partial(decoreco.attack, victim, normal(N), basis=networks.span(victim.network))
        budget = next(budget for budget in BUDGETS if attack(iterations=budget).loss <= goal())
        note = f"{budget} steps of Adam to the loss of {STEPS} published ones, {goal():.2g}"
        measure(partial(attack, iterations=budget), "attack", version, size, "float32", note=note)
    else:
        found = decoreco.attack(victim, normal(N), iterations=30, range_weight=0.0)
        given = found.images.double(), found.coefficients.double()
        network = networks.change(victim.network, torch.Tensor.double)
        function = partial(plain_step, network, *given, PUBLISHED.sharpness)
        agree(Stationarity(network, Signed(), PUBLISHED.sharpness)(*given).x_gradient, function()[1], 1e-12)
        note = f"extrapolated: {STEPS} evaluations of R and its gradients, with a plain double backward"
        measure(function, "attack", version, size, "float64", scale=STEPS, note=note)


@pytest.mark.parametrize("version", ["one call", "one by one"])
@pytest.mark.parametrize("n", [20, N])
def test_restarts(n, version, measure):
    victim, start = regression(WIDTH), torch.stack([normal(n, seed) for seed in range(MANY)])
    settings = {"iterations": 50, "range_weight": 0.0, "coefficients": torch.ones(n, device=DEVICE)}
    run = partial(decoreco.attack, victim, basis=networks.span(victim.network), **settings)
    few = partial(run, iterations=3)  # where they end is chaotic
    agree(few(start).images[0], few(start[0]).images, 1e-3)
    size, note = {"restarts": MANY, "candidates": n}, "50 steps of Adam in the coordinates of what W₁ sees"
    if version == "one call":
        measure(lambda: run(start), "restarts", version, size, "float32", note=note)
    else:
        note = f"{note}; extrapolated from one of {MANY} calls"
        measure(lambda: run(start[0]), "restarts", version, size, "float32", scale=MANY, note=note)
