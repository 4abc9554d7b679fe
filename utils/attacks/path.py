"""Path matching: images behind any network whose start is known, from the straight line that training left.

Gradient descent moves the weights from θ⁰ to θ* = θ⁰ − Σ_t c_t ∇E(θ_t; X). Who has both ends does not know the weights
θ_t between them, how many steps there were, or how large; but the line from θ⁰ to θ* passes near them. With K anchors
a_k = θ⁰ + (k − ½)/K·(θ* − θ⁰) on it, images X are sought for which

    θ* − θ⁰ ≈ −Σ_k w_k ∇E(a_k; X),    w_k ≥ 0,

in direction, with weights w by least squares. No training is simulated.
"""

import math
import time
from contextlib import nullcontext
from typing import NamedTuple

import torch
from scipy.optimize import nnls
from torch.func import functional_call
from torch.nn.functional import cross_entropy, relu, softplus
from torch.overrides import TorchFunctionMode

PUBLIC = 0.1  # times the median of a public gradient's variances: where whitening begins
RATE, VARIATION = 0.1, (3e-2, 2e-3)  # of pixels; weight of the total variation, at the start and the end
SHARPNESS, SMOOTH = (2.0, 40.0), 0.7  # β of the softplus that stands for a ReLU; for this share of the steps
BOUND = 2.0  # of pixels, in standard deviations


class Softened(TorchFunctionMode):
    """Within it, every ReLU is a softplus of sharpness β, whose second derivative is not zero."""

    def __init__(self, sharpness):
        super().__init__()
        self.sharpness = sharpness

    def __torch_function__(self, function, types, args=(), kwargs=None):
        if function in (relu, torch.relu, torch.Tensor.relu, torch.relu_, torch.Tensor.relu_):
            return softplus(args[0], self.sharpness)
        return function(*args, **(kwargs or {}))


def flat(module):
    """All trained weights of a module, one vector (P,)."""
    return torch.cat([p.detach().flatten() for p in module.parameters()])


def gradient(module, theta, x, y, graph=False):
    """∇E(θ; x), of the mean cross-entropy of images x (n, …) with labels y (n,), at flat weights θ (P,): (P,)."""
    theta = theta.detach().requires_grad_()
    named = list(module.named_parameters())
    parts = theta.split([p.numel() for _, p in named])
    weights = {name: part.view_as(p) for (name, p), part in zip(named, parts)}
    loss = cross_entropy(functional_call(module, weights, (x,)), y)
    return torch.autograd.grad(loss, theta, create_graph=graph)[0]


def line(start, end, anchors):
    """Anchors (K, P) at the middles of K equal parts of the line between two weights (P,)."""
    at = (torch.arange(anchors).to(start) + 0.5) / anchors
    return start + at[:, None] * (end - start)


class Metric(NamedTuple):
    """A symmetric matrix I − Q diag(s) Qᵀ that shrinks the directions in which gradients of public images vary."""

    basis: torch.Tensor  # Q (P, n)
    shrink: torch.Tensor  # s (n,)

    def __call__(self, g):
        return g - ((g @ self.basis) * self.shrink) @ self.basis.mT


def whitening(gradients):
    """The Metric (I + GᵀG/c)^(−1/2) of single gradients G (n, P), c being PUBLIC times their median variance."""
    values, vectors = torch.linalg.eigh((gradients @ gradients.mT).double())
    values, vectors = values[values > 1e-8 * values[-1]], vectors[:, values > 1e-8 * values[-1]]
    basis = gradients.mT @ (vectors / values.sqrt()).to(gradients)
    return Metric(basis, (1 - (1 + values / (PUBLIC * values.median())).rsqrt()).to(gradients))


def shares(gradients, change):
    """Weights w ≥ 0 (K,) for which Σ w_k g_k is nearest to a change (P,), for gradients g (K, P)."""
    q, r = torch.linalg.qr(gradients.detach().double().mT)
    found = torch.as_tensor(nnls(r.cpu().numpy(), (change.double() @ q).cpu().numpy())[0]).to(change)
    return found if found.any() else torch.ones_like(found)


def misfit(gradients, change, weights=None):
    """1 − cos between a change (P,) and the sum of gradients (K, P) with given weights (K,), or their best ones."""
    weights = shares(gradients, change) if weights is None else weights
    return 1 - torch.cosine_similarity(weights @ gradients, change, dim=0)


def variation(x):
    """Mean absolute difference of neighbouring pixels of images (n, C, H, W)."""
    return x.diff(dim=-1).abs().mean() + x.diff(dim=-2).abs().mean()


def attack(module, anchors, change, labels, shape, metric, steps=700, seed=0, each=None, start=None):
    clock = time.perf_counter()
    generator = torch.Generator().manual_seed(seed)
    x = 0.3 * torch.randn(len(labels), *shape, generator=generator).to(change) if start is None else start.clone()
    optimiser = torch.optim.Adam([x], lr=RATE, betas=(0.9, 0.99))
    cosine = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, steps, RATE / 100)
    target, history, weights = metric(change), [], None
    for k in range(steps):
        done = k / steps
        beta = SHARPNESS[0] * (SHARPNESS[1] / SHARPNESS[0]) ** (done / SMOOTH)
        x.requires_grad_()
        with Softened(beta) if done < SMOOTH else nullcontext():
            g = torch.stack([gradient(module, a, x, labels, True) for a in anchors])
            loss = misfit(metric(-g), target, weights)
            weight = VARIATION[0] * (VARIATION[1] / VARIATION[0]) ** done
            x.grad = torch.autograd.grad(loss + weight * variation(x), x)[0].sign()
        x.requires_grad_(False)
        optimiser.step()
        cosine.step()
        x.clamp_(-BOUND, BOUND)
        history.append(loss.item())
        if each:
            anchors, weights = each(k, x, anchors, weights)
    return x, history, time.perf_counter() - clock
