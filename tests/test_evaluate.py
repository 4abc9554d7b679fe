import pytest
import torch
from skimage.metrics import structural_similarity

from utils import evaluate
from utils.errors import InputError


@pytest.mark.parametrize("shape, window", [((32, 32, 3), 7), ((20, 16, 1), 3)])
def test_ssim_is_that_of_scikit_image(shape, window):
    generator = torch.Generator().manual_seed(0)
    n = shape[0] * shape[1] * shape[2]
    x, y = (
        torch.rand(3, n, dtype=torch.float64, generator=generator),
        torch.rand(4, n, dtype=torch.float64, generator=generator),
    )
    y[0] = x[0] + 0.05 * y[0]
    table = evaluate.ssim(x, y, shape, window)
    for i in range(3):
        for j in range(4):
            a, b = x[i].reshape(shape).numpy(), y[j].reshape(shape).numpy()
            expected = structural_similarity(a, b, win_size=window, data_range=1.0, channel_axis=2)
            assert abs(table[i, j] - expected) < 1e-5
            assert abs(evaluate.pairwise_ssim(x[i : i + 1], y[j : j + 1], shape, window)[0] - expected) < 1e-10


@pytest.mark.parametrize("window", [3, 7])
def test_both_forms_of_ssim_agree_on_flat_dark_and_equal_images(photos, window):
    x = photos[0].secret.images[:6].clone()
    x[0], x[1], x[2] = 0.0, 1.0, 0.5
    x[3] /= 1000
    table = evaluate.ssim(x, x, (32, 32, 3), window)
    for shift in range(6):
        y = x.roll(-shift, 0)
        pairs = evaluate.pairwise_ssim(x, y, (32, 32, 3), window)
        assert torch.allclose(table[torch.arange(6), (torch.arange(6) + shift) % 6], pairs, atol=1e-5, rtol=0)


@pytest.mark.parametrize("by", ["ssim", "l2", "ncc"])
def test_an_image_is_its_own_nearest_neighbour(photos, by):
    x = photos[0].secret.images[:20]
    order = torch.randperm(20, generator=torch.Generator().manual_seed(0))
    found = evaluate.nearest(x, x[order], (32, 32, 3), by)
    assert torch.equal(order[found.index], torch.arange(20))
    assert torch.allclose(found.similarity, torch.tensor(0.0 if by == "l2" else 1.0).double(), atol=1e-6)


def test_ncc_ignores_brightness_and_contrast():
    x = torch.rand(2, 30, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    assert torch.allclose(evaluate.ncc(x, 3 * x + 1).diagonal(), torch.ones(2).double())


def test_relative_distance_knows_its_baseline():
    target = torch.tensor([3.0, 4.0])
    assert evaluate.relative_distance(torch.zeros(2), target) == 1
    assert evaluate.mean_square_distance(torch.zeros(2), target) == 12.5


def test_unknown_measures_are_named():
    with pytest.raises(InputError, match="must be one of 'ssim', 'l2', 'ncc'"):
        evaluate.nearest(torch.rand(2, 12), torch.rand(2, 12), (2, 2, 3), "psnr")
