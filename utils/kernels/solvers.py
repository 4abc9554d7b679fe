"""Matrix-free solvers for batches: vectors are (…, n), leading dimensions are independent problems."""

import itertools
import math
from typing import NamedTuple

import torch

from utils.kernels.step import LOOK


class Solution(NamedTuple):
    """The answer x to a linear solve Ax = b."""

    x: torch.Tensor  # (…, n)
    remainder: torch.Tensor  # b − Ax (…, n)
    residuals: list  # ‖b − Ax‖/‖b‖ (…) after each iteration
    converged: torch.Tensor  # booleans (…): whether the last of these fell to the tolerance


class Minimum(NamedTuple):
    """Where a minimisation ended, and how."""

    x: torch.Tensor  # (…, n), the iterate with the smallest value
    value: torch.Tensor  # (…), the smallest value
    gradient_norm: torch.Tensor  # (…), at the last iterate
    iterations: int  # of L-BFGS, or the products that `newton_cg` spent
    converged: torch.Tensor  # booleans (…): whether a tolerance was reached
    stopped: str | list  # converged, stalled (no step lowers a value), iterations (used up) or left
    pairs: list | tuple = ()  # the latest (s, y, 1/⟨s, y⟩) with y ≈ Hs, for `quasi_newton_product`


def name_stops(otherwise, **masks):
    """How a problem stopped: the name of the first mask (…) that holds, or `otherwise`; for a batch, a list."""
    columns = zip(*(mask.flatten().tolist() for mask in masks.values()))
    listed = [[*itertools.compress(masks, column), otherwise][0] for column in columns]
    return listed if next(iter(masks.values())).dim() else listed[0]


def dot(a, b):
    """Inner product over the last dimension, kept as a dimension of size one."""
    return torch.linalg.vecdot(a, b)[..., None]


def cg(product, b, tolerance=1e-12, iterations=1000, precondition=lambda r: r, radius=math.inf):
    """Solve Ax = b by conjugate gradients for a symmetric positive definite A, given `product(v)` = Av.

    A problem stops when ‖b − Ax‖ ≤ `tolerance`·‖b‖; or with x on the boundary of a trust region of this `radius`, if
    there is one, where a direction p has ⟨p, Ap⟩ ≤ 0 or ‖x‖ reaches it. `precondition(r)` approximates A⁻¹r.
    """
    tiny = torch.finfo(b.dtype).tiny
    size = dot(b, b)
    x = torch.zeros_like(b)
    r = b
    p = precondition(b)
    rz = dot(b, p)
    goal = tolerance**2 * size
    left = torch.zeros_like(rz, dtype=torch.bool)
    taken = torch.zeros((), dtype=torch.long, device=b.device)
    history = []
    for k in range(iterations):
        active = (dot(r, r) > goal) & ~left
        if k % LOOK[b.device.type] == 0 and not active.any():  # a further iteration moves nothing
            break
        taken += active.any()  # a GPU goes on until the next look
        ap = product(p)
        curvature = dot(p, ap)
        step = torch.where(curvature > 0, rz / curvature.clamp_min(tiny), math.inf)
        xp = dot(x, p)
        pp = dot(p, p)
        root = (xp**2 + pp * (radius**2 - dot(x, x))).clamp_min(0).sqrt()
        border = (root - xp) / pp.clamp_min(tiny)
        left = left | (active & (step >= border))
        step = torch.where(active, torch.minimum(step, border), 0).nan_to_num(0, 0, 0)
        x = x + step * p
        r = r - step * ap
        z = precondition(r)
        new = dot(r, z)
        p = z + new / rz.clamp_min(tiny) * p
        rz = new
        history.append((dot(r, r) / size.clamp_min(tiny)).sqrt()[..., 0])
    return Solution(x, r, history[: int(taken)], (dot(r, r) <= goal)[..., 0])


def quasi_newton_product(pairs, v, precondition=lambda v: v):
    """Apply the L-BFGS approximation of an inverse Hessian to v: the two-loop recursion over `pairs`, oldest first.

    In a pair (s, y, 1/⟨s, y⟩) the last is 0 for no safe curvature. It begins from a scaled `precondition`.
    """
    coefficients = []
    for s, y, rho in reversed(pairs):
        a = rho * dot(s, v)
        v = torch.addcmul(v, a, y, value=-1)
        coefficients.append(a)
    v = precondition(v)
    if pairs:
        _, y, rho = pairs[-1]
        scale = (rho * dot(y, precondition(y))).clamp_min(torch.finfo(v.dtype).tiny)
        v = torch.where(rho > 0, v / scale, v)
    for (s, y, rho), a in zip(pairs, reversed(coefficients)):
        v = torch.addcmul(v, a - rho * dot(y, v), s)
    return v


def secant(s, y):
    """The pair (s, y, 1/⟨s, y⟩) of a step s and a change y of the gradient, with 0 for no safe curvature."""
    safe = dot(s, y) > 1e-14 * dot(y, y)
    return s, y, torch.where(safe, 1 / torch.where(safe, dot(s, y), 1), 0)


def lbfgs(
    objective,
    start,
    *,
    gradient_tolerance=0.0,
    value_tolerance=-math.inf,
    iterations=1000,
    memory=20,
    pairs=(),
    each=lambda x, value: None,
):
    """Minimise by limited-memory BFGS with a backtracking line search (Armijo, quadratic interpolation).

    `objective(x)` returns values (…) and gradients (…, n). A problem converges when its gradient norm or value falls to
    the tolerance; one whose line search finds no decrease stays where it is. `each(x, value)` is called at the start
    and after every iteration, and returns which problems (…) are to stop. `pairs` goes on from an earlier run's memory.
    """
    x = start
    pairs = list(pairs)
    value, gradient = objective(x)
    stuck = left = torch.zeros_like(value, dtype=torch.bool)
    for iteration in range(iterations + 1):
        outside = each(x, value)
        left = left if outside is None else left | outside
        converged = (gradient.norm(dim=-1) <= gradient_tolerance) | (value <= value_tolerance)
        if (converged | stuck | left).all() or iteration == iterations:
            break
        direction = -quasi_newton_product(pairs, gradient)
        if not pairs:
            direction = direction / gradient.norm(dim=-1, keepdim=True).clamp_min(1)
        active = ~(converged | stuck | left)
        free, *moved = backtrack(objective, x, value, gradient, direction, active)
        pairs = [*pairs, secant(moved[0] - x, moved[2] - gradient)][-memory:]
        stuck = stuck | ~free
        x, value, gradient = moved
    stopped = name_stops("iterations", left=left, converged=converged, stalled=stuck)
    return Minimum(x, value, gradient.norm(dim=-1), iteration, converged, stopped, pairs)


def newton_cg(objective, hessian, start, *, gradient_tolerance=1e-9, products=20_000):
    """Minimise by Newton's method in a trust region, each step by conjugate gradients (Steihaug).

    `hessian(x)` returns a product and a preconditioner. Steps are solved to min(1/10, ‖∇f‖): quadratic convergence.
    """
    x = start
    spent = 0
    value, gradient = objective(x)
    radius = torch.ones_like(value)[..., None]
    while True:
        norm = gradient.norm(dim=-1)
        converged = norm <= gradient_tolerance
        lost = radius[..., 0] <= 1e-12
        if (converged | lost).all() or spent >= products:
            break
        product, precondition = hessian(x)
        accuracy = min(0.1, norm.max().item())
        solution = cg(product, -gradient, accuracy, products - spent, precondition, radius)
        spent += len(solution.residuals) + 1
        step = torch.where(converged[..., None], 0, solution.x)
        new, new_gradient = objective(x + step)
        # The decrease of the quadratic model.
        promised = dot(step, solution.remainder - gradient)[..., 0] / 2
        flatter = flattens(promised, value, new, gradient, new_gradient)
        ratio = (value - new) / promised.clamp_min(torch.finfo(value.dtype).tiny)
        quality = torch.where(flatter, 1, ratio)[..., None]
        taken = quality > 1e-3
        length = step.norm(dim=-1, keepdim=True)
        radius = torch.where(quality < 0.25, length / 4, radius)
        radius = torch.where((quality > 0.75) & (length > 0.9 * radius), 2 * radius, radius)
        x = torch.where(taken, x + step, x)
        value = torch.where(taken[..., 0], new, value)
        gradient = torch.where(taken, new_gradient, gradient)
    stopped = name_stops("iterations", converged=converged, stalled=lost)
    return Minimum(x, value, gradient.norm(dim=-1), spent, converged, stopped)


def flattens(promised, value, new, gradient, new_gradient):
    """Where the promise of a step is lost in the rounding of the values, a smaller gradient is enough: (…)."""
    rounding = value.abs() * (100 * torch.finfo(value.dtype).eps)
    smaller = new_gradient.norm(dim=-1) < gradient.norm(dim=-1)
    return (promised <= rounding) & (new <= value + rounding) & smaller


def backtrack(objective, x, value, gradient, direction, active):
    """Shorten the step along `direction` until the value falls by 1e-4 of what the slope promises.

    Where the promise of a whole step is lost in rounding, a smaller gradient is enough. Only `active` problems move;
    one that finds no step stays. Returns which problems are not stuck, and the new x, values and gradients.
    """
    slope = dot(direction, gradient)[..., 0]
    step = torch.where(active & (slope < 0), 1.0, 0.0).to(value)
    for _ in range(30):
        trial = x + step[..., None] * direction
        new, new_gradient = objective(trial)
        flatter = flattens(-slope, value, new, gradient, new_gradient)
        lower = (new < value) & (new <= value + 1e-4 * step * slope)
        enough = lower | flatter | ~active
        if enough.all():
            break
        # The minimiser of the fitted parabola.
        parabola = -slope * step**2 / (2 * (new - value - slope * step))
        shorter = torch.where(parabola.isfinite(), parabola, step / 2).clamp(step / 10, step / 2)
        step = torch.where(enough, step, shorter)
    enough = enough & ((step > 0) | ~active)
    x = torch.where(enough[..., None], trial, x)
    gradient = torch.where(enough[..., None], new_gradient, gradient)
    return enough, x, torch.where(enough, new, value), gradient


def momentum(x, gradient, memory, rate):
    """A step of gradient descent with momentum 0.9; x and `memory`, zeros like x at first, are changed in place."""
    x.sub_(rate * memory[0].mul_(0.9).add_(gradient))


def adam(x, gradient, memory, rate):
    """A step of Adam (0.9, 0.999) at a rate of `schedule`, which corrects its biases; float32 in one pass."""
    mean, square = memory
    if x.dtype == torch.float32:
        steps = [x.new_full((), 1e9)]
        settings = {"weight_decay": 0.0, "amsgrad": False, "maximize": False}
        settings |= {"lr": rate, "beta1": 0.9, "beta2": 0.999, "eps": 1e-12}
        torch._fused_adam_([x], [gradient], [mean], [square], [], steps, **settings)
        return
    mean.mul_(0.9).add_(0.1 * gradient)
    square.mul_(0.999).add_((0.001 * gradient).mul_(gradient))
    x.sub_((rate * mean).div_(square.sqrt().add_(1e-12)))


def schedule(k, iterations):
    """Half a cosine from one to zero, and the correction of both biases of Adam."""
    correction = (1 - 0.999 ** (k + 1)) ** 0.5 / (1 - 0.9 ** (k + 1))
    return (1 + math.cos(math.pi * k / iterations)) / 2 * correction


# First-order optimisers: they move x along a gradient, with a memory, at a rate; and the factor of rates, at step k.
BY_ADAM = (adam, schedule)
STEPS = {"sgd": (momentum, lambda k, iterations: 1.0), "adam": BY_ADAM, "projection": BY_ADAM}
