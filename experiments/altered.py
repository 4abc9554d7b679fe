"""The same picture, but not to the pixel: what may happen to it between a training and a membership test.

Pictures are rows x (n, d) in [0, 1], of a shape (H, W, C).
"""

import io
import itertools

import numpy as np
import torch
from PIL import Image

from training import ordinary


def moved(x, shape, most):
    """Pictures moved by up to `most` pixels: {(down, right): (n, d)}; what leaves is lost, and edges are repeated."""
    height, width = shape[:2]
    rows, columns = (
        torch.arange(-most, side + most).clamp(0, side - 1) for side in (height, width)
    )
    larger = x.view(-1, *shape)[:, rows][:, :, columns]
    return {
        (most - top, most - left): larger[:, top : top + height, left : left + width].flatten(1)
        for top, left in itertools.product(range(2 * most + 1), repeat=2)
    }


def tries(x, shape):
    """Pictures, moved by up to two pixels both ways, and all of it mirrored: a list of fifty times (n, d)."""
    both = x, ordinary.mirror(x, shape)
    return [one for pictures in both for one in moved(pictures, shape, 2).values()]


def by_pillow(change):
    """A change of pictures (n, d) of a shape, one by one, by a function of a Pillow image, as bytes."""

    def changed(x, shape):
        pixels = x.view(-1, *shape).mul(255).round().byte().cpu().numpy()
        images = [np.asarray(change(Image.fromarray(one.squeeze()))) for one in pixels]
        return torch.from_numpy(np.stack(images)).flatten(1).to(x) / 255

    return changed


def compress(picture, quality):
    """A Pillow image after JPEG of this quality."""
    buffer = io.BytesIO()
    picture.save(buffer, "jpeg", quality=quality)
    return Image.open(buffer)


def resize(picture):
    """A Pillow image, enlarged by a quarter, from 32 to 40 pixels say, and brought back."""
    larger = picture.resize([side * 5 // 4 for side in picture.size], Image.Resampling.LANCZOS)
    return larger.resize(picture.size, Image.Resampling.LANCZOS)


CHANGES = {  # of pictures (n, d) of a shape
    "as_trained": lambda x, shape: x,
    "jpeg_95": by_pillow(lambda picture: compress(picture, 95)),
    "jpeg_75": by_pillow(lambda picture: compress(picture, 75)),
    "resized": by_pillow(resize),
    "brighter": lambda x, shape: (1.05 * x).clamp(max=1),
    "shifted": lambda x, shape: moved(x, shape, 1)[0, 1],
    "mirrored": ordinary.mirror,
}
