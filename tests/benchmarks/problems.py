"""What several benchmarks need: the device, photographs, and what victims release."""

import os
from functools import cache

import torch

from attacks import decoreco, starts
from training import images, stationary
from utils import networks

DEVICE = torch.device(os.environ.get("DEVICE") or ("cuda" if torch.cuda.is_available() else "cpu"))
PHOTOS = images.load("photos")
PUBLISHED = decoreco.SETTINGS["sgd"]


@cache
def released(recipe, m):
    """What a victim of m photographs gives away, and the photographs."""
    data = images.split(PHOTOS, m, m, 0, DEVICE)
    return stationary.train(data.secret, recipe).released, data.secret.images


def regression(width, **training):
    """What a network 3072-width-width-1 gives away, trained on fifty photographs."""
    return released(networks.perceptron("signed", width, width)._replace(**training), 50)[0]


def normal(n, seed=0):
    """The published start."""
    return starts.normal(n, 3072, PUBLISHED.scale, seed, DEVICE)
