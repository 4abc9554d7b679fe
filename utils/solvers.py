"""Two matrix-free solvers that every attack shares. Vectors are (…, n); leading dimensions are independent problems."""

from collections.abc import Callable
from typing import NamedTuple

import torch


class Solution(NamedTuple):
    """The answer of a linear solve and what happened: residual norms relative to ‖b‖, one (…) per iteration."""

    x: torch.Tensor
    residuals: list


class Minimum(NamedTuple):
    """The answer of a minimisation and what happened."""

    x: torch.Tensor  # (…, n), the iterate with the smallest value
    value: torch.Tensor  # (…)
    gradient_norm: torch.Tensor  # (…), at the last iterate
    iterations: int
    converged: torch.Tensor  # (…) booleans
    stopped: str  # converged (every problem), stalled (no step decreases a value), iterations (used up) or diverged
    pairs: list = []  # the latest (s, y, 1/⟨s, y⟩) with y ≈ Hs, for `quasi_newton_product`


def dot(a, b):
    """Inner product over the last dimension, kept as a dimension of size one."""
    return (a * b).sum(-1, keepdim=True)


def cg(product, b, tolerance=1e-12, iterations=1000):
    """Solve Ax = b by conjugate gradients for a symmetric positive definite A, given `product(v)` = Av.

    Stops when ‖b − Ax‖ ≤ `tolerance`·‖b‖ for every problem, or after `iterations` products.
    """
    x, r = torch.zeros_like(b), b
    p, square, scale = r, dot(r, r), dot(b, b).clamp_min(torch.finfo(b.dtype).tiny)
    history = []
    for _ in range(iterations):
        if (square <= tolerance**2 * scale).all():
            break
        ap = product(p)
        step = square / dot(p, ap).clamp_min(torch.finfo(b.dtype).tiny)
        x, r = x + step * p, r - step * ap
        new = dot(r, r)
        p, square = r + new / square.clamp_min(torch.finfo(b.dtype).tiny) * p, new
        history.append((square / scale).sqrt()[..., 0])
    return Solution(x, history)


def quasi_newton_product(pairs, v):
    """Apply the L-BFGS approximation of an inverse Hessian to v: the two-loop recursion over `pairs`, oldest first."""
    coefficients = []
    for s, y, rho in reversed(pairs):
        a = rho * dot(s, v)
        v = v - a * y
        coefficients.append(a)
    if pairs:
        s, y, rho = pairs[-1]
        v = torch.where(rho > 0, v / (rho * dot(y, y)).clamp_min(torch.finfo(v.dtype).tiny), v)
    for (s, y, rho), a in zip(pairs, reversed(coefficients)):
        v = v + (a - rho * dot(y, v)) * s
    return v


def curvature_pair(s, y):
    """Return (s, y, 1/⟨s, y⟩), with 0 in place of 1/⟨s, y⟩ where the curvature is not safely positive."""
    sy = dot(s, y)
    safe = sy > 1e-14 * dot(y, y)
    return s, y, torch.where(safe, 1 / torch.where(safe, sy, 1), 0)


def lbfgs(
    objective: Callable,
    start: torch.Tensor,
    *,
    gradient_tolerance=0.0,
    value_tolerance=-float("inf"),
    iterations=1000,
    memory=20,
    pairs=(),
    each: Callable = lambda x, value: None,
):
    """Minimise by limited-memory BFGS with a backtracking line search (Armijo, quadratic interpolation).

    `objective(x)` returns values (…) and gradients (…, n). A problem has converged when its gradient norm or its
    value falls to the tolerance; a problem whose line search finds no decrease stays where it is. `each(x, value)`
    is called at the start and after every iteration. `pairs` continues from an earlier run's memory.
    """
    x, pairs, stopped = start, list(pairs), "iterations"
    value, gradient = objective(x)
    stuck = torch.zeros_like(value, dtype=torch.bool)
    for iteration in range(iterations + 1):
        each(x, value)
        converged = (gradient.norm(dim=-1) <= gradient_tolerance) | (value <= value_tolerance)
        if (converged | stuck).all():
            stopped = "stalled" if stuck.any() else "converged"
            break
        if iteration == iterations:
            break
        direction = -quasi_newton_product(pairs, gradient)
        if not pairs:
            direction = direction / gradient.norm(dim=-1, keepdim=True).clamp_min(1)
        active = ~(converged | stuck)
        found, *moved = backtrack(objective, x, value, gradient, direction, active)
        pairs = [*pairs, curvature_pair(moved[0] - x, moved[2] - gradient)][-memory:]
        stuck = stuck | ~found
        x, value, gradient = moved
    return Minimum(x, value, gradient.norm(dim=-1), iteration, converged, stopped, pairs)


def backtrack(objective, x, value, gradient, direction, active, halvings=30):
    """Shorten the step along `direction` until the value falls by 1e-4 of what the slope promises.

    Where the promise of a whole step is lost in rounding, a smaller gradient is enough. Only `active` problems move;
    one that finds no step stays. Returns which problems are not stuck, and the new x, values and gradients.
    """
    slope = dot(direction, gradient)[..., 0]
    step = torch.where(active & (slope < 0), 1.0, 0.0).to(value)
    rounding = value.abs() * (100 * torch.finfo(value.dtype).eps)
    for _ in range(halvings):
        trial = x + step[..., None] * direction
        new, new_gradient = objective(trial)
        flatter = (-slope <= rounding) & (new <= value + rounding) & (new_gradient.norm(dim=-1) < gradient.norm(dim=-1))
        lower = (new < value) & (new <= value + 1e-4 * step * slope)
        enough = lower | flatter | ~active
        if enough.all():
            break
        parabola = -slope * step**2 / (2 * (new - value - slope * step))  # minimiser of the fitted parabola
        shorter = torch.where(parabola.isfinite(), parabola, step / 2).clamp(step / 10, step / 2)
        step = torch.where(enough, step, shorter)
    enough = enough & ((step > 0) | ~active)
    keep = enough[..., None]
    new = torch.where(enough, new, value)
    return enough, torch.where(keep, trial, x), new, torch.where(keep, new_gradient, gradient)


def gradient_descent(
    objective: Callable,
    start: torch.Tensor,
    learning_rate: float,
    *,
    value_tolerance=-float("inf"),
    iterations=1000,
    each: Callable = lambda x, value: None,
):
    """Take steps x ← x − η∇f(x) of a fixed learning rate η, and keep the best iterate of every problem.

    Stops as diverged when a value is not finite.
    """
    x, best, stopped = start, start, "iterations"
    value, gradient = objective(x)
    least = value
    for iteration in range(iterations + 1):
        each(x, value)
        converged = least <= value_tolerance
        if converged.all():
            stopped = "converged"
            break
        if not value.isfinite().all():
            stopped = "diverged"
            break
        if iteration == iterations:
            break
        x = torch.where(converged[..., None], x, x - learning_rate * gradient)
        value, gradient = objective(x)
        best = torch.where((value < least)[..., None], x, best)
        least = torch.minimum(least, torch.where(value.isnan(), least, value))
    return Minimum(best, least, gradient.norm(dim=-1), iteration, converged, stopped)
