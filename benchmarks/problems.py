"""What several benchmarks need: the device, photographs, what victims release, and whether two versions agree."""

import os
from functools import cache

import torch

from utils import images, networks
from utils.attacks import decoreco, starts
from utils.training import stationary

DEVICE = torch.device(os.environ.get("DEVICE") or ("cuda" if torch.cuda.is_available() else "cpu"))
PHOTOS = images.load("photos")
PUBLISHED = decoreco.SETTINGS["sgd"]


def agree(ours, theirs, tolerance):
    """Stop unless two tensors agree, relative to their norm."""
    error = ((ours - theirs).norm() / theirs.norm()).item()
    assert error < tolerance, f"the two versions differ by {error:.2g} of the norm, more than {tolerance:g}"


@cache
def released(recipe, m):
    """What a victim of m photographs gives away; the photographs; and as many others."""
    data = images.split(PHOTOS, m, m, 0, DEVICE)
    return stationary.train(data.secret, recipe).released, data.secret.images, data.known.images


def regression(width, **training):
    """What a network 3072-width-width-1 gives away, trained on fifty photographs."""
    return released(networks.perceptron("signed", width, width)._replace(**training), 50)[0]


def normal(n, seed=0):
    """The published start."""
    return starts.normal(n, 3072, PUBLISHED.scale, seed, DEVICE)
