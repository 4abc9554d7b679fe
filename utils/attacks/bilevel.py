"""The bilevel attack, eqs. (1), (2) and (7): find images x whose training returns the given weights.

Upper level: minimise l(x) = ½‖θ(x) − θ*‖². Lower level: θ(x) = argmin E(x, y; ·), or a local minimum where there are
several. By the implicit function theorem dl/dx = −∇_x⟨∇_θ E(x, y; θ(x)), p⟩ with p = (∇²_θ E)⁻¹(θ(x) − θ*).
"""

import math
import time
from collections import namedtuple
from types import ModuleType
from typing import NamedTuple

import torch

from utils import networks
from utils.attacks.contract import Attack, bar, check_start, tuned
from utils.errors import InputError, choose
from utils.kernels import affine, one_hidden, solvers

BUDGET = 50_000  # steps that the inner solver of a network may take in all, unless another budget is given


class Lower(NamedTuple):
    """The lower level: whose minimum training finds, and the weights that it is to return, in the kernel's own type."""

    model: ModuleType  # the kernel: affine or one_hidden
    target: torch.Tensor | one_hidden.Weights  # θ*
    labels: torch.Tensor  # (m,)
    weight_decay: float  # μ


# The loss ½‖θ(x) − θ*‖² (…) and dl/dx (…, m, d); the Solved of the model's kernel, with θ(x); (…) booleans for where
# training and the linear solve converged, at positive curvature; a quasi-Newton solver's memory, for the next call.
Hypergradient = namedtuple("Hypergradient", "loss gradient solved sound pairs")
# Of the inner problems of an attack: whether the hypergradient of iteration k can be relied on (K+1, …), ‖∇_θ E‖ at the
# end (…), which says whether they are solved, and the steps of the inner solver, all in all.
Inner = namedtuple("Inner", "sound gradient_norm iterations")


def hypergradient(released, x, inverse=None, start=None, pairs=()):
    """Evaluate l(x) = ½‖θ(x) − θ*‖² and dl/dx, eq. (7) with the sign that makes it a gradient, at images x (…, m, d).

    The inner solve begins at the network `start`; the affine model can do without. `inverse`, in place of the kernel's
    `inner`, solves the lower level and finds p in another way.
    """
    lower = lower_level(released)
    if start is None and lower.model is one_hidden:
        raise InputError("A network with a hidden layer needs theta_start, a network: zero is a saddle of its energy.")
    return evaluate(lower, x, start and lower.model.weights(start, released.sharpness), inverse, pairs)


def evaluate(lower, x, start, inverse=None, pairs=()):
    """The Hypergradient at images x (…, m, d), where training begins at weights of the kernel."""
    model, target, y, decay = lower
    solved, apply_inverse, pairs = (inverse or model.inner)(x, y, decay, start, pairs)
    u = model.difference(solved, target)  # θ(x) − θ*
    p, sound = apply_inverse(u)  # (∇²_θ E)⁻¹(θ(x) − θ*)
    return Hypergradient(model.square_norm(u) / 2, -model.cross_gradient(x, y, solved, p), solved, sound, pairs)


def lower_level(released, basis=None):
    """The Lower of a released network, for images or for their coordinates in a basis (…, d, r)."""
    model = model_of(released)
    target = model.weights(released.network, released.sharpness, basis)
    return Lower(model, target, released.labels, released.recipe.weight_decay)


def model_of(released):
    """The kernel of the lower level for a released network; InputError if there is none."""
    recipe, hidden = released.recipe, len(released.network) - 1
    if hidden > 1 or recipe.loss != "logistic" or not recipe.weight_decay > 0:
        needed = "at most one hidden layer, trained on the logistic loss with weight decay"
        has = f"{hidden}, the {recipe.loss} loss and decay {recipe.weight_decay:g}"
        raise InputError(f"The bilevel attack needs a network with {needed}; this one has {has}.")
    return one_hidden if hidden else affine


def condensed(released, tolerance=1e-6):
    """The same victim with one neuron for all that are equal, if it has any; see `one_hidden.merged`."""
    if len(released.network) == 1:
        return released
    theta = one_hidden.merged(one_hidden.weights(released.network, released.sharpness), tolerance)
    copies = (released.recipe.sharpness / theta.sharpness).square().round()
    recipe = released.recipe._replace(copies=tuple(copies.tolist()))
    return released._replace(network=one_hidden.network(theta), recipe=recipe)


class UpperLevel:
    """The upper-level loss and its gradient as a function of x flattened to (…, m·r), for a generic minimiser.

    Remembers where the next inner solve begins, and the history of the accepted iterates. The loss is infinite once all
    images are further than 2 from their start (root mean square of `pixels`), or the inner solves' budget is used up.
    """

    def __init__(self, lower, start, pixels, theta, warm, budget):
        self.lower, self.start, self.pixels, self.theta = lower, start, pixels, theta
        self.warm, self.budget, self.iterations, self.history, self.sound = warm, budget, 0, [], []

    def moved(self, flat):
        """Root mean square change of a pixel: (…)."""
        return (flat.reshape(self.start.shape) - self.start).square().sum(-1).div(self.pixels).mean(-1).sqrt()

    def __call__(self, flat):
        if self.iterations >= self.budget or (self.moved(flat) > 2).all():
            return torch.full_like(self.here.loss, math.inf), torch.zeros_like(flat)  # type: ignore[has-type]
        self.tried, self.here = flat, evaluate(self.lower, flat.reshape(self.start.shape), self.theta)
        self.iterations += self.here.solved.iterations
        return self.here.loss, self.here.gradient.flatten(-2)

    def accept(self, flat, loss):
        """Note an iterate, from whose θ(x) inner solves go on if `warm`; return which problems left the pixel range."""
        if self.warm:
            self.theta = select((self.tried == flat).all(-1), self.here.solved.weights, self.theta)
        self.history.append(loss)
        self.sound.append(self.here.sound.expand(loss.shape))
        return ~(loss.isfinite() & (self.moved(flat) <= 1))


def select(mask, new, old):
    """`new` where the mask (…) holds, otherwise `old`: tensors, or named tuples of them."""
    if mask.all() or not isinstance(new, (torch.Tensor, tuple)):
        return new
    if isinstance(new, tuple):
        return type(new)(*(select(mask, *pair) for pair in zip(new, old)))
    return torch.where(mask.reshape(mask.shape + (1,) * (new.dim() - mask.dim())), new, old)


def attack(
    released, start, *, theta_start=None, iterations=1000, tolerance=1e-13, inner_start="warm", inner_budget=None,
    watch=None, progress=False,
) -> Attack:  # fmt: skip
    """Move the images `start` (…, m, d) by L-BFGS until training on them returns the released weights θ*.

    Converged: ‖θ(x) − θ*‖² ≤ `tolerance`·‖θ*‖². Inner solves begin at the last θ (`inner_start` = `warm`) or at
    `theta_start` (`cold`), a network; without one, a hidden layer's begin at θ*, always, equal neurons merged. Ends as
    `budget` after `inner_budget` inner steps in all, or as `left` where images moved by more than 1 (root mean square).
    `watch(x, loss)` sees every iterate. All happens in the span of start and weights.
    """
    clock, model = time.perf_counter(), model_of(released)
    budget = (math.inf if model is affine else BUDGET) if inner_budget is None else inner_budget
    check(released, start, theta_start, iterations, budget, inner_start)
    small = condensed(released)
    if theta_start is None and model is one_hidden:
        released, theta_start, inner_start = small, small.network, "cold"
    basis = basis_of(start, small.network[0].weight)
    lower, theta = lower_level(released, basis), theta_start and model.weights(theta_start, released.sharpness, basis)
    upper = UpperLevel(lower, start @ basis, start.shape[-1], theta, inner_start == "warm", budget)
    scale = model.square_norm(lower.target) / 2

    def each(flat, loss):
        shown.update()
        if watch:
            watch(flat.reshape(upper.start.shape) @ basis.mT, loss)
        return upper.accept(flat, loss)

    settings = {"value_tolerance": tolerance * scale, "iterations": iterations, "each": each}
    with tuned(upper.start, model.network(lower.target)), bar(iterations, "bilevel attack", progress) as shown:
        end = solvers.lbfgs(upper, upper.start.flatten(-2), **settings)
    return result(upper, end, start, basis, scale, clock)


def check(released, start, theta_start, iterations, budget, inner_start):
    """Raise InputError unless the attack can be made with these settings."""
    check_start(released, start, released.labels)
    if iterations < 0 or not budget > 0:
        settings = f"{iterations} iterations and an inner budget of {budget}"
        raise InputError(f"{settings}: give at least 0 iterations and 1 inner step.")
    choose("INNER_START", inner_start, ("warm", "cold"))
    shapes = [[layer.weight.shape for layer in network] for network in (theta_start or (), released.network)]
    if theta_start is not None and shapes[0] != shapes[1]:
        raise InputError("theta_start has other shapes than the released network: draw it from the same recipe.")


def basis_of(start, rows):
    """An orthonormal basis (…, d, r) of the span of the start and of rows of weights."""
    basis = networks.span_of(start)  # the trainer's own, to the last bit, if the start is the truth
    inside = (rows - networks.within(rows, basis)).norm() <= 1e-9 * rows.norm()
    return basis if inside else networks.span_of(start, rows)


def result(upper, end, start, basis, scale, clock):
    """The Attack of a solvers.Minimum; what no step of the inner solver is left for has not stalled."""
    x, stopped = end.x.reshape(upper.start.shape), end.stopped
    solved = evaluate(upper.lower, x, upper.theta).solved
    network = upper.lower.model.network(solved.weights, basis)
    if upper.iterations >= upper.budget:
        names = "stalled", "budget"
        stopped = stopped.replace(*names) if isinstance(stopped, str) else [word.replace(*names) for word in stopped]
    inner, history = Inner(torch.stack(upper.sound), solved.gradient_norm, upper.iterations), torch.stack(upper.history)
    images = start + (x - upper.start) @ basis.mT
    seconds = time.perf_counter() - clock
    return Attack(images, None, network, end.value / scale, history / scale, stopped, inner, seconds)
