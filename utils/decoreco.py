"""The stationarity attack (DecoReco): find images and coefficients for which the given weights are stationary.

Minimises R(x, λ) = ‖θ* − Σ_i c_i ∇_θ Φ(x_i; θ*)‖² and two penalties, for pixels that leave their range and for coefficients
below their bound. The attacker has the weights, a rule for the coefficients, labels for the candidates and a start;
nothing here sees the secret images, and the best iterate is the one with the smallest loss. Leading dimensions of the
start are independent attacks.
"""

import contextlib
import math
import os
from typing import NamedTuple

import torch
from tqdm.auto import tqdm

from utils import mlp, rules, solvers
from utils.errors import InputError, choose
from utils.stationarity import Stationarity


class Loss(NamedTuple):
    """The attacker's loss in parts, each (…); `stationarity` (…, L) for every layer, in units of ‖θ*‖²."""

    stationarity: torch.Tensor  # ‖W̄_l − D_lᵀĀ_{l−1}‖²/‖θ*‖²
    range: torch.Tensor  # weight · Σ relu(|x| − 1)²/‖θ*‖²
    feasibility: torch.Tensor  # 5 Σ relu(λ_min − λ)²/‖θ*‖², zero for rules without a bound

    @property
    def total(self):
        """The attacker's loss."""
        return self.stationarity.sum(-1) + self.range + self.feasibility


class Attack(NamedTuple):
    """What an attack found, and how it went."""

    images: torch.Tensor  # x (…, n, d), the iterate with the smallest loss; the mean is not added
    coefficients: torch.Tensor  # λ (…, n)
    loss: Loss  # at these
    history: torch.Tensor  # the loss of every iteration, the start first (K+1, …)
    stopped: str  # iterations (used up), converged or diverged (not finite; the best iterate before is returned)


class Settings(NamedTuple):
    """How an optimiser moves: published settings, or ours."""

    learning_rate: float  # of a pixel
    coefficient_rate: float  # of λ
    sharpness: float  # α
    scale: float  # of a normal start, standard deviation of a pixel


# `sgd` as Buzaglo et al. (2023) publish it for regression on CIFAR-10; the others were chosen by the attacker's loss.
SETTINGS = {
    "sgd": Settings(0.952, 1e-4, 90.3, 0.0197),
    "adam": Settings(0.01, 0.1, 30.0, 0.0197),
    "projection": Settings(0.01, 0.0, 30.0, 0.0197),
}


def span(network, tolerance=1e-3):
    """An orthonormal basis (d, r) of what W₁ sees: its right singular vectors with σ > `tolerance`·σ_max."""
    _, values, vectors = torch.linalg.svd(network[0].weight, full_matrices=False)
    return vectors[values > tolerance * values[0]].mT


def in_span(network, basis):
    """The network for images given by their coordinates in `basis`: W₁ becomes W₁Q (n_1, r)."""
    return (network[0]._replace(weight=network[0].weight @ basis), *network[1:])


class Objective:
    """The attacker's loss and its gradients, at pixels x or at coordinates in a basis (d, r), and at λ."""

    def __init__(self, network, rule, sharpness, lambda_min, range_weight, basis=None):
        self.stationarity = Stationarity(network if basis is None else in_span(network, basis), rule, sharpness)
        self.bound = lambda_min if rule.bounded else -math.inf
        self.range_weight, self.basis = range_weight, basis
        self.scale = mlp.flatten(network).square().sum()  # ‖θ*‖²
        self.unseen = self.scale - self.stationarity.squares.sum()  # ‖W₁‖² outside of the basis

    def pixels(self, x):
        """Coordinates (…, n, r) to pixels (…, n, d)."""
        return x if self.basis is None else x @ self.basis.mT

    def __call__(self, x, coefficients):
        r = self.stationarity(x, coefficients)
        beyond, x_gradient = self.outside(x)
        below = (self.bound - coefficients).clamp_min(0)
        layers = torch.cat([r.layers[..., :1] + self.unseen, r.layers[..., 1:]], -1)
        parts = layers, beyond, 5 * below.square().sum(-1)
        gradients = r.x_gradient + x_gradient, r.coefficient_gradient - 10 * below
        return Loss(*(part / self.scale for part in parts)), *gradients

    def outside(self, x):
        """The penalty for pixels outside of [−1, 1], and its gradient."""
        if not self.range_weight:
            return x.new_zeros(x.shape[:-2]), 0.0
        pixels = self.pixels(x)
        beyond = pixels - pixels.clamp(-1, 1)
        push = 2 * self.range_weight * beyond
        return self.range_weight * beyond.square().sum((-2, -1)), push if self.basis is None else push @ self.basis

    def project(self, x, coefficients):
        """The λ that minimises R for these x, subject to its bound; `coefficients` is where the search begins."""
        h, b = (part.double() for part in self.stationarity.quadratic(x))
        ridge = 1e-6 * h.diagonal(dim1=-2, dim2=-1).mean(-1)[..., None, None] * torch.eye(h.shape[-1]).to(h)
        return solvers.bounded_quadratic(h + ridge, b, self.bound, coefficients.double()).to(x)


def attack(
    weights,
    labels,
    start,
    *,
    rule="signed",
    optimiser="adam",
    learning_rate=None,
    coefficient_rate=None,
    sharpness=None,
    lambda_min=0.3,
    range_weight=1.0,
    iterations=1000,
    tolerance=0.0,
    basis=None,
    weight_decay=None,
    loss=None,
    coefficients=None,
    seed=0,
    dtype=torch.float32,
    progress=False,
):
    """Move the candidates `start` (…, n, d), images without their mean, until `weights` are stationary for them.

    `weights` are the Layers of `mlp`, `labels` (n,) those of the candidates; `rule` is one of rules.RULES (`tied` needs
    `weight_decay` and `loss`). `optimiser` is `sgd` (momentum 0.9), `adam` with a cosine schedule, or `projection`: Adam
    for the images alone, and for each of them the best λ (variable projection). Rates and the surrogate's `sharpness` α
    are those of SETTINGS unless given. With an orthonormal `basis` (d, r), as from `span`, the candidates stay in it and
    the attack moves r coordinates; a pixel's learning rate becomes √(d/r) times as large, so that steps keep their length.
    λ starts at `coefficients` (…, n), by default at N(0, 1), bounded rules at U(0, 1), drawn from `seed`. An attack returns
    its first iterate whose loss is at most `tolerance`, or the one with the smallest loss.
    """
    check(weights, labels, start, lambda_min, range_weight)
    settings = SETTINGS[choose("OPTIMISER", optimiser, SETTINGS)]
    given = {"learning_rate": learning_rate, "coefficient_rate": coefficient_rate, "sharpness": sharpness}
    settings = settings._replace(**{name: value for name, value in given.items() if value is not None})
    if not settings.sharpness > 0:
        raise InputError(f"The sharpness α of the surrogate is {settings.sharpness:g}; it must be larger than 0.")
    rule = rules.make(rule, labels.to(dtype), len(weights[-1].weight), weight_decay, loss)
    if optimiser == "projection" and isinstance(rule, rules.Tied):
        raise InputError("Tied coefficients leave nothing to project: use OPTIMISER='adam' or 'sgd'.")
    network = mlp.change(weights, lambda p: p.to(dtype))
    basis = None if basis is None else basis.to(dtype)
    objective = Objective(network, rule, settings.sharpness, lambda_min, range_weight, basis)
    x = start.to(dtype)
    if basis is not None:
        x = x @ basis  # (…, n, d) @ (d, r) -> (…, n, r)
        settings = settings._replace(learning_rate=settings.learning_rate * (basis.shape[0] / basis.shape[1]) ** 0.5)
    begin = draw(rule, x, seed) if coefficients is None else coefficients.to(x).expand(x.shape[:-1])
    found = minimise(objective, x, begin, optimiser, settings, iterations, tolerance, progress)
    return found._replace(images=objective.pixels(found.images).to(start), coefficients=found.coefficients.to(start))


@contextlib.contextmanager
def flushed_denormals():
    """Let the CPU take numbers below 1e-38 (float32) for zero; its arithmetic with them is slow."""
    torch.set_flush_denormal(True)
    try:
        yield
    finally:
        torch.set_flush_denormal(False)


@flushed_denormals()
def minimise(objective, x, coefficients, optimiser, settings, iterations, tolerance, progress):
    """Run the optimiser from x and λ, and keep each attack's iterate with the smallest loss."""
    rates = [settings.learning_rate, 0.0 if optimiser == "projection" else settings.coefficient_rate]
    engine = (Momentum if optimiser == "sgd" else Adam)(rates, iterations)
    best = [x, coefficients]
    history, least, stopped = [], torch.full(x.shape[:-2], math.inf).to(x), "iterations"
    silent = not progress or "TQDM_DISABLE" in os.environ  # which tqdm's notebook bars do not heed themselves
    for iteration in tqdm(range(iterations + 1), desc="DecoReco attack", leave=False, disable=silent):
        if optimiser == "projection":
            coefficients = objective.project(x, coefficients)
        loss, *gradients = objective(x, coefficients)
        history.append(loss.total)
        better = (history[-1] < least) & (least > tolerance)  # what has converged stays
        least = torch.where(better, history[-1], least)
        best = [torch.where(expand(better, new), new, old) for new, old in zip((x, coefficients), best)]
        if (least <= tolerance).all():
            stopped = "converged"
            break
        if not history[-1].isfinite().any():
            break
        if iteration < iterations:
            x, coefficients = engine.step((x, coefficients), gradients)
    if not history[-1].isfinite().all():
        stopped = "diverged"
    return Attack(*best, objective(*best)[0], torch.stack(history), stopped)


class Momentum:
    """Gradient descent with momentum 0.9 for several tensors, each with a learning rate of its own."""

    def __init__(self, rates, iterations):
        self.rates, self.velocities = rates, [0.0 for _ in rates]

    def step(self, tensors, gradients):
        """Return the tensors after one step."""
        self.velocities = [0.9 * v + g for v, g in zip(self.velocities, gradients)]
        return [p - rate * v for p, rate, v in zip(tensors, self.rates, self.velocities)]


class Adam:
    """Adam (0.9, 0.999) whose learning rates follow half a cosine down to zero.

    torch.optim has it too, but needs seconds to load, and cannot be stepped without its own bookkeeping of gradients.
    """

    def __init__(self, rates, iterations):
        self.rates, self.iterations, self.steps = rates, max(iterations, 1), 0
        self.moments = [(0.0, 0.0) for _ in rates]

    def step(self, tensors, gradients):
        """Return the tensors after one step."""
        factor = (1 + math.cos(math.pi * self.steps / self.iterations)) / 2
        self.steps += 1
        self.moments = [(0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g * g) for (m, v), g in zip(self.moments, gradients)]
        factor *= (1 - 0.999**self.steps) ** 0.5 / (1 - 0.9**self.steps)  # the correction of both biases
        return [
            p - factor * rate * m / (v.sqrt() + 1e-12) for p, rate, (m, v) in zip(tensors, self.rates, self.moments)
        ]


def expand(mask, like):
    """Give a mask (…) as many trailing dimensions as `like` has."""
    return mask.reshape(mask.shape + (1,) * (like.dim() - mask.dim()))


def draw(rule, x, seed):
    """λ⁰ (…, n), the same for every attack of a batch only if their `seed` and place agree; zero if there is no λ."""
    generator = torch.Generator().manual_seed(seed)
    if isinstance(rule, rules.Tied):
        return x.new_zeros(x.shape[:-1])
    sample = torch.rand if rule.bounded else torch.randn
    return sample(x.shape[:-1], generator=generator, dtype=torch.float64).to(x)


def check(weights, labels, start, lambda_min, range_weight):
    """Raise InputError unless the kernel covers these weights, and x (…, n, d) and labels (n,) fit to them."""
    if not (isinstance(weights, tuple) and weights and all(isinstance(layer, mlp.Layer) for layer in weights)):
        raise InputError("The stationarity attack needs the Layers of a ReLU network, as mlp.victim returns them.")
    sizes = [weights[0].weight.shape[1], *(len(layer.weight) for layer in weights)]
    if any(layer.weight.shape[1] != inputs for layer, inputs in zip(weights, sizes)):
        raise InputError(
            f"The layers' shapes do not follow each other: {[tuple(layer.weight.shape) for layer in weights]}."
        )
    n, d = start.shape[-2:]
    if d != sizes[0] or labels.shape != (n,):
        raise InputError(
            f"The start holds {n} candidates of {d} values, which needs {n} labels and {d} inputs, but there are "
            f"{tuple(labels.shape)} labels and {sizes[0]} inputs."
        )
    if not start.isfinite().all():
        raise InputError("The start holds values that are NaN or infinite: draw it anew.")
    if range_weight < 0:
        raise InputError(f"The weight of the range is {range_weight:g}; a penalty cannot be negative.")
    if lambda_min < 0:
        raise InputError(f"LAMBDA_MIN is {lambda_min:g}; a bound on λ cannot be negative.")
