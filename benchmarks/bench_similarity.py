"""SSIM of all pairs of a thousand and five hundred images, against a library that is given pairs."""

from functools import partial

import pytest
import torch
from problems import DEVICE, PHOTOS, agree
from torchmetrics.functional.image import structural_similarity_index_measure

from utils.kernels import similarity

N, K, WINDOW, PAIRS = 1000, 500, 7, 100  # images, references; pairs that are given to the library
SHAPE = PHOTOS.images.shape[1:]
# torchmetrics divides variances by w², ours by w² − 1; in the quotient that is another constant C₂.
K2 = 0.03 * (1 - 1 / WINDOW**2) ** 0.5


def pictures():
    """Photographs with noise, so that no two are equal, (n, d) and (k, d) in [0, 1]."""
    generator, rows = torch.Generator().manual_seed(0), torch.as_tensor(PHOTOS.images) / 255.0  # (N, 32, 32, 3)
    rows = rows.repeat((N + K) // len(rows) + 1, 1, 1, 1)[: N + K]
    rows = (rows + 0.1 * torch.rand(rows.shape, generator=generator)).clamp(0, 1)
    return [part.flatten(1).to(DEVICE) for part in rows.split([N, K])]


def library_ssim(x, y):
    """SSIM of images with references, planes (p, C, H, W), pair by pair: (p,).

    torchmetrics reflects images at their borders; the mean over windows that lie inside is what ours gives, and with K2
    for k2 they agree up to rounding.
    """
    settings = {"gaussian_kernel": False, "kernel_size": WINDOW, "data_range": 1.0, "k2": K2}
    settings |= {"reduction": "none", "return_full_image": True}
    inside = slice(WINDOW // 2, -(WINDOW // 2))
    maps = [structural_similarity_index_measure(*pair, **settings)[1] for pair in zip(x.split(1), y.split(1))]
    return torch.cat(maps)[:, :, inside, inside].mean((1, 2, 3))


@pytest.mark.parametrize("version", ["ours", "torchmetrics"])
def test_ssim(version, measure):
    x, y = pictures()
    i, j = torch.randint(K, (2, PAIRS), generator=torch.Generator().manual_seed(1)).to(DEVICE)
    function, about = partial(similarity.ssim, x, y, SHAPE, WINDOW), {"note": "all pairs"}
    theirs = partial(library_ssim, *(similarity.planes(part, SHAPE).contiguous() for part in (x[i], y[j])))
    agree(similarity.ssim(x[i], y[j], SHAPE, WINDOW).diagonal(), theirs(), 1e-4)  # its variances are E[x²] − E[x]²
    if version == "torchmetrics":
        function, about = theirs, {"scale": N * K / PAIRS, "note": f"extrapolated from {PAIRS} pairs"}
    measure(function, "ssim", version, {"images": N, "references": K}, "float32", **about)
