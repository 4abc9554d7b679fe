"""The bilevel attack, eqs. (1), (2) and (7): find images whose training returns the given weights.

Upper level: minimise l(x) = ½‖θ(x) − θ*‖² over the images x. Lower level: θ(x) = argmin E(x, y; ·), or a local minimum
where there are several. The implicit function theorem gives dl/dx = −∇_x⟨∇_θ E(x, y; θ(x)), p⟩ with
p = (∇²_θ E)⁻¹(θ(x) − θ*). The attacker has what was released, and a start.
"""

import math
import time
from functools import partial
from typing import NamedTuple

import torch

from utils import networks
from utils.attacks.contract import Attack, bar, check_start
from utils.errors import InputError, choose
from utils.kept import kept
from utils.kernels import affine, one_hidden, solvers

BUDGET = 5_000  # steps that the inner solver of a network may take in all, unless told otherwise


class Hypergradient(NamedTuple):
    """The upper-level loss at x, its gradient, and the lower-level solution it came from."""

    loss: torch.Tensor  # ½‖θ(x) − θ*‖² (…)
    gradient: torch.Tensor  # dl/dx (…, m, d)
    solved: NamedTuple  # θ(x), the Solved of the model's kernel
    sound: torch.Tensor  # (…) booleans: training and the linear solve converged, at positive curvature
    pairs: list  # memory of a quasi-Newton inner solver, for the next call


class Inner(NamedTuple):
    """What is known about the inner problems of an attack."""

    sound: torch.Tensor  # whether the hypergradient of iteration k can be relied on (K+1, …)
    gradient_norm: torch.Tensor  # ‖∇_θ E‖ at the end (…): whether the inner problem is solved
    iterations: int  # steps of the inner solver, all in all


def hypergradient(released, x, inverse=None, start=None, pairs=()):
    """Evaluate l(x) = ½‖θ(x) − θ*‖² and dl/dx, eq. (7) with the sign that makes it a gradient, at images x (…, m, d).

    The inner solve begins at `start`, a network or weights of the model's kernel; the affine model can do without.
    `inverse`, in place of the kernel's `inner`, solves the lower level and finds p in another way.
    """
    model, y, recipe = model_of(released), released.labels, released.recipe
    if start is None and model is one_hidden:
        raise InputError("A network with a hidden layer needs theta_start, a network: zero is a saddle of its energy.")
    if isinstance(start, tuple) and isinstance(start[0], networks.Layer):
        start = model.weights(start, recipe.sharpness)
    solved, apply_inverse, pairs = (inverse or model.inner)(x, y, recipe.weight_decay, start, pairs)
    u = model.difference(solved, model.weights(released.network, recipe.sharpness))
    p, sound = apply_inverse(u)
    return Hypergradient(model.square_norm(u) / 2, -model.cross_gradient(x, y, solved, p), solved, sound, pairs)


def model_of(released):
    """The kernel of the lower level for a released network; InputError if there is none."""
    recipe, hidden = released.recipe, len(released.network) - 1
    if hidden > 1 or recipe.loss != "logistic" or not recipe.weight_decay > 0:
        raise InputError(
            "The bilevel attack needs a network with at most one hidden layer, trained on the logistic loss with "
            f"weight decay; this one has {hidden}, the {recipe.loss} loss and decay {recipe.weight_decay:g}."
        )
    return one_hidden if hidden else affine


class UpperLevel:
    """The upper-level loss and its gradient as a function of x flattened to (…, m·d), for a generic minimiser.

    Remembers where the next inner solve begins: at the last accepted θ (`warm`) or always at the same one (`cold`). The
    loss is infinite where every problem's images are further than 2 from their start (root mean square), and once the
    inner solves have used up their budget. Keeps the history of the accepted iterates.
    """

    def __init__(self, released, start, pixels, theta, warm, budget, watch):
        self.released, self.start, self.pixels, self.theta = released, start, pixels, theta
        self.warm, self.budget, self.watch, self.iterations = warm, budget, watch, 0
        self.history, self.sound = [], []

    def moved(self, flat):
        """Root mean square change of a pixel: (…)."""
        return (flat.reshape(self.start.shape) - self.start).square().sum(-1).div(self.pixels).mean(-1).sqrt()

    def __call__(self, flat):
        if self.iterations >= self.budget or (self.moved(flat) > 2).all():
            return torch.full_like(self.found.loss, math.inf), torch.zeros_like(flat)
        self.tried = flat
        self.found = hypergradient(self.released, flat.reshape(self.start.shape), start=self.theta)
        self.iterations += self.found.solved.iterations
        return self.found.loss, self.found.gradient.flatten(-2)

    def accept(self, flat, loss):
        """Note an iterate; if `warm`, the inner solves of every problem that moved go on from its θ(x).

        Returns which problems have left the range of a pixel.
        """
        if self.warm:
            solved = self.found.solved
            last = solved if isinstance(solved, one_hidden.Solved) else solved.weights
            self.theta = select((self.tried == flat).all(-1), last, self.theta)
        self.history.append(loss)
        self.sound.append(self.found.sound.expand(loss.shape))
        self.bar.update()
        if self.watch is not None:
            self.watch(flat.reshape(self.start.shape), loss)
        return ~(loss.isfinite() & (self.moved(flat) <= 1))


def select(mask, new, old):
    """`new` where the mask (…) holds, otherwise `old`: tensors, or named tuples of them."""
    if mask.all() or not isinstance(new, (torch.Tensor, tuple)):
        return new
    if isinstance(new, tuple):
        return type(new)(*(select(mask, *pair) for pair in zip(new, old)))
    return torch.where(mask.reshape(mask.shape + (1,) * (new.dim() - mask.dim())), new, old)


def gradient_descent(upper, start, learning_rate, *, value_tolerance, iterations, each):
    """Take steps x ← x − η·dl/dx of a fixed η, eq. (7), and keep the best iterate of every problem."""
    x, best, least = start, start, torch.full_like(start[..., 0], math.inf)
    for iteration in range(iterations + 1):
        value, gradient = upper(x)
        if each(x, value).any():
            raise InputError(
                f"The attack diverged: after {iteration + 1} steps the images have moved by {upper.moved(x).max():.2g} "
                f"(root mean square), and their range is 1. LEARNING_RATE {learning_rate:g} is too large; try "
                f"{learning_rate / 10:g}."
            )
        best = torch.where((value < least)[..., None], x, best)
        least = torch.minimum(least, value)
        converged = least <= value_tolerance
        if converged.all():
            break
        x = torch.where(converged[..., None], x, x - learning_rate * gradient)
    stopped = solvers.words("iterations", converged=converged)
    return solvers.Minimum(best, least, gradient.norm(dim=-1), iteration, converged, stopped)


@kept
def attack(
    released, start, *, theta_start=None, optimiser="lbfgs", learning_rate=1.0, iterations=1000, tolerance=1e-13,
    inner_start="warm", inner_budget=None, basis=None, watch=None, progress=False,
):  # fmt: skip
    """Move the images `start` (…, m, d) until training on them returns the released weights θ*.

    Converged means ‖θ(x) − θ*‖² ≤ `tolerance`·‖θ*‖². `optimiser` is `lbfgs`, or `gradient` for eq. (7) as it stands,
    x ← x − η·dl/dx with η = `learning_rate`. Inner solves begin at the last θ (`inner_start` = `warm`) or always at
    `theta_start` (`cold`), a network. The attack ends as `budget` once all inner solves together took `inner_budget`
    steps, or as `left` where its images have left the pixel range, that is, moved by more than 1 (root mean square);
    with a fixed η the latter raises InputError. `watch(x, loss)` is called with every iterate. With an orthonormal
    `basis` (…, d, r) of the span of start and weights, as from `networks.span_of`, the same attack moves r coordinates,
    and `watch` gets these.
    """
    begun, model = time.perf_counter(), model_of(released)
    budget = (math.inf if model is affine else BUDGET) if inner_budget is None else inner_budget
    check(released, start, basis, iterations, budget)
    choose("OPTIMISER", optimiser, ("lbfgs", "gradient"))
    choose("INNER_START", inner_start, ("warm", "cold"))
    seen, x0 = released, start
    if basis is not None:
        seen, x0 = released._replace(network=networks.in_span(released.network, basis)), start @ basis
        theta_start = theta_start and networks.in_span(theta_start, basis)
    upper = UpperLevel(seen, x0, start.shape[-1], theta_start, inner_start == "warm", budget, watch)
    scale = model.square_norm(model.weights(seen.network, seen.recipe.sharpness)) / 2
    fixed = partial(gradient_descent, learning_rate=learning_rate)
    settings = {"value_tolerance": tolerance * scale, "iterations": iterations, "each": upper.accept}
    with bar(iterations, "bilevel attack", progress) as upper.bar:
        found = (fixed if optimiser == "gradient" else solvers.lbfgs)(upper, x0.flatten(-2), **settings)
    return finished(upper, found, basis, scale, time.perf_counter() - begun)


def finished(upper, found, basis, scale, seconds):
    """The Attack of a solvers.Minimum; what no step of the inner solver is left for has not stalled."""
    x, stopped = found.x.reshape(upper.start.shape), found.stopped
    solved = hypergradient(upper.released, x, start=upper.theta).solved
    network = model_of(upper.released).network(solved.weights)
    if basis is not None:
        x, network = x @ basis.mT, networks.in_span(network, basis.mT)
    if upper.iterations >= upper.budget:
        names = "stalled", "budget"
        stopped = stopped.replace(*names) if isinstance(stopped, str) else [word.replace(*names) for word in stopped]
    inner = Inner(torch.stack(upper.sound), solved.gradient_norm, upper.iterations)
    return Attack(x, None, network, found.value / scale, torch.stack(upper.history) / scale, stopped, inner, seconds)


def check(released, start, basis, iterations, budget):
    """Raise InputError unless θ*, y and x fit together, lie in the span of a basis, and there are steps to take."""
    check_start(released, start, released.labels)
    if iterations < 0 or not budget > 0:
        raise InputError(
            f"{iterations} iterations and an inner budget of {budget}: give at least 0 iterations and 1 inner step."
        )
    for name, rows in {"start": start, "weights": released.network[0].weight}.items():
        if (rows - networks.within(rows, basis)).norm() > 1e-6 * rows.norm():
            raise InputError(f"The {name} do not lie in the span of the basis: make it with networks.span_of.")
