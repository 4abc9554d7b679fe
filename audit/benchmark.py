"""Networks to attack: the book's victims as files, and one count of what an attack of anyone's returned.

`python -m audit.benchmark VICTIM RETURNED.npz` matches pictures with the training and with held-out ones. The
attack must not see these: it is given what `load` returns.
"""

import argparse
import csv
import hashlib
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from audit import judge, pictures, weights
from evaluation import measures
from training import images
from utils.errors import InputError, choose, explained, printable
from utils.kernels.similarity import match
from utils.networks import Recipe, Released

FOLDER = images.DATA / "victims"
BARS = measures.BARS


class Challenge(NamedTuple):
    """All that an attack is given."""

    released: Released  # layers for pictures flattened as (H, W, C), labels (m,), recipe
    initial: tuple  # of Layers, from before the training; empty where nobody knows it
    shape: tuple  # (H, W, C)
    mean: list  # one number per colour, taken off pixels in [0, 1]


def index(folder=FOLDER):
    """{victim: how it was trained, on which images, where its files are}; InputError if a folder holds none."""
    what = f"{folder} has no index.json of victims"
    with explained(what, "train them by tools/train_victims.py"):
        return json.loads((Path(folder) / "index.json").read_text(encoding="utf-8"))


def entry_of(name, folder=FOLDER):
    """What the index says of a victim's name."""
    known = index(folder)
    return known[choose("The victim", name, known)]


def load(name: str, folder: str | Path = FOLDER) -> Challenge:
    """The Challenge of a victim's name."""
    entry = entry_of(name, folder)
    recipe = Recipe(**entry["recipe"])._replace(hidden=tuple(entry["recipe"]["hidden"]))
    shape = tuple(entry["shape"])
    network, initial = (
        weights.read(Path(folder) / file, shape, "HWC").layers if file else ()
        for file in (entry["file"], entry["before"])
    )
    labels = torch.tensor(entry["labels"], dtype=torch.float64)
    return Challenge(Released(network, labels, recipe), initial, shape, entry["mean"])


def sides(entry):
    """Training and held-out images (m, d) in [0, 1] of an entry of the index; InputError if they are others now."""
    pixels = images.load(entry["dataset"], entry["binary"]).images
    rows = [*entry["training"], *entry["held_out"]]
    if max(rows) >= len(pixels) or digest(pixels[rows]) != entry["sha256"]:
        raise InputError(
            f"{entry['dataset']} does not hold the images of this victim: take the locked versions."
        )
    both = torch.from_numpy(pixels[rows] / 255.0).flatten(1)
    return both.split([len(entry["training"]), len(entry["held_out"])])


def digest(pixels):
    """What tells these pixels (n, H, W, C), bytes, from others."""
    return hashlib.sha256(np.ascontiguousarray(pixels).tobytes()).hexdigest()


def evaluate(
    name: str,
    returned: np.ndarray | torch.Tensor,
    attack: str = "mine",
    folder: str | Path = FOLDER,
) -> dict[str, Any]:
    """The score of pictures returned (k, d) or (k, H, W, C), as the network saw them, in any size and either sign.

    A dict, a row of the table of entries: how many training images, and how many of as many held-out ones, are like
    one of these above each of BARS; the chance `auc` that a training image is more like them than a held-out one, and
    the p-value of an area this large if they could be exchanged. A network whose recipe is centred saw images without
    the mean of those that it was trained on.
    """
    entry = entry_of(name, folder)
    pixels = torch.as_tensor(np.asarray(returned, dtype=float))
    shape = tuple(entry["shape"])
    fits = pixels.dim() > 1 and len(pixels) and pixels[0].numel() == np.prod(shape)
    if not (fits and pixels.isfinite().all()):
        raise InputError(
            f"Pictures have the shape {(*pixels.shape,)}: give finite ones of {shape}."
        )
    returned = pixels.flatten(1)
    mean = torch.tensor(entry["mean"], dtype=torch.float64).expand(*shape).flatten()
    parts = [part - mean for part in sides(entry)]
    own, both = (part.mean(0) * entry["recipe"]["centred"] for part in (parts[0], torch.cat(parts)))
    found = {"victim": name, "attack": attack, "pictures": len(returned)}
    back = measures.back(returned, [part - own for part in parts], BARS)
    for bar, (ours, theirs) in back.items():
        above = bar.removeprefix("ncc_")
        found |= {above: ours, f"held_out_{above}": theirs}
    # the area favours no side's mean
    like = [match(part - both, returned, shape).either for part in parts]
    labels = tuple(torch.tensor(entry[of]).long() for of in ("labels", "held_out_labels"))
    score = judge.scored(like, labels)
    return found | {"auc": round(score.area.value, 3), "p": float(f"{score.p:.2g}")}


def entries(path=FOLDER / "entries.csv"):
    """The rows of the table of entries, as texts by column."""
    with Path(path).open(encoding="utf-8", newline="") as stream:
        return [*csv.DictReader(stream)]


def enter(score, path=FOLDER / "entries.csv"):
    """Write a score into the table of entries; one of the same victim and attack is replaced."""
    rows = [*(entries(path) if Path(path).exists() else []), score]
    with Path(path).open("w", encoding="utf-8", newline="") as stream:
        table = csv.DictWriter(stream, [*score], lineterminator="\n")
        table.writeheader()
        table.writerows({(row["victim"], row["attack"]): row for row in rows}.values())


def main(arguments: Sequence[str] | None = None) -> int:
    """Score a file, print the score, and enter it if asked."""
    parser = argparse.ArgumentParser("python -m audit.benchmark", description=__doc__)
    parser.add_argument("victim", help="a name in the index.json of FOLDER")
    parser.add_argument("returned", help="an .npz file of floats `images` (k, H, W, C)")
    parser.add_argument(
        "--attack", default="mine", metavar="NAME", help="of the attack, in the table (%(default)s)"
    )
    parser.add_argument("--folder", default=FOLDER, help="of victims by tools/train_victims.py")
    parser.add_argument("--enter", action="store_true", help="write it into FOLDER/entries.csv")
    line = parser.parse_args(arguments)
    try:
        if line.enter and (
            line.attack == "mine" or not line.attack.isprintable() or "|" in line.attack
        ):
            raise InputError(
                "An entry needs a name of its attack: --attack NAME, in one line and without a |."
            )
        score = evaluate(line.victim, pictures.arrays(line.returned)[0], line.attack, line.folder)
    except InputError as error:
        print(printable(str(error)), file=sys.stderr)
        return 2
    if line.enter:
        enter(score, path := Path(line.folder) / "entries.csv")
        print(f"entered into {path}")
    print("\n".join(f"{name}: {value}" for name, value in score.items()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
