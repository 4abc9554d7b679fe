"""Training the victim of the second attack: ours, and descent in pixels by autograd."""

from functools import partial

import numpy as np
import pytest
import torch
from problems import DEVICE, PHOTOS

from utils import images, networks, victims
from utils.kernels.losses import LOSSES

FLIPPED = images.Labelled(*(np.concatenate(pair) for pair in zip(PHOTOS, (PHOTOS.images[:, :, ::-1], PHOTOS.labels))))


def in_pixels(secret, recipe, steps):
    """So many steps of gradient descent on all weights, by autograd, in the recipe's precision."""
    x, y = (part.to(recipe.dtype) for part in secret)
    network = networks.initial(recipe, x.shape[1], 0, 1, DEVICE)
    network = networks.change(network, lambda p: p.to(recipe.dtype).requires_grad_())
    theta = [p for layer in network for p in layer if p is not None]
    descent = torch.optim.SGD(theta, recipe.learning_rate, recipe.momentum, weight_decay=recipe.weight_decay)
    for _ in range(steps):
        descent.zero_grad()
        LOSSES[recipe.loss].value(networks.forward(network, x - x.mean(0))[1][-1], y).mean().backward()
        descent.step()


@pytest.mark.parametrize("version", ["ours", "autograd in pixels, at least"])
@pytest.mark.parametrize("m, width", [(50, 500), (500, 1000)])
def test_victim(m, width, version, measure, few=10):
    secret, recipe = images.split(FLIPPED, m, 10, 0, DEVICE).secret, networks.perceptron("signed", width, width)
    size, steps = {"images": m, "width": width}, 2 * recipe.epochs
    if version == "ours":
        note = f"{recipe.epochs} epochs, a polish, {recipe.epochs} epochs"
        train = partial(victims.train, secret, recipe)
        victim = measure(train, "victim", version, size, "float32", rounds=1, note=note)
        assert victim.accuracy == 1
    else:
        note = f"extrapolated: {steps} epochs, without a polish"
        function = partial(in_pixels, secret, recipe, few)
        measure(function, "victim", version, size, "float32", rounds=3, scale=steps / few, note=note)
