"""How far a network with one hidden layer is from a KKT point of the margin problem, with the points as they are."""

import torch

from utils.kernels.coefficients import best
from utils.kernels.layers import flatten, forward, joint


def kkt_distance(network, x, y, kinks, rounds=20, steps=30):
    """min ‖θ − Σ_i λ_iy_i∇Φ(x_i)‖/‖θ‖ over λ ≥ 0, and over slopes where `kinks` (m, h), for x (m, d) of signs y (m,).

    Of one hidden layer without a bias above it. λ and slopes are found in turns, each a convex problem, the latter by
    accelerated gradient steps; so what comes out is an upper bound. Without any kink it is the minimum.
    """
    (first, top), y, z = network, y[:, None], forward(network, x)[1][0]
    v, bordered = top.weight, torch.cat([x, torch.ones_like(x[:, :1])], 1)
    gram, slopes, outputs = bordered @ bordered.mT, torch.where(kinks, 0.5, (z > 0).to(z)), y * z.relu()
    largest = torch.linalg.eigvalsh(gram)[-1]
    for _ in range(rounds if kinks.any() else 1):
        c = y * v * slopes
        products = gram * (c @ c.mT) + outputs @ outputs.mT
        multipliers = best(products, (c * z).sum(1) + outputs @ v[0], 0.0, ridge=1e-13)[:, None]  # λ
        most = multipliers * y * v
        part = last = most * slopes  # of every point in the rows of the first layer
        for k in range(steps):
            ahead = part + k / (k + 3) * (part - last)
            step = (ahead - (gram @ ahead - z) / largest).clamp(most.clamp(max=0), most.clamp(min=0))
            last, part = part, torch.where(kinks, step, part)
        slopes = torch.where(most == 0, slopes, part / most)
    missing = joint(first) - part.mT @ bordered, v[0] - (multipliers * outputs).sum(0)
    return (sum(rest.square().sum() for rest in missing).sqrt() / flatten(network).norm()).item()
