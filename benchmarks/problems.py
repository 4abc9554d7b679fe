"""What several benchmarks need: the device, photographs, trained victims, and two versions of a step that agree."""

import os
from functools import cache, partial

import numpy as np
import torch

from utils import images, networks
from utils.attacks import decoreco, starts
from utils.kernels import naive
from utils.kernels.coefficients import Signed
from utils.kernels.residual import Stationarity
from utils.training import stationary

DEVICE = torch.device(os.environ.get("DEVICE") or ("cuda" if torch.cuda.is_available() else "cpu"))
PHOTOS = images.Labelled(*map(np.concatenate, zip(photos := images.load("photos"), photos)))
PHOTOS.images[len(photos.images) :] = photos.images[:, :, ::-1]  # behind the last photograph, their mirror images
PUBLISHED = decoreco.SETTINGS["sgd"]
TOLERANCES = {torch.float32: 1e-3, torch.float64: 1e-12}  # of gradients that are differences of large sums


def agree(ours, theirs, tolerance):
    """Stop unless two tensors agree, relative to their norm."""
    error = ((ours - theirs).norm() / theirs.norm()).item()
    assert error < tolerance, f"the two versions differ by {error:.2g} of the norm, more than {tolerance:g}"


@cache
def secret(m):
    """A Part of m photographs."""
    return images.split(PHOTOS, m, 2, device=DEVICE).secret


@cache
def trained(recipe, m):
    """The Victim of m photographs."""
    return stationary.train(secret(m), recipe)


def regression(*widths, m=50, **training):
    """What a network 3072-…-1 gives away."""
    return trained(networks.perceptron("signed", *widths)._replace(**training), m).released


def normal(n, seed=0):
    """The published start."""
    return starts.normal(n, 3072, PUBLISHED.scale, seed, DEVICE)


def steps(network, x, coefficients, basis=None):
    """Our step, in coordinates of a basis if there is one, and the plain one, which agree: two functions."""
    seen, given = (network, x) if basis is None else (networks.in_span(network, basis), x @ basis)
    ours = partial(Stationarity(seen, Signed(), PUBLISHED.sharpness), given, coefficients)
    plain = partial(naive.residual, naive.module_of(network), x, coefficients, PUBLISHED.sharpness)
    (_, in_pixels, in_coefficients), found = plain(), ours()
    agree(found.x_gradient, in_pixels if basis is None else in_pixels @ basis, TOLERANCES[x.dtype])
    agree(found.coefficient_gradient, in_coefficients, TOLERANCES[x.dtype])
    return ours, plain
