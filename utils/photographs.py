"""Views of eleven free photographs that come with installed packages; data/README.md names authors and licences."""

import json
from importlib.util import find_spec
from pathlib import Path

import numpy as np
from PIL import Image

SQUARES = Path(__file__).parent.parent / "data" / "photographs.json"  # data/README.md says how they were chosen


def views():
    """Squares of photographs, resized to (N, 32, 32, 3) bytes, and their classes (N,), shuffled."""
    found, labels = [], []
    for file, (label, squares) in json.loads(SQUARES.read_text(encoding="utf-8")).items():
        photograph = read(file)
        found += [view(photograph, *square) for square in squares]
        labels += [label] * len(squares)
    order = np.random.default_rng(0).permutation(len(found))
    return np.array(found)[order], np.array(labels)[order]


def read(file):
    """A photograph in colour from an installed package, without importing the package."""
    package, name = file.split("/", 1)
    return Image.open(Path(find_spec(package).origin).parent / name).convert("RGB")  # type: ignore[arg-type, union-attr]


def view(photograph, top, left, side):
    """A square of a photograph, resized to (32, 32, 3) bytes."""
    square = photograph.crop((left, top, left + side, top + side))  # else resizing would look beyond it
    return np.asarray(square.resize((32, 32), Image.Resampling.LANCZOS))
