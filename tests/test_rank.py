"""What the row space of a first layer holds of images."""

import torch

from experiments import rank
from utils import images, networks
from utils.attacks import starts
from utils.training import stationary


def test_outside_is_the_share_that_the_row_space_misses():
    x, basis = torch.eye(4, dtype=torch.float64), torch.eye(4, dtype=torch.float64)[:, :1]
    assert rank.outside(x, basis) == 0.75 and rank.outside(x[:1], basis) == 0


def test_a_condensed_victim_is_measured_by_its_neurons_that_differ(toy_npz):
    data = images.split(images.load(toy_npz), 8, 8, held_out=8)
    victim = stationary.train(data.secret, networks.one_hidden(8, 0.01))
    found = rank.measured(victim, data, starts.random(*data.secret.images.shape, 0))
    assert found["neurons"][0] == rank.distinct_neurons(victim.released) < 8
    assert found["rank"][0] == found["above_1e-6"][0] <= found["neurons"][0]
    ours, others = found["outside"]
    assert 0 < ours < others <= 1 and found["gradient_error"][0] < 1e-6


def test_a_relu_network_has_no_count_of_equal_neurons(toy_npz):
    data = images.split(images.load(toy_npz), 8, 8, held_out=8)
    recipe = networks.perceptron("margin", 8)._replace(epochs=20)
    found = rank.measured(stationary.train(data.secret, recipe), data, starts.random(*data.secret.images.shape, 0))
    assert not {"neurons", "gradient_error"} & found.keys()
