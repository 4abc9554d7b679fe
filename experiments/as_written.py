"""The first paper's attacks on its own network, eq. (9): a ReLU, and every first weight from U(0, 1), trained to fit.

Eq. (2) by L-BFGS through ten steps of training, and eq. (3) by descent with momentum, which an affine victim has, too.
"""

from typing import Any

import torch
from torch import Tensor

from training import Victim, uniform
from training.images import Part
from utils import networks
from utils.kernels import affine, solvers
from utils.kernels.layers import Network, joint, square_norm
from utils.kernels.one_hidden import append_ones
from utils.networks import Released

INNER = 10  # steps of training that eq. (2) goes through
SIZES = 0.1, 0.03  # of eq. (3): how far the first step moves a pixel


def describe(secret: Part, victim: Victim) -> dict[str, Any]:
    """{quantity: number} of a victim: how near to an affine model it is, from the start to the end of its training.

    A neuron `always` active is so on every image with pixels in [0, 1]; where all are, the network is affine there.
    """
    initial, released = victim.initial, victim.released
    written, _, _ = uniform.descend(*secret, initial, uniform.RATE, INNER)
    ones = append_ones(secret.images)
    start = joint(initial[0])
    basis = networks.span_of(ones)  # added rows lie in it, but for rounding
    numbers = {
        "accuracy": networks.accuracy(released.outputs(secret.images), secret.labels),
        "theta0_distance": networks.distance(initial, released.network),
    }
    rows_at = {
        "start": start,
        "ten_steps": start + written @ ones,
        "end": joint(released.network[0]),
    }
    for name, rows in rows_at.items():
        darkest = rows[:, :-1].clamp_max(0).sum(1) + rows[:, -1]  # the least z of any image
        numbers[f"{name}/active"] = (ones @ rows.mT > 0).double().mean()
        numbers[f"{name}/always"] = (darkest > 0).double().mean()
        if name != "start":
            added = (rows - start) @ basis  # (h, m)
            energies = torch.linalg.eigvalsh(added.mT @ added).flip(0).clamp_min(0)
            numbers[f"{name}/first_share"] = energies[0] / energies.sum()
            # singular values above a thousandth
            numbers[f"{name}/rank"] = (energies > 1e-6 * energies[0]).sum().item()
    return numbers


def square_distance(x: Tensor, released: Released, initial: Network) -> Tensor:
    """‖θ(x) − θ*‖² of eq. (2), after ten steps of training on images x (m, d) from a network θ⁰; differentiable.

    The products of images alone are needed, and not the weights: W₁ − W₁* is W₁⁰ − W₁* + MX.
    """
    written, *last = uniform.descend(
        x, released.labels, initial, released.recipe.learning_rate, INNER
    )
    before = joint(initial[0]) - joint(released.network[0])
    ones = append_ones(x)
    moved = (written * (2 * before @ ones.mT + written @ (ones @ ones.mT))).sum()
    upper = sum((ours - theirs).square().sum() for ours, theirs in zip(last, released.network[1]))
    return before.square().sum() + moved + upper


def square_gradient(x: Tensor, released: Released) -> Tensor:
    """‖∇_θ E(x, y; θ*)‖² of eq. (3) for images x (m, d), on an affine network or one with a hidden layer."""
    network = released.network
    y = released.labels
    decay = released.recipe.weight_decay
    if len(network) == 1:
        return affine.energy_gradient(x, y, networks.flatten(network), decay).square().sum()
    inputs, (z, outputs) = released.forward(x)
    slopes = (torch.sigmoid(outputs[:, 0]) - y) / len(x)  # of E by the output; E has no decay here
    back = slopes[:, None] * network[1].weight * (z > 0)  # by z
    first = ((back @ back.mT) * (x @ x.mT + 1)).sum()  # ‖backᵀ[x, 1]‖²
    return first + (slopes @ inputs[1]).square().sum() + slopes.sum().square()


def with_slope(loss, shape):
    """A function of flat images that gives a loss and its gradient, for a solver."""

    def evaluate(flat):
        x = flat.view(shape).detach().requires_grad_()
        value = loss(x)
        return value.detach(), torch.autograd.grad(value, x)[0].flatten()

    return evaluate


def has_left(x, start):
    """Whether images have moved by more than the range of a pixel, root mean square."""
    return (x - start).square().mean() > 1


def solve_bilevel(
    released: Released, start: Tensor, initial: Network, iterations: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Eq. (2) from images `start` (m, d), with training from a network θ⁰: images, ‖θ(x) − θ*‖² before and after."""
    scale = square_norm(released.network)
    flat = start.flatten()
    loss = with_slope(lambda x: square_distance(x, released, initial) / scale, start.shape)
    end = solvers.lbfgs(
        loss,
        flat,
        iterations=iterations,
        value_tolerance=1e-13,
        each=lambda x, _: has_left(x, flat),
    )
    return end.x.view_as(start), scale * loss(flat)[0], scale * end.value


def descend_with_momentum(
    released: Released, start: Tensor, iterations: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Eq. (3) from images `start` (m, d) by SGD with momentum 0.9: images, ‖∇E‖² before and after.

    Of two learning rates, and of all steps whose images are within the pixel range of the start, those of the lowest
    loss.
    """
    loss = with_slope(lambda x: square_gradient(x, released), start.shape)
    flat = start.flatten()
    before, slope = loss(flat)
    images = flat
    least = before
    for size in SIZES:
        rate = (1 - 0.9) * size * start.numel() ** 0.5 / slope.norm().clamp_min(1e-200)
        at = flat.clone()
        down = slope
        memory = [torch.zeros_like(at)]
        for _ in range(iterations):
            solvers.momentum(at, down, memory, rate)
            now, down = loss(at)
            if now < least and not has_left(at, flat):  # false for what is not a number
                images = at.clone()
                least = now
    return images.view_as(start), before, least
