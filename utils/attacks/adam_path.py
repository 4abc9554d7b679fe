"""Path matching behind Adam: the moves of its training, not its gradients, add up to what it changed.

Adam moves every weight by η m̂/(√v̂ + ε), where m and v are running means of its gradient and of the square: a sign, as
long as the gradient keeps it. A sum of gradients looks nothing like that. But given gradients at guessed weights θ_t,
Adam's moves are a function of them, whose slope is known. Where a gradient is next to zero this function is next to a
step, and is smoothed: v̂ + s² stands for v̂, with s a part of what the gradients of public images are, which shrinks
while the attack goes on.
"""

from dataclasses import dataclass

import torch

from utils.attacks.path import Known, between

BETA, SECOND = 0.9, 0.999  # of Adam
SOFT = (0.3, 0.03)  # s, times the `size` of public gradients, at the start and the end
STEPS = (7, 10, 14, 20, 28, 40)  # as many as Adam may have made, where its rate is not known


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
        mean, square = self.first / (1 - BETA**self.step), self.second / (1 - SECOND**self.step)
        return self.rate * mean / (square + self.soft**2 + 1e-16).sqrt()


@dataclass(frozen=True)
class KnownAdam(Known):
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
