"""The bilevel attack, eqs. (1), (2) and (7): find images whose training returns the given weights.

Upper level: minimise l(x) = ½‖θ(x) − θ*‖². Lower level: θ(x) = argmin E(x, y; ·), or a local minimum where there are
several. By the implicit function theorem dl/dx = −∇_x⟨∇_θ E(x, y; θ(x)), p⟩ with p = (∇²_θ E)⁻¹(θ(x) − θ*).
"""

import math
import time
from collections.abc import Callable
from types import ModuleType
from typing import Any, NamedTuple

import torch

from attacks.contract import Attack, bar, check_start, tuned
from utils import networks
from utils.errors import InputError, choose
from utils.kernels import affine, one_hidden, solvers
from utils.kernels.layers import Network
from utils.networks import Released

BUDGET = 50_000  # steps that the inner solver of a network may take in all, unless another budget is given


class Lower(NamedTuple):
    """The lower level: the training that is to return θ*."""

    model: ModuleType  # the kernel whose minimum training finds, affine or one_hidden
    target: Any  # the weights θ* that it is to return, in the kernel's own type: a vector, or one_hidden.Weights
    labels: torch.Tensor  # (m,)
    weight_decay: float  # μ


class Hypergradient(NamedTuple):
    """The loss of the upper level, and its gradient by the implicit function theorem."""

    loss: torch.Tensor  # ½‖θ(x) − θ*‖² (…)
    gradient: torch.Tensor  # dl/dx (…, m, d)
    solved: affine.Solved | one_hidden.Solved  # of the model's kernel, with θ(x)
    sound: torch.Tensor  # whether both inner solves converged, at positive curvature, booleans (…)


class Inner(NamedTuple):
    """How the inner problems of an attack were solved."""

    sound: torch.Tensor  # whether the hypergradient of iteration k can be relied on (K+1, …)
    gradient_norm: torch.Tensor  # ‖∇_θ E‖ at the end (…), which says whether they are solved
    iterations: int  # steps of the inner solver, all in all


def hypergradient(
    released: Released,
    x: torch.Tensor,
    inverse: Callable | None = None,
    initial: Network | None = None,
) -> Hypergradient:
    """l(x) = ½‖θ(x) − θ*‖² and dl/dx, eq. (7) with the sign of a gradient, at images x (…, m, d): Hypergradient.

    Training begins at the network `initial`; the affine model can do without. An `inverse` takes the place of the
    kernel's `inner`: it solves the lower level, and multiplies by (∇²_θ E)⁻¹, in another way.
    """
    lower = lower_level(released)
    if initial is None and lower.model is one_hidden:
        raise InputError(
            "A network with a hidden layer needs an initial network: zero is a saddle of its energy."
        )
    return evaluate(lower, x, initial and lower.model.weights(initial, released.sharpness), inverse)


def evaluate(
    lower: Lower,
    x: torch.Tensor,
    initial: torch.Tensor | one_hidden.Weights | None,
    inverse: Callable | None = None,
) -> Hypergradient:
    """Eq. (7): the Hypergradient at images x (…, m, d), where training begins at weights of the kernel."""
    model, target, y, decay = lower
    solved, apply_inverse = (inverse or model.inner)(x, y, decay, initial)
    u = model.difference(solved, target)  # θ(x) − θ*
    p, sound = apply_inverse(u)  # (∇²_θ E)⁻¹(θ(x) − θ*)
    gradient = -model.cross_gradient(x, y, solved, p)  # −∇_x⟨∇_θ E, p⟩
    return Hypergradient(model.square_norm(u) / 2, gradient, solved, sound)


def lower_level(released: Released, basis: torch.Tensor | None = None) -> Lower:
    """The Lower of a released network, for images or for their coordinates in a basis (…, d, r)."""
    model = model_of(released)
    target = model.weights(released.network, released.sharpness, basis)
    return Lower(model, target, released.labels, released.recipe.weight_decay)


def model_of(released: Released) -> ModuleType:
    """The kernel of the lower level for a released network; InputError if there is none."""
    recipe = released.recipe
    hidden = len(released.network) - 1
    if hidden > 1 or recipe.loss != "logistic" or not recipe.weight_decay > 0:
        needed = "at most one hidden layer, trained on the logistic loss with weight decay"
        has = f"{hidden}, the {recipe.loss} loss and decay {recipe.weight_decay:g}"
        raise InputError(f"The bilevel attack needs a network with {needed}; this one has {has}.")
    return one_hidden if hidden else affine


def merge_neurons(released: Released, tolerance: float = 1e-6) -> Released:
    """The victim with its equal neurons merged into one, if it has any; see `one_hidden.merge_neurons`."""
    if len(released.network) == 1:
        return released
    theta = one_hidden.merge_neurons(
        one_hidden.weights(released.network, released.sharpness), tolerance
    )
    copies = (released.recipe.sharpness / theta.sharpness).square().round()
    return released._replace(network=one_hidden.network(theta), copies=tuple(copies.tolist()))


class Run:
    """A minimisation of l(x) by L-BFGS, which calls `loss` and `keep` with coordinates x (…, m·r).

    Everything happens in the span of start and weights. Training begins at `theta`, of a network with a hidden layer at
    θ* unless an initial network is given, and if `warm` at the last θ(x).
    """

    def __init__(self, released, start, initial, warm, budget):
        small = merge_neurons(released)
        if initial is None and len(released.network) > 1:
            released, initial, warm = small, small.network, False
        self.basis = basis_of(start, small.network[0].weight)
        self.lower = lower_level(released, self.basis)
        self.start = start @ self.basis  # (…, m, d) @ (…, d, r) -> (…, m, r)
        self.theta = initial and self.lower.model.weights(initial, released.sharpness, self.basis)
        self.warm = warm
        self.budget = budget  # of inner steps
        self.steps = 0
        self.pixels = start.shape[-2:].numel()
        self.scale = self.lower.model.square_norm(self.lower.target) / 2
        self.history = []
        self.sound = []
        self.here: Any = None  # the last Hypergradient, at self.x

    def distance(self, x):
        """How far images are from their start, root mean square of their pixels (…)."""
        return ((x.view_as(self.start) - self.start).square().sum((-2, -1)) / self.pixels).sqrt()

    def loss(self, x):
        """l(x) and dl/dx; infinite once all images are further than 2 from their start, or no inner step is left."""
        if self.steps >= self.budget or (self.distance(x) > 2).all():
            return torch.full_like(self.here.loss, math.inf), torch.zeros_like(x)
        self.x = x
        self.here = evaluate(self.lower, x.view_as(self.start), self.theta)  # eq. (7)
        self.steps += self.here.solved.iterations
        return self.here.loss, self.here.gradient.flatten(-2)

    def keep(self, x, value):
        """Note an iterate, and return which have left the pixel range: moved by more than 1."""
        if self.warm:
            weights = self.here.solved.weights
            self.theta = select((self.x == x).all(-1), weights, self.theta)
        self.history.append(value)
        self.sound.append(self.here.sound.expand(value.shape))
        return ~(value.isfinite() & (self.distance(x) <= 1))

    def result(self, start, end, clock):
        """The Attack that ends at a solvers.Minimum."""
        x = end.x.view_as(self.start)
        solved = evaluate(self.lower, x, self.theta).solved
        return Attack(
            images=start + (x - self.start) @ self.basis.mT,
            loss=end.value / self.scale,
            history=torch.stack(self.history) / self.scale,
            stopped=self.stops(end.stopped),
            seconds=time.perf_counter() - clock,
            details=Inner(torch.stack(self.sound), solved.gradient_norm, self.steps),
            network=self.lower.model.network(solved.weights, self.basis),
        )

    def stops(self, words):
        """Why it stopped: a problem for which no inner step was left has not stalled."""
        if self.steps < self.budget:
            return words
        if isinstance(words, str):
            return "budget" if words == "stalled" else words
        return [self.stops(word) for word in words]


def attack(
    released: Released,
    start: torch.Tensor,
    *,
    initial: Network | None = None,
    iterations: int = 1000,
    tolerance: float = 1e-13,
    inner_start: str = "warm",
    inner_budget: int | None = None,
    watch: Callable[[torch.Tensor, torch.Tensor], object] = lambda x, loss: None,
    progress: bool = False,
) -> Attack:
    """Move the images `start` (…, m, d) by L-BFGS until training on them returns the released weights θ*: Attack.

    Converged: ‖θ(x) − θ*‖² ≤ `tolerance`·‖θ*‖². Inner solves begin at the last θ (`inner_start` = `warm`) or at
    `initial` (`cold`), a network. Without one, those of a hidden layer all begin at θ*, its equal neurons merged.
    Ends as `budget` after `inner_budget` inner steps in all, or as `left` where images moved by more than 1 (root mean
    square). `watch(x, loss)` sees every iterate.
    """
    clock = time.perf_counter()
    budget = check(released, start, initial, iterations, inner_budget, inner_start)
    run = Run(released, start, initial, inner_start == "warm", budget)

    def look(x, loss):
        outside = run.keep(x, loss)
        shown.update()
        watch(x.view_as(run.start) @ run.basis.mT, loss)
        return outside

    settings = {"value_tolerance": tolerance * run.scale, "iterations": iterations, "each": look}
    shown = bar(iterations, "bilevel attack", progress)
    with shown, tuned(run.start, run.lower.model.network(run.lower.target)):
        end = solvers.lbfgs(run.loss, run.start.flatten(-2), **settings)
        return run.result(start, end, clock)


def select(mask, new, old):
    """The `new` weights where the mask (…) holds, the `old` ones elsewhere: tensors, or named tuples of them."""
    if mask.all() or not isinstance(new, (torch.Tensor, tuple)):
        return new
    if isinstance(new, tuple):
        return type(new)(*(select(mask, *pair) for pair in zip(new, old)))
    return torch.where(mask.reshape(mask.shape + (1,) * (new.dim() - mask.dim())), new, old)


def check(released, start, initial, iterations, inner_budget, inner_start):
    """How many inner steps there are in all; InputError unless the attack can be made with these settings."""
    model = model_of(released)
    check_start(released, start, released.labels)
    choose("INNER_START", inner_start, ("warm", "cold"))
    budget = (math.inf if model is affine else BUDGET) if inner_budget is None else inner_budget
    if iterations < 0 or not budget > 0:
        settings = f"{iterations} iterations and an inner budget of {budget}"
        raise InputError(f"{settings}: give at least 0 iterations and 1 inner step.")
    shapes, asked = (
        [layer.weight.shape for layer in network or ()] for network in (released.network, initial)
    )
    if initial is not None and shapes != asked:
        raise InputError(
            "The initial network has other shapes than the released network: draw it from the same recipe."
        )
    return budget


def basis_of(start, rows):
    """An orthonormal basis (…, d, r) of the span of the start and of rows of weights."""
    basis = networks.span_of(start)  # the trainer's own, to the last bit, if the start is the truth
    inside = (rows - networks.within(rows, basis)).norm() <= 1e-9 * rows.norm()
    return basis if inside else networks.span_of(start, rows)
