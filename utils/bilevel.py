"""The bilevel attack on the affine model, eqs. (1), (2) and (7): find images whose training returns the given weights.

Upper level: minimise l(x) = ½‖θ(x) − θ*‖² over the images x. Lower level: θ(x) = argmin E(x, y; ·). The implicit
function theorem gives dl/dx = −∇_x⟨∇_θ E(x, y; θ(x)), p⟩ with p = (∇²_θ E)⁻¹(θ(x) − θ*). The attacker has the
weights, the labels, the weight decay and a start; nothing here sees the secret images.
"""

import os
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import torch
from tqdm.auto import tqdm

from utils import affine, solvers
from utils.errors import InputError, choose


class Hypergradient(NamedTuple):
    """The upper-level loss at x, its gradient, and the lower-level solution it came from."""

    loss: torch.Tensor  # ½‖θ(x) − θ*‖² (…)
    gradient: torch.Tensor  # dl/dx (…, m, d)
    trained: affine.Trained  # θ(x)
    pairs: list  # memory of the quasi-Newton inner solver; empty for the others


class Attack(NamedTuple):
    """What an attack found, and how it went."""

    images: torch.Tensor  # x (…, m, d), the iterate with the smallest loss
    weights: torch.Tensor  # θ(x) (…, d+1)
    history: torch.Tensor  # ‖θ(x_k) − θ*‖²/‖θ*‖² for every iteration k, the start first (K+1, …)
    inner_iterations: int  # steps of the inner solver, all in all
    stopped: str  # converged, stalled (no step decreases the loss) or iterations (used up)


def exact(x, y, weight_decay, theta, pairs):
    """Inner solve by Newton steps; the inverse Hessian through the m×m system."""
    trained = affine.train(x, y, weight_decay, theta)
    return trained, lambda u: affine.inverse_hessian_product(x, trained, u, weight_decay), []


def cg(x, y, weight_decay, theta, pairs, tolerance=1e-10):
    """Inner solve by Newton steps; the inverse Hessian by conjugate gradients on Hessian-vector products."""
    trained = affine.train(x, y, weight_decay, theta)

    def product(v):
        return affine.hessian_product(x, trained.weights, v, weight_decay)

    return trained, lambda u: solvers.cg(product, u, tolerance).x, []


def lbfgs(x, y, weight_decay, theta, pairs, tolerance=1e-8, memory=200):
    """Inner solve by L-BFGS, whose memory then stands for the inverse Hessian: the paper's quasi-Newton H."""

    def objective(theta):
        return affine.energy(x, y, theta, weight_decay), affine.energy_gradient(x, y, theta, weight_decay)

    theta = theta.expand(*x.shape[:-2], x.shape[-1] + 1)
    minimum = solvers.lbfgs(objective, theta, gradient_tolerance=tolerance, memory=memory, pairs=pairs)
    z = affine.logits(x, minimum.x)
    trained = affine.Trained(minimum.x, z, None, minimum.gradient_norm, minimum.iterations)
    return trained, lambda u: solvers.quasi_newton_product(minimum.pairs, u), minimum.pairs


INVERSES = {"exact": exact, "cg": cg, "lbfgs": lbfgs}


def hypergradient(x, y, target, weight_decay, inverse="exact", start=None, pairs=()):
    """Evaluate l(x) = ½‖θ(x) − θ*‖² and dl/dx, eq. (7) with the sign that makes it a gradient.

    x (…, m, d), y (m,), target θ* (d+1,). The inner solve begins at `start`, θ (…, d+1), zero if omitted.
    """
    theta = torch.zeros_like(target) if start is None else start
    trained, apply_inverse, pairs = INVERSES[inverse](x, y, weight_decay, theta, pairs)
    difference = trained.weights - target
    p = apply_inverse(difference)
    gradient = -affine.cross_gradient(x, y, trained, p)
    return Hypergradient(affine.dot(difference, difference) / 2, gradient, trained, pairs)


class UpperLevel:
    """The upper-level loss and its gradient as a function of x flattened to (…, m·d), for a generic minimiser.

    Remembers where the next inner solve begins: at the last θ (`warm`) or always at the same one (`cold`).
    """

    def __init__(self, weights, labels, shape, weight_decay, inverse, inner_start, theta_start):
        self.weights, self.labels, self.shape = weights, labels, shape
        self.weight_decay, self.inverse, self.warm = weight_decay, inverse, inner_start == "warm"
        self.theta, self.pairs, self.inner_iterations = theta_start, [], 0

    def evaluate(self, x):
        """Return the hypergradient at x (…, m, d)."""
        h = hypergradient(x, self.labels, self.weights, self.weight_decay, self.inverse, self.theta, self.pairs)
        self.inner_iterations += h.trained.iterations
        if self.warm:
            self.theta, self.pairs = h.trained.weights, h.pairs
        return h

    def __call__(self, flat):
        h = self.evaluate(flat.reshape(self.shape))
        return h.loss, h.gradient.flatten(-2)


def attack(
    weights,
    labels,
    start,
    *,
    weight_decay,
    inverse="exact",
    optimiser="lbfgs",
    learning_rate=1.0,
    iterations=1000,
    tolerance=1e-13,
    inner_start="warm",
    theta_start=None,
    watch: Callable = lambda x, loss: None,
    progress=False,
):
    """Move the images `start` (…, m, d) until training on them returns `weights` θ* (d+1,).

    Converged means ‖θ(x) − θ*‖² ≤ `tolerance`·‖θ*‖². `inverse` is how p = H⁻¹∇l is found: `exact`, `cg` or `lbfgs`.
    `optimiser` is `lbfgs`, or `gradient` for eq. (7) as it stands, x ← x − η·dl/dx with η = `learning_rate`. Inner
    solves begin at the last θ (`inner_start` = `warm`) or always at `theta_start` (`cold`), zero if omitted.
    `watch(x, loss)` is called with every iterate. Raises InputError if the loss diverges.
    """
    choose("INVERSE", inverse, INVERSES)
    choose("OPTIMISER", optimiser, ("lbfgs", "gradient"))
    choose("INNER_START", inner_start, ("warm", "cold"))
    check_shapes(weights, labels, start)
    scale = affine.dot(weights, weights) / 2
    theta0 = torch.zeros_like(weights) if theta_start is None else theta_start
    upper = UpperLevel(weights, labels, start.shape, weight_decay, inverse, inner_start, theta0)
    minimise = solvers.lbfgs if optimiser == "lbfgs" else partial(solvers.gradient_descent, learning_rate=learning_rate)
    history = []
    hidden = not progress or "TQDM_DISABLE" in os.environ  # which tqdm's notebook bars do not heed themselves
    with tqdm(total=iterations, desc="bilevel attack", leave=False, disable=hidden) as bar:

        def each(flat, loss):
            x = flat.reshape(start.shape)
            refuse_divergence(x, start, loss, len(history), learning_rate)
            history.append(loss / scale)
            watch(x, loss)
            bar.update(len(history) > 1)

        flat = start.flatten(-2)  # (…, m, d) -> (…, m·d)
        minimum = minimise(upper, flat, value_tolerance=tolerance * scale, iterations=iterations, each=each)
    x = minimum.x.reshape(start.shape)
    trained = upper.evaluate(x).trained
    return Attack(x, trained.weights, torch.stack(history), upper.inner_iterations, minimum.stopped)


def check_shapes(weights, labels, start):
    """Raise InputError unless θ* (d+1,), y (m,) and x (…, m, d) fit together."""
    m, d = start.shape[-2:]
    if weights.shape != (d + 1,) or labels.shape != (m,):
        raise InputError(
            f"The start holds {m} images of {d} values, which needs {m} labels and {d + 1} weights, "
            f"but there are {tuple(labels.shape)} labels and {tuple(weights.shape)} weights."
        )


def refuse_divergence(x, start, loss, steps, learning_rate):
    """Raise InputError if the loss is not finite, or the images have moved further than the range of a pixel, 1."""
    moved = (x - start).square().mean(dim=(-2, -1)).sqrt().max().item()
    if not (loss.isfinite().all() and moved <= 1):
        raise InputError(
            f"The attack diverged: after {steps} steps the images have moved by {moved:.2g} (root mean square), and "
            f"their range is 1. LEARNING_RATE {learning_rate:g} is too large; try {learning_rate / 10:g}."
        )
