"""Attacks from mixtures of training images, a partition and noise: eq. (10) of the first paper, and what they end at.

A *set* holds m images of d values; S of them are a batch. The four sets are, in this order, those of SETS.
"""

from typing import NamedTuple

import torch

from attacks import bilevel, decoreco, starts
from evaluation import evaluate, measures, notation
from training import images, stationary
from utils import networks
from utils.errors import InputError
from utils.kernels import solvers

SETS = ("training", "partition", "noise", "held_out")


class Grid(NamedTuple):
    """What an attack made of S starts. Distances are mean L2 distances to the most like images of each set."""

    start: torch.Tensor  # the images before the attack (S, m, d)
    early: torch.Tensor  # the images after a quarter of the steps (S, m, d)
    end: torch.Tensor  # the images at the end (S, m, d)
    start_loss: torch.Tensor  # the attacker's loss before the attack (S,)
    loss: torch.Tensor  # the attacker's loss at the end (S,)
    start_distance: torch.Tensor  # of the images before the attack (S, 4)
    early_distance: torch.Tensor  # of the images after a quarter of the steps (S, 4)
    distance: torch.Tensor  # of the images at the end (S, 4)


class Target(NamedTuple):
    """A victim, and where the attacks on it move."""

    released: networks.Released  # of the victim
    mean: torch.Tensor  # (d,), that is subtracted from the candidates
    basis: torch.Tensor  # (d, r), orthonormal


# ---- The starts ----


def shares(count):
    """λ₁ and λ₂ of all starts, each evenly from 0 to 1: (2, count²), the noise first."""
    if count < 2:
        raise InputError("GRID must be at least 2.")
    values = torch.linspace(0, 1, count, dtype=torch.float64)
    return torch.cartesian_prod(values, values).T


def sets_of(labelled, m, seed, device):
    """The Split of so many images, and the four sets (m, d)."""
    data = images.split(labelled, m, m, seed, device, held_out=m)
    noise = starts.random(m, data.secret.images.shape[1], seed, device)
    return data, (data.secret.images, data.known.images, noise, data.held_out.images)


def mixture(truth, known, noise, first, second):
    """Eq. (10) for S pairs of λ₁ `first` and λ₂ `second`: (S, m, d)."""
    first, second = (values.to(truth)[:, None, None] for values in (first, second))
    return second * (first * truth + (1 - first) * known) + (1 - second) * noise


# ---- The victims, and the attacks on them ----


def random_axes(*rows, seed=0):
    """A basis (d, r) of the span of rows, each (n, d), with axes drawn at random."""
    _, values, vectors = torch.linalg.svd(torch.cat(rows), full_matrices=False)
    basis = vectors[values > 1e-9 * values[0]].mT
    generator = torch.Generator().manual_seed(seed)
    r = basis.shape[1]
    axes = torch.randn(r, r, dtype=torch.float64, generator=generator)
    return basis @ torch.linalg.qr(axes)[0].to(basis)


def affine_target(data, sets, weight_decay):
    """The Target of the affine model, whose trainer subtracts no mean."""
    released = stationary.train(data.secret, networks.affine(weight_decay)).released
    return Target(
        released, torch.zeros_like(sets[0][0]), random_axes(*sets[:3], released.network[0].weight)
    )


def deep_target(data, sets, neurons, seed, mean="training"):
    """The Target of a network with three layers, polished until it is stationary, and its largest ‖∇E‖/(μ‖θ‖)."""
    recipe = networks.perceptron("signed", neurons, neurons)
    for stages in (recipe.stages, 9, 12):
        victim = stationary.train(data.secret, recipe._replace(stages=stages), seed)
        error = stationary.stationarity(victim, data.secret).smallest.max().item()
        if error <= stationary.STATIONARY:
            break
    subtracted = victim.mean if mean == "training" else data.known.images.mean(0)
    rows = networks.span(victim.released.network).mT
    basis = random_axes(*(part - subtracted for part in sets[:3]), rows)
    return Target(victim.released, subtracted, basis), error


def bilevel_attack(target):
    """The bilevel attack for `explore`, of which the end alone is known."""

    def attack(
        start: torch.Tensor,
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
        end = bilevel.attack(target.released, start, progress=True)
        return end.images, end.images, end.history[0], end.loss

    return attack


def adam_attack(target, steps, rate, dtype=torch.float32):
    """DecoReco by Adam, for `explore`; losses are R/‖θ*‖²."""
    released, mean, basis = target
    settings = decoreco.SETTINGS["projection"]._replace(
        learning_rate=rate, sharpness=100.0, softest=100.0, range_weight=0.0, dtype=dtype
    )

    def attack(
        start: torch.Tensor,
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
        counts = max(1, steps // 4), steps
        early, end = (
            decoreco.attack(
                released, start - mean, settings._replace(iterations=count), basis=basis
            )
            for count in counts
        )
        return early.images + mean, end.images + mean, early.history[0], end.loss

    return attack


def lbfgs_attack(target, steps):
    """DecoReco by L-BFGS, which has no rate, for `explore`; without penalties."""
    (network, y, recipe, *_), mean, basis = target
    rule = decoreco.make_rule("signed", y, network, recipe)
    objective = decoreco.Objective(network, rule, 100.0, 0.0, 0.0, basis)
    quarter = max(1, steps // 4)

    def attack(start):
        x = (start - mean) @ basis  # (c, m, r)

        def loss(flat):
            at = flat.view_as(x)
            parts, slope, _ = objective(at, objective.best_coefficients(at))
            return parts.total, slope.flatten(-2)

        first, slope = loss(x)
        unit = slope.norm(dim=-1)  # so that units do not matter

        def scaled(flat):
            value, slope = loss(flat)
            return objective.scale * value / unit, slope / unit[..., None]

        early = solvers.lbfgs(scaled, x.flatten(-2), iterations=quarter)
        end = solvers.lbfgs(scaled, early.x, iterations=3 * quarter, pairs=early.pairs)
        pictures = (found.x.view_as(x) @ basis.mT + mean for found in (early, end))
        return *pictures, first, loss(end.x)[0]

    return attack


# ---- A grid of starts, and its numbers ----


def explore(attack, sets, mixed, shape, at_once):
    """Attack from every mixture of training images, partition and noise, each (m, d): a Grid.

    attack(starts) -> images after a quarter of the steps, at the end, losses of the starts, losses, on batches
    (c, m, d) of at most `at_once`; `mixed` are λ₁ and λ₂ (S,), the noise first.
    """
    (first, second), (truth, known, noise) = mixed, sets[:3]
    place = torch.where(second > 0, torch.arange(len(first)), 0)  # of the equal start
    distinct, place = place.unique(return_inverse=True)
    start = mixture(truth, known, noise, first[distinct], second[distinct])
    batches = [attack(part) for part in start.split(at_once)]
    early, end, start_loss, loss = map(torch.cat, zip(*batches))

    def away(x):  # the mean L2 distances of S sets (S, m, d) to the most similar images of the four
        flat = x.flatten(0, 1)  # (S, m, d) -> (S·m, d)
        gaps = [flat - part[evaluate.nearest(flat, part, shape)] for part in sets]
        return torch.stack([gap.norm(dim=1).view(x.shape[:2]).mean(1) for gap in gaps], 1)

    all_of = start, early, end, start_loss, loss, *map(away, (start, early, end))
    return Grid(*(part[place] for part in all_of))


def numbers_of(grid, s, sets, shape, without):
    """{quantity: (value, baseline)} of start s; `without` a training image also the leak AUC."""
    before = grid.start_distance[s].tolist()
    aim = sets[0] - grid.start[s]
    numbers = {"loss": (grid.loss[s].item(), grid.start_loss[s].item())}
    for when, x, after in (
        ("early_", grid.early, grid.early_distance),
        ("", grid.end, grid.distance),
    ):
        step = x[s] - grid.start[s]
        for name, pair in zip(SETS, zip(after[s].tolist(), before)):
            numbers[f"{when}distance_to_{name}"] = pair
        numbers[f"{when}moved"] = step.norm(dim=-1).mean().item(), None
    towards = (step * aim).sum(-1) / aim.norm(dim=-1).clamp_min(1e-12)
    numbers["towards_truth"] = towards.mean().item(), aim.norm(dim=-1).mean().item()
    if without:
        both = grid.end, grid.start
        numbers["leak_auc"] = [measures.leak(x[s], sets[0], sets[3], shape).auc.value for x in both]
    return numbers


def rows(name, grid, mixed, seed, sets, shape):
    """All numbers of an attack's Grid, as Rows."""
    listed = []
    for s, (a, b) in enumerate(mixed.T.tolist()):
        numbers = numbers_of(grid, s, sets, shape, a * b == 0)
        listed += notation.rows(f"landscape/{name}", seed, numbers, lambda_1=a, lambda_2=b)
    return listed
