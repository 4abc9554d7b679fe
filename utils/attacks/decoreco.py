"""The stationarity attack (DecoReco): find images and coefficients for which the given weights are stationary.

Minimises R(x, λ) = ‖θ* − Σ_i c_i ∇_θ Φ(x_i; θ*)‖² and two penalties, for pixels out of range and coefficients
below their bound. Images are without a mean: the trainer's is not released. Leading dimensions are independent attacks.
"""

import math
import time
import warnings
from functools import partial
from typing import NamedTuple

import torch

from utils.attacks import starts
from utils.attacks.contract import Attack, bar, check_start, tuned
from utils.errors import InputError, choose
from utils.kernels.coefficients import RULES, Tied, best
from utils.kernels.graphs import LOOK, plain, repeated
from utils.kernels.layers import change, flatten
from utils.kernels.residual import Stationarity
from utils.kernels.solvers import STEPS, words
from utils.networks import in_span


class Parts(NamedTuple):
    """The attacker's loss in parts, each (…); `stationarity` (…, L) for every layer, in units of ‖θ*‖²."""

    stationarity: torch.Tensor  # ‖W̄_l − D_lᵀĀ_{l−1}‖²/‖θ*‖²
    range: torch.Tensor  # weight · Σ relu(|x| − 1)²/‖θ*‖²
    feasibility: torch.Tensor  # 5 Σ relu(λ_min − λ)²/‖θ*‖², zero for rules without a bound
    share: torch.Tensor | None = None  # (…, n): by how much R/‖θ*‖² grows if a candidate is left out
    state: "State | None" = None  # of an attack that was to stop on its way

    @property
    def total(self):
        """The attacker's loss."""
        return self.stationarity.sum(-1) + self.range + self.feasibility


class State(NamedTuple):
    """Where an attack stands: all that it needs to go on as if it had not stopped. Steps change it in place."""

    step: torch.Tensor  # (1,), how many were taken
    x: torch.Tensor  # pixels (…, n, d), or coordinates (…, n, r)
    coefficients: torch.Tensor  # λ (…, n)
    best_x: torch.Tensor  # x and λ with the smallest loss so far, among those with the last α
    best_coefficients: torch.Tensor
    least: torch.Tensor  # that loss (…)
    history: torch.Tensor  # the loss of every step so far, and zeros (K+1, …)
    mean: torch.Tensor  # the optimiser's memory for x, zeros at first
    square: torch.Tensor
    coefficient_mean: torch.Tensor  # and for λ
    coefficient_square: torch.Tensor


class Plan(NamedTuple):
    """What is another at every step, up to the last loss (K+1,), on the attack's device."""

    sharpness: torch.Tensor  # α
    arrived: torch.Tensor  # whether that is the last α
    rate: torch.Tensor  # of x
    coefficient_rate: torch.Tensor  # of λ


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


# `sgd` as Buzaglo et al. (2023) publish it for regression on CIFAR-10; the others were chosen by the attacker's loss.
SETTINGS = {
    "sgd": Settings(0.952, 1e-4, 90.3, 90.3, 0.0197),
    "adam": Settings(0.03, 0.03, 100.0, 10.0, 0.0197),
    "projection": Settings(0.01, 0.0, 30.0, 30.0, 0.0197),
}


class Objective:
    """The attacker's loss and its gradients, at pixels x or at coordinates in a basis (d, r), and at λ."""

    def __init__(self, network, rule, sharpness, lambda_min, range_weight, basis=None, target=None):
        given, sharpness = (network, target), network[0].weight.new_tensor(sharpness)
        seen, wanted = (net if basis is None or net is None else in_span(net, basis) for net in given)
        self.stationarity = Stationarity(seen, rule, sharpness, target=wanted)
        self.bound = lambda_min if rule.bounded else -math.inf
        self.range_weight, self.basis = range_weight, basis
        self.scale = flatten(network if target is None else target).square().sum()  # ‖θ*‖²
        self.unseen = self.scale - self.stationarity.squares.sum()  # ‖W₁‖² outside of the basis

    def pixels(self, x):
        """Coordinates (…, n, r) to pixels (…, n, d)."""
        return x if self.basis is None else x @ self.basis.mT

    def __call__(self, x, coefficients):
        r = self.stationarity(x, coefficients)
        r.layers[..., 0] += self.unseen
        outside, x_gradient = self.outside(x)
        below = (self.bound - coefficients).clamp_min(0)
        parts = Parts(*(part / self.scale for part in (r.layers, outside, 5 * below.square().sum(-1))))
        return parts, r.x_gradient + x_gradient, r.coefficient_gradient - 10 * below

    def outside(self, x):
        """The penalty for pixels outside of [−1, 1], and its gradient."""
        if not self.range_weight:
            return x.new_zeros(x.shape[:-2]), 0.0
        pixels = self.pixels(x)
        beyond = pixels - pixels.clamp(-1, 1)
        push = 2 * self.range_weight * beyond
        return self.range_weight * beyond.square().sum((-2, -1)), push if self.basis is None else push @ self.basis

    def share(self, x, coefficients):
        """By how much R/‖θ*‖² grows without candidate i: 2λᵢ(b − Hλ)ᵢ + λᵢ²Hᵢᵢ, as R is a quadratic in λ; (…, n)."""
        h, b = self.stationarity.quadratic(x)
        known = torch.ones_like(coefficients) if isinstance(self.stationarity.rule, Tied) else coefficients
        rest = b - (h @ known[..., None])[..., 0]
        return (2 * known * rest + known.square() * h.diagonal(dim1=-2, dim2=-1)) / self.scale

    def best_coefficients(self, x):
        """The λ (…, n) above the bound that minimises R for these x."""
        return best(*self.stationarity.quadratic(x), self.bound)  # type: ignore[call-arg]


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
    `coefficients` (…, n), or is drawn from `seed`. Of the iterates with the last α the first whose loss is at most
    `tolerance` is returned, or the best. With `until` an attack stops after so many of its `iterations`; a call given
    its `details.state` goes on. InputError if it diverges; a batch says so in `stopped`.
    """
    begun, x = time.perf_counter(), start.to(dtype)
    network, target = (net and change(net, lambda p: p.to(dtype)) for net in (released.network, target))
    settings = settings_of(rule, optimiser, learning_rate, coefficient_rate, sharpness)
    if labels is None:
        labels = balanced(start.shape[-2], max(len(network[-1].weight), 2), start.device)
    check(released, start, labels, settings.sharpness, lambda_min, range_weight, iterations)
    rule = make_rule(rule, labels.to(dtype), network, released.recipe)
    if basis is not None:
        basis, pixels_per_axis = basis.to(dtype), basis.shape[0] / basis.shape[1]
        x = x @ basis  # (…, n, d) @ (d, r) -> (…, n, r)
        settings = settings._replace(learning_rate=settings.learning_rate * pixels_per_axis**0.5)
    objective = Objective(network, rule, settings.softest, lambda_min, range_weight, basis, target)
    begin = draw(rule, x, seed) if coefficients is None else coefficients.to(x).expand(x.shape[:-1])
    state, plan = state or initial(x, begin, iterations), planned(settings, optimiser, iterations, x)
    run = partial(minimise, objective, state, optimiser, plan, until, tolerance, progress)
    with tuned(x, objective.stationarity.network, rounded=True):
        state, stopped, history = spared(objective.stationarity, x, run)
    x, found = state[3:5] if until is None or state.least.isfinite().all() else state[1:3]
    parts, seconds = objective(x, found)[0], time.perf_counter() - begun
    parts = parts._replace(share=objective.share(x, found), state=state if until else None)
    x, found = objective.pixels(x).to(start), found.to(start)
    return Attack(x, found, None, parts.total, history, stopped, parts, seconds)


def settings_of(rule, optimiser, learning_rate, coefficient_rate, sharpness):
    """The Settings of an optimiser, but for those that are given; InputError if the rule has no use for it."""
    choices = ["sgd", "adam"] if rule == "tied" else SETTINGS  # without λ there is nothing to project
    given = dict(zip(Settings._fields, (learning_rate, coefficient_rate, sharpness, sharpness)))
    given = {name: value for name, value in given.items() if value is not None}
    return SETTINGS[choose("OPTIMISER", optimiser, choices)]._replace(**given)


def initial(x, coefficients, iterations):
    """The State of an attack that begins at candidates x and λ."""
    least, step = torch.full(x.shape[:-2], math.inf).to(x), torch.zeros(1, dtype=torch.long, device=x.device)
    history = least.new_zeros(iterations + 1, *least.shape)
    memory = [torch.zeros_like(part) for part in (x, x, coefficients, coefficients)]
    return State(step, x, coefficients, x, coefficients, least, history, *memory)


def planned(settings, optimiser, iterations, like):
    """The Plan of an attack of so many steps; its numbers are of the type of `like`."""
    steps, factor = range(iterations + 1), STEPS[optimiser][1]
    alphas = torch.tensor([settings.alpha(k, iterations) for k in steps], dtype=torch.float64)
    factors = torch.tensor([*(factor(k, iterations) for k in steps[:-1]), 0.0], dtype=torch.float64)
    arrived = (alphas == settings.sharpness).to(like.device)
    return Plan(alphas.to(like), arrived, *((factors * rate).to(like) for rate in settings[:2]))


def at(values, step):
    """The entry of `values` (K, …) at a step (1,), or the last one behind them; a GPU looks it up by itself."""
    return values.index_select(0, step.clamp_max(len(values) - 1))[0]


def minimise(objective, state, optimiser, plan, until, tolerance, progress):
    """Take the steps of an attack from a State, to its end or `until` a step: State, why it stopped, and the losses."""
    state = State(*(part.clone() for part in state))  # steps change it
    last, taken = len(state.history) - 1, int(state.step)
    end, chunk = last if until is None else min(until, last), LOOK[state.x.device.type]
    step = partial(stepped, objective, state, plan, STEPS[optimiser][0], tolerance)
    if optimiser == "projection":  # the best λ are found on the processor, before each step
        project, chunk = partial(projected, objective, state, plan), 1
        run = plain(lambda: (project(), step()))
    else:
        run = repeated(step, state, often=end - taken)
    with bar(end, "DecoReco attack", progress) as shown:
        shown.update(taken)
        while taken < end and not terminated(state, taken, tolerance):
            run(count := min(chunk, end - taken))
            taken += count
            shown.update(count)
    if taken == last and not terminated(state, taken, tolerance):  # the last candidates have a loss, too
        if optimiser == "projection":
            project()
        evaluated(objective, state, plan, tolerance)
        taken += 1
    objective.stationarity.sharpness.copy_(plan.sharpness[min(int(state.step), last)])
    history = state.history[:taken]
    stopped = words("iterations", converged=state.least <= tolerance, diverged=~history[-1:].isfinite().all(0))
    if stopped == "diverged":
        raise InputError("The attack diverged: its loss is not finite. Choose a smaller LEARNING_RATE.")
    return state, stopped, history


def spared(stationarity, x, run):
    """What `run()` returns. If that fills a GPU, and there are several sets of candidates, once more with half of them.

    The sets x (S, n, d) are evaluated in slices, as many at once as seem to fit; others may use the memory, too.
    """
    n, sets = x.shape[-2], len(x) if x.dim() == 3 else 1
    try:
        return run()
    except torch.OutOfMemoryError:
        at_once = min(sets, stationarity.rows // n)
        if at_once < 2:
            raise
    warnings.warn(f"The memory is full: of {sets} sets of candidates {at_once // 2} are moved at once.", stacklevel=4)
    stationarity.rows = n * (at_once // 2)
    torch.cuda.empty_cache()
    return run()


def stepped(objective, state, plan, move, tolerance):
    """A step on the tensors of a State: the loss and its gradients, what was best so far, and along the gradients."""
    x_gradient, coefficient_gradient = evaluated(objective, state, plan, tolerance)
    move(state.x, x_gradient, state[7:9], at(plan.rate, state.step))
    move(state.coefficients, coefficient_gradient, state[9:11], at(plan.coefficient_rate, state.step))
    state.step.add_(1)


def evaluated(objective, state, plan, tolerance):
    """The gradients in x and λ; the loss is noted, and, if it is the smallest so far, where that was.

    Only losses of the last α are compared. What has converged stays.
    """
    objective.stationarity.sharpness.copy_(at(plan.sharpness, state.step))
    parts, *gradients = objective(state.x, state.coefficients)
    loss = parts.total
    state.history.index_copy_(0, state.step.clamp_max(len(state.history) - 1), loss[None])
    better = at(plan.arrived, state.step) & (loss < state.least) & (state.least > tolerance)
    state.best_x.copy_(torch.where(better[..., None, None], state.x, state.best_x))
    state.best_coefficients.copy_(torch.where(better[..., None], state.coefficients, state.best_coefficients))
    state.least.copy_(torch.where(better, loss, state.least))
    return gradients


def projected(objective, state, plan):
    """Replace λ by the best ones for the candidates, which may have diverged."""
    objective.stationarity.sharpness.copy_(at(plan.sharpness, state.step))
    state.coefficients.copy_(objective.best_coefficients(state.x.nan_to_num().clamp(-1e3, 1e3)))


def terminated(state, taken, tolerance):
    """Whether after some steps all attacks have converged or diverged."""
    diverged = taken and not state.history[taken - 1].isfinite().any()
    return bool(diverged or (state.least <= tolerance).all())


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
    classes = max(outputs := len(network[-1].weight), 2)
    several = choose("RULE", name, RULES) == "multiclass" or (name == "tied" and recipe.loss == "cross_entropy")
    if several != (outputs > 1):
        needed, other = ("several outputs", "signed or margin") if several else ("one output", "multiclass")
        raise InputError(f"The rule {name!r} needs a network with {needed}, but this one has {outputs}: use {other}.")
    if name == "tied" and not recipe.weight_decay > 0:
        raise InputError(f"The tied rule divides by the weight decay, which is {recipe.weight_decay:g}.")
    if name != "signed" and not torch.isin(labels, torch.arange(classes).to(labels)).all():
        raise InputError(f"The rule {name!r} needs labels from 0 to {classes - 1}, but has {labels.unique().tolist()}.")
    return RULES[name](labels, outputs, recipe.loss, recipe.weight_decay)


def check(released, start, labels, sharpness, lambda_min, range_weight, iterations):
    """Raise InputError unless the kernel covers this network, and x (…, n, d) and labels (n,) fit to it."""
    check_start(released, start, labels)
    if len(released.network) > 1 and math.isfinite(released.recipe.sharpness):
        raise InputError("The stationarity attack needs a ReLU network, and this one has a softplus: use sharpness=∞.")
    if not sharpness > 0:
        raise InputError(f"The sharpness α of the surrogate is {sharpness:g}; it must be larger than 0.")
    for name, value in {"LAMBDA_MIN": lambda_min, "RANGE_WEIGHT": range_weight, "STEPS": iterations}.items():
        if not value >= 0:
            raise InputError(f"{name} is {value:g}; it cannot be negative.")
