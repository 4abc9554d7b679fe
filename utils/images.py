"""Load a data set by name, and split it into what is secret and what the attacker knows."""

import contextlib
import hashlib
import math
import os
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from numpy.lib import format as npy
from skimage import data as photographs
from skimage.transform import rescale
from skimage.util import view_as_windows

from utils.errors import InputError

DATA = Path(__file__).parent.parent / "data"
CIFAR10_NAMES = ["airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"]
ARRAYS = ("images", "labels", "label_names")
ANIMALS = range(2, 8)  # class 1 of the binary problem of Haim et al. (2022); the four vehicles are class 0


class Labelled(NamedTuple):
    """N images (N, H, W, C) as the file holds them, bytes or floats in [0, 1], and labels (N,) in {0, …, K−1}."""

    images: np.ndarray
    labels: np.ndarray


class Part(NamedTuple):
    """m images as rows (m, d) with labels (m,) in {0., …, K−1.}: first every image of class 0, then of class 1, …"""

    images: torch.Tensor
    labels: torch.Tensor


class Split(NamedTuple):
    """Two disjoint parts: `secret` trains the victim, `known` is the partition in the attacker's hands."""

    secret: Part
    known: Part
    shape: tuple  # (H, W, C) of one image
    sha256: str  # of both parts' images as float64, for the provenance of results


def load(dataset, binary=True):
    """Load `photos` (embedded), `cifar10` (downloaded once into `data/`) or the path of an `.npz` file.

    Two classes, or with `binary=False` all that there are: the four photographs, or CIFAR-10's ten.
    """
    if str(dataset).endswith(".npz"):
        return npz(dataset, binary)
    if dataset not in ("photos", "cifar10"):
        raise InputError(f"DATASET is {dataset!r}, but it must be 'photos', 'cifar10' or the path of an .npz file.")
    return photos(binary) if dataset == "photos" else cifar10(binary=binary)


def photos(binary=True):
    """Crops of four public-domain and CC0 photographs: people and rocketry (0) against cats and coffee (1).

    With `binary=False` every photograph is a class. A photograph at two thirds of its resolution is cut into a grid of
    32×32 pixels; crops whose values have a standard deviation of at most 0.06 are dropped. A fixed shuffle puts crops
    of all four into every part of the data.
    """
    tiles = []
    for name in ("astronaut", "rocket", "chelsea", "coffee"):
        small = rescale(getattr(photographs, name)(), 2 / 3, anti_aliasing=True, channel_axis=2)
        grid = view_as_windows(small, (32, 32, 3), 32).reshape(-1, 32, 32, 3)
        tiles.append(grid[grid.std(axis=(1, 2, 3)) > 0.06].clip(0, 1))
    labels = np.repeat([0, 0, 1, 1] if binary else range(4), list(map(len, tiles)))
    order = np.random.default_rng(0).permutation(len(labels))
    return Labelled(np.concatenate(tiles)[order], labels[order])


def cifar10(root=DATA, binary=True):
    """CIFAR-10's training images, vehicles (0) against animals (1) or all ten classes; downloaded if need be."""
    from torchvision.datasets import CIFAR10  # slow to import, and only needed here

    try:
        files = CIFAR10(root, train=True, download=True)
    except (OSError, RuntimeError) as error:
        raise InputError(
            "CIFAR-10 could not be downloaded: connect to the network and run again, or put cifar-10-python.tar.gz "
            f"into {root} yourself, or use DATASET='photos' or the path of an .npz file."
        ) from error
    return Labelled(files.data, class_numbers(np.array(files.targets), CIFAR10_NAMES, "CIFAR-10", binary))


def npz(path, binary=True):
    """Load `images` (N, H, W) or (N, H, W, C), uint8 or floats in [0, 1], and `labels` (N,) from an `.npz` file.

    The labels are whole numbers of two classes (the smaller becomes 0), or of ten together with `label_names`,
    CIFAR-10's names. With `binary=False` there may be any number of classes, numbered in the order of their values.
    """
    try:
        arrays = unpack(path)
    except MemoryError as error:
        raise InputError(f"{path} does not fit into memory: {error}. Save fewer images.") from error
    except FileNotFoundError as error:
        raise InputError(f"There is no file {Path(path).resolve()}: check the path in DATASET.") from error
    except Exception as error:
        raise InputError(f"{path} cannot be read as an .npz file of numbers: save it anew with numpy.savez.") from error
    for name in ARRAYS[:2]:
        if name not in arrays:
            raise InputError(f"{path} has no array {name!r}: save it with numpy.savez(path, images=…, labels=…).")
    images, labels, names = (arrays.get(name, np.empty(0)) for name in ARRAYS)
    check(images, labels, path)
    return Labelled(images.reshape(*images.shape[:3], -1), class_numbers(labels, names.tolist(), path, binary))


def unpack(path):
    """Read those of ARRAYS that an `.npz` file has, unless they need more memory than there is."""
    with np.load(path, allow_pickle=False) as archive:
        names = [name for name in ARRAYS if name in archive]
        sizes = [promised(archive.zip, f"{name}.npy") for name in names]
        needed = sum(map(max, sizes)) / 1e9
        if needed > memory():
            raise MemoryError(f"it unpacks to {needed:,.1f} GB, and there are {memory():,.1f} GB")
        if any(directory != header for directory, header in sizes):
            raise ValueError("a header does not fit its array")
        return {name: archive[name] for name in names}


def promised(archive, file):
    """How many bytes an array takes: as the directory of the archive says, and as its own header says."""
    with archive.open(file) as stream:
        read_header = getattr(npy, "read_array_header_{}_{}".format(*npy.read_magic(stream)))
        shape, _, dtype = read_header(stream)
        return archive.getinfo(file).file_size, stream.tell() + math.prod(shape) * dtype.itemsize


def memory():
    """The memory of this machine, or of the container that it lends us, in GB."""
    limits = [os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")]
    with contextlib.suppress(OSError, ValueError):  # no container, or one without a limit
        limits.append(int(Path("/sys/fs/cgroup/memory.max").read_text()))
    return min(limits) / 1e9


def check(images, labels, path):
    """Raise InputError unless these are N images of bytes or of floats in [0, 1], and N whole numbers."""
    if images.ndim not in (3, 4) or 0 in images.shape or min(images.shape[1:3]) < 7:
        raise InputError(f"{path}: images have the shape {images.shape}; N×H×W or N×H×W×C from 7×7 on is needed.")
    if images.dtype != np.uint8 and images.dtype.kind != "f":
        raise InputError(f"{path}: images are of type {images.dtype}; save them as uint8, or as floats in [0, 1].")
    low, high = images.min(), images.max()  # both are NaN if any pixel is
    if images.dtype.kind == "f" and not (low >= 0 and high <= 1):
        raise InputError(f"{path}: pixels reach from {low:.3g} to {high:.3g}; bring them into [0, 1], without NaN.")
    if labels.shape != (len(images),):
        raise InputError(f"{path}: labels have the shape {labels.shape}; {len(images)} images need ({len(images)},).")
    numbers = labels.dtype.kind in "biuf"
    wrong = [label for label in labels.tolist() if not numbers or label % 1 != 0]  # NaN % 1 and ∞ % 1 are NaN
    if wrong:
        raise InputError(f"{path}: the label {wrong[0]} is not a whole number; correct it, or remove its image.")


def class_numbers(labels, names, path, binary):
    """Number the classes by their values; for two classes, CIFAR-10's ten become vehicles (0) and animals (1)."""
    values, numbers = np.unique(labels, return_inverse=True)
    if not binary or len(values) == 2:
        return numbers
    if names == CIFAR10_NAMES and np.isin(values, range(10)).all():
        return np.isin(labels, ANIMALS).astype(int)
    raise InputError(f"{path}: two classes are needed, or CIFAR-10's ten with label_names; there are {len(values)}.")


def split(labelled, training, partition, seed=0, device="cpu"):
    """Draw two disjoint balanced parts of `training` and `partition` images from a labelled data set.

    Seed 0 takes the first images of each class in file order, as published; any other seed shuffles them first.
    """
    kinds = int(labelled.labels.max()) + 1
    for name, size in (("training", training), ("partition", partition)):
        if size < kinds or size % kinds:
            number = "an even number, half per class" if kinds == 2 else f"a multiple of the {kinds} classes"
            raise InputError(f"The {name} part is to hold {size} images (IMAGES): give {number}.")
    each, needed = training // kinds, (training + partition) // kinds
    rows = [np.flatnonzero(labelled.labels == label) for label in range(kinds)]
    smallest = min(map(len, rows))
    if smallest < needed:
        raise InputError(
            f"{training} training and {partition} partition images need {needed} of each class, but one class has only "
            f"{smallest}: choose at most {smallest // 2 * kinds} for each part, or a larger data set."
        )
    if seed != 0:
        rows = [np.random.default_rng([seed, label]).permutation(some) for label, some in enumerate(rows)]
    rows = np.concatenate([some[:each] for some in rows] + [some[each:needed] for some in rows])
    images = labelled.images[rows]  # (training + partition, H, W, C)
    images = images / 255.0 if images.dtype == np.uint8 else images.astype(np.float64)
    sha256 = hashlib.sha256(images.tobytes()).hexdigest()
    x, y = (torch.as_tensor(array, dtype=torch.float64, device=device) for array in (images, labelled.labels[rows]))
    secret, known = (Part(x.flatten(1)[chosen], y[chosen]) for chosen in (slice(training), slice(training, None)))
    return Split(secret, known, images.shape[1:], sha256)


def halves(labelled, most, seed=0, device="cpu"):
    """Split a data set into at most `most` images for the attacker and half as many secret ones, balanced."""
    kinds = int(labelled.labels.max()) + 1
    if most < 2 * kinds:
        raise InputError(
            f"IMAGES is {most}, but the {kinds} classes of the stationarity attack need at least {2 * kinds}."
        )
    secret, known = (size // kinds * kinds for size in (most // 2, most))
    return split(labelled, secret, known, seed, device)
