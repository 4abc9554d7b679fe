"""Training that ends after a few steps: what it returns is a function θ(x) of the images, and autograd goes through it.

Shapes as in `one_hidden`. With Xᵀ = QLᵀ the network sees the rows of L alone, m numbers for each image. Outside of Q
the weights W₁ only decay, so that all of that part is one number: its norm.
"""

import torch

from utils.kernels import one_hidden, solvers


def train(x, y, weight_decay, start, steps, method="descent", rate=1e-2):
    """θ(x), the Weights after so many steps on E from Weights θ⁰, for images x (…, m, d): differentiable in x.

    `descent` takes steps of gradient descent at a `rate`, `quasi-Newton` those of L-BFGS.
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
