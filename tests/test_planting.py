"""The functions of chapter 01 and its sequel: all training sets of a model, and the one nearest to a wish."""

import pytest
import torch

from conftest import chapter_functions
from utils import networks
from utils.attacks import starts
from utils.errors import InputError
from utils.kernels import affine

CHAPTER = chapter_functions("affine-model")
NETWORK = chapter_functions("planting-behind-a-network")
MU = CHAPTER["WEIGHT_DECAY"]
plant = CHAPTER["plant"]


@pytest.mark.parametrize("what", ["noise", "photographs", "drawing"])
def test_planted_images_train_to_the_same_weights(photos, what):
    data, network = photos
    target = networks.flatten(network)
    wish = {
        "noise": starts.random(100, 3072, 3),
        "photographs": starts.partition(data.known, 100),
        "drawing": CHAPTER["drawing"]("#..\n.#.\n..#", data.shape).expand(100, 3072),
    }[what]
    planted = plant(wish, data.secret.labels, target)
    again = affine.solve(planted.images, data.secret.labels, MU).weights
    assert (again - target).square().sum() <= 1e-12 * target.square().sum()
    assert planted.converged
    assert planted.images.min() >= -1e-12 and planted.images.max() <= 1 + 1e-12
    assert 0 < planted.change < 0.1


def test_searching_the_logits_brings_the_set_nearer(photos):
    data, network = photos
    y, theta, wish = data.secret.labels, networks.flatten(network), starts.partition(data.known, 100)
    z = CHAPTER["feasible_logits"](affine.logits(wish, theta), y, theta)
    plain = CHAPTER["project_onto_solutions"](wish, z, y, theta)
    assert plant(wish, y, theta).change < 0.9 * (plain - wish).square().mean().sqrt()


def test_the_secret_images_are_planted_unchanged(photos):
    data, network = photos
    assert plant(*data.secret, networks.flatten(network)).change < 1e-9


def test_distance_in_closed_form(small):
    x, y, generator = small
    theta = affine.solve(x, y, MU).weights
    z = affine.logits(x, theta)
    wish = torch.rand(12, 30, dtype=torch.float64, generator=generator)
    expected = (CHAPTER["project_onto_solutions"](wish, z, y, theta) - wish).square().sum()
    found = CHAPTER["squared_distance"](z, wish @ wish.T, wish @ theta[:-1], y, theta)
    assert torch.allclose(found, expected, rtol=1e-9)


def test_projection_is_the_nearest_point(small):
    x, y, generator = small
    theta = affine.solve(x, y, MU).weights
    wish = torch.rand(12, 30, dtype=torch.float64, generator=generator)
    nearest = CHAPTER["project_onto_solutions"](wish, affine.logits(x, theta), y, theta)
    # x is another point of the affine set: the error of a projection is orthogonal to the set.
    assert abs(((wish - nearest) * (x - nearest)).sum()) < 1e-9


def test_labels_that_cannot_be(small):
    x, y, _ = small
    theta = affine.solve(x, y, MU).weights
    with pytest.raises(InputError, match="No logits are feasible: check the labels and WEIGHT_DECAY"):
        plant(x, y, 100 * theta)


def test_an_empty_drawing():
    with pytest.raises(InputError, match="DRAWING is empty"):
        CHAPTER["drawing"]("\n\n", (8, 8, 3))
    with pytest.raises(InputError, match="DRAWING is empty"):
        starts.drawings("\n\n", (8, 8, 3), 4, 0)


def test_every_copy_of_the_drawing_shows_it():
    drawn = starts.drawings("#.\n.#", (8, 8, 3), 4, 0).reshape(4, 8, 8, 3)
    assert torch.allclose((drawn[:, 0, 0] - drawn[:, 0, 7]).abs(), drawn.new_tensor(0.5))
    assert torch.equal(drawn[:, 0, 0], drawn[:, 7, 7]) and drawn.unique(dim=0).shape[0] == 4


def test_equal_neurons_are_merged():
    neurons = torch.tensor([[1.0, 2.0, 3.0]] * 4 + [[4.0, 5.0, 6.0]], dtype=torch.float64)
    kinds, few, copies = NETWORK["merge"](neurons)
    assert kinds == [[4], [0, 1, 2, 3]] and copies.tolist() == [1, 4]
    assert torch.equal(few, torch.stack([neurons[4], 2 * neurons[0]]))
