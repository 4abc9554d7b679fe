"""Softplus networks for autograd, against the kernel of one hidden layer."""

import torch

from utils import images, networks
from utils.kernels import affine, layers, naive, one_hidden
from utils.training import stationary

RECIPE = networks.one_hidden(5, 0.01, 10.0)


def test_energy_and_gradient_are_those_of_the_fast_kernel(small):
    x, y, _ = small
    network = networks.initial(RECIPE, 30, 0)
    theta = one_hidden.weights(network, RECIPE.sharpness)
    value, slope = one_hidden.energy(one_hidden.pack(theta), x, y, 0.01, RECIPE.sharpness)
    assert torch.allclose(naive.energy(x, y, network, 0.01, RECIPE.sharpness), value)
    gradient = layers.unflatten(naive.gradient(x, y, network, 0.01, RECIPE.sharpness), network)
    assert torch.allclose(one_hidden.pack(one_hidden.weights(gradient, 1.0)), slope)
    residuals = affine.residuals(one_hidden.logits(x, theta), y)
    assert torch.allclose(naive.error_probability(x, y, network, RECIPE.sharpness), residuals.abs())


def test_without_decay_training_stops_at_the_tolerance(small):
    x, y, _ = small
    network = stationary.train_without_decay(images.Part(x, y), RECIPE, gradient_tolerance=1e-5)
    assert naive.gradient(x, y, network, 0.0, RECIPE.sharpness).norm() <= 1.01e-5
    assert (naive.error_probability(x, y, network, RECIPE.sharpness) < 0.5).all()


def test_the_gradient_bounds_the_distance_to_the_minimum(small):
    x, y, generator = small
    theta = torch.randn(31, dtype=torch.float64, generator=generator)
    far = affine.square_norm(affine.solve(x, y, 0.01).weights - theta) / 2
    assert 0 < far <= affine.majoriser(x, y, theta, 0.01)
