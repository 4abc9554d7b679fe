"""Path matching: images behind any network whose start is known, from the path that its training may have taken.

Gradient descent moves the weights from θ⁰ to θ* = θ⁰ − c Σ_t ∇E(θ_t; X). Who has both ends does not know the weights
θ_t between them, how many steps there were, or their rate c. Images X are sought for which

    θ* − θ⁰ ≈ −Σ_t ∇E(θ_t; X)    in direction,

with a guess at θ_t: at first, places on the straight line from θ⁰ to θ*; later a descent simulated on the present
images, cut where it comes nearest to θ*, and bent to end there. Of several rates the one that ends nearest is taken.

The sum of so many gradients would be dear at every step. So a few anchors a_k, means of parts of the path, stand for
it: Σ_t ∇E(θ_t; X) ≈ Σ_k w_k ∇E(a_k; X) + r, with r the difference of both at the images that the path was simulated on.
The loss itself sees the network as it is. Its slope by the pixels is a difference of two slopes of E, with a softplus
for every ReLU: no second derivative is taken, which a ReLU lacks.
"""

import math
import time
from typing import NamedTuple

import torch
from scipy.optimize import nnls
from torch import nn
from torch.func import functional_call
from torch.nn.functional import cross_entropy, relu, softplus
from torch.overrides import TorchFunctionMode

from utils.errors import InputError

PUBLIC = 0.1  # times the median of a public gradient's variances: where whitening begins
RATE, VARIATION = 0.1, (3e-2, 2e-3)  # of pixels; weight of the total variation, at the start and the end
SHARPNESS = (3.0, 30.0)  # β of the softplus through which pixels see a ReLU
NUDGE = 0.02  # times ‖θ* − θ⁰‖: half the width of a difference of two slopes
BOUND = 2.0  # of pixels, in standard deviations
ANCHORS = 3
FIRST, EVERY = 40, 20  # steps until the first simulation, and between two
LONGEST, PATIENCE = 60, 5  # steps of a simulation: at most; in a row that come no nearer to θ*
COARSE = (0.25, 0.36, 0.5, 0.7, 1.0, 1.4, 2.0)  # factors of the rate, tried first
FINE = 0.1  # largest change of the rate, tried later; it shrinks to 0
FAR = 0.3  # times ‖θ* − θ⁰‖: a simulation that ends farther from θ* is no guess at the path
# What makes a gradient depend on the batch, or on chance, in training mode.
BATCHED = nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d


class Softened(TorchFunctionMode):
    """Within it, every ReLU is a softplus of sharpness β."""

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


def error(module, theta, x, y):
    """E(θ; x), the mean cross-entropy of images x (n, …) with labels y (n,), at flat weights θ (P,)."""
    named = list(module.named_parameters())
    parts = theta.split([p.numel() for _, p in named])
    weights = {name: part.view_as(p) for (name, p), part in zip(named, parts)}
    return cross_entropy(functional_call(module, weights, (x,)), y)


def gradient(module, theta, x, y):
    """∇E(θ; x) by the weights: (P,)."""
    theta = theta.detach().requires_grad_()
    return torch.autograd.grad(error(module, theta, x, y), theta)[0]


def slope(module, theta, x, y):
    """∂E(θ; x)/∂x by the pixels, like x."""
    x = x.detach().requires_grad_()
    return torch.autograd.grad(error(module, theta, x, y), x)[0]


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


class Path(NamedTuple):
    """A guess at the weights between two ends."""

    anchors: torch.Tensor  # a (K, P)
    weights: torch.Tensor | None  # w (K,); None: the best at every step
    rest: torch.Tensor | float = 0.0  # r (P,), what the anchors leave out of the sum of gradients
    gap: float = 1.0  # from the end of the simulation to θ*, times ‖θ* − θ⁰‖


def line(start, end, anchors=ANCHORS):
    """The straight Path between two weights (P,), with anchors at the middles of its equal parts."""
    at = (torch.arange(anchors).to(start) + 0.5) / anchors
    return Path(start + at[:, None] * (end - start), None)


def descend(module, start, end, x, y, rate):
    """Weights (T + 1, P) of a gradient descent on images x, cut where it comes nearest to its wanted end (P,)."""
    places, nearest, least = [start], 0, (end - start).norm()
    while len(places) <= LONGEST and len(places) - 1 - nearest < PATIENCE:
        places.append(places[-1] - rate * gradient(module, places[-1], x, y))
        distance = (end - places[-1]).norm()
        if distance < least:
            nearest, least = len(places) - 1, distance
    return torch.stack(places[: max(1, nearest) + 1])


def reach(module, start, end, x, y):
    """Rates at which from 80 down to 10 steps, all as long as the first one, would be as long as the way."""
    once = (end - start).norm() / gradient(module, start, x, y).norm() / 20
    return [once.item() * factor for factor in COARSE]


def around(rate, part):
    """A rate, one lower and one higher by a part of it."""
    return [rate / (1 + part), rate, rate * (1 + part)]


def retrace(module, start, end, x, y, rates):
    """The descent that comes nearest to the end, among several rates, and its rate."""
    tried = [(descend(module, start, end, x, y, rate), rate) for rate in rates]
    return min(tried, key=lambda one: (end - one[0][-1]).norm().nan_to_num(math.inf).item())


def bend(module, places, end, x, y, anchors=ANCHORS):
    """The Path of a descent's places (T + 1, P), shifted by a share of its gap that grows with the length gone."""
    gap, length = end - places[-1], places.diff(dim=0).norm(dim=1).cumsum(0)
    share = torch.cat([torch.zeros_like(length[:1]), length / length[-1]])
    bent, part = (places + share[:, None] * gap)[:-1], (share[1:] * anchors).long().clamp_max(anchors - 1)
    groups = [bent[part == k] for k in part.unique()]
    middle, counts = torch.stack([g.mean(0) for g in groups]), torch.tensor([float(len(g)) for g in groups]).to(end)
    rest = sum(gradient(module, a, x, y) for a in bent)
    rest = rest - sum(w * gradient(module, a, x, y) for a, w in zip(middle, counts))
    return Path(middle, counts, rest, (gap.norm() / (end - places[0]).norm()).item())


def shares(gradients, change):
    """Weights w ≥ 0 (K,) for which Σ w_k g_k is nearest to a change (P,), for gradients g (K, P)."""
    q, r = torch.linalg.qr(gradients.double().mT)
    found = torch.as_tensor(nnls(r.cpu().numpy(), (change.double() @ q).cpu().numpy())[0]).to(change)
    return found if found.any() else torch.ones_like(found)


def misfit(total, target, metric):
    """1 − cos between a total of gradients and a target (P,), both after the metric; and its slope by the total."""
    total = total.detach().requires_grad_()
    loss = 1 - torch.cosine_similarity(metric(total), target, dim=0)
    return loss.item(), torch.autograd.grad(loss, total)[0]


def pull(module, path, weights, x, y, toward, width):
    """Slope by the pixels of v·Σ_k w_k ∇E(a_k; x), v = toward (P,): a difference of two slopes, ±width along v."""
    step = width / toward.norm() * toward
    each = [w * (slope(module, a + step, x, y) - slope(module, a - step, x, y)) for a, w in zip(path.anchors, weights)]
    return sum(each) * toward.norm() / (2 * width)


def variation(x):
    """Mean absolute difference of neighbouring pixels of images (n, C, H, W)."""
    return x.diff(dim=-1).abs().mean() + x.diff(dim=-2).abs().mean()


def between(ends, share):
    """From the first of two positive numbers to the second, at an even pace of the logarithm."""
    return ends[0] * (ends[1] / ends[0]) ** share


def check(module, start, end, labels):
    """Raise InputError unless a module can be attacked from its flat weights before and after training."""
    size = sum(p.numel() for p in module.parameters())
    if start.shape != (size,) or end.shape != (size,):
        raise InputError(f"The module has {size} weights, the start {start.numel()} and the end {end.numel()}.")
    if not (start.isfinite().all() and end.isfinite().all()):
        raise InputError("The weights hold values that are NaN or infinite: give them as they were.")
    if torch.equal(start, end):
        raise InputError("The weights are those of the start: nothing was trained, or the start is no start.")
    if labels.ndim != 1 or labels.is_floating_point() or not len(labels):
        raise InputError("Labels must be whole numbers, one for each image that is sought.")
    for part in module.modules():
        if part.training and isinstance(part, BATCHED):
            raise InputError(f"{type(part).__name__} is in training mode: its gradients are not sums. Call eval().")


class Found(NamedTuple):
    """What path matching found."""

    images: torch.Tensor  # like the training images
    losses: list  # of every step
    gap: float  # of the last simulation
    rate: float | None  # of it
    seconds: float


def attack(module, start, end, labels, shape, metric, steps=300, seed=0):
    """Images of a shape (C, H, W) with given labels (n,), Found from a module's weights before and after training.

    The Metric says which directions of gradients count less, as `whitening` by public images does. InputError as
    `check` says.
    """
    check(module, start, end, labels)
    clock, generator = time.perf_counter(), torch.Generator().manual_seed(seed)
    x = 0.3 * torch.randn(len(labels), *shape, generator=generator).to(end)
    optimiser = torch.optim.Adam([x], lr=RATE, betas=(0.9, 0.99))
    cosine = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, steps, RATE / 100)
    change, path, rate, losses = end - start, line(start, end), None, []
    target = metric(-change)
    for k in range(steps):
        done = k / steps
        if k >= FIRST and k % EVERY == 0:
            rates = around(rate, FINE * (1 - done)) if rate else reach(module, start, end, x, labels)
            places, rate = retrace(module, start, end, x, labels, rates)
            guess = bend(module, places, end, x, labels)
            path = guess if guess.gap < FAR else line(start, end)
        g = torch.stack([gradient(module, a, x, labels) for a in path.anchors])
        weights = shares(metric(g), target) if path.weights is None else path.weights
        loss, toward = misfit(weights @ g + path.rest, target, metric)
        with Softened(between(SHARPNESS, done)):
            x.grad = pull(module, path, weights, x, labels, toward, NUDGE * change.norm())
        z = x.clone().requires_grad_()
        x.grad += between(VARIATION, done) * torch.autograd.grad(variation(z), z)[0]
        x.grad.sign_()
        optimiser.step()
        cosine.step()
        x.clamp_(-BOUND, BOUND)
        losses.append(loss)
    return Found(x, losses, path.gap, rate, time.perf_counter() - clock)
