"""Exact simulation: images behind a deep network whose start, rate and batches are known, through the training itself.

Where the start and the order of the batches were read from the generator (`generator`), and the rate and the number
of steps are common or written down, no path has to be guessed. A training simulated on images X ends at θ_T(X), and X
is moved until that is where training ended, in direction: the objective of SimuDy (Tian et al. 2025), who differentiate
through a graph of all steps. Here its slope is carried back from the end. With θ_{t+1} = θ_t − η∇E(θ_t; X) it is

    v_T = ∂loss/∂(θ⁰ − θ_T),    v_t = v_{t+1} − η ∇²E(θ_t; X) v_{t+1},    ∂loss/∂X = η Σ_t ∂/∂X ∇E(θ_t; X)·v_{t+1},

where both products are differences of two slopes of E, so that a step needs three slopes and no graph outlives it.

`Surrogate` is what guesses least in place of the path: one place on the straight line, which is learned.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch.nn.functional import softplus

from attacks.path import (
    NUDGE,
    SHARPNESS,
    Ends,
    Path,
    Straight,
    between,
    error,
    gradient,
    gradients,
    misfit,
)
from utils.kernels.naive import InPlaceOfReLU

MOVE = 0.01  # of the learned place on the line, in shares of it


def pull_back(module, theta, v, x, y, width):
    """v·∇E(θ; x) by the weights (P,) and by the pixels (n, d), as differences of slopes ±width along v (P,)."""
    x = x.detach().requires_grad_()
    step = width / v.norm().clamp_min(1e-30)
    sides = []
    for sign in (1, -1):
        place = (theta + sign * step * v).detach().requires_grad_()
        sides.append(torch.autograd.grad(error(module, place, x, y), (place, x)))
    return [(above - below) / (2 * step) for above, below in zip(*sides)]


@dataclass(frozen=True)
class Exact(Ends):
    """Both ends, the rate, and the numbers (b,) of the images in each batch, in order."""

    batches: Sequence[torch.Tensor] = ()

    def retrace(self, module, path, x, y, done):
        """The same Path: nothing is guessed."""
        return path

    def simulate(self, module, x, y):
        """The weights (P,) before each step of the training on images x (m, d), and after the last: T + 1 of them."""
        places = [self.initial]
        for rows in self.batches:
            g = gradient(module, places[-1], x[rows], y[rows])
            places.append(places[-1] - self.rate * g)
        return places

    def look(self, module, path, x, y, done):
        """1 − cos(D(θ⁰ − θ_T), D(θ⁰ − θ*)) at images x (n, d), its slope (n, d), and the Path, which keeps the gap."""
        *places, last = self.simulate(module, x, y)
        moved = (self.initial - last).requires_grad_()
        loss = 1 - torch.cosine_similarity(self.metric(moved), self.metric(self.change), dim=0)
        v = torch.autograd.grad(loss, moved)[0]
        slopes = torch.zeros_like(x)
        with InPlaceOfReLU(partial(softplus, beta=between(SHARPNESS, done))):
            for rows, theta in zip(reversed(self.batches), reversed(places)):
                width = NUDGE * self.way
                of_weights, of_pixels = pull_back(module, theta, v, x[rows], y[rows], width)
                slopes[rows] += self.rate * of_pixels
                v = v - self.rate * of_weights
        gap = ((last - self.end).norm() / self.way).item()
        return loss.item(), slopes, path._replace(gap=gap)


@dataclass(frozen=True)
class Surrogate(Straight):
    """Both ends, and gradients at one place on the line between them, which is learned: Zhu et al. (2023)."""

    def begin(self):
        """The middle of the line."""
        part = torch.zeros(1, dtype=torch.long, device=self.end.device)
        return Path((self.initial - self.change / 2)[None], part)

    def look(self, module, path, x, y, done):
        """As `Ends.look`, and the Path whose place has moved to where these gradients fit better."""
        loss, slopes, path = super().look(module, path, x, y, done)
        share = (self.initial - path.anchors[0]) @ self.change / self.way**2
        tried = []
        for moved in (share - MOVE, share + MOVE):
            anchors = (self.initial - moved.clamp(0, 1) * self.change)[None]
            g = gradients(module, anchors, x, y)
            tried.append((misfit(self, path, g, done)[0], anchors))
        return loss, slopes, path._replace(anchors=min(tried, key=lambda one: one[0])[1])
