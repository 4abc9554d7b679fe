"""Whole attacks: to the loss of the published optimiser, to all digits, and many starts in one call."""

from functools import cache, partial

import pytest
import torch
from problems import DEVICE, HALFWAY, PHOTOS, WEIGHT_DECAY, Plain, agree, normal, plain_step, problem, regression

from utils import images, networks, victims
from utils.attacks import bilevel, decoreco, starts
from utils.kernels import affine

STEPS, N, WIDTH = 4000, 100, 500
BUDGETS = 50, 100, 150, 200, 250, 300, 400, 800
SAMPLE = slice(None, None, 6)  # of the 25 starts, where they are attacked one by one: 5


@cache
def goal():
    """The loss of the published optimiser in double precision after so many steps; a minute or more, kept on disk."""
    settings = {"optimiser": "sgd", "iterations": STEPS, "dtype": torch.float64}
    return decoreco.attack(regression(WIDTH), normal(N), **settings).loss.item()


def attack(budget):
    """Ours, in the coordinates of what W₁ sees."""
    released = regression(WIDTH)
    return decoreco.attack(released, normal(N), basis=networks.span(released.network), iterations=budget)


@pytest.mark.parametrize("version", ["ours", "published steps"])
def test_attack(version, measure):
    size, loss = {"candidates": N, "width": WIDTH}, goal()
    if version == "ours":
        budget = next(budget for budget in BUDGETS if attack(budget).loss <= loss)
        note = f"{budget} steps of Adam to the loss of {STEPS} published ones, {loss:.2g}"
        found = measure(partial(attack, budget), "attack", version, size, "float32", rounds=3, note=note)
        assert found.loss <= loss
    else:
        released = regression(WIDTH)
        found = decoreco.attack(released, normal(N), **HALFWAY)
        function = partial(plain_step, released.network, found.images, found.coefficients)
        note = f"extrapolated: {STEPS} evaluations of R and its gradients, with a plain double backward"
        measure(function, "attack", version, size, "float64", scale=STEPS, note=note)


@cache
def begun(name):
    """The released affine model, and a start: random, or the partition that the attacker knows."""
    released, x = problem(networks.affine(WEIGHT_DECAY))
    return released, starts.random(*x.shape, 0, DEVICE) if name == "random" else x


@pytest.mark.parametrize("name", ["random", "partition"])
@pytest.mark.parametrize("version", ["ours", "autograd and CG, at least"])
def test_bilevel(version, name, measure):
    released, x = begun(name)
    function, size = partial(bilevel.attack, released, x, tolerance=1e-12), {"images": len(x), "start": name}
    found = function()
    assert found.stopped == "converged"
    steps = len(found.history) - 1
    if version == "ours":
        measure(function, "bilevel", version, size, "float64", note=f"{steps} outer steps to 1e-12")
        return
    y, target = released.labels, networks.flatten(released.network)
    plain, theta = Plain(x, y, released.network), affine.solve(x, y, WEIGHT_DECAY).weights
    note = f"extrapolated: {steps} hypergradients at given weights, as many as ours takes steps; without training"
    measure(partial(plain.by_cg, theta, target), "bilevel", version, size, "float64", scale=steps, note=note)


@pytest.mark.parametrize("version", ["one call", "one by one"])
@pytest.mark.parametrize("n", [20, N])
def test_restarts(n, version, measure, many=32):
    released = regression(WIDTH)
    start = torch.stack([normal(n, seed) for seed in range(many)])
    basis = networks.span(released.network)
    settings = {"iterations": 50, "range_weight": 0.0, "coefficients": torch.ones(n, device=DEVICE)}
    run = partial(decoreco.attack, released, basis=basis, **settings)
    size, note = {"restarts": many, "candidates": n}, "50 steps of Adam in the coordinates of what W₁ sees"
    if version == "one call":
        found = measure(lambda: run(start), "restarts", version, size, "float32", rounds=3, note=note)
        agree(found.history[0, 0], run(start[0]).history[0], 1e-4)
    else:
        note = f"{note}; extrapolated from one of {many} calls"
        measure(lambda: run(start[0]), "restarts", version, size, "float32", scale=many, note=note)


@cache
def grid(hidden, m=50):
    """25 starts of eq. (10) (25, m, d), and an attack (starts, basis) on a victim; with a basis for all of them."""
    data = images.split(PHOTOS, m, m, 0, DEVICE)
    noise = starts.random(m, data.secret.images.shape[1], 0, DEVICE)
    recipe = networks.perceptron("signed", hidden, hidden) if hidden else networks.affine(WEIGHT_DECAY)
    victim = victims.train(data.secret, recipe)
    released, sets = victim.released, [t - victim.mean for t in (data.secret.images, data.known.images, noise)]
    cross = torch.cartesian_prod(*[torch.linspace(0, 1, 5, dtype=torch.float64)] * 2)
    first, second = cross.to(DEVICE).T[:, :, None, None]  # λ₁ and λ₂ of eq. (10)
    x = second * (first * sets[0] + (1 - first) * sets[1]) + (1 - second) * sets[2]  # (25, m, d)

    def run(x, basis, **short):
        if hidden:
            settings = {"iterations": 100, "range_weight": 0.0, "coefficients": torch.ones(m, device=DEVICE)}
            return decoreco.attack(released, x, basis=basis, **settings)
        return bilevel.attack(released, x, **short)  # in the span of every start, by itself

    return x, run, networks.span_of(*sets, networks.span(released.network).mT)


@cache
def together(hidden):
    """The 25 starts in one call."""
    x, run, basis = grid(hidden)
    return run(x, basis)


@pytest.mark.parametrize("version", ["one call", "one by one", "one by one, in pixels"])
@pytest.mark.parametrize("hidden", [0, 200, 500])
def test_grid(hidden, version, measure):
    if not hidden and version == "one by one, in pixels":
        pytest.skip("the bilevel attack finds a basis by itself")
    x, run, basis = grid(hidden)
    size = {"starts": len(x), "hidden": hidden}
    note = "100 steps of the second attack" if hidden else "the bilevel attack on the affine model"
    if version == "one call":
        measure(lambda: run(x, basis), "grid", version, size, "float32" if hidden else "float64", rounds=1, note=note)
        return
    chosen, space = x[SAMPLE] if hidden else x, basis if version == "one by one" else None
    scale = len(x) / len(chosen)
    note = f"{note}; extrapolated from {len(chosen)} starts" if scale > 1 else note
    settings = {"rounds": 1, "scale": scale, "note": note}
    dtype = "float32" if hidden else "float64"
    found = measure(lambda: [run(start, space) for start in chosen], "grid", version, size, dtype, **settings)
    if not hidden:
        assert {*together(hidden).stopped, *(one.stopped for one in found)} == {"converged"}
        begun = [run(start, space, iterations=3).images for start in chosen]  # where they stop is no point
        agree(run(x, basis, iterations=3).images, torch.stack(begun), 1e-4)
    else:
        agree(together(hidden).history[0][SAMPLE], torch.stack([one.history[0] for one in found]), 1e-4)
