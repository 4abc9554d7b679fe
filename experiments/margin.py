"""How near a network with one hidden layer is to a KKT point of the margin problem.

There θ = Σ_i λ_iy_i∇Φ(x_i; θ) with λ ≥ 0, and the margins y_iΦ(x_i) are equal wherever λ_i > 0. The network has no bias
after its hidden layer of h neurons. Shapes: points x (m, d) as it saw them, labels (m,) in {0, 1}.
"""

import math

import torch

from utils.kernels.coefficients import Margin, best
from utils.kernels.layers import flatten, forward, joint
from utils.kernels.losses import signs
from utils.kernels.one_hidden import append_ones
from utils.kernels.residual import Stationarity

TRAININGS = {  # of recorded networks, {name: in words}
    "descent_1": "descent, 1/30",
    "descent_2": "descent, 1/10",
    "descent_3": "descent, 1/3",
    "descent_4": "descent",
    "decay": "with weight decay",
    **{f"polish_{k}": f"polished, {k} stages" for k in (2, 4, 6)},
}


def kkt_distance(network, x, labels, near=0.0, rounds=8):
    """min over λ ≥ 0 of ‖θ − Σ λ_iy_i∇Φ(x_i)‖/‖θ‖: 0 at a KKT point, 1 if the points explain nothing.

    Below `near` of a neuron's largest pre-activation the ReLU's slopes are sought, too, in `rounds`: an upper bound.
    """
    z = forward(network, x)[1][0].abs()
    return distance_with_slopes(network, x, signs(labels), z < near * z.amax(0), rounds=rounds)


def distance_with_slopes(network, x, y, kinks, rounds=20, steps=30):
    """min ‖θ − Σ_i λ_iy_i∇Φ(x_i)‖/‖θ‖ over λ ≥ 0, and over slopes where `kinks` (m, h), for x (m, d) of signs y (m,).

    λ and slopes are sought in turns, each a convex problem: an upper bound, and without any kink the minimum.
    """
    first, top = network
    v = top.weight
    y = y[:, None]
    z = forward(network, x)[1][0]
    bordered = append_ones(x)
    gram = bordered @ bordered.mT
    slopes = torch.where(kinks, 0.5, (z > 0).to(z))
    outputs = y * z.relu()
    largest = torch.linalg.eigvalsh(gram)[-1]
    for _ in range(rounds if kinks.any() else 1):
        c = y * v * slopes
        products = gram * (c @ c.mT) + outputs @ outputs.mT
        parts = (c * z).sum(1) + outputs @ v[0]
        multipliers = best(products, parts, 0.0, ridge=1e-13)[:, None]  # λ (m, 1)
        most = multipliers * y * v
        part = last = most * slopes  # of every point in the rows of the first layer
        for k in range(steps):
            ahead = part + k / (k + 3) * (part - last)
            ahead = ahead - (gram @ ahead - z) / largest
            last = part
            part = torch.where(kinks, ahead.clamp(most.clamp(max=0), most.clamp(min=0)), part)
        slopes = torch.where(most == 0, slopes, part / most)
    missing = torch.cat(
        [(joint(first) - part.mT @ bordered).flatten(), v[0] - (multipliers * outputs).sum(0)]
    )
    return (missing.norm() / flatten(network).norm()).item()


def smallest_residual(network, x, labels, sharpness=math.inf):
    """min R(x, λ) = ‖θ − Σ λ_iy_i∇Φ(x_i)‖² over λ ≥ 0, with the slope σ(αz) for the ReLU's, and that λ (m,)."""
    objective = Stationarity(network, Margin(signs(labels)), sharpness)
    h, b = objective.quadratic(x)
    multipliers = best(h, b, 0.0, ridge=1e-13)  # for λ/m
    value = objective.squares.sum() - (2 * b - h @ multipliers) @ multipliers
    return value.clamp_min(0).item(), multipliers / len(x)


def slackness(network, x, labels):
    """Σ λ_i(q_i − min q)/Σ λ_iq_i for the margins q and the best λ: 0 at a KKT point."""
    _, multipliers = smallest_residual(network, x, labels)
    margins = signs(labels) * forward(network, x)[1][-1][:, 0]
    return (multipliers @ (margins - margins.min()) / (multipliers @ margins)).item()


def same_side(network, x):
    """Of two points, the mean share of neurons that both activate, or neither."""
    active = (forward(network, x)[1][0] > 0).double()  # (m, h)
    pairs = active @ active.mT + (1 - active) @ (1 - active).mT
    m, neurons = active.shape
    return ((pairs.sum() / neurons - m) / (m * (m - 1))).item()
