"""Training as published (Haim et al., 2022; Buzaglo et al., 2023): full-batch gradient descent of one rate, very long.

A step moves A and c of `kernels.layers` in place of W₁, within the products that compute the gradients; a GPU
repeats it as one graph.
"""

from collections.abc import Iterator, Sequence
from functools import partial

import torch

from training import Victim, stationary
from training.images import Part
from utils import networks
from utils.kernels import losses
from utils.kernels.layers import Layer, join, joint, parted, split
from utils.kernels.one_hidden import append_ones
from utils.kernels.step import run

RATE = 0.01


def descend(first, second, last, factor, x, y, loss, decay):
    """A step of W ← W − η(∇(1/m)Σℓ + μW), for A (h, r), W₂ (h, h), w₃ (h,) and c, in place, at coordinates x (m, r)."""
    s = x @ first.mT
    shrunk = 1 - RATE * decay
    a = s.relu()
    t = a @ second.mT
    b = t.relu()
    slope = loss.slope((b @ last)[:, None], y)[:, 0] / len(y)
    upper = slope[:, None] * last * (t > 0)
    lower = upper @ second * (s > 0)
    last.addmv_(b.mT, slope, beta=shrunk, alpha=-RATE)
    second.addmm_(upper.mT, a, beta=shrunk, alpha=-RATE)
    first.addmm_(lower.mT, x, beta=shrunk, alpha=-RATE)
    factor.mul_(shrunk)


def train(
    secret: Part, rule: str, width: int, lengths: Sequence[int], seed: int = 0
) -> Iterator[Victim]:
    """Victims d-h-h-1 after each of these increasing numbers of steps, with the loss and the decay of a rule."""
    x, y = secret
    recipe = networks.perceptron(rule, width, width)._replace(stages=0)
    mean = x.mean(0)
    loss = losses.LOSSES[recipe.loss]
    theta0 = networks.initial(recipe, x.shape[1], seed, device=x.device)
    # (d + 1, m), with a column of ones for the bias
    basis, upper = torch.linalg.qr(append_ones(x - mean).mT)
    inside, orthogonal = split(joint(theta0[0]), basis)
    second = theta0[1].weight.clone()
    last = theta0[2].weight[0].clone()
    factor = x.new_ones(())
    state = inside, second, last, factor
    step = partial(descend, *state, upper.mT.contiguous(), y, loss, recipe.weight_decay)
    for before, after in zip((0, *lengths), lengths):
        run(step, state, after - before)
        first = parted(join(inside, basis, orthogonal, factor))
        network = first, Layer(second.clone(), None), Layer(last[None].clone(), None)
        yield stationary.make_victim(network, secret, recipe)
