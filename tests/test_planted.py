"""experiments/planted: training on planted images, from beside θ*, from θ⁰ and at 8 bits."""

import pytest
import torch

from conftest import noisy_classes
from experiments import planted
from utils import networks
from utils.attacks import bilevel, starts
from utils.training import stationary

RECIPE = networks.one_hidden(8, 0.1)


@pytest.fixture(scope="module")
def trained():
    """Noisy classes, and what was released of a network trained on them."""
    secret = noisy_classes(0)
    return secret, stationary.train(secret, RECIPE, 6).released


def test_eight_bits_are_whole_numbers_in_range():
    x = torch.tensor([-0.1, 0.0, 0.3, 0.5, 1.2], dtype=torch.float64)
    assert (255 * planted.eight_bits(x)).tolist() == pytest.approx([0, 0, 76, 128, 255])


def test_training_on_the_secret_images_returns_from_noise_and_from_the_start(trained):
    (x, _), released = trained
    other = starts.random(30, 100, 1)
    basis = networks.span_of(x, bilevel.condensed(released).network[0].weight)
    assert planted.from_perturbed(released, x, 1) < 1e-10 > planted.from_perturbed(released, x, 1, basis)
    assert planted.from_perturbed(released, other, 1) > 1e-3
    assert planted.from_start(released, x, 6) < 1e-15 and planted.from_start(released, other, 6) > 1e-3


def test_the_secret_images_are_measured_as_planted(trained):
    (x, _), released = trained
    found = planted.numbers_of(released, x, x, (10, 10, 1), 3)
    assert found["relative_distance"] < 1e-10 and found["moved"] == 0 and found["least_ssim"] == pytest.approx(1)
    rows = {row.name.split("/")[-1]: row for row in planted.rows_of("noise", found, 3)}
    assert rows["fresh_distance"].baseline == found["fresh_untouched"] and rows["moved"].baseline is None
    assert rows["relative_distance"].name == "plant_network/noise/relative_distance"


def test_the_affine_model_is_measured_by_training_anew(trained):
    secret, _ = trained
    released = stationary.train(secret, networks.affine(0.1)).released
    found = planted.numbers_of(released, secret.images, starts.random(30, 100, 1), (10, 10, 1), 3)
    assert found["trained_distance"] is None and found["relative_distance"] < 1e-20 < found["untouched"]
