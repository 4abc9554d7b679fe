"""The stationarity attack (DecoReco): find images and coefficients for which the given weights are stationary.

Minimises R(x, λ) = ‖θ* − Σ_i c_i ∇_θ Φ(x_i; θ*)‖² and two penalties, for pixels out of range and coefficients
below their bound. Images are without a mean: the trainer's is not released. Leading dimensions are independent attacks.
"""

import copy
import math
import time
from functools import partial
from typing import NamedTuple

import torch

from utils.attacks import starts
from utils.attacks.contract import Attack, bar, check_start, tuned
from utils.attacks.objective import Objective
from utils.errors import InputError, choose
from utils.kernels.coefficients import RULES, Tied
from utils.kernels.layers import change
from utils.kernels.solvers import STEPS, words
from utils.kernels.step import run


class State(NamedTuple):
    """Where an attack stands: all that it needs to go on as if it had not stopped. Steps change it in place."""

    step: torch.Tensor  # (1,), how many were taken; behind the last the candidates are looked at once more
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
        self.best_coefficients.copy_(torch.where(better[..., None], self.coefficients, self.best_coefficients))
        self.least.copy_(torch.where(better, loss, self.least))

    def ended(self, tolerance):
        """Whether all attacks have converged, or all have diverged."""
        latest = self.history[int(self.step) - 1]  # zeros before the first step
        return bool((self.least <= tolerance).all() or not latest.isfinite().any())


class Plan(NamedTuple):
    """The values that change from step to step, up to the last loss (K+1,), on the attack's device."""

    sharpness: torch.Tensor  # α
    arrived: torch.Tensor  # whether that is the last α
    rate: torch.Tensor  # of x
    coefficient_rate: torch.Tensor  # of λ

    def at(self, step):
        """The Plan of a step (1,), or of the last one behind it; a GPU looks it up by itself."""
        k = step.clamp_max(len(self.rate) - 1)
        return Plan(*(values.index_select(0, k)[0] for values in self))


class Settings(NamedTuple):
    """How an optimiser moves: published settings, or ours."""

    learning_rate: float  # of a pixel
    coefficient_rate: float  # of λ
    sharpness: float  # α, in the last fifth of the steps
    softest: float  # α at the first step, from which it grows by a factor in each
    scale: float  # of a normal start, standard deviation of a pixel

    def alpha(self, k, iterations):
        """α at step k; it has arrived at `sharpness` after four fifths of the iterations."""
        return self.softest * (self.sharpness / self.softest) ** (min(1.0, k / iterations / 0.8) if iterations else 1)

    def plan(self, optimiser, iterations, like):
        """The Plan of an attack of so many steps, in numbers of the type of `like`; the last rate is zero."""
        steps, factor = range(iterations + 1), STEPS[optimiser][1]
        alphas = torch.tensor([self.alpha(k, iterations) for k in steps], dtype=torch.float64)
        factors = torch.tensor([*(factor(k, iterations) for k in steps[:-1]), 0.0], dtype=torch.float64)
        rates = ((factors * rate).to(like) for rate in (self.learning_rate, self.coefficient_rate))
        return Plan(alphas.to(like), (alphas == self.sharpness).to(like.device), *rates)


# `sgd` as Buzaglo et al. (2023) publish it for regression on CIFAR-10; the others were chosen by the attacker's loss.
SETTINGS = {
    "sgd": Settings(0.952, 1e-4, 90.3, 90.3, 0.0197),
    "adam": Settings(0.03, 0.03, 100.0, 10.0, 0.0197),
    "projection": Settings(0.01, 0.0, 30.0, 30.0, 0.0197),
}


def attack(
    released, start, *, rule="signed", labels=None, optimiser="adam", learning_rate=None, coefficient_rate=None,
    sharpness=None, lambda_min=0.3, range_weight=1.0, iterations=1000, tolerance=0.0, basis=None, coefficients=None,
    target=None, seed=0, dtype=torch.float32, progress=False, until=None, state=None,
) -> Attack:  # fmt: skip
    """Move the candidates `start` (…, n, d) until the released weights are stationary for them.

    `labels` (n,) are those of the candidates, by default `balanced`; `rule` is one of RULES. `optimiser` is `sgd`
    (momentum 0.9), `adam` (cosine schedule), or `projection`: Adam for the images, the best λ for each of them. Rates
    and the surrogate's `sharpness` α are those of SETTINGS unless given; a given α does not grow. With an orthonormal
    `basis` (d, r), as from `networks.span`, r coordinates move, at √(d/r) times a pixel's learning rate, which keeps
    the length of steps. A `target` takes the place of θ*, such as θ* − θ⁰ for a start that is known. λ starts at
    `coefficients` (…, n), or is drawn from `seed`. Only iterates with the last α count: the first whose loss is at
    most `tolerance` is returned, or else the one with the smallest loss. With `until` an attack stops after so many of
    its `iterations`; a call given its `details.state` goes on. InputError if it diverges; a batch says so in
    `stopped`.

    The released network may be any torch.nn.Module that takes rows (n, d): then autograd differentiates it, slowly.
    """
    clock, x = time.perf_counter(), start.to(dtype)
    settings = settings_of(rule, optimiser, learning_rate, coefficient_rate, sharpness)
    if labels is None:
        labels = balanced(start.shape[-2], max(outputs_of(released.network), 2), start.device)
    check(released, start, labels, basis, settings.sharpness, lambda_min, range_weight, iterations)
    network, target = (net and of_type(net, dtype) for net in (released.network, target))
    rule = make_rule(rule, labels.to(dtype), network, released.recipe)
    if basis is not None:
        basis, pixels_per_axis = basis.to(dtype), basis.shape[0] / basis.shape[1]
        x = x @ basis  # (…, n, d) @ (d, r) -> (…, n, r)
        settings = settings._replace(learning_rate=settings.learning_rate * pixels_per_axis**0.5)
    objective = Objective(network, rule, settings.softest, lambda_min, range_weight, basis, target)
    plan = settings.plan(optimiser, iterations, x)
    state = state or begin(x, draw(rule, x, seed) if coefficients is None else coefficients, iterations)
    with tuned(x, objective.stationarity.network, rounded=True):
        state = descend(objective, state, plan, optimiser, tolerance, until, progress)
    return result(objective, state, plan, tolerance, until, start, clock)


class Tuned(NamedTuple):
    """The attack with the smallest loss."""

    attack: Attack
    rate: float  # its learning rate


def by_rate(released, start, rates, **settings):
    """Attack at each of these learning rates, with these settings: an attacker tunes by its own loss, not the truth."""
    tried = [Tuned(attack(released, start, learning_rate=rate, **settings), rate) for rate in rates]
    return min(tried, key=lambda one: one.attack.loss)


def begin(x, coefficients, iterations):
    """The State of an attack that begins at candidates x (…, n, d) and λ (…, n)."""
    coefficients, least = coefficients.to(x).expand(x.shape[:-1]), x.new_full(x.shape[:-2], math.inf)
    history, step = least.new_zeros(iterations + 1, *least.shape), x.new_zeros(1, dtype=torch.long)
    memories = (part.new_zeros(2, *part.shape) for part in (x, coefficients))
    return State(step, x, coefficients, x, coefficients, least, history, *memories)


def descend(objective, state, plan, optimiser, tolerance, until, progress):
    """Step from a State until all has converged or diverged, or to the end, or `until` a step: the State there."""
    state, move = State(*(part.clone() for part in state)), STEPS[optimiser][0]
    projects, last, taken = optimiser == "projection", len(state.history) - 1, int(state.step)
    end = until if until is not None and until < last else last + 1  # the last candidates have a loss, too

    def step():  # reads and writes tensors of the state alone: a GPU captures it
        now = plan.at(state.step)
        objective.stationarity.sharpness.copy_(now.sharpness)
        if projects:  # the best λ for the candidates, which may have diverged; found on the processor
            state.coefficients.copy_(objective.best_coefficients(state.x.nan_to_num().clamp(-1e3, 1e3)))
        parts, x_gradient, coefficient_gradient = objective(state.x, state.coefficients)
        state.keep(parts.total, now.arrived & (state.least > tolerance))  # what has converged stays
        move(state.x, x_gradient, state.x_memory, now.rate)
        move(state.coefficients, coefficient_gradient, state.coefficient_memory, now.coefficient_rate)
        state.step.add_(1)

    graph = not (projects or objective.slow)
    with bar(end - 1, "DecoReco attack", progress) as shown:
        shown.update(taken)
        run(step, state, end - taken, partial(state.ended, tolerance), shown.update, graph)
    return state


def result(objective, state, plan, tolerance, until, start, clock):
    """The Attack that ends in a State; InputError if all has diverged."""
    history = state.history[: int(state.step)]
    stopped = words("iterations", converged=state.least <= tolerance, diverged=~history[-1:].isfinite().all(0))
    if stopped == "diverged":
        raise InputError("The attack diverged: its loss is not finite. Give `attack` a smaller learning_rate.")
    best = until is None or state.least.isfinite().all()
    x, found = (state.best_x, state.best_coefficients) if best else (state.x, state.coefficients)
    objective.stationarity.sharpness.copy_(plan.at(state.step).sharpness)
    parts = objective(x, found)[0]._replace(share=objective.share(x, found), state=state if until else None)
    seconds, x, found = time.perf_counter() - clock, objective.pixels(x).to(start), found.to(start)
    return Attack(x, found, None, parts.total, history, stopped, parts, seconds)


def settings_of(rule, optimiser, learning_rate, coefficient_rate, sharpness):
    """The Settings of an optimiser, but for those that are given; InputError if the rule has no use for it."""
    choices = ["sgd", "adam"] if rule == "tied" else SETTINGS  # without λ there is nothing to project
    given = dict(zip(Settings._fields, (learning_rate, coefficient_rate, sharpness, sharpness)))
    given = {name: value for name, value in given.items() if value is not None}
    return SETTINGS[choose("OPTIMISER", optimiser, choices)]._replace(**given)


def of_type(network, dtype):
    """The network with weights of another type; a module's copy does not train."""
    if isinstance(network, torch.nn.Module):
        return copy.deepcopy(network).to(dtype).requires_grad_().eval()
    return change(network, lambda p: p.to(dtype))


def outputs_of(network):
    """How many outputs a network has: as many as its last weights have rows."""
    last = [*network.parameters()][-1] if isinstance(network, torch.nn.Module) else network[-1].weight
    return len(last)


def draw(rule, x, seed):
    """λ⁰ (…, n) for candidates (…, n, d): uniform where λ has a bound, else normal; zero if there is no λ."""
    if isinstance(rule, Tied):
        return x.new_zeros(x.shape[:-1])
    sample = torch.rand if rule.bounded else torch.randn
    return starts.random(x[..., 0].numel(), 1, seed, x.device, sample, use=2).view(x.shape[:-1]).to(x)


def balanced(n, kinds, device="cpu"):
    """Balanced labels (n,) for candidates, class 0 first."""
    if n < kinds:
        raise InputError(f"There are {n} candidates for {kinds} classes: make CANDIDATES larger.")
    return (torch.arange(n, device=device) * kinds // n).double()


def make_rule(name, labels, network, recipe):
    """The rule for candidates with labels (n,) and a network trained by a recipe; InputError unless they fit."""
    classes = max(outputs := outputs_of(network), 2)
    several = choose("RULE", name, RULES) == "multiclass" or (name == "tied" and recipe.loss == "cross_entropy")
    if several != (outputs > 1):
        needed, other = ("several outputs", "signed or margin") if several else ("one output", "multiclass")
        raise InputError(f"The rule {name!r} needs a network with {needed}, but this one has {outputs}: use {other}.")
    if name == "tied" and not recipe.weight_decay > 0:
        raise InputError(f"The tied rule divides by the weight decay, which is {recipe.weight_decay:g}.")
    if name != "signed" and not torch.isin(labels, torch.arange(classes).to(labels)).all():
        raise InputError(f"The rule {name!r} needs labels from 0 to {classes - 1}, but has {labels.unique().tolist()}.")
    return RULES[name](labels, outputs, recipe.loss, recipe.weight_decay)


def check(released, start, labels, basis, sharpness, lambda_min, range_weight, iterations):
    """Raise InputError unless the kernel covers this network, and x (…, n, d) and labels (n,) fit to it."""
    check_start(released, start, labels)
    if isinstance(released.network, torch.nn.Module):
        if basis is not None:
            raise InputError("A module is attacked in pixels: give no basis, or the layers of a fully connected stack.")
    elif len(released.network) > 1 and math.isfinite(released.recipe.sharpness):
        raise InputError("The stationarity attack needs a ReLU network, and this one has a softplus: use sharpness=∞.")
    if not sharpness > 0:
        raise InputError(f"The sharpness α of the surrogate is {sharpness:g}; it must be larger than 0.")
    for name, value in {"LAMBDA_MIN": lambda_min, "RANGE_WEIGHT": range_weight, "STEPS": iterations}.items():
        if not value >= 0:
            raise InputError(f"{name} is {value:g}; it cannot be negative.")
