"""Pictures of strangers: folders, `.npz` files and arrays, as rows (n, d) in [0, 1], with notes on what was done."""

import contextlib
import warnings
from collections import Counter
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from PIL import Image, ImageOps

from utils import images
from utils.errors import InputError
from utils.kernels.similarity import ncc

FEWEST = 10  # pictures of each side, with which a test can say anything
TWINS = 0.999  # normalised cross-correlation above which two pictures are one
ALPHA = "RGBA", "LA", "PA", "RGBa", "La"
DEEP = "I;16", "I;16B", "I;16L", "I"  # sixteen bits a pixel
ORIENTATION = 0x112  # where EXIF says how a camera was held
GREY = 3  # levels of 255 by which the channels of a grey picture may differ
COLOUR = "are in colour"  # what cannot be what a grey network was trained on


class Pictures(NamedTuple):
    """n pictures of one shape."""

    images: torch.Tensor  # (n, d) in [0, 1], flattened as (H, W, C)
    labels: list | None  # n numbers or names of classes, where they are known
    names: list  # n, of files or places
    notes: list  # sentences on what was done to them


def own_shapes(folders):
    """The shapes (H, W, C) of most of the first pictures of folders, as they are; grey ones can be taken as colour."""
    kinds = Counter()
    for path in (path for folder in folders for path in files(Path(folder).expanduser())[1][:FEWEST]):
        with contextlib.suppress(InputError):
            picture = plain(opened(path, Counter()), 3, Counter())
            kinds[picture.size[::-1], coloured(picture)] += 1
    return [(*size, k) for (size, colour), _ in kinds.most_common(1) for k in ([3] if colour else [1, 3])]


def files(folder):
    """The files in a folder, sorted, and those that are pictures by their names; none hidden."""
    known = Image.registered_extensions()
    paths = [path for path in folder.rglob("*") if not path.is_dir()]
    inside = sorted(path for path in paths if not any(part[0] == "." for part in path.relative_to(folder).parts))
    return inside, [path for path in inside if path.suffix.lower() in known]


def is_folder(source):
    """Whether pictures are named by a path that is not that of an `.npz` file."""
    return isinstance(source, str | Path) and not str(source).endswith(".npz")


def load(source, shape, what, skip=False):
    """The Pictures of a folder, an `.npz` file, an array, or a pair of an array and labels; errors name them `what`.

    A folder holds pictures, or one folder of them for each class. Those of another size lose what is outside of their
    middle square, and are resized to `shape` (H, W, C); arrays have it. InputError names a picture that cannot be read,
    unless they are to be skipped.
    """
    if is_folder(source):
        return of_folder(Path(source).expanduser(), shape, what, skip)
    pixels, labels = batch(*arrays(source))
    rows = torch.as_tensor(pixels / 255.0 if pixels.dtype == np.uint8 else pixels.astype(np.float64)).flatten(1)
    names = [f"{what.split()[0]} {k}" for k in range(len(rows))]
    return Pictures(rows, None if labels is None else labels.tolist(), names, [])


def arrays(source):
    """Pixels, and labels or None, of an `.npz` file, an array or tensor, or a pair of them."""
    if isinstance(source, str | Path):
        if not Path(source).is_file():
            raise InputError(f"There is no file {source}: check its path.")
        try:
            content = images.unpack(source)
        except Exception as error:
            raise InputError(f"{source} is not an .npz file of numbers: save it with numpy.savez.") from error
        if "images" not in content:
            raise InputError(f"{source} has no array 'images': save it with numpy.savez(path, images=…, labels=…).")
        return content["images"], content.get("labels"), str(source)
    pixels, labels = source if isinstance(source, tuple | list) and len(source) == 2 else (source, None)
    return *(None if part is None else np.asarray(part) for part in (pixels, labels)), "The array"


def batch(pixels, labels, name):
    """Checked pixels (n, H, W, C), whatever their layout was, and labels (n,) or None."""
    if pixels.ndim == 3:
        pixels = pixels[..., None]
    elif pixels.ndim == 4 and pixels.shape[-1] not in (1, 3) and pixels.shape[1] in (1, 3):
        pixels = pixels.transpose(0, 2, 3, 1)
    images.check(pixels, np.zeros(len(pixels)) if labels is None else labels, name)
    if pixels.shape[-1] not in (1, 3):
        raise InputError(f"{name}: pictures have {pixels.shape[-1]} channels; give one or three.")
    return np.ascontiguousarray(pixels), labels


def of_folder(folder, shape, what, skip):
    """The Pictures of a folder, sorted by name; folders in it that hold pictures are classes."""
    if not folder.is_dir():
        raise InputError(f"There is no folder {folder}: give the {what} as a folder, an .npz file or an array.")
    inside, paths = files(folder)
    classes = sum(path.parent != folder for path in paths)
    if 0 < classes < len(paths):
        raise InputError(f"{folder} holds pictures beside folders of pictures: give either, the folders as classes.")
    done, rows = Counter(), {}  # {name: pixels}
    for path in paths:
        try:
            rows[path.relative_to(folder).as_posix()] = pixels_of(path, shape, done)
        except InputError:
            if not skip:
                raise
            done["could not be read and were left out"] += 1
    if done[COLOUR]:
        grey = f"the network takes grey ones of {shape[0]}×{shape[1]}: give the pictures as it saw them"
        raise InputError(f"{done[COLOUR]} of the {what} {COLOUR}, and {grey}.")
    if not rows:
        raise InputError(f"{folder} holds no picture that can be read: give the {what} as PNG or JPEG files.")
    done["files are no pictures and were left out"] += len(inside) - len(paths)
    notes = [f"Of the {what}, {count} {deed}." for deed, count in done.items() if count]
    stacked = torch.from_numpy(np.stack([*rows.values()])).flatten(1)
    return Pictures(stacked, [name.split("/")[0] for name in rows] if classes else None, [*rows], notes)


def pixels_of(path, shape, done):
    """A picture as (H, W, C) in [0, 1]; what was done to it is counted in `done`. InputError if it cannot be read."""
    height, width, channels = shape
    picture = plain(opened(path, done), channels, done)
    if picture.size != (width, height):
        if height != width:
            raise InputError(f"{path} is of {picture.size[0]}×{picture.size[1]}, not {width}×{height}: resize it.")
        cut = min(picture.size)
        left, top = ((size - cut) // 2 for size in picture.size)  # of the middle square
        picture = picture.crop((left, top, left + cut, top + cut)).resize((width, height), Image.Resampling.LANCZOS)
        done[f"were cut to their middle square and resized to {height}×{width} by Lanczos' filter"] += 1
    return np.asarray(picture, dtype=np.float64).reshape(shape) / 255


def opened(path, done):
    """A picture of a file, turned as its camera says. InputError if it cannot be read."""
    try:
        with warnings.catch_warnings(action="ignore"), Image.open(path) as file:
            file.load()
            turned = file.getexif().get(ORIENTATION, 1) in range(2, 9)
            picture = ImageOps.exif_transpose(file) if turned else file
    except (Image.DecompressionBombError, MemoryError) as error:
        raise InputError(f"{path} is too large to be a training picture: give it as the network saw it.") from error
    except Exception as error:  # every format has errors of its own
        raise InputError(f"{path} cannot be read as a picture: mend it, or skip such ones (--skip-corrupt).") from error
    if picture.mode == "F":
        raise InputError(f"{path} holds real numbers, and no scale says what is white: save it with 8 or 16 bits.")
    done["were turned as their cameras say (EXIF), as their trainer may not have done"] += turned
    return picture


def plain(picture, channels, done):
    """A picture of eight bits in one channel or three: transparent ones on white paper, deep ones divided by 257."""
    if picture.mode in DEEP:
        deep = np.asarray(picture).astype(np.float64) / 257
        picture = Image.fromarray(deep.clip(0, 255).round().astype(np.uint8))
        done["have 16 bits a pixel and were brought to 8"] += 1
    if picture.mode in ALPHA or "transparency" in picture.info:
        picture = picture.convert("RGBA")
        picture = Image.alpha_composite(Image.new("RGBA", picture.size, "white"), picture).convert("RGB")
        done["are transparent and were laid on white"] += 1
    if channels == 1:
        done[COLOUR] += coloured(picture)
    elif picture.mode in ("L", "1"):
        done["are grey and were taken as colour"] += 1
    return picture.convert("L" if channels == 1 else "RGB")


def coloured(picture):
    """Whether a picture is in colour, and not grey in three channels."""
    if picture.mode in ("L", "1"):
        return False
    pixels = np.asarray(picture.convert("RGB")).astype(int)
    return bool((pixels.max(2) - pixels.min(2)).max() > GREY)


def notes_on(members, held_out):
    """Sentences on what the two sides share; InputError if there are too few, or one picture is on both."""
    for part, what in ((members, "training pictures"), (held_out, "held-out pictures")):
        if len(part.images) < FEWEST:
            raise InputError(f"There are {len(part.images)} {what}: give {FEWEST} or more.")
    first, copies = {}, []  # {pixels: name}
    for row, name in zip(members.images, members.names):
        if (other := first.setdefault(row.numpy().tobytes(), name)) != name:
            copies.append(f"{name} of {other}")
    for row, name in zip(held_out.images, held_out.names):
        if other := first.get(row.numpy().tobytes()):
            raise InputError(f"The training picture {other} and the held-out picture {name} are equal: remove one.")
    notes = [*members.notes, *held_out.notes]
    if (members.labels is None) != (held_out.labels is None):
        notes.append("Classes are known on one side alone, so they were not used: give both sides in the same form.")
    if copies:
        notes.append(f"{len(copies)} training pictures are copies of others, such as {copies[0]}.")
    near = (ncc(held_out.images, members.images) > TWINS).nonzero().tolist()
    if near:
        pair = f"{members.names[near[0][1]]} and the held-out {held_out.names[near[0][0]]}"
        notes.append(f"{len(near)} pairs of training and held-out pictures are nearly equal, such as {pair}.")
    return notes


def numbered(sides, outputs):
    """Both sides' labels as numbers 0, 1, … (n,) in the order of the training classes; None where they are not known.

    Whole numbers below the number of `outputs` stay as they are. InputError for held-out pictures of another class.
    """
    (members, held_out), most = sides, max(outputs, 2)
    if members.labels is None or held_out.labels is None:
        return None, None
    kinds = sorted(set(members.labels))
    if all(not isinstance(kind, str) and 0 <= kind < most for kind in kinds):
        kinds = [*range(most)]
    if len(kinds) > most:
        raise InputError(f"The training pictures have {len(kinds)} classes, and the network {most}.")
    if others := sorted(set(held_out.labels) - set(kinds)):
        raise InputError(f"Held-out pictures are of the class {others[0]!r}, and no training picture is: give others.")
    places = {kind: k for k, kind in enumerate(kinds)}
    return tuple(torch.tensor([places[label] for label in part.labels]) for part in (members, held_out))
