"""Networks of any depth with softplus activations, plainly: everything may be differentiated by autograd, and twice.

Shapes: images x (m, d) with labels y (m,) in {0, 1}; a network is a tuple of Layers with biases and one output. The
activation is σ(s) = softplus(βs)/β with the sharpness β.
"""

import torch
from torch.nn.functional import binary_cross_entropy_with_logits, softplus

from utils.kernels.layers import flatten, square_norm


def logits(x, network, sharpness):
    """Φ(x; θ) for every image: (m,)."""
    for layer in network[:-1]:
        s = x @ layer.weight.T + layer.bias  # (m, n) @ (n, h) -> (m, h)
        x = softplus(s, beta=sharpness, threshold=40)
    return (x @ network[-1].weight.T + network[-1].bias)[:, 0]


def energy(x, y, network, weight_decay, sharpness):
    """The training energy E = (1/m) Σ ℓ + (μ/2)‖θ‖² with the logistic loss."""
    losses = binary_cross_entropy_with_logits(logits(x, network, sharpness), y)
    return losses + weight_decay / 2 * square_norm(network)


def gradient(x, y, network, weight_decay, sharpness):
    """∇_θE as one vector: (p,)."""
    return flatten(torch.func.grad(energy, argnums=2)(x, y, network, weight_decay, sharpness))


def error_probability(x, y, network, sharpness):
    """|sigmoid(z) − y|, the probability of the other class, one minus the confidence in the label: (m,)."""
    return torch.sigmoid((1 - 2 * y) * logits(x, network, sharpness))
