"""Training of the last layer alone, behind a first one that stays as it was drawn."""

import torch
from torch.nn.functional import binary_cross_entropy_with_logits

from training import Victim
from training.images import Part
from training.ordinary import layers_of, perceptron, recipe
from utils import networks
from utils.kernels import layers
from utils.networks import Released


def train(
    secret: Part, neurons: int, shrink: float = 0.0, steps: int = 2000, seed: int = 0
) -> Victim:
    """Train the last layer of a network with one hidden layer of torch's start, which stays as it was drawn: Victim.

    Descent adds combinations of features Φ (m, h), and leaves 1 − `shrink`: W₂ = κW₂⁰ + aΦ, and a (m,), κ are moved.
    """
    mean = secret.images.mean().expand(secret.images.shape[1])
    y = secret.labels
    first, (last, _) = layers_of(perceptron(secret.images.shape[1], (neurons,), seed).to(y.device))
    rows = networks.forward((first,), secret.images - mean)[1][0].clamp_min(0)  # Φ
    gram = rows @ rows.mT
    z = rows @ last[0]
    a = torch.zeros_like(y)
    kept = 1.0
    rate = 4 * len(y) / torch.linalg.matrix_norm(gram, 2)
    for _ in range(steps):
        a = (1 - shrink) * a - rate * (torch.sigmoid(kept * z + gram @ a) - y) / len(y)
        kept *= 1 - shrink
    network = first, networks.Layer(layers.join(a, rows.mT, last, kept), None)
    loss = binary_cross_entropy_with_logits(kept * z + gram @ a, y).item()
    return Victim(
        Released(network, y, recipe(neurons)),
        mean,
        loss,
        len(y),
        (first, networks.Layer(last, None)),
    )
