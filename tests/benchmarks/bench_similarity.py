"""SSIM of all pairs of a thousand and five hundred images, against a library that is given pairs."""

from functools import partial

import pytest
import torch
from problems import DEVICE
from torchmetrics.functional.image import structural_similarity_index_measure

from utils.kernels import similarity

N, K, WINDOW, PAIRS = 1000, 500, 7, 100  # images, references; pairs that are given to the library
SHAPE = 32, 32, 3


def library_ssim(x, y):
    """SSIM of images with references, planes (p, C, H, W), pair by pair: a list."""
    settings = {"gaussian_kernel": False, "kernel_size": WINDOW, "data_range": 1.0}
    return [
        structural_similarity_index_measure(*pair, **settings)
        for pair in zip(x.split(1), y.split(1))
    ]


@pytest.mark.parametrize("version", ["ours", "torchmetrics"])
def test_ssim(version, measure):
    """That ours is SSIM is a test of its own, against scikit-image; torchmetrics reflects images at their borders."""
    x, y = torch.rand(N + K, 3072, device=DEVICE).split([N, K])
    function, about = partial(similarity.ssim, x, y, SHAPE, WINDOW), {"note": "all pairs"}
    if version == "torchmetrics":
        pairs = (similarity.planes(part[:PAIRS], SHAPE).contiguous() for part in (x, y))
        function = partial(library_ssim, *pairs)
        about = {"scale": N * K / PAIRS, "note": f"extrapolated from {PAIRS} pairs"}
    measure(function, "ssim", version, {"images": N, "references": K}, "float32", **about)
