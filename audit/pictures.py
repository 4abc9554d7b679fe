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
COPIES, BLOCK = (
    0.99,
    1000,
)  # above which one of a side is nearly a copy of another; and pictures that are compared at once
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
    """The files in a folder, sorted, and those that are pictures by their names; none hidden. Links are followed."""
    known = {suffix for suffix, kind in Image.registered_extensions().items() if kind in Image.OPEN}
    roots = [folder, *(path for path in folder.glob("*") if path.is_symlink() and path.is_dir())]
    paths = [path for root in roots for path in root.rglob("*") if not path.is_dir()]
    inside = sorted(path for path in paths if not any(part[0] == "." for part in path.relative_to(folder).parts))
    return inside, [path for path in inside if path.suffix.lower() in known]


def is_folder(source):
    """Whether pictures are named by a path that is not that of an `.npz` or `.npy` file."""
    return isinstance(source, str | Path) and not str(source).endswith((".npz", ".npy"))


def load(source, shape, what, skip=False, resize="crop", turn=True):
    """The Pictures of a folder, an `.npz` file, an array, or a pair of an array and labels; errors name them `what`.

    A folder holds pictures, or one folder of them for each class. Those of another size lose what is outside of their
    middle square (`resize`: crop), or not (squash), and are resized to `shape` (H, W, C); arrays have it. They are
    turned as their cameras say, unless `turn` is false. InputError names a picture that cannot be read, unless they are
    to be skipped.
    """
    if is_folder(source):
        return of_folder(Path(source).expanduser(), shape, what, skip, resize, turn)
    pixels, labels = batch(*arrays(source))
    rows = torch.as_tensor(pixels / 255.0 if pixels.dtype == np.uint8 else pixels.astype(np.float64)).flatten(1)
    names = [f"{what.split()[0]} {k}" for k in range(len(rows))]
    return Pictures(rows, None if labels is None else [*map(named, labels.tolist())], names, [])


def arrays(source):
    """Pixels, labels (n,) or None, and what to call them: of a file .npz or .npy, an array or tensor, or a pair."""
    if isinstance(source, str | Path):
        if not Path(source).is_file():
            raise InputError(f"There is no file {source}: check its path.")
        single = str(source).endswith(".npy")
        try:
            content = {"images": np.load(source, allow_pickle=False)} if single else images.unpack(source)
        except Exception as error:
            kind, call = ("npy", "save") if single else ("npz", "savez")
            raise InputError(f"{source} is not an .{kind} file of numbers: save it with numpy.{call}.") from error
        if "images" not in content:
            raise InputError(f"{source} has no array 'images': save it with numpy.savez(path, images=…, labels=…).")
        return content["images"], plain_labels(content.get("labels")), str(source)
    pixels, labels = source if isinstance(source, tuple | list) and len(source) == 2 else (source, None)
    return np.asarray(pixels), plain_labels(labels), "The array"


def plain_labels(labels):
    """Labels as (n,) numbers or names, as far as they can be: a column (n, 1), one-hot rows (n, K), bytes, booleans."""
    if labels is None:
        return None
    labels = np.asarray(labels)
    if labels.ndim == 2 and labels.shape[1] == 1:
        labels = labels[:, 0]
    elif labels.ndim == 2 and labels.dtype.kind in "biuf" and (np.sort(labels) == np.eye(labels.shape[1])[-1]).all():
        labels = labels.argmax(1)
    known = {"S": "U", "b": "i"}  # bytes are names, and booleans are numbers
    return labels.astype(known.get(labels.dtype.kind, labels.dtype))


def batch(pixels, labels, name):
    """Checked pixels (n, H, W, C), whatever their layout was, and labels (n,) or None."""
    if pixels.ndim == 3:
        pixels = pixels[..., None]
    elif pixels.ndim == 4 and pixels.shape[-1] not in (1, 3) and pixels.shape[1] in (1, 3):
        pixels = pixels.transpose(0, 2, 3, 1)
    nothing = labels is None or labels.dtype.kind == "U"  # to check
    images.check(pixels, np.zeros(len(pixels) if labels is None else labels.shape) if nothing else labels, name)
    if pixels.shape[-1] not in (1, 3):
        raise InputError(f"{name}: pictures have {pixels.shape[-1]} channels; give one or three.")
    return np.ascontiguousarray(pixels), labels


def of_folder(folder, shape, what, skip, resize, turn):
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
            rows[path.relative_to(folder).as_posix()] = pixels_of(path, shape, done, resize, turn)
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


def named(label):
    """The name of a class: whole numbers without zeros before them or a point, as in 07 and 7.0."""
    text = str(label)
    return int(text.removesuffix(".0")) if text.removesuffix(".0").isdecimal() else label


def pixels_of(path, shape, done, resize, turn):
    """A picture as (H, W, C) in [0, 1]; what was done to it is counted in `done`. InputError if it cannot be read."""
    height, width, channels = shape
    picture = plain(opened(path, done, turn), channels, done)
    if picture.size != (width, height):
        deed = "were squashed"
        if resize == "crop":
            if height != width:
                sizes = f"{picture.size[0]}×{picture.size[1]}, not {width}×{height}"
                raise InputError(f"{path} is of {sizes}: resize it, or have it squashed (--resize squash).")
            cut, deed = min(picture.size), "were cut to their middle square and resized"
            left, top = ((size - cut) // 2 for size in picture.size)  # of the middle square
            picture = picture.crop((left, top, left + cut, top + cut))
        picture = picture.resize((width, height), Image.Resampling.LANCZOS)
        done[f"{deed} to {height}×{width} by Lanczos' filter"] += 1
    return np.asarray(picture, dtype=np.float64).reshape(shape) / 255


def opened(path, done, turn=True):
    """A picture of a file, if asked turned as its camera says. InputError if it cannot be read."""
    try:
        with warnings.catch_warnings(action="ignore"), Image.open(path) as file:
            file.load()
            turned = turn and file.getexif().get(ORIENTATION, 1) in range(2, 9)
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


def kept(side, names):
    """The Pictures that have these names; KeyError if there is none of one."""
    places = {name: k for k, name in enumerate(side.names)}
    rows = [places[name] for name in names]
    return side._replace(images=side.images[rows], labels=side.labels and [side.labels[k] for k in rows], names=names)


def distinct(sides):
    """Both sides without near-copies of a side's earlier pictures, and notes; InputError if fewer than FEWEST are left.

    Frames of one scene are not independent: with them, chance alone tells two sides apart.
    """
    found, notes = [], []
    for side, what in zip(sides, ("training", "held-out")):
        places = range(0, len(side.images), BLOCK)
        alike = [ncc(side.images[k : k + BLOCK], side.images[: k + BLOCK]).tril(k - 1) > COPIES for k in places]
        copy = torch.cat([part.any(1) for part in alike]).tolist()
        found.append(kept(side, [name for name, out in zip(side.names, copy) if not out]))
        if any(copy):
            notes.append(f"{sum(copy)} {what} pictures are nearly copies of others and were left out of comparisons.")
        if len(found[-1].images) < FEWEST:
            count = f"There are {len(found[-1].images)} {what} pictures that are no near-copies of others"
            raise InputError(f"{count}: give {FEWEST} or more.")
    return found, notes


def order_of(sides, outputs, classes=()):
    """The names of classes in the order of a network's outputs: those given, or else sorted; none if they are unknown.

    Whole numbers below the number of `outputs` are these outputs. InputError for a class that has none.
    """
    (members, held_out), most = sides, max(outputs, 2)
    if members.labels is None or held_out.labels is None:
        return []
    ours, theirs = (sorted(set(part.labels)) for part in sides)
    names = [*map(named, classes or ours)]
    if not classes and all(isinstance(name, int) and name < most for name in names):
        names = [*range(most)]
    if len(names) > most:
        raise InputError(f"There are {len(names)} classes, and the network has {most}: name those of its outputs.")
    if others := [kind for kind in ours if named(kind) not in names]:
        raise InputError(f"No output is of the class {others[0]!r}: name all classes (--classes).")
    if others := [kind for kind in theirs if named(kind) not in names]:
        raise InputError(f"Held-out pictures are of the class {others[0]!r}, and no training picture is: give others.")
    return names


def numbered(sides, outputs, classes=()):
    """Both sides' labels as numbers of outputs (n,), as `order_of` has them; None where they are not known."""
    places = {name: k for k, name in enumerate(order_of(sides, outputs, classes))}
    if not places:
        return None, None
    return tuple(torch.tensor([places[named(label)] for label in part.labels]) for part in sides)
