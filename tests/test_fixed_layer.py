"""The attack behind a first layer that stays as it was drawn, and the trainer of the last layer alone."""

import pytest
import torch
from torch.nn.functional import binary_cross_entropy_with_logits

from utils import images
from utils.attacks import fixed_layer
from utils.errors import InputError
from utils.kernels.layers import forward
from utils.kernels.similarity import ncc
from utils.training import torch_trainer


@pytest.fixture(scope="module")
def data():
    return images.split(images.thumbnails(images.load("photos"), 7), 4, 4, 1, "cpu", held_out=4)


@pytest.fixture(scope="module")
def trained(data):
    return torch_trainer.train_last(data.secret, 1500, seed=1)


def test_a_step_of_the_trainer_is_that_of_gradient_descent(data):
    one, shrink = torch_trainer.train_last(data.secret, 40, 0.1, 1, seed=2), 0.1
    first, last = one.start
    x, w = data.secret.images - one.mean, last.weight.clone().requires_grad_()
    z = forward((first, last._replace(weight=w)), x)[1][-1]
    binary_cross_entropy_with_logits(z[:, 0], data.secret.labels).backward()
    rows = torch.relu(x @ first.weight.mT + first.bias)
    rate = 4 * len(x) / torch.linalg.matrix_norm(rows @ rows.mT, 2)
    torch.testing.assert_close(one.released.network[1].weight, (1 - shrink) * w.detach() - rate * w.grad)


def test_the_features_of_the_training_images_explain_the_change(data, trained):
    first, last = trained.released.network
    change, x = last.weight - trained.start[1].weight, data.secret.images - trained.mean
    share, absence, _ = fixed_layer.missed(first, change, x)
    assert 0 <= share < 1e-7
    fewer = torch.stack([fixed_layer.missed(first, change, x[torch.arange(4) != i])[0] for i in range(4)])
    torch.testing.assert_close(share + absence, fewer, rtol=1e-4, atol=0)
    assert fixed_layer.missed(first, change, data.held_out.images - trained.mean)[0] > 0.01


def test_a_wide_layer_gives_its_images_back(data, trained):
    first, last = trained.released.network
    found = fixed_layer.attack(first, last.weight - trained.start[1].weight, 4, seed=1)
    likeness = ncc(data.secret.images - trained.mean, found.images).abs()
    assert found.loss < 1e-4 and likeness.amax(1).min() > 0.99


def test_mistakes_are_one_sentence(data, trained):
    first, last = trained.released.network
    for change in (torch.zeros_like(last.weight), last.weight[:, 1:], last.weight / 0):
        with pytest.raises(InputError, match="give its change, one row for an output"):
            fixed_layer.attack(first, change, 4)
    for side in (6, 99):
        with pytest.raises(InputError, match="SIDE is .* these images have from 7 to"):
            images.thumbnails(images.load("photos"), side)
