import numpy as np
import pytest
import torch

from utils import affine, images


@pytest.fixture
def small():
    """Twelve random images of thirty pixels, with labels and a generator for more."""
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(12, 30, dtype=torch.float64, generator=generator)
    y = torch.tensor([0.0] * 6 + [1.0] * 6, dtype=torch.float64)
    return x, y, generator


@pytest.fixture(scope="session")
def photos():
    """One hundred secret and one hundred known crops, and the victim's weights at μ = 0.01."""
    data = images.split(images.load("photos"), 100, 100)
    return data, affine.train(*data.secret, 1e-2).weights


@pytest.fixture(scope="session")
def toy_npz(tmp_path_factory):
    """The path of an .npz file with sixty images of 8×8×3 pixels in two classes."""
    generator = np.random.default_rng(0)
    labels = np.arange(60) % 2 + 3
    pictures = generator.random((60, 8, 8, 3)) * 0.5 + 0.3 * (labels == 4)[:, None, None, None]
    path = tmp_path_factory.mktemp("data") / "toy.npz"
    np.savez(path, images=pictures, labels=labels)
    return path
