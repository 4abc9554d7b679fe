"""How close reconstructions are to other images. The evaluator sees the secret; no attack calls anything here.

Images are rows (n, d) in [0, 1]; `shape` is (H, W, C) of one image.
"""

from typing import NamedTuple

import torch
from scipy.optimize import linear_sum_assignment
from torch.nn.functional import avg_pool2d

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


def ssim(images, references, shape, window=7):
    """All structural similarities: (n, d), (k, d) -> (n, k).

    Square uniform window, sample covariances, data range 1, averaged over the windows inside the image and over the
    channels; equals `skimage.metrics.structural_similarity(…, win_size=window, data_range=1, channel_axis=2)`.
    Memory grows with k·d only.
    """
    x, y = (rows.reshape(-1, *shape).permute(0, 3, 1, 2) for rows in (images, references))  # (n, C, H, W)
    unbiased = window**2 / (window**2 - 1)
    c1, c2 = 0.01**2, 0.03**2

    def mean(a):
        return avg_pool2d(a, window, stride=1)

    mx, my = mean(x), mean(y)
    vx, vy = (unbiased * (mean(a * a) - m * m) for a, m in ((x, mx), (y, my)))
    rows = []
    for a, ma, va in zip(x, mx, vx):
        covariance = unbiased * (mean(a * y) - ma * my)  # (k, C, H', W')
        numerator = (2 * ma * my + c1) * (2 * covariance + c2)
        rows.append((numerator / ((ma**2 + my**2 + c1) * (va + vy + c2))).mean(dim=(1, 2, 3)))
    return torch.stack(rows)


def nearest(images, references, shape, by="ssim"):
    """Find the most similar reference of every image by `ssim` (structurally most similar), `l2` or `ncc`."""
    choose("by", by, ("ssim", "l2", "ncc"))
    if by == "l2":
        distance, index = l2(images, references).min(1)
        return Nearest(index, distance)
    table = ssim(images, references, shape) if by == "ssim" else ncc(images, references)
    similarity, index = table.max(1)
    return Nearest(index, similarity)
