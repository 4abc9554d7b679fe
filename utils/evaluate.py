"""How close reconstructions are to other images. The evaluator sees the secret; no attack calls anything here.

Images are rows (n, d) in [0, 1]; `shape` is (H, W, C) of one image.
"""

from typing import NamedTuple

import torch
from scipy.optimize import linear_sum_assignment
from torch.nn.functional import avg_pool2d, interpolate

from utils.errors import choose


class Nearest(NamedTuple):
    """For each of n reconstructions, the most similar of k references."""

    index: torch.Tensor  # (n,)
    similarity: torch.Tensor  # (n,): SSIM, NCC, or the L2 distance


def parts(weights):
    """The tensors of θ: a vector (d+1,) is one, a hidden.Network holds two."""
    return [weights] if isinstance(weights, torch.Tensor) else [weights.first, weights.second]


def square_distance(weights, target):
    """‖θ − θ*‖²."""
    return sum((a - b).square().sum().item() for a, b in zip(parts(weights), parts(target)))


def relative_distance(weights, target):
    """‖θ − θ*‖²/‖θ*‖², a squared distance that does not shrink with the number of weights."""
    return square_distance(weights, target) / sum(a.square().sum().item() for a in parts(target))


def mean_square_distance(weights, target):
    """‖θ − θ*‖² averaged over the weights, one reading of the first paper's Table 1."""
    return square_distance(weights, target) / sum(a.numel() for a in parts(target))


def matched_distance(weights, target):
    """The relative distance of two hidden.Networks after the neurons of the first were put in the best order.

    A neuron is its incoming and outgoing weights; their order does not change the network. The best order is the
    assignment of least total squared distance.
    """
    ours, theirs = (torch.cat([net.first, net.second[:-1, None]], 1) for net in (weights, target))  # (h, d+2)
    order = linear_sum_assignment(l2(ours, theirs).square().T.cpu())[1]
    second = torch.cat([weights.second[:-1][order], weights.second[-1:]])
    return relative_distance(weights._replace(first=weights.first[order], second=second), target)


def l2(images, references):
    """All Euclidean distances: (n, d), (k, d) -> (n, k)."""
    return torch.cdist(images, references, compute_mode="donot_use_mm_for_euclid_dist")


def ncc(images, references):
    """All normalised cross-correlations, over all pixels and channels at once: (n, d), (k, d) -> (n, k)."""

    def normalise(rows):
        centred = rows - rows.mean(1, keepdim=True)
        return centred / centred.norm(dim=1, keepdim=True).clamp_min(torch.finfo(rows.dtype).eps)

    return normalise(images) @ normalise(references).T


C1, C2 = 0.01**2, 0.03**2  # the constants of SSIM for pixels in [0, 1]


def ssim(images, references, shape, window=7):
    """All structural similarities, computed in single precision: (n, d), (k, d) -> (n, k).

    Square uniform window, sample covariances, data range 1, averaged over the windows inside the image and over the
    channels; equals `skimage.metrics.structural_similarity(…, win_size=window, data_range=1, channel_axis=2)` to 1e-5.
    At one position of the window, the numerators (2μₓμᵧ + C₁)(2cov + C₂) of all pairs are a table of rank 2w² + 2, the
    denominators (μₓ² + μᵧ² + C₁)(varₓ + varᵧ + C₂) one of rank 4: two matrix products and a division. Memory: n·k.
    """
    x, y = (rows.T.float().contiguous() for rows in (images, references))  # (d, n), (d, k): one line per pixel
    pixels = torch.arange(len(x), device=x.device).reshape(shape).unfold(0, window, 1).unfold(1, window, 1)
    table, pixels = images.new_zeros(x.shape[1], y.shape[1]), pixels.reshape(-1, window**2)  # (P, w²)
    for some in pixels.split(64):
        part = x.new_zeros(table.shape)  # few terms, whose sum loses little
        factors = zip(*left_factors(x[some]), *right_factors(y[some]))  # (64, w², n), (64, w², k)
        for left, low_left, right, low_right in factors:
            part.addcdiv_(left.mT @ right, low_left.mT @ low_right)  # (n, rank) @ (rank, k)
        table += part
    return table / len(pixels)


def left_factors(windows):
    """Of the numerators and of the denominators, for the first images: (P, w², n) -> (P, 2w² + 2, n), (P, 4, n)."""
    p, mean, var = moments(windows)
    p, square, one = p * (2 / (p.shape[1] - 1)), mean**2 + C1, torch.ones_like(mean)
    numerator = [2 * mean * p, C1 * p, 2 * C2 * mean, C1 * C2 * one]
    return torch.cat(numerator, 1), torch.cat([square * (var + C2), square, var + C2, one], 1)


def right_factors(windows):
    """The same for the images they are compared with."""
    q, mean, var = moments(windows)
    square, one = mean**2, torch.ones_like(mean)
    return torch.cat([mean * q, q, mean, one], 1), torch.cat([one, var, square, square * var], 1)


def moments(windows):
    """Windows minus their means, the means, and the sample variances: (P, w², n) -> (P, w², n), (P, 1, n), (P, 1, n)."""
    mean = windows.mean(1, keepdim=True)
    centred = windows - mean
    return centred, mean, centred.square().sum(1, keepdim=True) / (windows.shape[1] - 1)


def nearest(images, references, shape, by="ssim"):
    """Find the most similar reference of every image by `ssim` (structurally most similar), `l2` or `ncc`."""
    choose("by", by, ("ssim", "l2", "ncc"))
    if by == "l2":
        distance, index = l2(images, references).min(1)
        return Nearest(index, distance)
    table = ssim(images, references, shape) if by == "ssim" else ncc(images, references)
    similarity, index = table.max(1)
    return Nearest(index, similarity)


GOOD = 0.4  # SSIM above which a reconstruction counts as good, in the published evaluation


class Matches(NamedTuple):
    """For each of k training images, the reconstruction that was compared with it."""

    index: torch.Tensor  # (k,)
    ssim: torch.Tensor  # (k,)
    pictures: torch.Tensor  # (k, d): the reconstructions as they were compared, in [0, 1]


def half_ncc(images, references, shape):
    """Mean over channels of the normalised cross-correlation at half the resolution (bicubic): (n, d), (k, d) -> (n, k)."""

    def normalise(rows):
        planes = rows.reshape(-1, *shape).permute(0, 3, 1, 2)  # (n, C, H, W)
        planes = interpolate(planes, scale_factor=0.5, mode="bicubic", align_corners=False).flatten(2)
        planes = planes - planes.mean(-1, keepdim=True)
        return (planes / planes.norm(dim=-1, keepdim=True).clamp_min(torch.finfo(rows.dtype).eps)).flatten(1)

    return normalise(images) @ normalise(references).T / shape[-1]


def as_published(reconstructions, training, mean, shape):
    """Match every training image with a reconstruction as Haim et al. do: with the truth and its mean at hand.

    `reconstructions` (n, d) and `training` (k, d) are without the `mean` (d,). A training image gets the reconstruction of
    the highest half_ncc, which may be used again; the mean is added, the reconstruction stretched to [0, 1], SSIM taken
    with a window of 3.
    """
    index = half_ncc(training, reconstructions, shape).max(1).indices
    pictures = stretch(reconstructions[index] + mean)
    return Matches(index, pairwise_ssim(pictures, training + mean, shape), pictures)


def as_adversary(reconstructions, training, mean, guess, shape):
    """The same for reconstructions as an adversary would publish them: with a guessed mean, clipped to [0, 1].

    Which reconstruction a training image is compared with is still the evaluator's choice: there is no other way to count.
    """
    index = half_ncc(training, reconstructions, shape).max(1).indices
    pictures = (reconstructions[index] + guess).clamp(0, 1)
    return Matches(index, pairwise_ssim(pictures, training + mean, shape), pictures)


def stretch(images):
    """Map the smallest value of every image to 0 and the largest to 1."""
    low, high = images.amin(1, keepdim=True), images.amax(1, keepdim=True)
    return (images - low) / (high - low).clamp_min(torch.finfo(images.dtype).eps)


def pairwise_ssim(images, references, shape, window=3):
    """SSIM of every image with the reference of the same place, in their own precision: (n, d), (n, d) -> (n,)."""
    x, y = (rows.reshape(-1, *shape).permute(0, 3, 1, 2) for rows in (images, references))  # (n, C, H, W)

    def mean(a):
        return avg_pool2d(a, window, stride=1)

    def covariance(a, b):
        return (mean(a * b) - mean(a) * mean(b)) * (window**2 / (window**2 - 1))

    numerator = (2 * mean(x) * mean(y) + C1) * (2 * covariance(x, y) + C2)
    denominator = (mean(x) ** 2 + mean(y) ** 2 + C1) * (covariance(x, x) + covariance(y, y) + C2)
    return (numerator / denominator).mean((1, 2, 3))
