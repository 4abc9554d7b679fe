import pytest
import torch

from utils import affine, evaluate, planting, starts
from utils.errors import InputError

MU = 1e-2


@pytest.mark.parametrize("search", [True, False])
@pytest.mark.parametrize("what", ["noise", "photographs", "drawing"])
def test_planted_images_train_to_the_same_weights(photos, what, search):
    data, target = photos
    wish = {
        "noise": starts.random(100, 3072, 3),
        "photographs": starts.partition(data.known, 100),
        "drawing": planting.drawing("#..\n.#.\n..#", data.shape).expand(100, 3072),
    }[what]
    planted = planting.plant(wish, data.secret.labels, target, MU, search)
    again = affine.train(planted.images, data.secret.labels, MU).weights
    assert evaluate.relative_distance(again, target) <= 1e-12
    assert planted.converged
    assert planted.images.min() >= -1e-12 and planted.images.max() <= 1 + 1e-12
    assert 0 < planted.change < 0.1


def test_searching_the_logits_brings_the_set_nearer(photos):
    data, target = photos
    wish = starts.partition(data.known, 100)
    near, plain = (planting.plant(wish, data.secret.labels, target, MU, search).change for search in (True, False))
    assert near < 0.9 * plain


def test_the_secret_images_are_planted_unchanged(photos):
    data, target = photos
    planted = planting.plant(data.secret.images, data.secret.labels, target, MU)
    assert planted.change < 1e-9


def test_distance_in_closed_form(small):
    x, y, generator = small
    theta = affine.train(x, y, MU).weights
    z = affine.logits(x, theta)
    wish = torch.rand(12, 30, dtype=torch.float64, generator=generator)
    expected = (planting.project(wish, z, y, theta, MU) - wish).square().sum()
    found = planting.squared_distance(z, wish @ wish.T, wish @ theta[:-1], y, theta, MU)
    assert torch.allclose(found, expected, rtol=1e-9)


def test_projection_is_the_nearest_point(small):
    x, y, generator = small
    theta = affine.train(x, y, MU).weights
    wish = torch.rand(12, 30, dtype=torch.float64, generator=generator)
    nearest = planting.project(wish, affine.logits(x, theta), y, theta, MU)
    # x is another point of the affine set: the error of a projection is orthogonal to the set.
    assert abs(((wish - nearest) * (x - nearest)).sum()) < 1e-9


def test_labels_that_cannot_be(small):
    x, y, _ = small
    theta = affine.train(x, y, MU).weights
    with pytest.raises(InputError, match="No logits satisfy"):
        planting.plant(x, y, 100 * theta, MU)


def test_an_empty_drawing():
    with pytest.raises(InputError, match="DRAWING is empty"):
        planting.drawing("\n\n", (8, 8, 3))
