"""The similarities of all pairs of a thousand and five hundred images, against libraries that are given pairs."""

from functools import cache

import pytest
import torch
from problems import DEVICE, PHOTOS, agree
from skimage.metrics import structural_similarity
from torchmetrics.functional.image import structural_similarity_index_measure

from utils.kernels import similarity

N, K, WINDOW = 1000, 500, 7
SIZE, SHAPE = {"images": N, "references": K}, PHOTOS.images.shape[1:]
# torchmetrics divides variances by w², ours and scikit-image by w² − 1; in the quotient that is another constant C₂.
K2 = 0.03 * (1 - 1 / WINDOW**2) ** 0.5


@cache
def pictures():
    """Photographs with noise, so that no two are equal: (n, d) and (k, d) in [0, 1]."""
    generator, rows = torch.Generator().manual_seed(0), torch.as_tensor(PHOTOS.images) / 255.0  # (N, 32, 32, 3)
    rows = rows.double().repeat((N + K) // len(rows) + 1, 1, 1, 1)[: N + K]
    rows = (rows + 0.1 * torch.rand(rows.shape, dtype=rows.dtype, generator=generator)).clamp(0, 1)
    return tuple(part.flatten(1).to(DEVICE) for part in rows.split([N, K]))


def sampled(pairs):
    """Random pairs: the numbers of images and of references, and the factor from these to all pairs."""
    index = torch.randint(N * K, (pairs,), generator=torch.Generator().manual_seed(1)).to(DEVICE)
    return index // K, index % K, N * K / pairs


def torchmetrics_ssim(x, y):
    """SSIM of images with references, planes (p, C, H, W): (p,).

    torchmetrics reflects images at their borders; the mean over windows that lie inside is what ours and scikit-image
    give, and with K2 for k2 they agree up to rounding.
    """
    settings = {"gaussian_kernel": False, "kernel_size": WINDOW, "data_range": 1.0, "k2": K2}
    maps = structural_similarity_index_measure(x, y, reduction="none", return_full_image=True, **settings)[1]
    inside = slice(WINDOW // 2, -(WINDOW // 2))
    return maps[:, :, inside, inside].mean((1, 2, 3))


def test_ssim(measure):
    x, y = pictures()
    measure(lambda: similarity.ssim(x, y, SHAPE, WINDOW), "ssim", "ours", SIZE, "float32", note="all pairs")


@pytest.mark.parametrize("batch, pairs", [(1, 100), (500, 2000)])
def test_ssim_torchmetrics(batch, pairs, measure):
    i, j, scale = sampled(pairs)
    x, y = (similarity.planes(rows.float(), SHAPE).contiguous() for rows in pictures())
    whole = [(x[a], y[b]) for a, b in zip(i.split(batch), j.split(batch))]
    version, note = f"torchmetrics, {batch} a call" if batch > 1 else "torchmetrics", f"extrapolated from {pairs} pairs"
    function = lambda: torch.cat([torchmetrics_ssim(*pair) for pair in whole])  # noqa: E731
    found = measure(function, "ssim", version, SIZE, "float32", scale=scale, note=note)
    agree(similarity.ssim(*pictures(), SHAPE, WINDOW)[i, j].to(found), found, 1e-4)  # its variances are E[x²] − E[x]²


def test_ssim_scikit_image(measure, pairs=200):
    i, j, scale = sampled(pairs)
    x, y = (rows.cpu().reshape(-1, *SHAPE).numpy() for rows in pictures())
    whole, note = [*zip(x[i.cpu()], y[j.cpu()])], f"extrapolated from {pairs} pairs"
    settings = {"win_size": WINDOW, "data_range": 1.0, "channel_axis": 2}
    function = lambda: [structural_similarity(*pair, **settings) for pair in whole]  # noqa: E731
    found = measure(function, "ssim", "scikit-image", SIZE, "float64", scale=scale, note=note)
    agree(similarity.ssim(*pictures(), SHAPE, WINDOW)[i, j].double().cpu(), torch.tensor(found).double(), 1e-5)


@pytest.mark.parametrize("version", ["ours", "torch.corrcoef of all at once", "torch.corrcoef, pair by pair"])
def test_ncc(version, measure, pairs=1000):
    (x, y), (i, j, scale), note = pictures(), sampled(pairs), ""
    if version == "ours":
        function, scale = lambda: similarity.ncc(x, y), 1
    elif version == "torch.corrcoef of all at once":
        function, scale = lambda: torch.corrcoef(torch.cat([x, y]))[:N, N:], 1
        note = "and all images with each other"
    else:
        stacks, note = [torch.stack(pair) for pair in zip(x[i], y[j])], f"extrapolated from {pairs} pairs"
        function = lambda: torch.stack([torch.corrcoef(pair)[0, 1] for pair in stacks])  # noqa: E731
    size = 8 * (x.numel() + y.numel() + N * K)
    work = {"flops": 2 * N * K * x.shape[1], "bytes": size} if version == "ours" else {}
    found = measure(function, "ncc", version, SIZE, "float64", scale=scale, note=note, **work)
    agree(similarity.ncc(x, y) if found.dim() == 2 else similarity.ncc(x, y)[i, j], found, 1e-10)
