"""The bilevel attack, eqs. (1), (2) and (7): find images whose training returns the given weights.

Upper level: minimise l(x) = ½‖θ(x) − θ*‖² over the images x. Lower level: θ(x) = argmin E(x, y; ·), or a local minimum
where there are several. The implicit function theorem gives dl/dx = −∇_x⟨∇_θ E(x, y; θ(x)), p⟩ with
p = (∇²_θ E)⁻¹(θ(x) − θ*). The attacker has the weights, the labels, the weight decay and a start; nothing here sees the
secret images. The model is told by the weights: a vector (d+1,) is affine, a `hidden.Network` has one hidden layer.
"""

import math
import os
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import torch
from tqdm.auto import tqdm

from utils import affine, hidden, solvers
from utils.errors import InputError, choose


class Hypergradient(NamedTuple):
    """The upper-level loss at x, its gradient, and the lower-level solution it came from."""

    loss: torch.Tensor  # ½‖θ(x) − θ*‖² (…)
    gradient: torch.Tensor  # dl/dx (…, m, d)
    trained: affine.Trained | hidden.Trained  # θ(x)
    sound: torch.Tensor  # (…) booleans: training and the linear solve converged, at positive curvature
    pairs: list  # memory of the quasi-Newton inner solver; empty for the others


class Attack(NamedTuple):
    """What an attack found, and how it went."""

    images: torch.Tensor  # x (…, m, d), the iterate with the smallest loss
    weights: torch.Tensor | hidden.Network  # θ(x)
    history: torch.Tensor  # ‖θ(x_k) − θ*‖²/‖θ*‖² for every iteration k, the start first (K+1, …)
    sound: torch.Tensor  # whether the hypergradient of iteration k can be relied on (K+1, …)
    gradient_norm: torch.Tensor  # ‖∇_θ E‖ at the images and weights above (…): whether the inner problem is solved
    inner_iterations: int  # steps of the inner solver, all in all
    stopped: str  # converged, stalled (no step lowers the loss), iterations or budget (used up), left (the pixel range)


def model_of(weights):
    """The module with training, distances and inverses for these weights."""
    return hidden if isinstance(weights, hidden.Network) else affine


def hypergradient(x, y, target, weight_decay, inverse=None, start=None, pairs=()):
    """Evaluate l(x) = ½‖θ(x) − θ*‖² and dl/dx, eq. (7) with the sign that makes it a gradient.

    x (…, m, d), y (m,), `target` θ*. The inner solve begins at `start`; for the affine model it may be omitted. `inverse`
    is one of the model's INVERSES, by default the first.
    """
    model = model_of(target)
    theta = torch.zeros_like(target) if start is None else start
    trained, solve, pairs = model.INVERSES[inverse or next(iter(model.INVERSES))](x, y, weight_decay, theta, pairs)
    u = model.difference(trained, target)
    p, sound = solve(u)
    return Hypergradient(model.square(u) / 2, -model.cross_gradient(x, y, trained, p), trained, sound, pairs)


class UpperLevel:
    """The upper-level loss and its gradient as a function of x flattened to (…, m·d), for a generic minimiser.

    Remembers where the next inner solve begins: at the last accepted θ (`warm`) or always at the same one (`cold`). The
    loss is infinite where every problem's images are further than 2 from their start (root mean square), and once the
    inner solves have used up their budget.
    """

    def __init__(self, weights, labels, start, pixels, weight_decay, inverse, inner_start, theta_start, budget):
        self.weights, self.labels, self.start, self.pixels = weights, labels, start, pixels
        self.weight_decay, self.inverse, self.warm = weight_decay, inverse, inner_start == "warm"
        self.theta, self.pairs, self.inner_iterations, self.budget = theta_start, [], 0, budget

    def evaluate(self, x):
        """Return the hypergradient at x (…, m, d)."""
        h = hypergradient(x, self.labels, self.weights, self.weight_decay, self.inverse, self.theta, self.pairs)
        self.inner_iterations += h.trained.iterations
        return h

    def moved(self, x):
        """Root mean square change of a pixel: (…)."""
        return (x - self.start).square().sum(-1).div(self.pixels).mean(-1).sqrt()

    def __call__(self, flat):
        x = flat.reshape(self.start.shape)
        if self.inner_iterations >= self.budget or (self.moved(x) > 2).all():
            return torch.full_like(self.found.loss, math.inf), torch.zeros_like(flat)
        self.tried, self.found = flat, self.evaluate(x)
        return self.found.loss, self.found.gradient.flatten(-2)

    def accept(self, flat):
        """Let the next inner solves begin at θ(x), for every problem whose last tried x was accepted."""
        if self.warm:
            last = self.found.trained if isinstance(self.found.trained, hidden.Trained) else self.found.trained.weights
            self.theta = select((self.tried == flat).all(-1), last, self.theta)
            self.pairs = self.found.pairs
        return self.found.sound


def select(mask, new, old):
    """`new` where the mask (…) holds, otherwise `old`: tensors, or named tuples of them."""
    if mask.all():
        return new
    if isinstance(new, torch.Tensor):
        return torch.where(mask.reshape(mask.shape + (1,) * (new.dim() - mask.dim())), new, old)
    if isinstance(new, tuple):
        return type(new)(*(select(mask, *pair) for pair in zip(new, old)))
    return new


def attack(
    weights,
    labels,
    start,
    *,
    weight_decay,
    inverse=None,
    optimiser="lbfgs",
    learning_rate=1.0,
    iterations=1000,
    tolerance=1e-13,
    inner_start="warm",
    theta_start=None,
    inner_budget=math.inf,
    basis=None,
    watch: Callable = lambda x, loss: None,
    progress=False,
):
    """Move the images `start` (…, m, d) until training on them returns `weights`, θ*.

    Converged means ‖θ(x) − θ*‖² ≤ `tolerance`·‖θ*‖². `inverse` is how p = H⁻¹∇l is found: `exact` (affine only), `cg` or
    `lbfgs`. `optimiser` is `lbfgs`, or `gradient` for eq. (7) as it stands, x ← x − η·dl/dx with η = `learning_rate`.
    Inner solves begin at the last θ (`inner_start` = `warm`) or always at `theta_start` (`cold`): an affine θ⁰, zero if
    omitted, or a Network. The attack ends once all inner solves together took `inner_budget` steps, or where its images
    have `left` the pixel range, that is, moved by more than 1 (root mean square); with a fixed η the latter raises
    InputError. `watch(x, loss)` is called with every iterate.

    An attack by gradients stays in the span of its start and of the weights that act on the images. With an orthonormal
    `basis` (…, d, r) of that span, as from `landscape.reachable`, the same attack moves r coordinates, and `watch` gets
    these.
    """
    model = model_of(weights)
    inverse = choose("INVERSE", inverse or next(iter(model.INVERSES)), model.INVERSES)
    choose("OPTIMISER", optimiser, ("lbfgs", "gradient"))
    choose("INNER_START", inner_start, ("warm", "cold"))
    check_shapes(weights, labels, start)
    if model is hidden and not isinstance(theta_start, hidden.Network):
        raise InputError(
            "A network with a hidden layer needs a Network as theta_start; zero is a saddle of its energy."
        )
    theta0 = torch.zeros_like(weights) if theta_start is None else theta_start
    pixels = start.shape[-1]
    if basis is not None:
        check_span(basis, start=start, weights=weights if model is affine else weights.first)
        start, weights, theta0 = start @ basis, model.in_span(weights, basis), model.in_span(theta0, basis)
    scale = model.square_norm(weights) / 2
    upper = UpperLevel(weights, labels, start, pixels, weight_decay, inverse, inner_start, theta0, inner_budget)
    minimise = solvers.lbfgs if optimiser == "lbfgs" else partial(solvers.gradient_descent, learning_rate=learning_rate)
    history, sound = [], []
    silent = not progress or "TQDM_DISABLE" in os.environ  # which tqdm's notebook bars do not heed themselves
    with tqdm(total=iterations, desc="bilevel attack", leave=False, disable=silent) as bar:

        def each(flat, loss):
            x = flat.reshape(start.shape)
            sound.append(upper.accept(flat).expand(loss.shape))
            history.append(loss / scale)
            watch(x, loss)
            bar.update(len(history) > 1)
            left = ~(loss.isfinite() & (upper.moved(x) <= 1))
            if optimiser == "gradient" and left.any():
                refuse_divergence(upper.moved(x).max().item(), len(history), learning_rate)
            return left

        flat = start.flatten(-2)  # (…, m, d) -> (…, m·d)
        minimum = minimise(upper, flat, value_tolerance=tolerance * scale, iterations=iterations, each=each)
    x = minimum.x.reshape(start.shape)
    stopped = "budget" if minimum.stopped == "stalled" and upper.inner_iterations >= inner_budget else minimum.stopped
    trained = upper.evaluate(x).trained
    found = trained.weights
    if basis is not None:
        x, found = x @ basis.mT, model.in_span(found, basis.mT)
    history, sound = torch.stack(history), torch.stack(sound)
    return Attack(x, found, history, sound, trained.gradient_norm, upper.inner_iterations, stopped)


def check_span(basis, **parts):
    """Raise InputError unless the first d columns of the parts lie in the span of the basis (…, d, r)."""
    for name, part in parts.items():
        rows = part[..., : basis.shape[-2]]
        rows = rows[None] if rows.dim() == 1 else rows
        if (rows - rows @ basis @ basis.mT).norm() > 1e-6 * rows.norm():
            raise InputError(f"The {name} do not lie in the span of the basis: make it with landscape.reachable.")


def check_shapes(weights, labels, start):
    """Raise InputError unless θ*, (d+1,) or a Network for d inputs, y (m,) and x (…, m, d) fit together."""
    m, d = start.shape[-2:]
    inputs = weights.first if isinstance(weights, hidden.Network) else weights
    if inputs.shape[-1] != d + 1 or labels.shape != (m,):
        per_neuron = " in every neuron" if inputs is not weights else ""
        raise InputError(
            f"The start holds {m} images of {d} values, which needs {m} labels and {d + 1} weights{per_neuron}, "
            f"but there are {tuple(labels.shape)} labels and {tuple(inputs.shape)} weights."
        )


def refuse_divergence(distance, steps, learning_rate):
    """Raise InputError: the images have moved further than the range of a pixel, 1."""
    raise InputError(
        f"The attack diverged: after {steps} steps the images have moved by {distance:.2g} (root mean square), and "
        f"their range is 1. LEARNING_RATE {learning_rate:g} is too large; try {learning_rate / 10:g}."
    )
