"""Pictures of strangers: folders, `.npz` files and arrays, as rows (n, d) in [0, 1], with notes on what was done."""

import contextlib
import re
import warnings
from collections import Counter
from pathlib import Path
from typing import NamedTuple, TypeAlias, TypeGuard

import numpy as np
import torch
from PIL import Image, ImageOps

from audit import copies
from audit.showing import Showing
from training import images
from utils.errors import InputError, explained

# of pictures; a pair has labels
Source: TypeAlias = str | Path | np.ndarray | torch.Tensor | tuple | list
NAMED = 10  # pictures in a note
FEWEST = 10  # pictures of each side, with which a test can say anything
Image.init()
# of pixels alone, as far as this Pillow has them: others, such as PostScript, it hands to a program
PIXELS = ["AVIF", "BMP", "DIB", "GIF", "JPEG", "JPEG2000", "PNG", "PPM", "TGA", "TIFF", "WEBP"]
FORMATS = [name for name in PIXELS if name in Image.OPEN]
FILTER = Image.Resampling.LANCZOS
ORIENTATION = 0x112  # where EXIF says how a camera was held
SINGULAR = {
    "are": "is",
    "were": "was",
    "have 16": "has 16",
    "their": "its",
    "cameras say": "camera says",
    "files": "file",
    "pictures": "picture",
    "copies": "a copy",
    "such as": "namely",
}
GREY = 3  # levels of 255 by which the channels of a grey picture may differ


class Pictures(NamedTuple):
    """n pictures of one shape."""

    images: torch.Tensor  # (n, d) in [0, 1], in single precision, flattened as (H, W, C)
    labels: list | None  # n numbers or names of classes, where they are known
    names: list  # n, of files or places
    notes: list  # sentences on what was done to them
    count: int = 0  # how many there were, near-copies among them
    kinds: list = []  # the labels of all these
    folder: Path | None = None  # from which their names lead to their files, if there are any


def both(sources, showing):
    """Both sides' Pictures without copies, as a Showing reads them, and notes on what was done to them."""
    whats = "training pictures", "held-out pictures"
    return distinct([load(*one, showing) for one in zip(sources, whats)], showing.shape)


def own_shapes(folders):
    """The shapes (H, W, C) of most of the first pictures of folders, as they are; grey ones can be taken as colour."""
    kinds = Counter()
    paths = (path for one in folders for path in files(Path(one).expanduser())[1][:FEWEST])
    for path in paths:
        with contextlib.suppress(InputError):
            picture = opened(path, Showing(), Counter())
            kinds[picture.size[::-1], coloured(picture)] += 1
    if not kinds:
        raise InputError(
            f"There is no picture that can be read in {folders[0]}: give PNG or JPEG files."
        )
    size, colour = kinds.most_common(1)[0][0]
    return [(*size, k) for k in ([3] if colour else [1, 3])]


def files(folder):
    """What a folder holds, sorted, and the files in it that are pictures by their names; none hidden.

    Links are followed. A pipe, a device or a socket is no file: to read it may never end.
    """
    if not folder.is_dir():
        raise InputError(
            f"{folder} is no folder: give pictures as a folder, an .npz file or an array."
        )
    known = {suffix for suffix, kind in Image.registered_extensions().items() if kind in FORMATS}
    roots = [folder, *filter(Path.is_symlink, folder.glob("*"))]
    paths = [path for root in roots for path in root.rglob("*") if not path.is_dir()]
    inside = sorted(
        path for path in paths if not any(part[0] == "." for part in path.relative_to(folder).parts)
    )
    return inside, [path for path in inside if path.suffix.lower() in known and path.is_file()]


def is_folder(source: Source) -> TypeGuard[str | Path]:
    """Whether pictures are named by a path that is not that of an `.npz` or `.npy` file."""
    return isinstance(source, str | Path) and not str(source).endswith((".npz", ".npy"))


def load(source: Source, what: str, showing: Showing) -> Pictures:
    """The Pictures of a folder, an `.npz` file, an array, or a pair of an array and labels; errors name them `what`.

    A folder holds pictures, or one folder of them for each class, which are read as a Showing says; arrays have its
    shape. InputError names a picture that cannot be read, unless they are to be skipped.
    """
    if is_folder(source):
        return of_folder(Path(source).expanduser(), what, showing)
    pixels, labels = batch(source)
    white = 255 if pixels.dtype == np.uint8 else 1
    pixels = pixels.astype(np.float32) / white
    names = [f"{what.split()[0]} {k}" for k in range(len(pixels))]
    kinds = None if labels is None else [*map(named, labels.tolist())]
    return Pictures(torch.from_numpy(pixels).flatten(1), kinds, names, [])


def arrays(source):
    """Pixels and labels, or None, of a file .npz or .npy, of an array or tensor, or of a pair of them."""
    if not isinstance(source, str | Path):
        is_pair = isinstance(source, tuple | list) and len(source) == 2
        pixels, labels = source if is_pair else (source, None)
        return np.asarray(pixels), labels
    if not Path(source).is_file():
        raise InputError(f"There is no file {source}: check its path.")
    what = f"{source} is not an .npz file of numbers with `images`, nor an .npy file"
    with explained(what, "save it with numpy.savez(path, images=…, labels=…)"):
        if str(source).endswith(".npy"):
            return np.load(source, allow_pickle=False), None
        content = images.unpack(source)
        return content["images"], content.get("labels")


def batch(source):
    """Checked pixels (n, H, W, C) and labels (n,), or None, of what `arrays` reads, whatever their layout was."""
    pixels, labels = arrays(source)
    name = source if isinstance(source, str | Path) else "The array"
    labels = labels if labels is None else plain_labels(np.asarray(labels))
    if pixels.ndim == 3:
        pixels = pixels[..., None]
    elif pixels.ndim == 4 and pixels.shape[-1] not in (1, 3) and pixels.shape[1] in (1, 3):
        pixels = pixels.transpose(0, 2, 3, 1)
    nothing = labels is None or labels.dtype.kind == "U"  # to check
    images.check(
        pixels,
        np.zeros(len(pixels) if labels is None else labels.shape) if nothing else labels,
        name,
    )
    if pixels.shape[-1] not in (1, 3):
        raise InputError(f"{name}: pictures have {pixels.shape[-1]} channels; give one or three.")
    return np.ascontiguousarray(pixels), labels


def plain_labels(labels):
    """Labels as (n,) numbers or names, as far as they can be: a column (n, 1), one-hot rows (n, K), or bytes."""
    if labels.ndim == 2 and labels.shape[1] == 1:
        labels = labels[:, 0]
    elif (
        labels.ndim == 2
        and labels.dtype.kind in "biuf"
        and (np.sort(labels) == np.eye(labels.shape[1])[-1]).all()
    ):
        labels = labels.argmax(1)
    return labels.astype(str) if labels.dtype.kind == "S" else labels


def of_folder(folder, what, showing):
    """The Pictures of a folder, sorted by name, as a Showing reads them; folders in it are classes."""
    inside, paths = files(folder)
    classes = sum(path.parent != folder for path in paths)
    if 0 < classes < len(paths):
        mend = "give either, the folders as classes"
        raise InputError(f"{folder} holds pictures beside folders of pictures: {mend}.")
    rows = {}  # {name: pixels}
    done = Counter()
    for path in paths:
        try:
            rows[path.relative_to(folder).as_posix()] = pixels_of(showing, path, done)
        except InputError:
            if not showing.skip:
                raise
            done["could not be read or used, and were left out"] += 1
    if not rows:
        mend = f"give the {what} as PNG or JPEG files"
        raise InputError(f"{folder} holds no picture that can be read: {mend}.")
    done["files are no pictures and were left out"] += len(inside) - len(paths)
    notes = [f"Of the {what}, {agreeing(count, deed)}." for deed, count in done.items() if count]
    stacked = torch.from_numpy(np.stack([*rows.values()])).flatten(1)
    labels = [name.split("/")[0] for name in rows] if classes else None
    return Pictures(stacked, labels, [*rows], notes, folder=folder)


def agreeing(count, words):
    """A count, and words on so many things, which become words on one where it is one."""
    for many, one in SINGULAR.items() if count == 1 else ():
        words = re.sub(rf"\b{many}\b", one, words)
    return f"{count} {words}"


def named(label):
    """The name of a class: whole numbers without zeros before them or a point, as in 07 and 7.0."""
    text = str(label).removesuffix(".0")
    return int(text) if text.removeprefix("-").isdecimal() else label


def by_name(label):
    """What sorts classes, some of whose names may be numbers: these come first."""
    return not isinstance(label, int), label if isinstance(label, int) else str(label)


def pixels_of(showing, path, done):
    """A picture as (H, W, C) in [0, 1], as a Showing reads it; what was done to it is counted in `done`.

    It is turned as its camera says, laid on paper where it is transparent, and cut or resized, or InputError.
    """
    picture = opened(path, showing, done)
    height, width, channels = showing.shape
    if channels == 1 and coloured(picture):
        grey = f"the network takes grey ones of {height}×{width}"
        raise InputError(f"{path} is in colour, and {grey}: give the pictures as it saw them.")
    return shaped(picture, showing, done)


def shaped(picture, showing, done):
    """A picture as (H, W, C) in [0, 1]; what was done to it is counted in `done`.

    One of another size loses what is outside of its middle (`resize`: crop), or not (squash), and is resized. Or its
    shorter side is brought to so many pixels (a number), and what is outside of the middle is cut away.
    """
    height, width, channels = showing.shape
    resize = showing.resize
    done["are grey and were taken as colour"] += channels == 3 and picture.mode == "L"
    picture = picture.convert("L" if channels == 1 else "RGB")
    if isinstance(resize, int):
        picture = middle(picture, (width, height), resize)
        how = f"resized to {resize} pixels on their shorter side"
        done[f"were {how}, and cut to {height}×{width} in the middle"] += 1
    elif picture.size != (width, height):
        squash = resize == "squash"
        change = Image.Image.resize if squash else ImageOps.fit
        picture = change(picture, (width, height), FILTER)
        deed = "squashed" if squash else "cut to their middle"
        done[f"were {deed} and resized to {height}×{width} by Lanczos' filter"] += 1
    return np.asarray(picture, dtype=np.float32).reshape(showing.shape) / 255


def middle(picture, size, shorter):
    """The middle of a size (W, H) of a picture whose shorter side is first brought to so many pixels."""
    sides = [int(shorter * side / min(picture.size)) for side in picture.size]
    if sides[0] < size[0] or sides[1] < size[1]:
        raise InputError(
            f"Pictures of {shorter} pixels a side hold no {size[1]}×{size[0]}: resize them to more."
        )
    left, top = (round((side - own) / 2) for side, own in zip(sides, size))
    return picture.resize(sides, FILTER).crop((left, top, left + size[0], top + size[1]))


def opened(path, showing, done):
    """A picture of a file in eight bits, grey or in colour, if asked turned as its camera says.

    Transparent ones are laid on white or black paper, or lose their transparency (`alpha`: drop), and deep ones are
    divided by 257. InputError if it cannot be read.
    """
    alpha = showing.alpha
    what = f"{path} cannot be read as a picture"
    with (
        explained(what, "mend it, or skip such ones (--skip-corrupt)"),
        warnings.catch_warnings(action="ignore"),
        Image.open(path, formats=FORMATS) as file,
    ):
        file.load()
        turned = showing.turn and file.getexif().get(ORIENTATION, 1) in range(2, 9)
        picture = ImageOps.exif_transpose(file) if turned else file
    if picture.mode == "F":
        raise InputError(
            f"{path} holds real numbers, and no scale says what is white: save it with 8 or 16 bits."
        )
    done["were turned as their cameras say (EXIF), as their trainer may not have done"] += turned
    if picture.mode.startswith("I"):
        picture = Image.fromarray((np.asarray(picture) / 257).clip(0, 255).round().astype(np.uint8))
        done["have 16 bits a pixel and were brought to 8"] += 1
    if picture.has_transparency_data:
        picture = picture.convert("RGBA")
        deed = ", which was ignored"
        if alpha != "drop":
            picture = Image.alpha_composite(Image.new("RGBA", picture.size, alpha), picture)
            deed = f" and were laid on {alpha}"
        done[f"are transparent{deed}"] += 1
    return picture.convert("L" if picture.mode in ("1", "L") else "RGB")


def coloured(picture):
    """Whether a picture is in colour, and not grey in three channels."""
    return bool(np.ptp(np.asarray(picture.convert("RGB"), int), 2).max() > GREY)


def kept(side, mask):
    """The Pictures of a mask (n,), which remember how many there were, and of which classes."""
    rows = mask.nonzero()[:, 0].tolist()
    return side._replace(
        images=side.images[rows],
        labels=side.labels and [side.labels[k] for k in rows],
        names=[side.names[k] for k in rows],
        count=len(mask),
        kinds=side.labels or [],
    )


def distinct(sides, shape):
    """Both sides without copies, or nearly, and notes; InputError if fewer than FEWEST are left on a side.

    Of those on one side the first stays: frames of one scene, or crops of one picture, are not independent, so that
    chance alone would tell two sides apart. A picture that is on both sides is neither a training nor a held-out one.
    """
    notes = [note for side in sides for note in side.notes]
    if len({side.labels is None for side in sides}) > 1:
        mend = "so they were not used: give both sides in the same form"
        notes.append(f"Classes are known on one side alone, {mend}.")
    sizes = [len(side.images) for side in sides]
    places = torch.arange(sum(sizes))
    held_out = places >= sizes[0]
    # is earlier, or on the other side
    counts = (places < places[:, None]) | (held_out != held_out[:, None])
    pairs = copies.find(torch.cat([side.images for side in sides]), shape) & counts
    found = []
    for side, what, out in zip(sides, ("training", "held-out"), pairs.any(1).split(sizes)):
        found.append(kept(side, ~out))
        if out.any():
            are = f"{what} pictures are nearly copies of others of either side, as if shifted or mirrored, and left out"
            some = [name for name, gone in zip(side.names, out) if gone]
            more = f" and {len(some) - NAMED} more" if len(some) > NAMED else ""
            notes.append(f"{agreeing(out.sum(), are)}: {', '.join(some[:NAMED])}{more}.")
        if (count := len(found[-1].names)) < FEWEST:
            alone = ", without near-copies of others on either side" * bool(out.any())
            are = agreeing(count, f"{what} pictures are there")
            raise InputError(f"{are}{alone}: give {FEWEST} or more.")
    return found, notes


def order_of(sides, outputs, classes=()):
    """The names of classes in the order of a network's outputs: those given, or else sorted; none if they are unknown.

    Whole numbers below the number of `outputs` are these outputs. InputError for a class that has none.
    """
    if any(part.labels is None for part in sides):
        return []
    most = max(outputs, 2)
    ours, theirs = (sorted({*part.kinds}, key=by_name) for part in sides)
    names = [*map(named, classes or ours)]
    if not classes and all(isinstance(name, int) and 0 <= name < most for name in names):
        names = [*range(most)]
    if len(names) > most:
        raise InputError(
            f"There are {len(names)} classes, and the network has {most}: name those of its outputs."
        )
    if others := [kind for kind in [*ours, *theirs] if named(kind) not in names]:
        called = f"as they are called {', '.join(map(str, names[:6]))}{' …' * (len(names) > 6)}"
        mend = "name all classes (--classes), or leave its pictures out"
        raise InputError(f"No output is of the class {others[0]!r}, {called}: {mend}.")
    return names


def numbered(sides, outputs, classes=()):
    """Both sides' labels as numbers of outputs (n,), as `order_of` has them; None where they are not known."""
    places = {name: k for k, name in enumerate(order_of(sides, outputs, classes))}
    if not places:
        return None, None
    return tuple(torch.tensor([places[named(label)] for label in part.labels]) for part in sides)
