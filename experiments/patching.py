"""Networks that see an image in squares, as a convolution without overlap does."""

import torch

from training import Victim
from training.images import Part
from training.ordinary import colour_mean, layers_of, perceptron, recipe, tune
from utils.errors import InputError
from utils.kernels.layers import Shape
from utils.networks import Released


def cut(x, shape, side):
    """Images (n, d) of a shape (H, W, C), cut into k squares of `side` pixels: (n, k, side²·C)."""
    height, width, colours = shape
    if side < 1 or height % side or width % side:
        raise InputError(
            f"Images of {height} × {width} pixels are not cut into squares of {side}: take a divisor."
        )
    parts = x.view(-1, height // side, side, width // side, side, colours).transpose(2, 3)
    return parts.reshape(len(x), -1, side * side * colours)


def train(
    secret: Part, shape: Shape, side: int, neurons: int, epochs: int = 60, seed: int = 0
) -> Victim:
    """Train by SGD on squares of `side` pixels, a hidden layer of 500 neurons behind: Victim of the first layer."""
    mean = colour_mean(secret, shape)
    squares = cut(secret.images - mean, shape, side)
    _, places, inputs = squares.shape
    first = perceptron(inputs, (neurons,), seed)[:2]
    last = perceptron(places * neurons, (500,), seed + 1)
    net = torch.nn.Sequential(*first, torch.nn.Flatten(), *last).to(secret.images.device)
    initial = layers_of(net)[:1]
    loss, _ = tune(net, Part(squares, secret.labels), shape, "sgd", epochs, seed + 2)
    released = Released(layers_of(net)[:1], secret.labels, recipe(neurons, 500))
    return Victim(released, mean, loss, places * len(secret.labels), initial)
