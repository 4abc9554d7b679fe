"""Load a data set by name, and split it into what is secret and what the attacker knows."""

import hashlib
import json
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from PIL import Image

from utils.errors import InputError
from utils.kernels.layers import Shape

DATA = Path(__file__).parent.parent / "data"
# As in lab/parameters.py, which loads no torch.
DATASETS = (
    *("photos", "photos-64", "photos-128", "photos-224"),
    *("cifar10", "cifar10-subset", "cifar10-fresh"),
)
CIFAR10_NAMES = [
    "airplane",
    "automobile",
    "bird",
    "cat",
    "deer",
    "dog",
    "frog",
    "horse",
    "ship",
    "truck",
]
ARRAYS = "images", "labels", "label_names", "held_out_images", "held_out_labels"
LARGEST, PACKED = (
    2**30,
    50,
)  # bytes that any file may unpack to, and times its size that a larger one may
PARTS = "training", "partition", "held-out"
# Where 1017 images begin in CIFAR-10; recorded results are made of them. No constant of this book was chosen on the
# first ones of the fresh data set, and nothing is trained on its held-out images, the first of the test batch.
SUBSETS = {"cifar10-subset": (0, 10_000, 20_000), "cifar10-fresh": (30_000, 0, 10_000, 20_000)}
LENGTH = 1017
# Photographs of which there are no views, but squares at their own resolution; and those of scientific instruments.
OTHERS = [f"skimage/data/{name}" for name in ("brick.png", "grass.png", "gravel.png", "retina.jpg")]
INSTRUMENTS = "ihc", "hubble", "retina"
PLAIN = 0.05  # standard deviation of a square's pixels that is too small to be taken, in the mean over colours
# Class 1 of the binary problem of Haim et al. (2022); the four vehicles are class 0.
ANIMALS = range(2, 8)


class Labelled(NamedTuple):
    """N images with labels, as a file holds them."""

    images: np.ndarray  # (N, H, W, C), bytes or floats in [0, 1]
    labels: np.ndarray  # (N,) in {0, …, K−1}
    unused: "Labelled | None" = None  # others for the held-out part, if there are such


class Part(NamedTuple):
    """m images with labels: first every image of class 0, then of class 1, …"""

    images: torch.Tensor  # (m, d), an image is a row
    labels: torch.Tensor  # (m,) in {0., …, K−1.}


class Split(NamedTuple):
    """Disjoint Parts of a data set."""

    secret: Part  # trains the victim
    known: Part  # is in the attacker's hands
    held_out: Part  # is used by nobody
    shape: Shape  # of one image
    sha256: str  # of all Parts' images as float64, for the provenance of results


def load(dataset: str | Path, binary: bool = True) -> Labelled:
    """Load `photos` (embedded), `cifar10` or a part of it (downloaded once into `data/`), or an `.npz` by its path.

    `photos-224` are larger squares of the photographs: see `squares`. Two classes, or with `binary=False` CIFAR-10's
    ten, or four kinds of photographs, the first two of them class 0.
    """
    if str(dataset).endswith(".npz"):
        return npz(dataset, binary)
    if dataset not in DATASETS:
        raise InputError(
            f"There is no data set {dataset!r}: take {str(DATASETS)[1:-1]} or the path of an .npz file."
        )
    if dataset == "photos":
        small, kinds = views()
        return Labelled(small, kinds // 2 if binary else kinds)
    if dataset.startswith("photos"):
        return squares(int(dataset.split("-")[1]))
    labelled = cifar10(binary=binary)
    if dataset in SUBSETS:
        rows = np.add.outer(SUBSETS[dataset], range(LENGTH)).ravel()
        labelled = Labelled(labelled.images[rows], labelled.labels[rows])
    if dataset == "cifar10-fresh":
        pictures, labels, _ = cifar10(binary=binary, train=False)
        labelled = labelled._replace(unused=Labelled(pictures[:LENGTH], labels[:LENGTH]))
    return labelled


def listed():
    """The places of the squares in photographs, {file: (class, [(top, left, side), …])}."""
    return json.loads((DATA / "photographs.json").read_text(encoding="utf-8"))


def open_photograph(file):
    """A photograph in colour, by its path in a package, which need not be imported."""
    package, name = file.split("/", 1)
    return Image.open(Path(find_spec(package).origin).parent / name).convert("RGB")  # type: ignore


def squares(side: int) -> Labelled:
    """All squares of `side` pixels that tile the photographs at their own resolution, but for plain ones, shuffled.

    Class 1 was taken by scientific instruments, class 0 by cameras.
    """
    pictures = []
    labels = []
    for file in (*listed(), *OTHERS):
        pixels = np.asarray(open_photograph(file))
        high, wide = (size // side for size in pixels.shape[:2])
        tiles = pixels[: high * side, : wide * side].reshape(high, side, wide, side, 3)
        tiles = tiles.swapaxes(1, 2).reshape(-1, side, side, 3)
        kept = tiles[tiles.std((1, 2)).mean(1) > 255 * PLAIN]
        pictures.append(kept)
        labels += [int(any(name in file for name in INSTRUMENTS))] * len(kept)
    order = np.random.default_rng(0).permutation(len(labels))
    return Labelled(np.concatenate(pictures)[order], np.array(labels)[order])


def views() -> tuple[np.ndarray, np.ndarray]:
    """Squares (N, 32, 32, 3) of free photographs in packages, see data/README.md, and classes (N,), shuffled."""
    pictures = []
    labels = []
    for file, (label, places) in listed().items():
        photograph = open_photograph(file)
        for top, left, side in places:
            # cropped first: else resizing would look beyond the square
            square = photograph.crop((left, top, left + side, top + side))
            pictures.append(np.asarray(square.resize((32, 32), Image.Resampling.LANCZOS)))
        labels += [label] * len(places)
    order = np.random.default_rng(0).permutation(len(pictures))
    return np.array(pictures)[order], np.array(labels)[order]


def cifar10(root=DATA, binary=True, train=True):
    """CIFAR-10's training or test images, vehicles (0) against animals (1) or all classes; downloaded if need be."""
    from torchvision.datasets import CIFAR10  # slow to import, and only needed here

    try:
        files = CIFAR10(root, train=train, download=True)
    except (OSError, RuntimeError) as error:
        ways = (
            f"put cifar-10-python.tar.gz into {root}, or take 'photos' or the path of an .npz file"
        )
        raise InputError(
            f"CIFAR-10 cannot be downloaded: connect to the network and try again, or {ways}."
        ) from error
    return Labelled(
        files.data, class_numbers(np.array(files.targets), CIFAR10_NAMES, "CIFAR-10", binary)
    )


def npz(path, binary=True):
    """Load `images` (N, H, W) or (N, H, W, C), uint8 or floats in [0, 1], and `labels` (N,) from an `.npz` file.

    Labels are whole numbers of two classes, or of CIFAR-10's ten with its `label_names`; with `binary=False` of any
    classes, numbered by their values. Held-out images are `held_out_images`, `held_out_labels`, if there are such.
    """
    try:
        arrays = unpack(path)
    except FileNotFoundError as error:
        raise InputError(f"There is no file {Path(path).resolve()}: check its path.") from error
    except Exception as error:
        raise InputError(
            f"{path} cannot be read as an .npz file of numbers: save it anew with numpy.savez."
        ) from error
    if not arrays.keys() >= {"images", "labels"}:
        raise InputError(
            f"{path} has not both arrays: save it with numpy.savez(path, images=…, labels=…)."
        )
    names = arrays.get("label_names", np.empty(0)).tolist()

    def labelled(images, labels):
        check(images, labels, path)
        channels = images.reshape(*images.shape[:3], -1)
        return Labelled(channels, class_numbers(labels, names, path, binary))

    own = labelled(arrays["images"], arrays["labels"])
    if "held_out_images" not in arrays:
        return own
    unused = labelled(arrays["held_out_images"], arrays.get("held_out_labels", np.empty(0)))
    if unused.images.shape[1:] != own.images.shape[1:] or unused.images.dtype != own.images.dtype:
        raise InputError(
            f"{path}: the held-out images are of another shape or type: save them as the others are."
        )
    return own._replace(unused=unused)


def thumbnails(labelled: Labelled, side: int) -> Labelled:
    """Images in grey, averaged down to `side` pixels, a number from 7 to that of the images: Labelled."""
    pixels = torch.from_numpy(np.asarray(labelled.images, dtype=float))
    most = min(pixels.shape[1:3])
    if not 7 <= side <= most:
        raise InputError(f"SIDE is {side}; these images have from 7 to {most} pixels.")
    scale = 255 if labelled.images.dtype == np.uint8 else 1
    small = torch.nn.functional.adaptive_avg_pool2d(pixels.mean(3), side) / scale
    unused = labelled.unused and thumbnails(labelled.unused, side)
    return Labelled(small[..., None].numpy(), labelled.labels, unused)


def unpack(path: str | Path, names: Sequence[str] | None = ARRAYS) -> dict[str, np.ndarray]:
    """Read those of some arrays that an `.npz` file has, or all; InputError before one that is zeros for the most."""
    with np.load(path, allow_pickle=False) as archive:
        names = [name for name in names or archive if name in archive]
        size = sum(archive.zip.getinfo(f"{name}.npy").file_size for name in names)
        if size > max(LARGEST, PACKED * Path(path).stat().st_size):
            many = f"{size:,} bytes, more than {PACKED} times its own"
            raise InputError(f"{path} unpacks to {many}: save it by numpy.savez.")
        return {name: archive[name] for name in names}


def check(images, labels, path):
    """Raise InputError unless these are N images of bytes or of floats in [0, 1], and N whole numbers."""
    if images.ndim not in (3, 4) or 0 in images.shape or min(images.shape[1:3]) < 7:
        raise InputError(
            f"{path}: images have the shape {images.shape}; N×H×W or N×H×W×C from 7×7 on is needed."
        )
    if images.dtype != np.uint8 and images.dtype.kind != "f":
        raise InputError(
            f"{path}: images are of type {images.dtype}; save them as uint8, or as floats in [0, 1]."
        )
    low, high = images.min(), images.max()  # both are NaN if any pixel is
    if images.dtype.kind == "f" and not (low >= 0 and high <= 1):
        raise InputError(
            f"{path}: pixels reach from {low:.3g} to {high:.3g}; bring them into [0, 1], without NaN."
        )
    if labels.shape != (len(images),):
        raise InputError(
            f"{path}: labels have the shape {labels.shape}; {len(images)} images need ({len(images)},)."
        )
    numbers = labels.dtype.kind in "biuf"
    wrong = [k for k in labels.tolist() if not numbers or k % 1 != 0]  # NaN % 1 and ∞ % 1 are NaN
    if wrong:
        raise InputError(
            f"{path}: the label {wrong[0]} is not a whole number; correct it, or remove its image."
        )


def class_numbers(labels, names, path, binary):
    """Number the classes by their values; for two classes, CIFAR-10's ten become vehicles (0) and animals (1)."""
    values, numbers = np.unique(labels, return_inverse=True)
    if len(values) == 2 or not binary and len(values) > 2:
        return numbers
    if names == CIFAR10_NAMES and np.isin(values, range(10)).all():
        return np.isin(labels, ANIMALS).astype(int)
    raise InputError(
        f"{path}: two classes are needed, or CIFAR-10's ten with label_names; there are {len(values)}."
    )


def public_count(labelled: Labelled, training: int) -> int:
    """How many images of two classes, alike in number, are left for others beside training and held-out images."""
    return min(800, (len(labelled.labels) - 2 * training) // 2 * 2)


def split(
    labelled: Labelled,
    training: int,
    partition: int,
    seed: int = 0,
    device: str | torch.device = "cpu",
    *,
    held_out: int = 0,
) -> Split:
    """Draw disjoint balanced parts of `training`, `partition` and `held_out` images from a labelled data set.

    Seed 0 takes the first images of each class in file order, as published, and every further seed those that come
    next, so that victims share none while a class lasts; then it is shuffled. The held-out images follow the others,
    or come in the same way from those that the data set says are unused.
    """
    sizes = [training, partition, held_out]
    kinds = check_sizes(labelled, sizes)
    unused = labelled.unused or labelled
    apart = labelled.unused is not None
    beside = [training, partition, 0 if apart else held_out]
    rows = walk(labelled.labels, kinds, beside, seed * training)
    others = walk(unused.labels, kinds, [0, 0, held_out * apart], seed * held_out)
    # all three parts, (n, H, W, C)
    images = np.concatenate([labelled.images[rows], unused.images[others]])
    labels = np.concatenate([labelled.labels[rows], unused.labels[others]])
    check_different(images, [*rows, *(others + len(labelled.labels))], np.repeat(PARTS, sizes))
    images = images / 255.0 if images.dtype == np.uint8 else images.astype(np.float64)
    sha256 = hashlib.sha256(images.tobytes()).hexdigest()
    x = torch.as_tensor(images, device=device).flatten(1).split(sizes)
    y = torch.as_tensor(labels, dtype=torch.float64, device=device).split(sizes)
    secret, known, aside = map(Part, x, y)
    return Split(secret, known, aside, images.shape[1:], sha256)


def check_sizes(labelled, sizes):
    """The number of classes; InputError unless each of three parts can hold as many images of one as of another."""
    kinds = int(labelled.labels.max()) + 1
    for name, size, least in zip(PARTS, sizes, (kinds, kinds, 0)):
        if size < least or size % kinds:
            raise InputError(
                f"The {name} part is to hold {size} images (IMAGES, or CANDIDATES of the partition):"
                f" give a multiple of the {kinds} classes."
            )
    return kinds


def walk(labels, kinds, sizes, first):
    """The rows of three parts of these sizes, classes in order in each, from image number `first` on."""
    ends = find_ends(sizes, np.bincount(labels, minlength=kinds))
    ordered = []
    for kind in range(kinds):
        some = np.flatnonzero(labels == kind)
        turn, at = divmod(first // kinds, len(some))
        if turn:
            some = np.random.default_rng(turn).permutation(some)
        ordered.append(np.roll(some, -at))
    return np.concatenate(
        [some[start:end] for start, end in zip(ends, ends[1:]) for some in ordered]
    )


def centre(part: Part, shift: float = 0.0) -> Part:
    """The Part of images without their mean, plus a constant `shift` in every pixel."""
    return part._replace(images=part.images - part.images.mean(0) + shift)


def find_ends(sizes, counts):
    """Where the parts begin and end among a class's images, whose counts are given; InputError if one has too few."""
    ends = np.cumsum([0, *sizes]) // len(counts)
    both = f"{sizes[0]} training and {sizes[1]} partition images"
    smallest = min(counts)
    if smallest < max(1, ends[2]):
        raise InputError(
            f"{both} need {ends[2]} of each class, but one class has only {smallest}: choose fewer IMAGES, or a larger"
            " data set."
        )
    if smallest < ends[3]:
        raise InputError(
            f"Beside {both} there are at most {(smallest - ends[2]) * len(counts)} held-out ones, not {sizes[2]}:"
            " choose fewer, or a larger data set."
        )
    return ends


def check_different(images, rows, parts):
    """Raise InputError if an image is also in another part, where it would be secret and known, or used and unused."""
    seen = {}
    for image, row, part in zip(images, rows, parts):
        other, where = seen.setdefault(hashlib.sha256(image.tobytes()).digest(), (row, part))
        if where != part:
            raise InputError(
                f"Images {other} and {row} of the data set (from 0) are equal, but one is for the {where} part and one"
                f" for the {part} part: remove one."
            )


def halves(
    labelled: Labelled, most: int, seed: int = 0, device: str | torch.device = "cpu"
) -> Split:
    """At most `most` images for the attacker, half as many secret ones, and as many held out as secret, balanced."""
    kinds = int(labelled.labels.max()) + 1
    if most < 2 * kinds:
        classes = f"the {kinds} classes of the stationarity attack"
        raise InputError(f"IMAGES is {most}, but {classes} need at least {2 * kinds}.")
    secret, known = (size // kinds * kinds for size in (most // 2, most))
    return split(labelled, secret, known, seed, device, held_out=secret)
