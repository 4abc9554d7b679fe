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

from attacks.path import Ends, Path, between, check, gradient, gradients, grouped, same
from utils.errors import InputError

# of Adam
BETA = 0.9
SECOND = 0.999
SOFT = (0.3, 0.03)  # s, times the `size` of public gradients, at the start and the end
STEPS = (7, 10, 14, 20, 28, 40)  # as many as Adam may have made, where its rate is not known
BACK = 20  # steps walked back at most
FARTHEST = 1.0  # of a step, in rates: one that is larger is cut, or the walk explodes


def size(gradients, images):
    """Root mean square (P,) of the mean gradient of so many images, from single gradients (n, P) of public ones."""
    return (gradients.square().mean(0) / images + gradients.mean(0).square()).sqrt()


class Adam:
    """Adam's moves (P,) for one gradient (P,) after the other, over its rate; s (P,) smooths them."""

    def __init__(self, rate=1.0, soft=0.0):
        self.rate, self.soft, self.step, self.first, self.second = rate, soft, 0, 0.0, 0.0

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
        """What makes a gradient (P,) a move."""
        return Adam(rate)

    def total(self, path, g, done):
        """What the moves of gradients g (K, P) at a Path's anchors add up to, but for a factor: (P,)."""
        move = Adam(soft=between(SOFT, done) * self.scale)
        if path.rest is None:
            return move(g.mean(0))
        return sum(move(one) for one in g[path.part] + path.rest)

    def rates(self, module, x, y):
        """Rates to begin with: a weight whose gradient keeps its sign goes as far as all steps together."""
        return [(self.change.abs().max() / steps).item() for steps in STEPS]


@dataclass(frozen=True)
class MomentumState:
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
        check(
            module,
            labels,
            end=self.end,
            first=self.first,
            second=self.first if self.second is None else self.second,
        )
        if not self.first.any():
            raise InputError(
                "The first moment is zero everywhere: the optimiser made no step, or was emptied."
            )
        if not 0 < self.beta < 1:
            raise InputError(
                f"β is {self.beta}: this is SGD without momentum, whose state holds no gradient."
            )

    @property
    def change(self):
        """What the gradients add up to, but for a factor: (P,)."""
        return self.first

    @property
    def last(self):
        """The number of the last step."""
        return self.steps or BACK

    @property
    def way(self):
        """How far ten steps like the last one would go."""
        return 10 * self.rate * self.move(self.first, self.second, self.last).norm()

    def move(self, first, second, step):
        """The `step` that an optimiser makes by these moments, over its rate: (P,)."""
        if second is None:
            return first
        whole = (second / (1 - SECOND**step)).sqrt() + 1e-8
        return (first / (1 - self.beta**step) / whole).clamp(-FARTHEST, FARTHEST)

    def back(self, module, x, y):
        """The weights (n, P) at which the last n gradients were taken, the last first, and how much each counts (n,).

        Both as if training had been on images x (m, …). A gradient taken a steps before the last one counts β^a in the
        first moment. It counts less if the images are not right yet, since no more is taken out of the moment than this
        holds of it, and 0 before training began.
        """
        theta = self.end
        first = self.first
        second = self.second
        places = []
        counts = []
        fresh = 1.0 if second is None else 1 - self.beta
        for step in range(self.last, max(0, self.last - BACK), -1):
            theta = theta + self.rate * self.move(first, second, step)
            places.append(theta)
            g = gradient(module, theta, x, y)
            part = (first @ g / (fresh * g @ g)).clamp(0, 1)
            counts.append(part * self.beta ** len(counts))
            first = (first - fresh * part * g) / self.beta
            if second is not None:
                second = (second - (1 - SECOND) * (part * g).square()).clamp_min(0) / SECOND
        return torch.stack(places), torch.stack(counts)

    def total(self, path, g, done):
        """What gradients g (K, P) at anchors add up to, but for a factor: (P,)."""
        return g.sum(0) if path.rest is None else path.counts @ (g[path.part] + path.rest)

    def begin(self):
        """The Path that the attack begins with: only the last place is known."""
        last = self.end + self.rate * self.move(self.first, self.second, self.last)
        return Path(last[None], torch.zeros(1, dtype=torch.long, device=last.device))

    def again(self, module, path, x, y, done):
        """The Path of a training on images x (m, …), walked back."""
        places, counts = self.back(module, x, y)
        share = (counts.cumsum(0) - counts / 2) / counts.sum().clamp_min(1e-12)
        return grouped(places, share, lambda at: gradients(module, at, x, y))._replace(
            counts=counts
        )
