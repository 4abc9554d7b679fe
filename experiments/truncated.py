"""The bilevel attack on a network with one hidden layer whose inner training may end before it converges.

Then it returns a function θ(x) of the images, and autograd goes through it; attacks from k starts are one batch.
"""

from typing import NamedTuple

import torch

from attacks import bilevel, planting
from utils import networks
from utils.errors import InputError
from utils.kernels import layers, one_hidden, solvers
from utils.kernels.layers import Network
from utils.networks import Released

SIZES = 0.03, 0.01, 0.003  # of eq. (7) with one η: how far the first step moves a pixel


class Training(NamedTuple):
    """How the attacker trains."""

    steps: int  # K, of descent or of quasi-Newton
    method: str  # descent, quasi-Newton, or stationary: until the gradient vanishes
    rate: float  # of descent


def trained(x, y, weight_decay, initial, steps, method="descent", rate=1e-2):
    """θ(x), the Weights after steps of `descent` or `quasi-Newton` from Weights θ⁰, differentiable in x (…, m, d)."""
    q = torch.linalg.qr(x.mT)[0]  # (…, d, m)
    first, orthogonal = layers.split(initial.first[..., :-1], q)
    size = orthogonal.norm(dim=(-2, -1))[..., None]
    bias = initial.first[..., -1:].expand(*q.shape[:-2], -1, 1)
    inside = initial._replace(first=torch.cat([first, bias], -1))
    v = torch.cat([one_hidden.pack(inside), size], -1)

    def energy(v):
        value, slope = one_hidden.energy(v[..., :-1], x @ q, y, weight_decay, initial.sharpness)
        value = value + weight_decay / 2 * v[..., -1] ** 2
        return value, torch.cat([slope, weight_decay * v[..., -1:]], -1)

    if method == "quasi-Newton":
        v = solvers.lbfgs(energy, v, iterations=steps).x
    for _ in range(steps if method == "descent" else 0):
        v = v - rate * energy(v)[1]
    theta = one_hidden.unpack(v[..., :-1], x.shape[-2], initial.sharpness)
    rows = layers.join(theta.first[..., :-1], q, orthogonal, (v[..., -1:] / size)[..., None])
    return theta._replace(first=torch.cat([rows, theta.first[..., -1:]], -1))


def lower_level(released, basis=None):
    """The bilevel.Lower of a network with one hidden layer, also of one that was trained without weight decay."""
    target = one_hidden.weights(released.network, released.sharpness, basis)
    return bilevel.Lower(one_hidden, target, released.labels, released.recipe.weight_decay)


def objective_of(lower, shape, theta0, inner):
    """l(x) = ½‖θ(x) − θ*‖² (…) and its gradient, a function of x flattened to (…, md), with training from Weights θ⁰.

    `lower` is a bilevel.Lower, `shape` that of x, `inner` a Training. The gradient goes through all steps of `inner`;
    but if this is `stationary`, and so ends where ∇E vanishes, it is the gradient of eq. (7).
    """

    def explicit(flat):
        x = flat.reshape(shape).requires_grad_()
        theta = trained(x, lower.labels, lower.weight_decay, theta0, *inner)
        loss = one_hidden.square_distance(theta, lower.target) / 2
        (slope,) = torch.autograd.grad(loss.sum(), x)
        return loss.detach(), slope.flatten(-2)

    def implicit(flat):
        at = bilevel.evaluate(lower, flat.reshape(shape), theta0)
        return at.loss, at.gradient.flatten(-2)

    return implicit if inner.method == "stationary" else explicit


def moved(x, start, pixels):
    """Root mean square change of so many pixels: (k,)."""
    return ((x - start).square().flatten(1).sum(-1) / pixels).sqrt()


def descend(objective, flat, pixels, iterations):
    """Eq. (7) with one η: of three, and of all steps, those of the lowest loss (k, md)."""
    loss, slope = objective(flat)
    unit = (pixels**0.5 / slope.norm(dim=-1).clamp_min(1e-200))[..., None]
    best = flat
    least = loss
    for size in SIZES:
        at = flat
        down = slope
        for _ in range(iterations):
            at = at - size * unit * down
            now, down = objective(at)
            lower = now < least  # false for what is not a number
            best = torch.where(lower[..., None], at, best)
            least = torch.where(lower, now, least)
    return best


def until_stationary(released, start, initial, iterations, prepared):
    """Attacks whose training ends where ∇E vanishes, one after the other; they end by rules of their own."""
    settings: dict = {"initial": initial, "iterations": iterations}
    made = [
        planting.attack(released, x) if prepared else bilevel.attack(released, x, **settings)
        for x in start
    ]
    norm = one_hidden.square_norm(lower_level(released).target)
    before, after = (norm * torch.stack([one.history[k] for one in made]) for k in (0, -1))
    return torch.stack([one.images for one in made]), before, after


def attack(
    released: Released,
    start: torch.Tensor,
    initial: Network | None,
    inner: Training,
    *,
    iterations: int = 10,
    fixed: bool = False,
    prepared: bool = False,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Move images from starts (k, m, d): the images, and ‖θ(x) − θ*‖² before and after (k,).

    Training begins at a network θ⁰, or at θ* for None. With `fixed` the steps are those of eq. (7) with one η, else of
    L-BFGS, in the span of images and weights if it is smaller than the space of images. Attacks on stationary points
    end by their own rules, those on `prepared` starts by `planting.attack`'s.
    """
    if inner.method == "stationary" and not fixed:
        return until_stationary(released, start, initial, iterations, prepared)
    initial = initial or released.network
    rows = start.flatten(0, 1), released.network[0].weight, initial[0].weight
    basis = networks.span_of(*rows) if sum(map(len, rows)) < start.shape[-1] else None
    lower = lower_level(released, basis)
    coordinates = start if basis is None else start @ basis
    theta0 = one_hidden.weights(initial, released.sharpness, basis)
    objective = objective_of(lower, coordinates.shape, theta0, inner)
    flat, pixels = coordinates.flatten(-2), start[0].numel()
    before = objective(flat)[0]
    if not before.isfinite().all():
        raise InputError(f"The inner training diverges at a rate of {inner.rate:g}.")
    if fixed:
        end = descend(objective, flat, pixels, iterations)
    else:  # where all images have left the pixel range, it ends, too
        goal = one_hidden.square_norm(lower.target) * 1e-13 / 2
        settings = {"value_tolerance": goal, "each": lambda x, loss: moved(x, flat, pixels) > 1}
        end = solvers.lbfgs(objective, flat, iterations=iterations, **settings).x
    images = end.view_as(coordinates)
    if basis is not None:
        images = start + (images - coordinates) @ basis.mT
    return images, 2 * before, 2 * objective(end)[0]
