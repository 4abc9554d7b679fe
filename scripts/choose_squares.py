"""Choose the squares of the embedded photographs, the views of DATASET=photos, and write data/photographs.json.

    .venv/bin/python scripts/choose_squares.py [FILE]

The file holds {photograph: [class, [[top, left, side], …]]}. Run again only if the squares are to change, which changes
every result on `photos`.
"""

import json
import sys
from pathlib import Path

import numpy as np
import torch
from numpy.lib.stride_tricks import sliding_window_view

from utils import photographs
from utils.kernels.similarity import ncc

# Files of installed packages: the class, the sides of squares in pixels, and squares placed by hand (top, left, side).
# The classes: people (0), what they make (1), a cat, coffee and a flower (2), tissue and galaxies (3).
PHOTOGRAPHS: dict[str, tuple] = {
    "skimage/data/astronaut.png": (0, (64, 48), [(16, 144, 168), (0, 320, 192)]),
    "matplotlib/mpl-data/sample_data/grace_hopper.jpg": (0, (64, 48), [(136, 176, 144)]),
    "skimage/data/camera.png": (0, (64, 48), [(40, 120, 192)]),
    "skimage/data/rocket.jpg": (1, (64, 48), [(128, 232, 192)]),
    "sklearn/datasets/images/china.jpg": (1, (64, 48, 32), [(24, 104, 192)]),
    "skimage/data/coins.png": (1, (56,), []),
    "skimage/data/chelsea.png": (2, (64, 48, 32), [(72, 128, 72), (96, 288, 64), (208, 232, 64)]),
    "skimage/data/coffee.png": (2, (64, 48, 32), [(0, 176, 232), (232, 320, 80), (232, 192, 72)]),
    "sklearn/datasets/images/flower.jpg": (2, (64, 48, 32), [(152, 248, 128)]),
    "skimage/data/ihc.png": (3, (48,), [(304, 248, 128)]),
    "skimage/data/hubble_deep_field.jpg": (3, (40,), []),
}
CELL, DETAIL, MOST = 8, 0.04, 50  # see `squares`
CONTRAST, ALIKE = 0.08, 0.9  # see `distinct`


def squares(photograph, sides, placed=()):
    """Cut a photograph (H, W, 3) into at most 50 squares (top, left, side) that share no pixel.

    First those placed by hand, then of each side the most detailed ones, as long as their detail exceeds 0.04 of the
    pixel range: the standard deviation within cells of 8×8 pixels, averaged with weights that fall towards the border.
    """
    height, width = (size // CELL for size in photograph.shape[:2])
    cells = photograph[: height * CELL, : width * CELL].reshape(height, CELL, width, CELL, 3) / 255
    detail, free, found = cells.std((1, 3)).mean(-1), np.ones((height, width), bool), list(placed)
    for top, left, side in placed:
        free[top // CELL : -(-(top + side) // CELL), left // CELL : -(-(left + side) // CELL)] = False
    for n in (side // CELL for side in sides):
        weights = np.minimum(np.arange(n) + 1, n - np.arange(n)) / ((n + 1) // 2 * (n // 2 + 1))  # their sum is 1
        detailed = np.einsum("hwij,i,j", sliding_window_view(detail, (n, n)), weights, weights)
        while (score := detailed * sliding_window_view(free, (n, n)).all((2, 3))).max() > DETAIL:
            top, left = (int(place) for place in np.unravel_index(score.argmax(), score.shape))
            found.append((top * CELL, left * CELL, n * CELL))
            free[top : top + n, left : left + n] = False
    return found[:MOST]


def distinct(views):
    """Which views (N, 32, 32, 3) are neither flat nor repeated: (N,) booleans.

    Flat are those whose values deviate from the mean of their channel by at most 0.08 of the pixel range (standard
    deviation, averaged over the channels), repeated the later one of two whose |NCC| exceeds 0.9.
    """
    rows = torch.tensor(views).flatten(1, 2) / 255  # (N, 1024, 3)
    alike = ncc(rows.flatten(1), rows.flatten(1)).abs().triu(1).amax(0) > ALIKE
    return (rows.std(1).mean(1) > CONTRAST) & ~alike


def chosen():
    """The squares of every photograph: {file: [class, [[top, left, side], …]]}."""
    found: dict[str, tuple] = {}
    views = []
    for file, (label, sides, placed) in PHOTOGRAPHS.items():
        photograph = photographs.read(file)
        found[file] = label, [list(square) for square in squares(np.asarray(photograph), sides, placed)]
        views += [photographs.view(photograph, *square) for square in found[file][1]]
    kept = iter(distinct(np.array(views)).tolist())
    return {file: [label, [one for one in some if next(kept)]] for file, (label, some) in found.items()}


def main(path):
    """Write the file, a line for each photograph."""
    lines = (f"{json.dumps(file)}: {json.dumps(listed)}" for file, listed in chosen().items())
    Path(path).write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:] or [str(photographs.SQUARES)])
