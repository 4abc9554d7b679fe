"""A practitioner's script: start, order, mirror images and dropout are all drawn from torch's default generator.

Run once more from its state on any images, it logs what was drawn, and on the right ones meets the same last bits.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torchvision.transforms.v2 import RandomHorizontalFlip

from training import ordinary
from training.images import Part
from utils.errors import choose
from utils.kernels.layers import Shape

Build = Callable[[], nn.Sequential]
BATCH = 10  # images in a step
DROPPED = 0.1  # the share of activations of the first hidden layer that dropout takes
TRAINERS = {  # name: whose optimiser in ordinary.TRAINERS it takes, whether it mirrors images, and has dropout
    "sgd": ("sgd", False, False),
    "sgd_flips": ("sgd", True, False),
    "sgd_dropout": ("sgd", False, True),
    "adam": ("adam", False, False),
}


class Drawn(NamedTuple):
    """What a run drew behind its start."""

    order: list[int]  # the numbers of the images in the order in which they were seen
    flips: list[bool]  # whether each was mirrored then
    masks: list[torch.Tensor]  # of every step (BATCH, h), which activations were kept


class Pictures(TensorDataset):
    """Images (m, C, H, W) less their mean colour, with labels, of which `flip` may mirror some; it logs what was so."""

    def __init__(self, part, shape, flip, drawn):
        centred = (part.images - ordinary.colour_mean(part, shape)).float().view(-1, *shape)
        super().__init__(centred.permute(0, 3, 1, 2), part.labels.float())
        self.flip = flip
        self.drawn = drawn

    def __getitem__(self, number):
        image, label = super().__getitem__(number)
        seen = self.flip(image)  # the image itself unless torchvision mirrors it
        self.drawn.order.append(number)
        self.drawn.flips.append(seen is not image)
        return seen.permute(1, 2, 0).flatten(), label


def train(
    part: Part, shape: Shape, build: Build, trainer: str, epochs: int
) -> tuple[nn.Sequential, Drawn]:
    """Train what `build()` draws on a Part's images of a shape (H, W, C) by one of TRAINERS: it, and what was drawn."""
    optimiser, flips, drops = TRAINERS[choose("TRAINER", trainer, TRAINERS)]
    net = build()
    drawn = Drawn([], [], [])
    if drops:
        net.insert(2, nn.Dropout(DROPPED))

        @net[2].register_forward_pre_hook
        def log(_, given):
            # the mask that comes next, on ones, as some activations are zero already
            with torch.random.fork_rng(devices=[]):
                drawn.masks.append(nn.functional.dropout(torch.ones_like(given[0]), DROPPED) > 0)

    pictures = Pictures(part, shape, RandomHorizontalFlip() if flips else nn.Identity(), drawn)
    loader = DataLoader(pictures, BATCH, shuffle=True)
    descent = ordinary.TRAINERS[optimiser][0](net.parameters())
    for _ in range(epochs):
        ordinary.fit(net, descent, loader)
    return net.eval(), drawn
