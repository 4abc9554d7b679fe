"""Whole attacks: to the loss of the published optimiser; many starts in one call; on a GPU, at the paper's size."""

import os
from functools import cache, partial

import pytest
import torch
from problems import DEVICE, PHOTOS, PUBLISHED, normal, regression

from attacks import decoreco, unmixing
from training import images, stationary
from utils import networks
from utils.kernels import naive

STEPS = 4000  # of the published optimiser
N = 100  # candidates
WIDTH = 500  # neurons
MANY = 32  # restarts
BUDGETS = 50, 100, 150, 200, 250, 300, 400, 800


@pytest.mark.parametrize("version", ["ours", "published steps"])
def test_attack(version, measure):
    """Ours, to the loss of the published optimiser after its steps; and its steps, each R and a double backward."""
    victim, size = regression(WIDTH), {"candidates": N, "width": WIDTH}
    if version == "ours":
        theirs = PUBLISHED._replace(iterations=STEPS, dtype=torch.float64)
        goal = decoreco.attack(victim, normal(N), theirs).loss.item()  # takes a minute or more
        basis = networks.span(victim.network)

        def attack(budget):
            settings = decoreco.ADAM._replace(iterations=budget)
            return decoreco.attack(victim, normal(N), settings, basis=basis)

        budget = next(budget for budget in BUDGETS if attack(budget).loss <= goal)
        note = f"{budget} steps of Adam to the loss of {STEPS} published ones, {goal:.2g}"
        measure(partial(attack, budget), "attack", version, size, "float32", note=note)
    else:
        module = naive.module_of(networks.change(victim.network, torch.Tensor.double))
        given = normal(N).double(), torch.ones(N, dtype=torch.float64, device=DEVICE)
        function = partial(naive.residual, module, *given, PUBLISHED.sharpness)
        note = f"extrapolated: {STEPS} evaluations of R and its gradients, with a plain double backward"
        measure(function, "attack", version, size, "float64", scale=STEPS, note=note)


@pytest.mark.parametrize("version", ["one call", "one by one"])
@pytest.mark.parametrize("n", [20, N])
def test_restarts(n, version, measure):
    victim, start = regression(WIDTH), torch.stack([normal(n, seed) for seed in range(MANY)])
    run = partial(
        decoreco.attack,
        victim,
        settings=decoreco.ADAM._replace(iterations=50, range_weight=0.0),
        basis=networks.span(victim.network),
        coefficients=torch.ones(n, device=DEVICE),
    )
    about = {"note": "50 steps of Adam"}
    if version == "one by one":
        start, about = start[0], {"note": f"extrapolated from one of {MANY} calls", "scale": MANY}
    size = {"restarts": MANY, "candidates": n}
    measure(partial(run, start), "restarts", version, size, "float32", **about)


# Each once, at the paper's size: images and neurons, candidates, published steps, epochs; and of a small
# victim. A processor measures none of these; REHEARSE has them run at toy size.
GPU = DEVICE.type == "cuda"
M, HIDDEN, LARGE, PUBLISHED_STEPS, EPOCHS = (
    (500, 1000, 1000, 50_000, 5000) if GPU else (12, 20, 16, 20, 60)
)
FEW, NEURONS = (50, 500) if GPU else (8, 40)
paper = pytest.mark.skipif(not GPU and "REHEARSE" not in os.environ, reason="needs a GPU")


@cache
def trained(m, *widths):
    """A victim of m photographs, of two labels in turn; those behind the last one are mirror images."""
    rows = torch.as_tensor(PHOTOS.images) / 255.0
    rows = torch.cat([rows, rows.flip(2)])[:m].flatten(1).double().to(DEVICE)  # (m, d)
    part = images.Part(rows, (torch.arange(m, device=DEVICE) % 2).double())
    return stationary.train(part, networks.perceptron("signed", *widths)._replace(epochs=EPOCHS))


@paper
def test_paper_victim(measure):
    train, size = partial(trained.__wrapped__, M, HIDDEN, HIDDEN), {"images": M, "width": HIDDEN}
    measure(train, "paper", "victim", size, "float32", once=True)


@paper
def test_paper_attack(measure):
    """The published optimiser for all of its steps."""
    victim = trained(M, HIDDEN, HIDDEN).released
    settings = PUBLISHED._replace(iterations=PUBLISHED_STEPS)
    size = {"images": M, "candidates": LARGE, "steps": PUBLISHED_STEPS}
    attack = partial(decoreco.attack, victim, normal(LARGE), settings)
    found = measure(attack, "paper", "published", size, "float32", once=True)
    assert found.loss < found.history[0]


@paper
@pytest.mark.parametrize(
    "m, widths", [(FEW, [NEURONS]), (M, [HIDDEN, HIDDEN])], ids=["few", "many"]
)
def test_paper_unmixing(m, widths, measure):
    attack = partial(
        unmixing.attack, trained(m, *widths).released, PHOTOS.images.shape[1:], count=m
    )
    measure(attack, "paper", "unmixing", {"images": m}, "float32", once=True)
