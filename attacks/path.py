"""Path matching: images behind any network whose start is known, from the path that its training may have taken.

Gradient descent moves the weights from θ⁰ to θ* = θ⁰ − c Σ_t ∇E(θ_t; X). Who has both ends does not know the weights
θ_t between them, how many steps there were, or their rate c. Images X are sought for which

    θ* − θ⁰ ≈ −Σ_t ∇E(θ_t; X)    in direction,

with a guess at θ_t: at first, places on the straight line from θ⁰ to θ*; later a descent simulated on the present
images, cut where it comes nearest to θ*, and bent to end there. Of several rates the one that ends nearest is taken.

A few anchors a_k, means of parts of the path, save most of these gradients: ∇E(θ_t; X) ≈ ∇E(a_k; X) + r_t, with r_t the
difference at the images that the path was simulated on. The loss sees the network as it is; its slope by the pixels is
a difference of two slopes of E, with a softplus for every ReLU, so that no second derivative is taken.

`optimisers` has what else may be known in place of `Ends`: both ends of Adam, or an optimiser's state; `simulation`,
what is done where the recipe is known.
"""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple, Protocol

import torch
from scipy.optimize import nnls
from torch import nn
from torch.func import functional_call
from torch.nn.functional import cross_entropy, pad, softplus

from attacks.contract import Attack
from utils.errors import InputError
from utils.kernels.layers import Shape
from utils.kernels.naive import InPlaceOfReLU
from utils.networks import Released

PUBLIC = 0.1  # times the median second moment of public gradients: where whitening begins
RATE = 0.025  # of pixels
VARIATION = (0.12, 8e-3)  # weight of the total variation, at the start and the end
SHARPNESS = (3.0, 30.0)  # β of the softplus through which pixels see a ReLU
NUDGE = 0.02  # times ‖θ* − θ⁰‖: half the width of a difference of two slopes
# of pixels less their mean: deviation at the start, and bound
NOISE = 0.075
BOUND = 0.5
ANCHORS = 3
FIRST = 40  # steps until the first simulation
EVERY = 20  # and between two
LONGEST = 60  # steps of a simulation: at most
PATIENCE = 5  # in a row that come no nearer to θ*
COARSE = (0.25, 0.36, 0.5, 0.7, 1.0, 1.4, 2.0)  # factors of the rate, tried first
FINE = 0.1  # largest change of the rate, tried later; it shrinks to 0
FAR = 0.4  # times ‖θ* − θ⁰‖: a simulation that ends farther from θ* is no guess at the path
# What makes a gradient depend on the batch, or on chance, in training mode.
BATCHED = nn.modules.batchnorm._BatchNorm, nn.modules.dropout._DropoutNd


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


def gradients(module, thetas, x, y):
    """∇E(θ_k; x) at several places θ (K, P), with all images: (K, P)."""
    return torch.stack([gradient(module, theta, x, y) for theta in thetas])


def singles(module, theta, x, y):
    """∇E(θ; x_k) of every image by itself: (n, P)."""
    return torch.stack([gradient(module, theta, x[k : k + 1], y[k : k + 1]) for k in range(len(x))])


def slope(module, theta, x, y):
    """∂E(θ; x)/∂x by the pixels, like x."""
    x = x.detach().requires_grad_()
    return torch.autograd.grad(error(module, theta, x, y), x)[0]


def whitening(gradients):
    """The metric (I + GᵀG/c)^(−1/2) of single gradients G (n, P), c being PUBLIC times their median second moment.

    It shrinks the directions in which gradients of public images are large: I − Q diag(s) Qᵀ.
    """
    values, vectors = torch.linalg.eigh((gradients @ gradients.mT).double())
    values, vectors = values[values > 1e-8 * values[-1]], vectors[:, values > 1e-8 * values[-1]]
    basis = gradients.mT @ (vectors / values.sqrt()).to(gradients)
    shrink = (1 - (1 + values / (PUBLIC * values.median())).rsqrt()).to(gradients)
    return lambda g: g - ((g @ basis) * shrink) @ basis.mT


def same(g):
    """The metric in which all directions count alike."""
    return g


class Path(NamedTuple):
    """A guess at the weights θ_t at which T gradients were taken. The gradient of each is near to that of an anchor."""

    anchors: torch.Tensor  # a (K, P)
    part: torch.Tensor  # k (T,), the anchor of every place
    # r (T, P), what its gradient lacks; None where nothing was simulated yet
    rest: torch.Tensor | None = None
    # from the end of the simulation to where training ended, over the length of the way
    gap: float = 1.0
    rate: float | None = None  # of the descent that was simulated; None where no rate was guessed
    # (T,), how much each gradient counts; None where all count alike
    counts: torch.Tensor | None = None


def group(module, places, share, x, y):
    """The Path of places (T, P), before each of which a share (T,) of the way is gone, for images x (n, d)."""
    part = (share * ANCHORS).long().clamp_max(ANCHORS - 1).unique(return_inverse=True)[1]
    anchors = torch.stack([places[part == k].mean(0) for k in range(int(part.max()) + 1)])
    rest = gradients(module, places, x, y) - gradients(module, anchors, x, y)[part]
    return Path(anchors, part, rest)


def descend(module, initial, end, x, y, move):
    """Weights (T + 1, P) of steps that `move` makes of gradients, up to where they come nearest to `end`."""
    places = [initial]
    distances = [(end - initial).norm().item()]
    nearest = 0
    while len(places) <= LONGEST and len(places) - 1 - nearest < PATIENCE:
        places.append(places[-1] - move(gradient(module, places[-1], x, y)))
        distances.append((end - places[-1]).norm().item())
        nearest = distances.index(min(distances))
    return torch.stack(places[: max(1, nearest) + 1])


def bend(places, end):
    """Where steps began that made these places (T + 1, P), moved to a new end by shares (T,) of the way; the shares."""
    length = places.diff(dim=0).norm(dim=1).cumsum(0)
    share = length / length[-1]
    return places[:-1] + pad(share[:-1], (1, 0))[:, None] * (end - places[-1]), share


def check(module, labels, **weights):
    """Raise InputError unless a module can be attacked with labels and flat weights, or moments, of these names."""
    size = len(flat(module))
    for name, given in weights.items():
        if given.shape != (size,):
            raise InputError(f"The module has {size} weights, and `{name}` has {given.numel()}.")
        if not given.isfinite().all():
            raise InputError(f"`{name}` holds values that are NaN or infinite: give it as it was.")
    if labels.ndim != 1 or not len(labels) or (labels % 1).any():
        raise InputError("Labels must be whole numbers, one for each image that is sought.")
    for part in module.modules():
        if part.training and isinstance(part, BATCHED):
            name = type(part).__name__
            raise InputError(
                f"{name} is in training mode: its gradients are not sums. Call eval()."
            )


class Evidence(Protocol):
    """What is known of a training. Images x are sought for which, but for a factor, and in the metric D,

    D total(path, ∇E(a_k; x)) ≈ D change,

    where `change` is what training left, and `total` what the gradients at a path's anchors a_k would have left.
    `Ends` and the classes of `optimisers` and `simulation` keep this protocol.
    """

    def check(self, module: nn.Module, labels: torch.Tensor) -> None:
        """Raise InputError unless a module can be attacked so."""

    @property
    def metric(self) -> Callable:
        """D of gradients: which directions count less, see `whitening`."""

    @property
    def change(self) -> torch.Tensor:
        """θ⁰ − θ* (P,), the sum of an optimiser's moves; or its first moment M, a sum of gradients."""

    @property
    def way(self) -> torch.Tensor:
        """How far training went: ‖θ⁰ − θ*‖, or an estimate."""

    def begin(self) -> Path:
        """The Path before anything is known of the images."""

    def retrace(
        self, module: nn.Module, path: Path, x: torch.Tensor, y: torch.Tensor, done: float
    ) -> Path:
        """The Path of a training on images x (m, d) with labels y (m,), for one guessed before."""

    def total(self, path: Path, g: torch.Tensor, done: float) -> torch.Tensor:
        """Σ_t (∇E(a_k(t); x) + r_t), or the moves made of these, from g = ∇E(a_k; x) (K, P): (P,).

        `done` is the share of the attack that is over.
        """

    def look(
        self, module: nn.Module, path: Path, x: torch.Tensor, y: torch.Tensor, done: float
    ) -> tuple[float, torch.Tensor, Path]:
        """1 − cos(D total, D change) at images x (n, d), its slope by the pixels (n, d), and the Path to go on with."""
        return *loss_and_slope(module, self, path, x, y, done), path


@dataclass(frozen=True)
class Ends(Evidence):
    """The weights before and after a gradient descent, which is all that is known of it, but perhaps for its rate."""

    initial: torch.Tensor  # θ⁰ (P,)
    end: torch.Tensor  # θ* (P,)
    metric: Callable = same  # of gradients: which directions count less, see `whitening`
    rate: float | None = None
    far = FAR

    def check(self, module, labels):
        """Raise InputError unless a module can be attacked so."""
        check(module, labels, initial=self.initial, end=self.end)
        if torch.equal(self.initial, self.end):
            raise InputError("The weights are those of the start: nothing was trained since.")

    @property
    def change(self):
        """θ⁰ − θ* (P,)."""
        return self.initial - self.end

    @property
    def way(self):
        """‖θ⁰ − θ*‖."""
        return self.change.norm()

    def begin(self):
        """A straight line, with anchors at the middles of its equal parts."""
        part = torch.arange(ANCHORS, device=self.end.device)
        return Path(self.initial - (part[:, None] + 0.5) / ANCHORS * self.change, part)

    def retrace(self, module, path, x, y, done):
        """The Path of the descent on images x (m, d), of those at several rates, that ends nearest to θ*."""
        factor = 1 + FINE * (1 - done)
        if self.rate:
            rates = [self.rate]
        elif path.rate:
            rates = [path.rate / factor, path.rate, path.rate * factor]
        else:
            rates = self.rates(module, x, y)
        descents = [
            descend(module, self.initial, self.end, x, y, self.move(rate)) for rate in rates
        ]
        lengths = torch.stack([(self.end - places[-1]).norm() for places in descents])
        gaps = (lengths / self.way).nan_to_num(math.inf).tolist()
        best = gaps.index(min(gaps))
        path = self.begin()
        if gaps[best] <= self.far:
            places, share = bend(descents[best], self.end)
            path = group(module, places, share, x, y)
        return path._replace(gap=gaps[best], rate=rates[best])

    def rates(self, module, x, y):
        """Rates to begin with: from 80 down to 10 steps like the first one would be as long as the way."""
        once = (self.way / gradient(module, self.initial, x, y).norm() / 20).item()
        return [once * factor for factor in COARSE]

    def move(self, rate):
        """What makes a gradient (P,) a move."""
        return lambda g: rate * g

    def total(self, path, g, done):
        """Σ_t (∇E(a_k(t); x) + r_t); on a straight line Σ_k w_k ∇E(a_k; x), with weights that fit best."""
        if path.rest is None:
            return fit_weights(self.metric(g.detach()), self.metric(self.change)) @ g
        return (g[path.part] + path.rest).sum(0)


@dataclass(frozen=True)
class Straight(Ends):
    """Both ends, with the straight line between them as the only guess: nothing is simulated."""

    def retrace(self, module, path, x, y, done):
        """The same Path."""
        return path


@dataclass(frozen=True)
class Start(Straight):
    """Both ends, and gradients at the start alone, as where a single one is inverted: Geiping et al. (2020)."""

    def begin(self):
        """The start as the only anchor."""
        return Path(self.initial[None], torch.zeros(1, dtype=torch.long, device=self.end.device))


def fit_weights(gradients, change):
    """Weights w ≥ 0 (K,) for which Σ w_k g_k is nearest to a change (P,), for gradients g (K, P); ones if all are 0."""
    q, r = torch.linalg.qr(gradients.double().mT)
    fitted, _ = nnls(r.cpu().numpy(), (change.double() @ q).cpu().numpy())
    weights = torch.as_tensor(fitted).to(change)
    return weights if weights.any() else torch.ones_like(weights)


def misfit(evidence, path, g, done):
    """1 − cos between what gradients g (K, P) add up to and what they should, by the metric; and its slopes (K, P)."""
    g = g.detach().requires_grad_()
    total = evidence.metric(evidence.total(path, g, done))
    target = evidence.metric(evidence.change)
    loss = 1 - torch.cosine_similarity(total, target, dim=0)
    return loss.item(), torch.autograd.grad(loss, g)[0]


def pull(module, anchors, x, y, toward, width):
    """Slope by the pixels of Σ_k v_k·∇E(a_k; x), v = toward (K, P): differences of two slopes, ±width along v_k."""
    total = torch.zeros_like(x)
    for a, v in zip(anchors, toward):
        if (size := v.norm()) > 0:
            step = width / size * v
            difference = slope(module, a + step, x, y) - slope(module, a - step, x, y)
            total += difference * size / (2 * width)
    return total


def loss_and_slope(module, evidence, path, x, y, done):
    """1 − cos(D total, D change) at images x (n, d), and its slope by the pixels (n, d)."""
    g = gradients(module, path.anchors, x, y)  # ∇E(a_k; x)
    loss, toward = misfit(evidence, path, g, done)  # and v_k, its slopes by these
    with InPlaceOfReLU(partial(softplus, beta=between(SHARPNESS, done))):
        return loss, pull(module, path.anchors, x, y, toward, NUDGE * evidence.way)


def variation_slope(x, shape):
    """The slope of the total variation of images (n, d) by their pixels (n, d)."""
    z = x.clone().requires_grad_()
    pictures = z.view(-1, *shape)
    variation = pictures.diff(dim=1).abs().mean() + pictures.diff(dim=2).abs().mean()
    return torch.autograd.grad(variation, z)[0]


def between(ends, share):
    """From the first of two positive numbers to the second, at an even pace of the logarithm."""
    return ends[0] * (ends[1] / ends[0]) ** share


def noise(count, shape, seed):
    """Where a search begins if nothing better is at hand: images (n, d) of a shape (H, W, C), less their mean."""
    height, width, colours = shape
    generator = torch.Generator().manual_seed(seed)
    planes = torch.randn(count, colours, height, width, generator=generator)
    return NOISE * planes.permute(0, 2, 3, 1).flatten(1)


def attack(
    released: Released,
    evidence: Evidence,
    shape: Shape,
    steps: int = 300,
    seed: int = 0,
    start: torch.Tensor | None = None,
) -> Attack:
    """Images (n, d) of a shape (H, W, C) behind a released module, from what is known of its training, as `Ends` are.

    The search begins at `noise`, or at a `start` (n, d); the details are the last Path. InputError as `check` says.
    """
    evidence.check(released.network, released.labels)
    module = released.network
    labels = released.labels.long()
    clock = time.perf_counter()
    x = noise(len(labels), shape, seed) if start is None else start
    x = x.to(evidence.change, copy=True)
    optimiser = torch.optim.Adam([x], lr=RATE, betas=(0.9, 0.99))
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, steps, RATE / 100)
    path = evidence.begin()
    losses = []
    for k in range(steps):
        done = k / steps
        if k >= FIRST and k % EVERY == 0:
            path = evidence.retrace(module, path, x, labels, done)
        loss, slopes, path = evidence.look(module, path, x, labels, done)
        x.grad = (slopes + between(VARIATION, done) * variation_slope(x, shape)).sign()
        optimiser.step()
        schedule.step()
        x.clamp_(-BOUND, BOUND)
        losses.append(loss)
    return Attack(
        images=x,
        loss=torch.tensor(losses[-1], dtype=torch.float64),
        history=torch.tensor(losses, dtype=torch.float64),
        stopped="iterations",
        seconds=time.perf_counter() - clock,
        details=path,
    )
