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
    sound: (
        torch.Tensor
    )  # booleans (…): whether training and the linear solve converged, at positive curvature


class Inner(NamedTuple):
    """How the inner problems of an attack were solved."""

    sound: (
        torch.Tensor
    )  # booleans (K+1, …): whether the hypergradient of iteration k can be relied on
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
    return Hypergradient(
        model.square_norm(u) / 2, -model.cross_gradient(x, y, solved, p), solved, sound
    )


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


def attack(
    released: Released, start: torch.Tensor, *, initial: Network | None = None, iterations: int = 1000,
    tolerance: float = 1e-13, inner_start: str = "warm", inner_budget: int | None = None,
    watch: Callable[[torch.Tensor, torch.Tensor], object] | None = None, progress: bool = False) -> Attack:  # fmt: skip
    """Move the images `start` (…, m, d) by L-BFGS until training on them returns the released weights θ*: Attack.

    Converged: ‖θ(x) − θ*‖² ≤ `tolerance`·‖θ*‖². Inner solves begin at the last θ (`inner_start` = `warm`) or at
    `initial` (`cold`), a network. Without one, those of a hidden layer all begin at θ*, its equal neurons merged.
    Ends as `budget` after `inner_budget` inner steps in all, or as `left` where images moved by more than 1 (root mean
    square). `watch(x, loss)` sees every iterate. All happens in the span of start and weights.
    """
    clock = time.perf_counter()
    model = model_of(released)
    budget = (math.inf if model is affine else BUDGET) if inner_budget is None else inner_budget
    check(released, start, initial, iterations, budget, inner_start)
    small = merge_neurons(released)
    if initial is None and model is one_hidden:
        released = small
        initial = small.network
        inner_start = "cold"
    basis = basis_of(start, small.network[0].weight)
    theta = initial and model.weights(initial, released.sharpness, basis)
    lower = lower_level(released, basis)
    coordinates = start @ basis
    scale = model.square_norm(lower.target) / 2
    goal = tolerance * scale
    settings = {"pixels": start.shape[-2:].numel(), "warm": inner_start == "warm", "budget": budget}

    def look(x, loss):
        shown.update()
        if watch:
            watch(x @ basis.mT, loss)

    with (
        tuned(coordinates, model.network(lower.target)),
        bar(iterations, "bilevel attack", progress) as shown,
    ):
        end, solved, inner, history = descend(
            lower, coordinates, theta, goal, iterations, look, **settings
        )
    return Attack(
        images=start + (end.x.reshape(coordinates.shape) - coordinates) @ basis.mT,
        loss=end.value / scale,
        history=history / scale,
        stopped=end.stopped,
        seconds=time.perf_counter() - clock,
        details=inner,
        network=model.network(solved.weights, basis),
    )


def descend(lower, start, theta, goal, iterations, look, *, pixels, warm, budget):
    """L-BFGS on l(x) from coordinates (…, m, r), until it is at most the `goal`: Minimum, Solved, Inner, history.

    Inner solves begin at the Weights θ, or if `warm` at the last θ(x). l(x) counts as infinite once all images are
    further than 2 from their start (root mean square of `pixels`), or the `budget` is used up.
    """
    history = []
    sound = []
    steps = 0
    tried = start
    here: Any = None  # the last Hypergradient, at what was `tried` last

    def moved(flat):
        return ((flat.view_as(start) - start).square().sum((-2, -1)) / pixels).sqrt()

    def loss(flat):
        nonlocal steps, tried, here
        if steps >= budget or (moved(flat) > 2).all():
            return torch.full_like(here.loss, math.inf), torch.zeros_like(flat)
        tried = flat
        here = evaluate(lower, flat.view_as(start), theta)
        steps += here.solved.iterations
        return here.loss, here.gradient.flatten(-2)

    def keep(flat, value):
        nonlocal theta
        theta = select((tried == flat).all(-1), here.solved.weights, theta) if warm else theta
        history.append(value)
        sound.append(here.sound.expand(value.shape))
        look(flat.view_as(start), value)
        return ~(value.isfinite() & (moved(flat) <= 1))  # which have left the pixel range

    end = solvers.lbfgs(
        loss, start.flatten(-2), value_tolerance=goal, iterations=iterations, each=keep
    )
    solved = evaluate(lower, end.x.view_as(start), theta).solved
    stopped = end.stopped
    if steps >= budget:  # then what no step was left for has not stalled
        names = "stalled", "budget"
        stopped = (
            stopped.replace(*names)
            if isinstance(stopped, str)
            else [word.replace(*names) for word in stopped]
        )
    inner = Inner(torch.stack(sound), solved.gradient_norm, steps)
    return end._replace(stopped=stopped), solved, inner, torch.stack(history)


def select(mask, new, old):
    """The `new` weights where the mask (…) holds, the `old` ones elsewhere: tensors, or named tuples of them."""
    if mask.all() or not isinstance(new, (torch.Tensor, tuple)):
        return new
    if isinstance(new, tuple):
        return type(new)(*(select(mask, *pair) for pair in zip(new, old)))
    return torch.where(mask.reshape(mask.shape + (1,) * (new.dim() - mask.dim())), new, old)


def check(released, start, initial, iterations, budget, inner_start):
    """Raise InputError unless the attack can be made with these settings."""
    check_start(released, start, released.labels)
    if iterations < 0 or not budget > 0:
        settings = f"{iterations} iterations and an inner budget of {budget}"
        raise InputError(f"{settings}: give at least 0 iterations and 1 inner step.")
    choose("INNER_START", inner_start, ("warm", "cold"))
    shapes = [
        [layer.weight.shape for layer in network] for network in (initial or (), released.network)
    ]
    if initial is not None and shapes[0] != shapes[1]:
        raise InputError(
            "The initial network has other shapes than the released network: draw it from the same recipe."
        )


def basis_of(start, rows):
    """An orthonormal basis (…, d, r) of the span of the start and of rows of weights."""
    basis = networks.span_of(start)  # the trainer's own, to the last bit, if the start is the truth
    inside = (rows - networks.within(rows, basis)).norm() <= 1e-9 * rows.norm()
    return basis if inside else networks.span_of(start, rows)
