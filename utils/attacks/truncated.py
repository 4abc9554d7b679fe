"""The bilevel attack on a network with one hidden layer whose inner training may end before it converges.

Training that ends after a few steps returns a function θ(x) of the images, and autograd goes through it. Independent
attacks from k starts (k, m, d) are made in one batch.
"""

from typing import NamedTuple

import torch

from utils import networks
from utils.attacks import bilevel, planting
from utils.errors import InputError
from utils.kernels import one_hidden, solvers

SIZES = 0.03, 0.01, 0.003  # of eq. (7) with one η: how far the first step moves a pixel


class Inner(NamedTuple):
    """How the attacker trains."""

    steps: int  # K
    method: str  # descent or quasi-Newton, or stationary: until the gradient vanishes
    rate: float  # of descent


def trained(x, y, weight_decay, start, steps, method="descent", rate=1e-2):
    """θ(x), the Weights after so many steps on E from Weights θ⁰, for images x (…, m, d): differentiable in x.

    `descent` takes steps of gradient descent at a `rate`, `quasi-Newton` those of L-BFGS. With Xᵀ = QLᵀ the network
    sees the rows of L alone, and outside of Q the weights W₁ only decay, so that all of that part is one number, its
    norm.
    """
    first, q = start.first[..., :-1], torch.linalg.qr(x.mT)[0]  # (h, d), (…, d, m)
    outside = first - first @ q @ q.mT
    size = outside.norm(dim=(-2, -1))[..., None]
    bias = start.first[..., -1:].expand(*q.shape[:-2], -1, 1)
    inside = start._replace(first=torch.cat([first @ q, bias], -1))
    v = torch.cat([one_hidden.pack(inside), size], -1)

    def energy(v):
        value, slope = one_hidden.energy(v[..., :-1], x @ q, y, weight_decay, start.sharpness)
        value = value + weight_decay / 2 * v[..., -1] ** 2
        return value, torch.cat([slope, weight_decay * v[..., -1:]], -1)

    if method == "quasi-Newton":
        v = solvers.lbfgs(energy, v, iterations=steps).x
    for _ in range(steps if method == "descent" else 0):
        v = v - rate * energy(v)[1]
    theta = one_hidden.unpack(v[..., :-1], x.shape[-2], start.sharpness)
    rows = theta.first[..., :-1] @ q.mT + (v[..., -1:] / size)[..., None] * outside
    return theta._replace(first=torch.cat([rows, theta.first[..., -1:]], -1))


def objective_of(released, shape, theta0, inner):
    """l(x) = ½‖θ(x) − θ*‖² (…) and its gradient, functions of x flattened to (…, md), training from Weights θ⁰.

    The gradient goes through all steps, or, where training ends at a stationary point, is that of eq. (7).
    """
    target = one_hidden.weights(released.network, released.recipe.sharpness)

    def explicit(flat):
        x = flat.reshape(shape).requires_grad_()
        theta = trained(x, released.labels, released.recipe.weight_decay, theta0, *inner)
        loss = one_hidden.square_distance(theta, target) / 2
        (slope,) = torch.autograd.grad(loss.sum(), x)
        return loss.detach(), slope.flatten(-2)

    def implicit(flat):
        found = bilevel.hypergradient(released, flat.reshape(shape), start=theta0)
        return found.loss, found.gradient.flatten(-2)

    return implicit if inner.method == "stationary" else explicit


def moved(x, start, pixels):
    """Root mean square change of so many pixels: (k,)."""
    return ((x - start).square().flatten(1).sum(-1) / pixels).sqrt()


def descend(objective, flat, pixels, iterations):
    """Eq. (7) with one η: of three, and of all steps, those of the lowest loss (k, md)."""
    loss, slope = objective(flat)
    unit = (pixels**0.5 / slope.norm(dim=-1).clamp_min(1e-200))[..., None]
    best, least = flat, loss
    for size in SIZES:
        at, down = flat, slope
        for _ in range(iterations):
            at = at - size * unit * down
            now, down = objective(at)
            lower = now < least  # false for what is not a number
            best = torch.where(lower[..., None], at, best)
            least = torch.where(lower, now, least)
    return best


def search(objective, flat, pixels, goal, iterations):
    """The same by L-BFGS, until l(x) ≤ `goal` (k,); it ends where all images left the pixel range."""
    settings = {"value_tolerance": goal, "each": lambda x, loss: moved(x, flat, pixels) > 1}
    return solvers.lbfgs(objective, flat, iterations=iterations, **settings).x


def coordinates(released, start, theta0):
    """Released, start and θ⁰ in the span of all rows, where that is small, and its axes (d, r), else None."""
    (k, m, d), both = start.shape, (released.network, theta0)
    if k * m + 2 * len(theta0[0].weight) >= d:
        return released, start, theta0, None
    axes = networks.span_of(start.flatten(0, 1), *(net[0].weight for net in both))
    target, theta0 = (networks.in_span(net, axes) for net in both)
    return released._replace(network=target), start @ axes, theta0, axes


def attack(released, start, theta0, inner, *, iterations=10, fixed=False, prepared=False):
    """Move images from starts (k, m, d): the images, and ‖θ(x) − θ*‖² before and after (k,).

    Training begins at a network θ⁰, or at θ* for None. With `fixed` the steps are those of eq. (7) with one η, else of
    L-BFGS. Attacks on stationary points end by their own rules, those on `prepared` starts by `planting.attack`'s.
    """
    sharpness = released.recipe.sharpness
    norm = one_hidden.square_norm(one_hidden.weights(released.network, sharpness))
    if inner.method == "stationary" and not fixed:
        settings = {"theta_start": theta0, "iterations": iterations}
        attacks = (planting.attack(released, x) if prepared else bilevel.attack(released, x, **settings) for x in start)
        images, histories = zip(*((one.images, one.history) for one in attacks))
        return torch.stack(images), *(norm * torch.stack([history[k] for history in histories]) for k in (0, -1))
    small, seen, first, axes = coordinates(released, start, theta0 or released.network)
    objective = objective_of(small, seen.shape, one_hidden.weights(first, sharpness), inner)
    flat, pixels = seen.flatten(-2), start[0].numel()
    before = objective(flat)[0]
    if not before.isfinite().all():
        raise InputError(f"The inner training diverges at a rate of {inner.rate:g}.")
    found = (
        descend(objective, flat, pixels, iterations)
        if fixed
        else search(objective, flat, pixels, norm * 1e-13 / 2, iterations)
    )
    x = found.reshape(seen.shape)
    images = x if axes is None else start + (x - seen) @ axes.mT
    return images, 2 * before, 2 * objective(found)[0]
