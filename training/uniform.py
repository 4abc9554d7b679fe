"""The first paper's network as written: eq. (9), a ReLU, and every initial weight from U(0, 1), trained to fit.

All inputs of a hidden neuron are positive, so that none is ever inactive at the start, and the network is affine there.
Full-batch gradient descent on the logistic loss is exact here and cheap: the first layer changes by MX, with a matrix M
(h, m) for images X (m, d), so that a step needs the products of images alone and not the weights.
"""

import torch
from torch import Tensor

from training import Victim, ordinary
from training.images import Part
from utils import networks
from utils.errors import InputError
from utils.kernels.layers import Network
from utils.networks import Layer, Released

RATE = 1e-2  # of the descent
STEPS = 2000


def draw(inputs: int, width: int) -> torch.nn.Sequential:
    """The network before training, from torch's generator of the CPU."""
    net = ordinary.stack(inputs, (width,))
    for p in net.parameters():
        torch.nn.init.uniform_(p)
    return net


def descend(
    x: Tensor, y: Tensor, network: Network, rate: float, steps: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Full-batch descent on the logistic loss of images x (m, d) from a network: M (h, m), and w₂ and b₂ behind it.

    Afterwards W₁ is W₁⁰ + MX, and b₁ is b₁⁰ + M1. All is differentiable in x.
    """
    hidden, (weight, bias) = network
    begun = x @ hidden.weight.mT + hidden.bias  # (m, h)
    products = x @ x.mT + 1  # (m, m), of images with a one behind them, for the biases
    written = x.new_zeros(len(hidden.weight), len(x))  # M
    for _ in range(steps):
        z = begun + (written @ products).mT
        activations = z.clamp_min(0)
        # of the loss by the output, (m,)
        slopes = (torch.sigmoid(activations @ weight[0] + bias) - y) / len(x)
        written = written - rate * (slopes[:, None] * weight * (z > 0)).mT
        weight = weight - rate * activations.mT @ slopes
        bias = bias - rate * slopes.sum()
    return written, weight, bias


def train(secret: Part, net: torch.nn.Sequential, rate: float = RATE, steps: int = STEPS) -> Victim:
    """Train a network of `draw` on a Part, whose images are as they are: Victim, with weights in single precision."""
    hidden, _ = initial = ordinary.layers_of(net)
    x = secret.images
    y = secret.labels
    written, weight, bias = descend(x, y, initial, rate, steps)
    trained = Layer(hidden.weight + written @ x, hidden.bias + written.sum(1)), Layer(weight, bias)
    network = networks.round_to_single(trained)
    width = len(hidden.weight)
    recipe = networks.Recipe(
        (width,), "logistic", 0.0, initial="uniform", learning_rate=rate, epochs=steps
    )
    released = Released(network, y, recipe)
    loss = torch.nn.functional.binary_cross_entropy_with_logits(released.outputs(x)[:, 0], y).item()
    if not loss < float("inf"):
        raise InputError(
            f"The training diverged: its loss is {loss}. Take a lower rate, or fewer NEURONS."
        )
    return Victim(released, x.new_zeros(x.shape[1]), loss, len(x), initial)
