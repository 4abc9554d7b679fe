"""The stationarity attack (DecoReco): find images and coefficients for which the given weights are stationary.

Minimises R(x, λ) = ‖θ* − Σ_i c_i ∇_θ Φ(x_i; θ*)‖² and penalties for pixels out of range and coefficients below their
bound. Images are without a mean: the trainer's is not released. Leading dimensions are independent attacks.
"""

import copy
import math
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from attacks import starts
from attacks.contract import Attack, bar, check_start, tuned
from utils.errors import InputError, choose
from utils.kernels import naive, products, solvers
from utils.kernels.coefficients import RULES, Tied, best
from utils.kernels.layers import Network
from utils.kernels.residual import Stationarity
from utils.kernels.step import run
from utils.networks import Released, change, flatten, in_span


class State(NamedTuple):
    """All that an attack needs to go on as if it had not stopped. Steps change it in place."""

    step: (
        torch.Tensor
    )  # (1,), how many were taken; behind the last the candidates are looked at once more
    x: torch.Tensor  # pixels (…, n, d), or coordinates (…, n, r)
    coefficients: torch.Tensor  # λ (…, n)
    best_x: torch.Tensor  # x and λ with the smallest loss so far, among those with the last α
    best_coefficients: torch.Tensor
    least: torch.Tensor  # that loss (…)
    history: torch.Tensor  # the loss of every step so far, and zeros (K+1, …)
    x_memory: torch.Tensor  # the optimiser's, of means and squares (2, …, n, d), zeros at first
    coefficient_memory: torch.Tensor  # (2, …, n)

    def keep(self, loss, counts):
        """Note the loss; where it `counts` and is the smallest so far, the candidates are the best ones."""
        self.history.index_copy_(0, self.step.clamp_max(len(self.history) - 1), loss[None])
        better = counts & (loss < self.least)
        self.best_x.copy_(torch.where(better[..., None, None], self.x, self.best_x))
        self.best_coefficients.copy_(
            torch.where(better[..., None], self.coefficients, self.best_coefficients)
        )
        self.least.copy_(torch.where(better, loss, self.least))


class Settings(NamedTuple):
    """How an optimiser moves candidates."""

    learning_rate: float  # of a pixel
    coefficient_rate: float  # of λ
    sharpness: float  # α, in the last fifth of the steps
    softest: float  # α at the first step, from which it grows by a factor in each
    scale: float  # of a normal start, standard deviation of a pixel

    def alpha(self, k, iterations):
        """α at step k; it has arrived at `sharpness` after four fifths of the iterations."""
        return self.softest * (self.sharpness / self.softest) ** (
            min(1.0, k / iterations / 0.8) if iterations else 1
        )

    def plan(self, optimiser, iterations, like):
        """α and the rates of x and of λ at every step (K+1, 3), of the type of `like`; the last step moves nothing."""
        factors = [*(solvers.STEPS[optimiser][1](k, iterations) for k in range(iterations)), 0.0]
        rates = self.learning_rate, self.coefficient_rate
        rows = [
            (self.alpha(k, iterations), *(factor * rate for rate in rates))
            for k, factor in enumerate(factors)
        ]
        return torch.tensor(rows, dtype=torch.float64).to(like)


# `sgd` as Buzaglo et al. (2023) publish it for regression on CIFAR-10; the others were chosen by the attacker's loss.
SETTINGS = {
    "sgd": Settings(
        learning_rate=0.952, coefficient_rate=1e-4, sharpness=90.3, softest=90.3, scale=0.0197
    ),
    "adam": Settings(
        learning_rate=0.03, coefficient_rate=0.03, sharpness=100.0, softest=10.0, scale=0.0197
    ),
    "projection": Settings(
        learning_rate=0.01, coefficient_rate=0.0, sharpness=30.0, softest=30.0, scale=0.0197
    ),
}
EXACT = 0.1  # of the steps, the last ones: their products are not rounded


class Tuned(NamedTuple):
    """The attack that `by_rate` chose."""

    attack: Attack  # the one with the smallest loss
    rate: float  # its learning rate


class Parts(NamedTuple):
    """The attacker's loss in parts, each (…)."""

    stationarity: torch.Tensor  # ‖W̄_l − D_lᵀĀ_{l−1}‖²/‖θ*‖² of every layer (…, L)
    range: torch.Tensor  # weight · Σ relu(|x| − 1)²/‖θ*‖²
    feasibility: torch.Tensor  # 5 Σ relu(λ_min − λ)²/‖θ*‖², zero for rules without a bound
    share: torch.Tensor | None = None  # (…, n): by how much R/‖θ*‖² grows without a candidate
    state: tuple | None = None  # decoreco.State, of an attack that was to stop on its way

    @property
    def total(self):
        """The attacker's loss."""
        return self.stationarity.sum(-1) + self.range + self.feasibility


class Objective:
    """The attacker's loss and its gradients, at pixels x or at coordinates in a basis (d, r), and at λ."""

    def __init__(self, network, rule, sharpness, lambda_min, range_weight, basis=None, target=None):
        self.slow = isinstance(network, torch.nn.Module)  # then autograd differentiates it
        if self.slow:
            self.stationarity = naive.Stationarity(network, rule, target=target)
            self.scale = self.stationarity.squares.sum()
        else:
            self.scale = flatten(network if target is None else target).square().sum()  # ‖θ*‖²
            if basis is not None:
                network, target = (net and in_span(net, basis) for net in (network, target))
            self.stationarity = Stationarity(network, rule, target=target)
        self.stationarity.sharpness = self.scale.new_tensor(sharpness)
        self.bound = lambda_min if rule.bounded else -math.inf
        self.range_weight, self.basis = range_weight, basis
        self.unseen = self.scale - self.stationarity.squares.sum()  # ‖W₁‖² outside of the basis

    def pixels(self, x):
        """Coordinates (…, n, r) to pixels (…, n, d)."""
        return x if self.basis is None else x @ self.basis.mT

    def __call__(self, x, coefficients):
        r = self.stationarity(x, coefficients)
        r.layers[..., 0] += self.unseen
        outside, push = self.outside(x)
        below = (self.bound - coefficients).clamp_min(0)
        parts = Parts(
            *(part / self.scale for part in (r.layers, outside, 5 * below.square().sum(-1)))
        )
        return parts, r.x_gradient + push, r.coefficient_gradient - 10 * below

    def outside(self, x):
        """The penalty for pixels outside of [−1, 1], and its gradient."""
        if not self.range_weight:
            return x.new_zeros(x.shape[:-2]), 0.0
        pixels = self.pixels(x)
        beyond = pixels - pixels.clamp(-1, 1)
        push = 2 * self.range_weight * beyond
        return self.range_weight * beyond.square().sum(
            (-2, -1)
        ), push if self.basis is None else push @ self.basis

    def share(self, x, coefficients):
        """By how much R/‖θ*‖² grows without candidate i: 2λᵢ(b − Hλ)ᵢ + λᵢ²Hᵢᵢ, as R is a quadratic in λ; (…, n)."""
        h, b = self.stationarity.quadratic(x)
        lambdas = (
            torch.ones_like(coefficients)
            if isinstance(self.stationarity.rule, Tied)
            else coefficients
        )
        residual = b - (h @ lambdas[..., None])[..., 0]
        return (
            2 * lambdas * residual + lambdas.square() * h.diagonal(dim1=-2, dim2=-1)
        ) / self.scale

    def best_coefficients(self, x):
        """The λ (…, n) above the bound that minimises R for these x."""
        return best(*self.stationarity.quadratic(x), self.bound)  # type: ignore[call-arg]


def attack(
    released: Released, start: torch.Tensor, *, rule: str = "signed", labels: torch.Tensor | None = None,
    optimiser: str = "adam", learning_rate: float | None = None, coefficient_rate: float | None = None,
    sharpness: float | None = None, lambda_min: float = 0.3, range_weight: float = 1.0, iterations: int = 1000,
    tolerance: float = 0.0, basis: torch.Tensor | None = None, coefficients: torch.Tensor | None = None,
    target: Network | None = None, seed: int = 0, dtype: torch.dtype = torch.float32, precision: str = "TF32",
    progress: bool = False, until: int | None = None, state: State | None = None) -> Attack:  # fmt: skip
    """Move the candidates `start` (…, n, d) until the released weights are stationary for them: Attack.

    The network is a stack of layers or any torch.nn.Module of rows (n, d), which autograd differentiates, slowly.
    `labels` (n,) of the candidates are balanced unless given; `rule` is one of RULES. `optimiser` is `sgd` (momentum
    0.9), `adam` (cosine schedule), or `projection`: Adam for the images, the best λ for each of them. Rates and the
    surrogate's `sharpness` α are those of SETTINGS unless given; a given α does not grow. In an orthonormal `basis`
    (d, r), r coordinates move at √(d/r) times a pixel's rate, which keeps the length of steps. A `target` takes the
    place of θ*, such as θ* − θ⁰. λ starts at `coefficients` (…, n), or is drawn from `seed`. Products have a
    `precision` of products.PRECISIONS, and are exact in the last tenth of the steps. Of the iterates with exact
    products and the last α, the first with a loss of at most `tolerance` is returned, or else that with the smallest.
    With `until` an attack stops after so many steps; a call given its `details.state` goes on. InputError if it
    diverges; of a batch, `stopped` says it.
    """
    clock = time.perf_counter()
    x = start.to(dtype)
    choices = (
        ["sgd", "adam"] if rule == "tied" else SETTINGS
    )  # without λ there is nothing to project
    given = zip(Settings._fields, (learning_rate, coefficient_rate, sharpness, sharpness))
    changed = {name: value for name, value in given if value is not None}
    settings = SETTINGS[choose("OPTIMISER", optimiser, choices)]._replace(**changed)
    if labels is None:
        labels = balanced_labels(
            start.shape[-2], max(outputs_of(released.network), 2), start.device
        )
    check(released, start, labels, basis, settings.sharpness, lambda_min, range_weight, iterations)
    network, target = (net and of_type(net, dtype) for net in (released.network, target))
    rule = make_rule(rule, labels.to(dtype), network, released.recipe)
    if basis is not None:
        basis, pixels_per_axis = basis.to(dtype), basis.shape[0] / basis.shape[1]
        x = x @ basis  # (…, n, d) @ (d, r) -> (…, n, r)
        settings = settings._replace(learning_rate=settings.learning_rate * pixels_per_axis**0.5)
    objective = Objective(network, rule, settings.softest, lambda_min, range_weight, basis, target)
    plan = settings.plan(optimiser, iterations, x)
    state = state or begin(
        x, draw(rule, x, seed) if coefficients is None else coefficients, iterations
    )
    with tuned(x, objective.stationarity.network):
        state = descend(objective, state, plan, optimiser, tolerance, until, progress, precision)
    return result(objective, state, plan, tolerance, until, start, clock)


def by_rate(
    released: Released, start: torch.Tensor, rates: Sequence[float], **settings: Any
) -> Tuned:
    """Attack at each of these learning rates, with these settings: an attacker tunes by its own loss, not the truth."""
    tried = [Tuned(attack(released, start, learning_rate=rate, **settings), rate) for rate in rates]
    return min(tried, key=lambda one: one.attack.loss)


def begin(x, coefficients, iterations):
    """The State of an attack that begins at candidates x (…, n, d) and λ (…, n)."""
    coefficients = coefficients.to(x).expand(x.shape[:-1])
    least = x.new_full(x.shape[:-2], math.inf)
    history = least.new_zeros(iterations + 1, *least.shape)
    step = x.new_zeros(1, dtype=torch.long)
    memories = (part.new_zeros(2, *part.shape) for part in (x, coefficients))
    return State(step, x, coefficients, x, coefficients, least, history, *memories)


def descend(objective, state, plan, optimiser, tolerance, until, progress, precision="exact"):
    """Step from a State until all has converged or diverged, to the end, or `until` a step: the State there."""
    state = State(*(part.clone() for part in state))
    move = solvers.STEPS[optimiser][0]
    projects = optimiser == "projection"
    last = len(plan) - 1
    taken = int(state.step)
    end = (
        until if until is not None and until < last else last + 1
    )  # the last candidates have a loss, too
    final = plan[-1, 0]  # the α behind which losses count
    precision = products.possible(precision, state.x.device)
    rough = (
        0 if precision == "exact" else round((1 - EXACT) * last)
    )  # steps whose losses do not count

    def step():  # reads and writes tensors of the state alone: a GPU captures it
        alpha, rate, coefficient_rate = plan.index_select(0, state.step.clamp_max(last))[0].unbind()
        objective.stationarity.sharpness.copy_(alpha)
        if (
            projects
        ):  # the best λ for the candidates, which may have diverged; found on the processor
            state.coefficients.copy_(
                objective.best_coefficients(state.x.nan_to_num().clamp(-1e3, 1e3))
            )
        parts, x_gradient, coefficient_gradient = objective(state.x, state.coefficients)
        counts = (alpha == final) & (state.step[0] >= rough)
        state.keep(parts.total, counts & (state.least > tolerance))  # what has converged stays
        move(state.x, x_gradient, state.x_memory, rate)
        move(state.coefficients, coefficient_gradient, state.coefficient_memory, coefficient_rate)
        state.step.add_(1)

    def ended():  # all have converged, or all have diverged; the history is zero before the first step
        return bool(
            (state.least <= tolerance).all()
            or not state.history[int(state.step) - 1].isfinite().any()
        )

    graph = not (projects or objective.slow)
    with bar(end - 1, "DecoReco attack", progress) as shown:
        shown.update(taken)
        for digits, stop in {precision: min(rough, end), "exact": end}.items():
            with products.use_precision(digits):
                run(step, state, stop - int(state.step), ended, shown.update, graph)
    return state


def result(objective, state, plan, tolerance, until, start, clock):
    """The Attack that ends in a State; InputError if all has diverged."""
    history = state.history[: int(state.step)]
    diverged = ~history[-1:].isfinite().all(0)
    stopped = solvers.name_stops(
        "iterations", converged=state.least <= tolerance, diverged=diverged
    )
    if stopped == "diverged":
        raise InputError(
            "The attack diverged: its loss is not finite. Give `attack` a smaller learning_rate."
        )
    counted = until is None or state.least.isfinite().all()
    at = (state.best_x, state.best_coefficients) if counted else (state.x, state.coefficients)
    objective.stationarity.sharpness.copy_(plan[min(int(state.step), len(plan) - 1), 0])
    parts = objective(*at)[0]._replace(share=objective.share(*at), state=state if until else None)
    return Attack(
        images=objective.pixels(at[0]).to(start),
        loss=parts.total,
        history=history,
        stopped=stopped,
        seconds=time.perf_counter() - clock,
        details=parts,
        coefficients=at[1].to(start),
    )


def of_type(network, dtype):
    """The network with weights of another type; a module's copy does not train."""
    if isinstance(network, torch.nn.Module):
        return copy.deepcopy(network).to(dtype).requires_grad_().eval()
    return change(network, lambda p: p.to(dtype))


def outputs_of(network):
    """How many outputs a network has: the rows of its last weights."""
    return len(
        [*network.parameters()][-1] if isinstance(network, torch.nn.Module) else network[-1].weight
    )


def draw(rule, x, seed):
    """λ⁰ (…, n) for candidates (…, n, d): uniform where λ has a bound, else normal; zero if there is no λ."""
    if isinstance(rule, Tied):
        return x.new_zeros(x.shape[:-1])
    sample = torch.rand if rule.bounded else torch.randn
    return (
        starts.random(x[..., 0].numel(), 1, seed, x.device, sample, use=2).view(x.shape[:-1]).to(x)
    )


def balanced_labels(n, kinds, device="cpu"):
    """Balanced labels (n,) for candidates, class 0 first."""
    if n < kinds:
        raise InputError(f"There are {n} candidates for {kinds} classes: make CANDIDATES larger.")
    return (torch.arange(n, device=device) * kinds // n).double()


def make_rule(name, labels, network, recipe):
    """The rule for candidates with labels (n,) and a network trained by a recipe; InputError unless they fit."""
    classes = max(outputs := outputs_of(network), 2)
    several = choose("RULE", name, RULES) == "multiclass" or (
        name == "tied" and recipe.loss == "cross_entropy"
    )
    if several != (outputs > 1):
        needed, other = (
            ("several outputs", "signed or margin") if several else ("one output", "multiclass")
        )
        raise InputError(
            f"The rule {name!r} needs a network with {needed}, but this one has {outputs}: use {other}."
        )
    if name == "tied" and not recipe.weight_decay > 0:
        raise InputError(
            f"The tied rule divides by the weight decay, which is {recipe.weight_decay:g}."
        )
    if name != "signed" and not torch.isin(labels, torch.arange(classes).to(labels)).all():
        raise InputError(
            f"The rule {name!r} needs labels from 0 to {classes - 1}, but has {labels.unique().tolist()}."
        )
    return RULES[name](labels, outputs, recipe.loss, recipe.weight_decay)


def check(released, start, labels, basis, sharpness, lambda_min, range_weight, iterations):
    """Raise InputError unless the kernel covers this network, and x (…, n, d) and labels (n,) fit to it."""
    check_start(released, start, labels)
    if isinstance(released.network, torch.nn.Module):
        if basis is not None:
            raise InputError(
                "A module is attacked in pixels: give no basis, or the layers of a fully connected stack."
            )
    elif len(released.network) > 1 and math.isfinite(released.recipe.sharpness):
        raise InputError(
            "The stationarity attack needs a ReLU network, and this one has a softplus: use sharpness=∞."
        )
    if not sharpness > 0:
        raise InputError(
            f"The sharpness α of the surrogate is {sharpness:g}; it must be larger than 0."
        )
    for name, value in {
        "LAMBDA_MIN": lambda_min,
        "RANGE_WEIGHT": range_weight,
        "STEPS": iterations,
    }.items():
        if not value >= 0:
            raise InputError(f"{name} is {value:g}; it cannot be negative.")
