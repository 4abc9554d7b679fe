"""Whole attacks: to the loss of the published optimiser; many starts in one call; on a GPU, at the paper's size."""

import os
from functools import partial

import pytest
import torch
from problems import DEVICE, PHOTOS, agree, normal, regression, secret, steps

from utils import networks
from utils.attacks import decoreco, unmixing
from utils.training import stationary

STEPS, N, WIDTH, MANY = 4000, 100, 500, 32  # of the published optimiser; candidates; neurons; restarts
BUDGETS = 50, 100, 150, 200, 250, 300, 400, 800


@pytest.mark.parametrize("version", ["ours", "published steps"])
def test_attack(version, measure):
    victim = regression(WIDTH, WIDTH)
    attack = partial(decoreco.attack, victim, normal(N))
    if version == "ours":
        goal = attack(optimiser="sgd", iterations=STEPS, dtype=torch.float64).loss  # a minute or more
        attack = partial(attack, basis=networks.span(victim.network))
        budget = next(budget for budget in BUDGETS if attack(iterations=budget).loss <= goal)
        function, scale, dtype = partial(attack, iterations=budget), 1, "float32"
        note = f"{budget} steps of Adam to the loss of {STEPS} published ones, {goal:.2g}"
    else:
        found = attack(iterations=30, range_weight=0.0)
        network = networks.change(victim.network, torch.Tensor.double)
        _, function = steps(network, found.images.double(), found.coefficients.double())
        scale, dtype = STEPS, "float64"
        note = f"extrapolated: {STEPS} evaluations of R and its gradients, with a plain double backward"
    measure(function, "attack", version, {"candidates": N, "width": WIDTH}, dtype, scale=scale, note=note)


@pytest.mark.parametrize("version", ["one call", "one by one"])
@pytest.mark.parametrize("n", [20, N])
def test_restarts(n, version, measure):
    victim, start = regression(WIDTH, WIDTH), torch.stack([normal(n, seed) for seed in range(MANY)])
    settings = {"iterations": 50, "range_weight": 0.0, "coefficients": torch.ones(n, device=DEVICE)}
    run = partial(decoreco.attack, victim, basis=networks.span(victim.network), **settings)
    few = partial(run, iterations=3)  # where they end is chaotic
    agree(few(start).images[0], few(start[0]).images, 1e-3)
    size, note, scale = {"restarts": MANY, "candidates": n}, "50 steps of Adam in the coordinates of what W₁ sees", 1
    if version == "one by one":
        start, scale, note = start[0], MANY, f"{note}; extrapolated from one of {MANY} calls"
    measure(lambda: run(start), "restarts", version, size, "float32", scale=scale, note=note)


# Each once, at the paper's size: images and neurons, candidates, published steps and ours, epochs; and of a small
# victim. A processor measures none of these; REHEARSE has them run at toy size.
GPU = DEVICE.type == "cuda"
M, HIDDEN, LARGE, PUBLISHED_STEPS, OURS, EPOCHS = (
    (500, 1000, 1000, 50_000, 1000, 5000) if GPU else (12, 20, 16, 20, 20, 60)
)
FEW, NEURONS = (50, 500) if GPU else (8, 40)
paper = pytest.mark.skipif(not GPU and "REHEARSE" not in os.environ, reason="needs a GPU")


@paper
def test_paper_victim(measure):
    recipe = networks.perceptron("signed", HIDDEN, HIDDEN)._replace(epochs=EPOCHS)
    train = partial(stationary.train, secret(M), recipe)
    victim = measure(train, "paper", "victim", {"images": M, "width": HIDDEN}, "float32", once=True)
    assert victim.loss < 1.0  # an output of 0 has 1


@paper
@pytest.mark.parametrize("seed", [None, *range(5)])
def test_paper_attack(seed, measure):
    """The published optimiser for all of its steps, and, with a seed, Adam in the span of the first layer."""
    victim, ours = regression(HIDDEN, HIDDEN, m=M, epochs=EPOCHS), seed is not None
    settings = {"basis": networks.span(victim.network)} if ours else {"optimiser": "sgd"}
    iterations = OURS if ours else PUBLISHED_STEPS
    attack = partial(decoreco.attack, victim, normal(LARGE, seed or 0), iterations=iterations, **settings)
    size = {"images": M, "candidates": LARGE, "steps": iterations} | ({"seed": seed} if ours else {})
    found = measure(attack, "paper", "ours" if ours else "published", size, "float32", once=True)
    assert found.loss < found.history[0]


@paper
@pytest.mark.parametrize("m, widths", [(FEW, [NEURONS]), (M, [HIDDEN, HIDDEN])], ids=["few", "many"])
def test_paper_unmixing(m, widths, measure):
    victim = regression(*widths, m=m, epochs=EPOCHS)
    attack = partial(unmixing.attack, victim, PHOTOS.images.shape[1:], count=m)
    assert measure(attack, "paper", "unmixing", {"images": m}, "float32", once=True).images.shape[0] == m
