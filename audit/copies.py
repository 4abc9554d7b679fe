"""Copies of pictures, also where one was shifted or mirrored: crops and flips of one picture are not independent."""

import numpy as np
import torch
from skimage.feature import match_template
from torch.nn.functional import avg_pool2d, interpolate, unfold

from utils.kernels.similarity import planes, standardise

COPIES = 0.99  # normalised cross-correlation above which a picture is nearly a copy of another
SHIFTED = 0.97  # the same of what two pictures share, shifted so that the middle of one fits best
LIKELY = 0.9  # the same of the middle of small versions, below which the pictures are not looked at more closely
# pixels of a side of a small version, and of a close look at most
SMALL = 32
CLOSE = 96
BLOCK = 8  # pictures that are compared with all others at once
FLIPS = (), (-1,), (-2,), (-2, -1)  # axes of a picture


def find(rows, shape):
    """A mask (n, n) of the pairs of pictures (n, d) of a shape (H, W, C) that are copies of each other, or nearly.

    The rows are standardised in their place.
    """
    for part in rows.split(BLOCK):
        part.copy_(standardise(part))
    copies = rows @ rows.mT > COPIES
    batch = planes(rows, shape)
    maybe = likely(batch.mean(1, keepdim=True))
    for k, j in (maybe & maybe.mT).triu().nonzero().tolist():
        alike = all(overlapping(batch[one], batch[two]) > SHIFTED for one, two in ((k, j), (j, k)))
        copies[k, j] = copies[j, k] = alike or copies[k, j]
    return copies


def likely(grey):
    """A mask (n, n): whether the middle of one of grey pictures (n, 1, H, W) may be a part of another one.

    Small versions are compared at every place, in every second of their pixels, each the mean of four.
    """
    small = avg_pool2d(interpolate(grey, size=(SMALL, SMALL), mode="area"), 2, stride=1)
    quarter = SMALL // 4
    middle = small[..., quarter : 3 * quarter : 2, quarter : 3 * quarter : 2]
    # (flips, n, p)
    flipped = torch.stack([standardise(middle.flip(axes).flatten(1)) for axes in FLIPS])
    columns = []
    for some in small.split(BLOCK):
        windows = standardise(unfold(some, quarter, dilation=2).mT)  # (block, places, p)
        alike = torch.einsum("fip,jlp->fijl", flipped, windows)
        columns.append(alike.amax((0, 3)) > LIKELY)
    mask = torch.cat(columns, 1)
    return mask.fill_diagonal_(False)


def overlapping(picture, other):
    """The correlation of two pictures (C, H, W), one of them flipped and shifted so that its middle fits best.

    Without an eighth of either at every side, where what was shifted may be filled up.
    """
    near = [min(side, CLOSE) for side in picture.shape[1:]]
    one, two = (
        interpolate(part[None], size=near, mode="area")[0].numpy() for part in (picture, other)
    )
    middle = one.mean(0)[tuple(slice(side // 4, side - side // 4) for side in near)]
    fits = [match_template(np.flip(two.mean(0), axes), middle) for axes in FLIPS]
    best = int(np.argmax([part.max() for part in fits]))
    corner = np.unravel_index(fits[best].argmax(), fits[best].shape)
    both = []
    for part, sign in ((one, -1), (np.flip(two, FLIPS[best]), 1)):
        shifts = [sign * (at - side // 4) for at, side in zip(corner, near)]
        cut = (
            slice(side // 8 + max(0, by), side - side // 8 + min(0, by))
            for side, by in zip(near, shifts)
        )
        both.append(part[:, *cut].ravel())
    return np.corrcoef(*both)[0, 1]
