"""Draw the two pictures of the first page: `python -m scripts.opening FILE.npz [SEED]`, with CIFAR-10's images.

Fifty secret images, and in the same places what came back of a network that was fine-tuned on them, as in the
experiment `known-start` with TRAINER=sgd_decay and START=pretrained; SEED is the first of its record, 30, if not given.
"""

import io
import sys
from pathlib import Path

import numpy as np
from PIL import Image

from utils import images, ordinary
from utils.attacks import known_start
from utils.cache import write
from utils.kernels.similarity import ncc

BOOK = Path(__file__).parent.parent / "book"
M, COLUMNS, ZOOM = 50, 10, 2


def sheet(x, shape):
    """Images (50, d) in [0, 1], ten in a row, enlarged: the bytes of a WebP file."""
    height, width, channels = shape
    tiles = (255 * x.clamp(0, 1)).round().byte().view(-1, COLUMNS, *shape).numpy()  # (5, 10, H, W, C)
    tiles = np.pad(tiles, ((0, 0), (0, 0), (1, 1), (1, 1), (0, 0)), constant_values=255)
    whole = tiles.transpose(0, 2, 1, 3, 4).reshape(len(tiles) * (height + 2), COLUMNS * (width + 2), channels)
    picture = Image.fromarray(whole).resize((ZOOM * whole.shape[1], ZOOM * whole.shape[0]), Image.Resampling.NEAREST)
    picture.save(file := io.BytesIO(), "WEBP", quality=55, method=6)
    return file.getvalue()


def main(path, seed=30):
    """Train, attack, and write secret.webp and returned.webp into the book."""
    labelled = images.load(path)
    data = images.split(labelled, M, 800, int(seed), held_out=M)
    victim = ordinary.train(data.secret, data.known, data.shape, "sgd_decay", seed=int(seed))
    attempt, alpha = known_start.attempt(victim.released, victim.start, data.shape, M, int(seed))
    found = known_start.exact(victim.released, victim.start, alpha, attempt)
    likeness = ncc(data.secret.images - victim.mean, found.images)  # (50, 50)
    best = found.images[likeness.argmax(1)] + victim.mean
    print(
        f"{int(found.sure.sum())} sure; least NCC {likeness.amax(1).min():.4f}, median {likeness.amax(1).median():.5f}"
    )
    write(BOOK / "secret.webp", sheet(data.secret.images, data.shape))
    write(BOOK / "returned.webp", sheet(best, data.shape))


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]) if len(sys.argv) in (2, 3) else __doc__)
