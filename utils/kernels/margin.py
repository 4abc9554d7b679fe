"""How near a network with one hidden layer is to a KKT point of the margin problem.

There θ = Σ_i λ_iy_i∇Φ(x_i; θ) with λ ≥ 0, and the margins y_iΦ(x_i) are equal wherever λ_i > 0. The network has no bias
after its hidden layer of h neurons. Shapes: points x (m, d) as it saw them, labels (m,) in {0, 1}.
"""

import math

from utils.kernels import kkt
from utils.kernels.coefficients import Margin, best
from utils.kernels.layers import forward
from utils.kernels.losses import signs
from utils.kernels.residual import Stationarity


def kkt_distance(network, x, labels, near=0.0, rounds=8):
    """min over λ ≥ 0 of ‖θ − Σ λ_iy_i∇Φ(x_i)‖/‖θ‖: 0 at a KKT point, 1 if the points explain nothing.

    The ReLU's slopes are 0 and 1, but where a pre-activation is below `near` of its neuron's largest they are the best
    ones in [0, 1], found in turns with λ, in so many `rounds`; then what comes out is an upper bound.
    """
    z = forward(network, x)[1][0].abs()
    return kkt.kkt_distance(network, x, signs(labels), z < near * z.amax(0), rounds=rounds)


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
