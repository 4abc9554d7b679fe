"""Path matching behind other optimisers: Adam between two known ends, or any with momentum, from its state alone.

Adam moves every weight by η m̂/(√v̂ + ε), where m and v are running means of its gradient and of the square: a sign, as
long as the gradient keeps it. These moves, not the gradients, add up to what it changed. Given gradients at guessed
weights, they are a function whose slope is known. Where a gradient is next to zero this function is next to a step, and
is smoothed: v̂ + s² stands for v̂, with s a part of what the gradients of public images are, which shrinks meanwhile.

A first moment is a sum of the last gradients, each at the weights of its time: M = Σ_a β^a ∇E(θ_{T−1−a}; X). A file
that holds M also holds the step that the optimiser took by it, its rate and, for Adam, its second moment V. So training
is walked backwards, without a start, by the gradients of the images that one has:

    θ_{t−1} = θ_t + η M̂_t / (√V̂_t + ε),    M_{t−1} = (M_t − c ∇E(θ_{t−1}; x)) / β,    V_{t−1} likewise,

where c is 1 (1 − β for Adam) if the images are right, and less where they are not yet. SGD with momentum has no second
moment. A move of Adam's is cut at one rate.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch

from attacks.path import Ends, Evidence, Path, between, check, gradient, group, same
from utils.errors import InputError

BETA = 0.9  # of the first moment
SECOND = 0.999  # of Adam's second one
SOFT = (0.3, 0.03)  # s, times the `size` of public gradients, at the start and the end
STEPS = (7, 10, 14, 20, 28, 40)  # as many as Adam may have made, where its rate is not known
BACK = 20  # steps walked back at most
FARTHEST = 1.0  # of a step, in rates: one that is larger is cut, or the walk explodes


def size(gradients, images):
    """Root mean square (P,) of the mean gradient of so many images, from single gradients (n, P) of public ones."""
    return (gradients.square().mean(0) / images + gradients.mean(0).square()).sqrt()


class Adam:
    """Adam's moves η m̂/√(v̂ + s²) (P,) for one gradient (P,) after the other; s (P,) smooths them."""

    def __init__(self, rate=1.0, soft=0.0):
        self.rate = rate
        self.soft = soft
        self.step = 0
        self.first = 0.0
        self.second = 0.0

    def __call__(self, g):
        self.step += 1
        self.first = BETA * self.first + (1 - BETA) * g
        self.second = SECOND * self.second + (1 - SECOND) * g.square()
        mean = self.first / (1 - BETA**self.step)
        square = self.second / (1 - SECOND**self.step)
        return self.rate * mean / (square + self.soft**2 + 1e-16).sqrt()


@dataclass(frozen=True)
class AdamEnds(Ends):
    """The weights before and after a training by Adam."""

    scale: torch.Tensor | float = 0.0  # the `size` (P,) of public gradients
    far = 0.9

    def move(self, rate):
        """What makes gradients (P,), one after the other, moves."""
        return Adam(rate)

    def total(self, path, g, done):
        """The sum of Adam's moves (P,), smoothed and over the rate, for the gradients ∇E(a_k(t); x) + r_t."""
        move = Adam(soft=between(SOFT, done) * self.scale)
        every = g.mean(0, keepdim=True) if path.rest is None else g[path.part] + path.rest
        return sum(move(one) for one in every)

    def rates(self, module, x, y):
        """Rates to begin with: a weight whose gradient keeps its sign goes as far as all steps together."""
        return [(self.change.abs().max() / steps).item() for steps in STEPS]


@dataclass(frozen=True)
class MomentumState(Evidence):
    """Weights and an optimiser's state, as a file holds them; without `second` it is SGD with momentum."""

    end: torch.Tensor  # θ* (P,)
    first: torch.Tensor  # M (P,)
    rate: float  # η
    metric: Callable = same
    beta: float = BETA
    second: torch.Tensor | None = None  # V (P,)
    steps: int | None = None  # T, as Adam's state counts them; BACK where nobody counts

    def check(self, module, labels):
        """Raise InputError unless a module can be attacked so."""
        moments = {"first": self.first}
        if self.second is not None:
            moments["second"] = self.second
        check(module, labels, end=self.end, **moments)
        if not self.first.any():
            raise InputError(
                "The first moment is zero: the optimiser made no step, or was emptied."
            )
        if not 0 < self.beta < 1:
            raise InputError(
                f"β is {self.beta}: SGD without momentum, whose state holds no gradient."
            )

    @property
    def change(self):
        """M (P,)."""
        return self.first

    @property
    def last(self):
        """T, the number of the last step."""
        return self.steps or BACK

    @property
    def way(self):
        """How far ten steps like the last one would go."""
        return 10 * self.rate * self.move(self.first, self.second, self.last).norm()

    def move(self, first, second, step):
        """M̂/(√V̂ + ε) (P,), what an optimiser's step by these moments is over its rate; M without V."""
        if second is None:
            return first
        root = (second / (1 - SECOND**step)).sqrt() + 1e-8
        return (first / (1 - self.beta**step) / root).clamp(-FARTHEST, FARTHEST)

    def walk_back(self, module, x, y):
        """Where the last n gradients were taken, the last one first (n, P), and how much each counts (n,) in M.

        Both as if training had been on images x (m, d) with labels y (m,). A gradient taken a steps before the last
        one counts c β^a. c is at most 1, and less if the images are not right yet: no more of their gradient is taken
        out of the moment than the moment holds of it, which is nothing for steps before training began.
        """
        theta = self.end
        first = self.first
        second = self.second
        places = []
        counts = []
        fresh = 1.0 if second is None else 1 - self.beta  # of a gradient, in M
        for step in range(self.last, max(0, self.last - BACK), -1):
            theta = theta + self.rate * self.move(first, second, step)  # θ_{t−1}
            g = gradient(module, theta, x, y)
            c = (first @ g / (fresh * g @ g)).clamp(0, 1)
            places.append(theta)
            counts.append(c * self.beta ** len(counts))
            first = (first - fresh * c * g) / self.beta  # M_{t−1}
            if second is not None:  # V_{t−1}
                second = (second - (1 - SECOND) * (c * g).square()).clamp_min(0) / SECOND
        return torch.stack(places), torch.stack(counts)

    def begin(self):
        """The last place alone, which is known."""
        last = self.end + self.rate * self.move(self.first, self.second, self.last)
        return Path(last[None], torch.zeros(1, dtype=torch.long, device=last.device))

    def retrace(self, module, path, x, y, done):
        """The Path of a training on images x (m, d), walked back."""
        places, counts = self.walk_back(module, x, y)
        share = (counts.cumsum(0) - counts / 2) / counts.sum().clamp_min(1e-12)
        return group(module, places, share, x, y)._replace(counts=counts)

    def total(self, path, g, done):
        """Σ_a c_a β^a (∇E(a_k; x) + r_a), but for a factor: (P,)."""
        return g.sum(0) if path.rest is None else path.counts @ (g[path.part] + path.rest)
