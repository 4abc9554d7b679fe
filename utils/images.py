"""Load a data set by name, and split it into what is secret and what the attacker knows."""

import contextlib
import hashlib
import io
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from skimage import data as photographs
from skimage.transform import rescale

from utils.errors import InputError

DATA = Path(__file__).parent.parent / "data"
CIFAR10_NAMES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
VEHICLES = ("airplane", "automobile", "ship", "truck")  # class 0; the six animals are class 1


class Labelled(NamedTuple):
    """N images (N, H, W, C) in [0, 1] as float64, labels (N,) in {0, …, K−1}, in the order of the files."""

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
    sha256: str  # of both parts' images, for the provenance of results


def load(dataset, binary=True):
    """Load `photos` (embedded), `cifar10` (downloaded once into `data/`) or the path of an `.npz` file.

    Two classes, or with `binary=False` all that there are: the four photographs, or CIFAR-10's ten.
    """
    if dataset == "photos":
        return photos(binary)
    if dataset == "cifar10":
        return cifar10(binary=binary)
    if str(dataset).endswith(".npz"):
        return npz(dataset, binary)
    raise InputError(f"DATASET is {dataset!r}, but it must be 'photos', 'cifar10' or the path of an .npz file.")


def crops(photograph, size=32, scale=2 / 3, flat=0.06):
    """Cut a photograph at two thirds of its resolution into a grid of square crops, and drop the flat ones.

    A crop is flat if the standard deviation of its values, which lie in [0, 1], is at most `flat`.
    Returns (n, size, size, 3).
    """
    small = rescale(photograph, scale, anti_aliasing=True, channel_axis=2)
    rows, columns = small.shape[0] // size, small.shape[1] // size
    grid = small[: rows * size, : columns * size].reshape(rows, size, columns, size, 3)
    tiles = grid.swapaxes(1, 2).reshape(-1, size, size, 3)  # (rows·columns, size, size, 3)
    return tiles[tiles.std(axis=(1, 2, 3)) > flat].clip(0, 1)


def photos(binary=True):
    """Crops of four public-domain and CC0 photographs: people and rocketry (0) against cats and coffee (1).

    With `binary=False` every photograph is a class. The crops are shuffled once, with a fixed seed, so that every part
    of the data holds crops of all four.
    """
    tiles = [crops(getattr(photographs, name)()) for name in ("astronaut", "rocket", "chelsea", "coffee")]
    labels = np.repeat([0, 0, 1, 1] if binary else range(4), list(map(len, tiles)))
    order = np.random.default_rng(0).permutation(len(labels))
    return Labelled(np.concatenate(tiles)[order], labels[order])


def cifar10(root=DATA, binary=True):
    """CIFAR-10's training images, vehicles (0) against animals (1) or all ten classes; downloaded if need be."""
    from torchvision.datasets import CIFAR10  # slow to import, and only needed here

    try:
        with contextlib.redirect_stdout(io.StringIO()):
            files = CIFAR10(root, train=True, download=True)
    except (OSError, RuntimeError) as error:
        raise InputError(
            "CIFAR-10 could not be downloaded: connect to the network and run again, or put cifar-10-python.tar.gz "
            f"into {root} yourself, or use DATASET='photos' or the path of an .npz file."
        ) from error
    labels = np.array(files.targets)
    return Labelled(files.data / 255.0, vehicles_or_animals(labels, CIFAR10_NAMES) if binary else labels)


def npz(path, binary=True):
    """Load `images` (N, H, W) or (N, H, W, C), uint8 or floats in [0, 1], and `labels` (N,) from an `.npz` file.

    `labels` hold two classes (the smaller value becomes 0), or ten together with `label_names`, CIFAR-10's names. With
    `binary=False` they may hold any number of classes, numbered in the order of their values.
    """
    try:
        with np.load(path, allow_pickle=False) as archive:
            arrays = {name: archive[name] for name in ("images", "labels", "label_names") if name in archive}
    except FileNotFoundError as error:
        raise InputError(f"There is no file {Path(path).resolve()}: check the path in DATASET.") from error
    except Exception as error:
        raise InputError(f"{path} cannot be read as an .npz file: write it anew with numpy.savez.") from error
    for name in ("images", "labels"):
        if name not in arrays:
            raise InputError(f"{path} has no array {name!r}: save it with numpy.savez(path, images=…, labels=…).")
    images = pixels(arrays["images"], path)
    labels = arrays["labels"]
    if labels.shape != (len(images),):
        raise InputError(
            f"{path}: labels have the shape {labels.shape}, but {len(images)} images need ({len(images)},)."
        )
    if not binary:
        return Labelled(images, np.unique(labels, return_inverse=True)[1])
    return Labelled(images, two_classes(labels, arrays.get("label_names"), path))


def pixels(images, path):
    """Check an array of images and return it as float64 (N, H, W, C) in [0, 1]."""
    if images.ndim not in (3, 4) or 0 in images.shape:
        raise InputError(f"{path}: images have the shape {images.shape}; N×H×W or N×H×W×C is needed.")
    if min(images.shape[1:3]) < 7:
        raise InputError(
            f"{path}: images of {images.shape[1]}×{images.shape[2]} pixels; similarity needs at least 7×7."
        )
    if images.dtype == np.uint8:
        images = images / 255.0
    elif not np.issubdtype(images.dtype, np.floating):
        raise InputError(f"{path}: images are of type {images.dtype}; save them as uint8, or as floats in [0, 1].")
    if not np.isfinite(images).all():
        raise InputError(f"{path}: some pixels are NaN or infinite; remove those images.")
    if images.min() < 0 or images.max() > 1:
        raise InputError(f"{path}: pixels reach from {images.min():.3g} to {images.max():.3g}; scale them to [0, 1].")
    return images.astype(np.float64).reshape(*images.shape[:3], -1)


def two_classes(labels, names, path):
    """Map labels to {0, 1}: the smaller of two values becomes 0; CIFAR-10's ten become vehicles and animals."""
    values = np.unique(labels)
    if len(values) == 2:
        return (labels == values[1]).astype(int)
    if names is not None and tuple(names) == CIFAR10_NAMES and np.isin(values, np.arange(10)).all():
        return vehicles_or_animals(labels, names)
    raise InputError(
        f"{path}: labels hold {len(values)} class{'es' * (len(values) != 1)}; two are needed, or CIFAR-10's ten "
        "together with label_names."
    )


def vehicles_or_animals(labels, names):
    """Return 0 for a vehicle and 1 for an animal, the binary problem of {cite:t}`haim2022`."""
    animal = np.array([name not in VEHICLES for name in names])
    return animal[labels.astype(int)].astype(int)


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
    classes = [np.flatnonzero(labelled.labels == label) for label in range(kinds)]
    smallest = min(map(len, classes))
    if smallest < needed:
        raise InputError(
            f"{training} training and {partition} partition images need {needed} of each class, but one class has only "
            f"{smallest}: choose at most {smallest // 2 * kinds} for each part, or a larger data set."
        )
    if seed != 0:
        classes = [np.random.default_rng([seed, label]).permutation(rows) for label, rows in enumerate(classes)]
    rows = [np.concatenate([rows[:each] for rows in classes]), np.concatenate([rows[each:needed] for rows in classes])]
    secret, known = (part(labelled, chosen, device) for chosen in rows)
    return Split(secret, known, labelled.images.shape[1:], fingerprint(labelled.images[np.concatenate(rows)]))


def part(labelled, rows, device):
    """Gather some rows of a labelled data set as flattened tensors on a device."""
    images = torch.as_tensor(labelled.images[rows].reshape(len(rows), -1), device=device)  # (m, H, W, C) -> (m, d)
    return Part(images, torch.as_tensor(labelled.labels[rows], dtype=images.dtype, device=device))


def fingerprint(images):
    """Return the SHA-256 of an array's bytes, in hexadecimal."""
    return hashlib.sha256(np.ascontiguousarray(images).tobytes()).hexdigest()
