"""How similar images are, rows (n, d) in [0, 1]: all pairs at once, or place by place. `shape` is (H, W, C) of one."""

from typing import NamedTuple

import torch
from torch.nn.functional import avg_pool2d, interpolate, normalize

# the constants of SSIM for pixels in [0, 1]
C1 = 0.01**2
C2 = 0.03**2
POSITIONS = 64  # of the window, whose products are made at once
AT_ONCE = 2**28  # numbers of four bytes
SLICE = 2**22  # numbers of images that are compared at once: more leave the caches
# |NCC| above which an image counts as given back, somewhat or strongly.
SOME = 0.7
STRONG = 0.9


def l2(images, references):
    """All Euclidean distances: (n, d), (k, d) -> (n, k)."""
    return torch.cdist(images, references, compute_mode="donot_use_mm_for_euclid_dist")


def standardise(rows):
    """Rows (…, d) minus their mean, with norm one; a constant row becomes zero."""
    return normalize(rows - rows.mean(-1, keepdim=True), dim=-1, eps=torch.finfo(rows.dtype).eps)


def stretch(images):
    """Map the smallest value of every image to 0 and the largest to 1."""
    low = images.amin(1, keepdim=True)
    high = images.amax(1, keepdim=True)
    return (images - low) / (high - low).clamp_min(torch.finfo(images.dtype).eps)


def planes(rows, shape):
    """Images as planes, one per channel: (n, d) -> (n, C, H, W)."""
    return rows.reshape(-1, *shape).permute(0, 3, 1, 2)


def slices(images):
    """Images (n, d) in parts, each of at most SLICE numbers if one image is."""
    return images.split(1 + SLICE // images.shape[1])


def ncc(images, references):
    """All normalised cross-correlations, over all pixels and channels at once: (n, d), (k, d) -> (n, k)."""
    own = standardise(images)
    return torch.cat([own @ standardise(part.to(own)).T for part in slices(references)], 1)


def closest(images, others):
    """For each of images (n, d) the one of others (k, d) of the largest |NCC| with it, in its sign: (n, d)."""
    likeness = ncc(images, others)
    best = likeness.abs().argmax(1)
    return others[best] * likeness.gather(1, best[:, None]).sign()


def half_ncc(images, references, shape):
    """The mean over channels of their ncc at half the resolution (bicubic): (n, d), (k, d) -> (n, k)."""

    def halve(rows):
        small = interpolate(planes(rows, shape), scale_factor=0.5, mode="bicubic")
        return standardise(small.flatten(2)).flatten(1)  # (n, C, H/2, W/2) -> (n, d/4)

    return halve(images) @ halve(references).T / shape[-1]


def detail_ncc(images, references, shape):
    """All correlations of what lies between 3 and 9 pixels in size: (n, d), (k, d) -> (n, k).

    The mean over a small window takes noise away; minus its mean over a larger one, it loses brightness and shading,
    which unlike photographs share. A flat image has nothing left, and is like no other. Made for pictures of 32×32.
    """

    def mean(x, size):
        return avg_pool2d(x, size, stride=1, padding=size // 2, count_include_pad=False)

    def detail(rows):
        smooth = mean(planes(rows, shape), 3)
        return normalize((smooth - mean(smooth, 9)).flatten(1), eps=1e-6)

    own = detail(images)
    return torch.cat([own @ detail(part).T for part in slices(references)], 1)


class Match(NamedTuple):
    """The most similar one among others, for each of m images."""

    index: torch.Tensor  # (m,), which one
    signed: torch.Tensor  # (m,), its likeness
    either: torch.Tensor  # (m,), the largest size of a likeness: a negative counts as well

    def above(self, bar):
        """How many images have a likeness, or a negative's, above a bar."""
        return (self.either > bar).sum().item()

    @property
    def strong(self):
        """How many images came back strongly."""
        return self.above(STRONG)

    @property
    def some(self):
        """How many images came back at least somewhat."""
        return self.above(SOME)


def match(images, others, shape=None):
    """Match images (m, d) with others (n, d) by `ncc`, or `detail_ncc` if there is a `shape`; None is like nothing."""
    if others is None:
        return Match(torch.zeros(len(images), dtype=torch.long), *torch.zeros(2, len(images)))
    # (m, n)
    table = detail_ncc(others.to(images), images, shape).mT if shape else ncc(images, others)
    signed, index = table.max(1)
    return Match(index, signed, table.abs().amax(1))


def is_constant(score, size=1):
    """Whether a score (n,) is the same for all up to rounding, so that its order says nothing.

    Of sums over `size` terms of precision ε, values within 10·√size·ε of the largest |score| are one value.
    """
    bound = 10 * size**0.5 * torch.finfo(score.dtype).eps
    return bool(score.amax() - score.amin() <= bound * score.abs().amax())


def ssim(images, references, shape, window=7):
    """All structural similarities, computed in single precision: (n, d), (k, d) -> (n, k).

    Equals `skimage.metrics.structural_similarity(…, win_size=window, data_range=1, channel_axis=2)` to 1e-5. At one
    position of the window, the numerators (2μₓμᵧ + C₁)(2cov + C₂) of all pairs are a table of rank 2w² + 2, the
    denominators (μₓ² + μᵧ² + C₁)(varₓ + varᵧ + C₂) one of rank 4: two matrix products and a division. Images are taken
    in slices, which take up to AT_ONCE numbers.
    """
    numbers = 2 * (POSITIONS + 1) * len(references)  # for an image
    rows = max(1, AT_ONCE // max(1, numbers))
    slices = [ssim_slice(part, references, shape, window) for part in images.split(rows)]
    return slices[0] if len(slices) == 1 else torch.cat(slices)


def ssim_slice(images, references, shape, window):
    """SSIM of one slice of the images (n, d) with all references (k, d): (n, k)."""
    # One line per pixel: (d, n), (d, k).
    x, y = (rows.T.float().contiguous() for rows in (images, references))
    pixels = torch.arange(len(x), device=x.device).reshape(shape)
    pixels = pixels.unfold(0, window, 1).unfold(1, window, 1).reshape(-1, window**2)  # (P, w²)
    table = images.new_zeros(x.shape[1], y.shape[1])
    for block in pixels.split(POSITIONS):
        part = x.new_zeros(table.shape)  # few terms, whose sum loses little
        # Of (64, w², n), (64, w², k).
        for left, right, low_left, low_right in zip(*factors(x[block], y[block])):
            part.addcdiv_(left.mT @ right, low_left.mT @ low_right)  # (n, rank) @ (rank, k)
        table += part
    return table / len(pixels)


def factors(x, y):
    """Factor the numerators, then the denominators: (P, w², n), (P, w², k) -> twice (P, rank, n), (P, rank, k)."""
    mean = x.mean(1, keepdim=True)
    other = y.mean(1, keepdim=True)
    degrees = x.shape[1] - 1
    p = x - mean
    q = y - other
    # (P, 1, n) and (P, 1, k).
    var, spread = (part.square().sum(1, keepdim=True) / degrees for part in (p, q))
    scaled = p * (2 / degrees)
    light = mean**2 + C1
    one = torch.ones_like(mean)
    left = torch.cat([2 * mean * scaled, C1 * scaled, 2 * C2 * mean, C1 * C2 * one], 1)
    low_left = torch.cat([light * (var + C2), light, var + C2, one], 1)
    light = other**2
    one = torch.ones_like(other)
    right = torch.cat([other * q, q, other, one], 1)
    return left, right, low_left, torch.cat([one, spread, light, light * spread], 1)


def pairwise_ssim(images, references, shape, window=3):
    """SSIM of every image with the reference of the same place, in their own precision: (n, d), (n, d) -> (n,)."""
    x = planes(images, shape)
    y = planes(references, shape)
    mx, my, xx, yy, xy = (avg_pool2d(a, window, stride=1) for a in (x, y, x * x, y * y, x * y))
    unbiased = window**2 / (window**2 - 1)
    var_x, var_y, cov = (part * unbiased for part in (xx - mx * mx, yy - my * my, xy - mx * my))
    numerator = (2 * mx * my + C1) * (2 * cov + C2)
    denominator = (mx**2 + my**2 + C1) * (var_x + var_y + C2)
    return (numerator / denominator).mean((1, 2, 3))
