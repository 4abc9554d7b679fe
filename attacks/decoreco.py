"""The stationarity attack (DecoReco): find images and coefficients for which the given weights are stationary.

Minimises R(x, λ) = ‖θ* − Σ_i c_i ∇_θ Φ(x_i; θ*)‖², with weight decay the stationarity of eqs. (3) and (4), and
penalties for pixels out of range and coefficients below their bound. Images are without a mean: the trainer's is not
released. Leading dimensions are independent attacks.
"""

import copy
import math
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch

from attacks import starts
from attacks.contract import Attack, bar, check_start, tuned
from utils.errors import InputError, choose
from utils.kernels import naive, products, solvers
from utils.kernels.coefficients import RULES, Tied, best
from utils.kernels.layers import Network
from utils.kernels.residual import Stationarity
from utils.kernels.step import LOOK, run
from utils.networks import Released, change, flatten, in_span

EXACT = 0.1  # of the steps, the last ones: their products are not rounded


class Settings(NamedTuple):
    """What is minimised, and how an optimiser moves candidates."""

    optimiser: str  # sgd (momentum 0.9), adam (cosine schedule), or projection: Adam, with the best λ at each step
    learning_rate: float  # of a pixel
    coefficient_rate: float  # of λ
    sharpness: float  # α of the surrogate for a ReLU's slope, in the last fifth of the steps
    softest: float  # α at the first step, from which it grows by a factor in each
    scale: float = 0.0197  # of a normal start, standard deviation of a pixel
    rule: str = "signed"  # of the coefficients c, one of RULES
    lambda_min: float = 0.3  # the bound of λ
    range_weight: float = 1.0  # of the penalty for pixels out of range
    iterations: int = 1000
    tolerance: float = 0.0  # the loss at which an attack has converged
    dtype: torch.dtype = torch.float32

    def alpha(self, k):
        """α at step k; it has arrived at `sharpness` after four fifths of the iterations."""
        share = min(1.0, k / self.iterations / 0.8) if self.iterations else 1
        return self.softest * (self.sharpness / self.softest) ** share

    def plan(self, like):
        """α and the rates of x and of λ at every step (K+1, 3), of the type of `like`; the last step moves nothing."""
        factor_at = solvers.STEPS[self.optimiser][1]
        factors = [*(factor_at(k, self.iterations) for k in range(self.iterations)), 0.0]
        rows = [
            (self.alpha(k), factor * self.learning_rate, factor * self.coefficient_rate)
            for k, factor in enumerate(factors)
        ]
        return torch.tensor(rows, dtype=torch.float64).to(like)


ADAM = Settings(
    optimiser="adam", learning_rate=0.03, coefficient_rate=0.03, sharpness=100.0, softest=10.0
)
# `sgd` as Buzaglo et al. (2023) publish it for regression on CIFAR-10; the others were chosen by the attacker's loss.
SETTINGS = {
    "sgd": Settings(
        optimiser="sgd",
        learning_rate=0.952,
        coefficient_rate=1e-4,
        sharpness=90.3,
        softest=90.3,
    ),
    "adam": ADAM,
    "projection": Settings(
        optimiser="projection",
        learning_rate=0.01,
        coefficient_rate=0.0,
        sharpness=30.0,
        softest=30.0,
    ),
}


class State(NamedTuple):
    """All that an attack needs to go on. Steps change it in place."""

    step: (
        torch.Tensor
    )  # (1,), how many were taken; behind the last the candidates are looked at once more
    x: torch.Tensor  # pixels (…, n, d), or coordinates (…, n, r)
    coefficients: torch.Tensor  # λ (…, n)
    best_x: torch.Tensor  # x and λ with the smallest loss so far, among those that count
    best_coefficients: torch.Tensor
    least: torch.Tensor  # that loss (…)
    history: torch.Tensor  # the loss of every step so far, and zeros (K+1, …)
    x_memory: torch.Tensor  # the optimiser's, of means and squares (2, …, n, d), zeros at first
    coefficient_memory: torch.Tensor  # (2, …, n)

    def keep(self, loss, counts):
        """Note the loss; where it `counts` and is the smallest so far, the candidates are the best ones."""
        self.history.index_copy_(0, self.step.clamp_max(len(self.history) - 1), loss[None])
        better = counts & (loss < self.least)
        for old, new in (
            (self.best_x, self.x),
            (self.best_coefficients, self.coefficients),
            (self.least, loss),
        ):
            mask = better.reshape(better.shape + (1,) * (new.dim() - better.dim()))
            old.copy_(torch.where(mask, new, old))


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
            stationarity=r.layers / self.scale,
            range=outside / self.scale,
            feasibility=5 * below.square().sum(-1) / self.scale,
        )
        return parts, r.x_gradient + push, r.coefficient_gradient - 10 * below

    def outside(self, x):
        """The penalty for pixels outside of [−1, 1], and its gradient."""
        if not self.range_weight:
            return x.new_zeros(x.shape[:-2]), 0.0
        pixels = self.pixels(x)
        beyond = pixels - pixels.clamp(-1, 1)
        push = 2 * self.range_weight * beyond
        if self.basis is not None:
            push = push @ self.basis
        return self.range_weight * beyond.square().sum((-2, -1)), push

    def share(self, x, coefficients):
        """By how much R/‖θ*‖² grows without candidate i: 2λᵢ(b − Hλ)ᵢ + λᵢ²Hᵢᵢ, as R is a quadratic in λ; (…, n)."""
        h, b = self.stationarity.quadratic(x)
        tied = isinstance(self.stationarity.rule, Tied)
        lambdas = torch.ones_like(coefficients) if tied else coefficients
        residual = b - (h @ lambdas[..., None])[..., 0]
        alone = lambdas.square() * h.diagonal(dim1=-2, dim2=-1)
        return (2 * lambdas * residual + alone) / self.scale

    def best_coefficients(self, x):
        """The λ (…, n) above the bound that minimises R for these x."""
        return best(*self.stationarity.quadratic(x), self.bound)  # type: ignore[call-arg]


class Problem:
    """What an attack minimises, and its steps: the objective, and α and the rates of every step."""

    def __init__(self, released, start, settings, labels=None, basis=None, target=None):
        if labels is None:
            kinds = max(outputs_of(released.network), 2)
            labels = balanced_labels(start.shape[-2], kinds, start.device)
        check(released, start, labels, basis, settings)
        dtype = settings.dtype
        network, target = (net and of_type(net, dtype) for net in (released.network, target))
        rule = make_rule(settings.rule, labels.to(dtype), network, released.recipe)
        x = start.to(dtype)
        if basis is not None:
            basis = basis.to(dtype)
            x = x @ basis  # (…, n, d) @ (d, r) -> (…, n, r)
            longer = (basis.shape[0] / basis.shape[1]) ** 0.5
            settings = settings._replace(learning_rate=settings.learning_rate * longer)
        penalties = settings.lambda_min, settings.range_weight
        self.objective = Objective(network, rule, settings.softest, *penalties, basis, target)
        self.settings = settings
        self.start = start
        self.x = x
        self.plan = settings.plan(x)
        self.projects = settings.optimiser == "projection"
        self.graph = not (self.projects or self.objective.slow)
        self.precision = products.rough(x.device, otherwise="TF32")
        exact = self.precision == "exact"
        self.rough = 0 if exact else round((1 - EXACT) * settings.iterations)

    def begin(self, coefficients, seed):
        """The State at the start, with these λ (…, n), or with drawn ones."""
        x = self.x
        if coefficients is None:
            coefficients = draw(self.objective.stationarity.rule, x, seed)
        coefficients = coefficients.to(x).expand(x.shape[:-1])
        return State(
            step=x.new_zeros(1, dtype=torch.long),
            x=x.clone(),
            coefficients=coefficients.clone(),
            best_x=x.clone(),
            best_coefficients=coefficients.clone(),
            least=x.new_full(x.shape[:-2], math.inf),
            history=x.new_zeros(len(self.plan), *x.shape[:-2]),
            x_memory=x.new_zeros(2, *x.shape),
            coefficient_memory=x.new_zeros(2, *coefficients.shape),
        )

    def phases(self):
        """The precision of the first steps and of the last ones, each with their number."""
        return (self.precision, self.rough), ("exact", len(self.plan) - self.rough)

    def step(self, state, precision="exact"):
        """Evaluate R and its penalties, keep the best candidates, and move; a GPU captures it."""
        x, coefficients = state.x, state.coefficients
        last = len(self.plan) - 1
        alpha, rate, coefficient_rate = self.plan.index_select(0, state.step.clamp_max(last))[0]
        self.objective.stationarity.sharpness.copy_(alpha)
        with products.use_precision(precision):
            if self.projects:  # on the processor; candidates may have diverged
                tame = x.nan_to_num().clamp(-1e3, 1e3)
                coefficients.copy_(self.objective.best_coefficients(tame))
            parts, x_gradient, coefficient_gradient = self.objective(x, coefficients)
        counts = (alpha == self.plan[-1, 0]) & (state.step[0] >= self.rough)
        going = state.least > self.settings.tolerance  # what has converged stays
        state.keep(parts.total, counts & going)
        move = solvers.STEPS[self.settings.optimiser][0]
        move(x, x_gradient, state.x_memory, rate)
        move(coefficients, coefficient_gradient, state.coefficient_memory, coefficient_rate)
        state.step.add_(1)

    def ended(self, state):
        """Whether all have converged, or all have diverged; the history is zero before the first step."""
        converged = (state.least <= self.settings.tolerance).all()
        return bool(converged or not state.history[int(state.step) - 1].isfinite().any())

    def result(self, state, clock):
        """The Attack that ends in a State, with its last candidates if no loss counts; InputError if all diverged."""
        history = state.history[: int(state.step)]
        converged = state.least <= self.settings.tolerance
        diverged = ~history[-1:].isfinite().all(0)
        stopped = solvers.name_stops("iterations", converged=converged, diverged=diverged)
        if stopped == "diverged":
            raise InputError(
                "The attack diverged: its loss is not finite. Give its settings a smaller learning_rate."
            )
        counted = int(state.step) == len(self.plan) or state.least.isfinite().all()
        x = state.best_x if counted else state.x
        coefficients = state.best_coefficients if counted else state.coefficients
        last = self.plan[min(int(state.step), len(self.plan) - 1), 0]
        self.objective.stationarity.sharpness.copy_(last)
        parts = self.objective(x, coefficients)[0]
        return Attack(
            images=self.objective.pixels(x).to(self.start),
            loss=parts.total,
            history=history,
            stopped=stopped,
            seconds=time.perf_counter() - clock,
            details=parts._replace(share=self.objective.share(x, coefficients)),
            coefficients=coefficients.to(self.start),
        )


def attack(
    released: Released,
    start: torch.Tensor,
    settings: Settings = ADAM,
    *,
    labels: torch.Tensor | None = None,
    basis: torch.Tensor | None = None,
    coefficients: torch.Tensor | None = None,
    target: Network | None = None,
    seed: int = 0,
    watch: Callable[[int, Callable[[], Attack]], object] | None = None,
    progress: bool = False,
) -> Attack:
    """Move the candidates `start` (…, n, d) until the released weights are stationary for them: Attack.

    The network is a stack of layers or any torch.nn.Module of rows (n, d), which autograd differentiates, slowly.
    `labels` (n,) of the candidates are balanced unless given. In an orthonormal `basis` (d, r), r coordinates move at
    √(d/r) times a pixel's rate, which keeps the length of steps. A `target` takes the place of θ*, such as θ* − θ⁰. λ
    starts at `coefficients` (…, n), or is drawn from `seed`. Products are rounded as `products.precision` around this
    call says (on a GPU to TF32 without it), and are exact in the last tenth of the steps. Of the iterates with exact
    products and the last α, the first with a loss of at most the tolerance is returned, or else that with the smallest.
    After each step `watch(step, result)` is called; `result()` is the Attack so far. InputError if it diverges; of a
    batch, `stopped` says it.
    """
    clock = time.perf_counter()
    problem = Problem(released, start, settings, labels, basis, target)
    state = problem.begin(coefficients, seed)

    def look(n):
        shown.update(n)
        if watch:
            watch(int(state.step), partial(problem.result, state, clock))

    at_once = 1 if watch else LOOK["cuda"]
    shown = bar(settings.iterations, "DecoReco attack", progress)
    with shown, tuned(state.x, problem.objective.stationarity.network):
        for precision, count in problem.phases():
            step = partial(problem.step, state, precision)
            run(step, state, count, partial(problem.ended, state), look, problem.graph, at_once)
    return problem.result(state, clock)


def by_rate(
    released: Released,
    start: torch.Tensor,
    rates: Sequence[float],
    settings: Settings = ADAM,
    **given: Any,
) -> Tuned:
    """Attack at each of these learning rates: an attacker tunes by its own loss, not the truth."""
    tried = [
        Tuned(attack(released, start, settings._replace(learning_rate=rate), **given), rate)
        for rate in rates
    ]
    return min(tried, key=lambda one: one.attack.loss)


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


def check(released, start, labels, basis, settings):
    """Raise InputError unless the kernel covers this network, and x (…, n, d) and labels (n,) fit to it."""
    optimisers = ["sgd", "adam"] if settings.rule == "tied" else SETTINGS
    choose("OPTIMISER", settings.optimiser, optimisers)  # without λ there is nothing to project
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
    if not min(settings.sharpness, settings.softest) > 0:
        raise InputError("The sharpness α of the surrogate must be larger than 0.")
    least = {"LAMBDA_MIN": settings.lambda_min, "RANGE_WEIGHT": settings.range_weight}
    for name, value in (least | {"STEPS": settings.iterations}).items():
        if not value >= 0:
            raise InputError(f"{name} is {value:g}; it cannot be negative.")
