"""How a network saw pictures, and what is asked of it: every option of the command, its default and its help.

The fields of both dataclasses are options of the command line, keywords of `audit`, and settings in report.json.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields

import torch

from utils.errors import InputError, choose

ACTIVATIONS = "relu", "leaky_relu", "gelu", "silu", "tanh", "sigmoid"  # of torch.nn.functional
RESIZES = "crop", "squash"
SIDE = 4096  # pixels of a side, at most
SMALLEST = 1e-4  # deviation of pixels; the largest is its inverse
Numbers = float | Sequence[float] | None  # one number, or one for each channel


def option(default, help, **how):
    """A field, with its help: `how` is argparse's, with `choices`, the ends that it lies `between`, or its `flag`."""
    return field(default=default, metadata={"help": help} | how)


def side_or_word(text):
    """A number of pixels, or what else is given."""
    return int(text) if text.isdecimal() else text


def check(given):
    """InputError unless all options of a dataclass are among their choices and between their ends."""
    for one in fields(given):
        value = getattr(given, one.name)
        if choices := one.metadata.get("choices"):
            choose(f"The {one.name}", value, choices)
        ends = one.metadata.get("between")
        if ends and value is not None and not ends[0] <= value <= ends[1]:
            raise InputError(f"The {one.name} is {value}: give {ends[0]:,} to {ends[1]:,}.")


@dataclass(frozen=True)
class Showing:
    """How its trainer showed pictures to a network: as (x − mean)/deviation of pixels x in [0, 1]."""

    mean: Numbers = option(
        None,
        "subtracted from pixels in [0, 1], one number or one for each channel; else what the network's file holds as"
        " normalize.mean and .std, or 0 and 1",
        nargs="+",
        type=float,
    )
    deviation: Numbers = option(None, "then divided by, in the same form", nargs="+", type=float)
    centred: bool = option(False, "the mean of the training pictures was subtracted, too")
    layout: str = option("CHW", "how it flattened them (%(default)s)", choices=("CHW", "HWC"))
    activation: str = option(
        "relu", "between the layers of a file (%(default)s)", choices=ACTIVATIONS
    )
    shape: Sequence[int] = option(
        (), "height, width and channels (1 or 3) that it takes", nargs="+", type=int
    )
    resize: str | int = option(
        "crop",
        "files of another size are cut to their middle (crop), or squashed (squash); or their shorter side is resized"
        " to so many pixels (a number), and the middle is cut out (%(default)s)",
        type=side_or_word,
    )
    turn: bool = option(True, "do not turn pictures as their cameras say (EXIF)", flag="--unturned")
    alpha: str = option(
        "white",
        "transparent pictures are laid on this paper, or lose their transparency (%(default)s)",
        choices=("white", "black", "drop"),
    )
    classes: Sequence = option(
        (),
        "in the order of the outputs, - for one without pictures (else the alphabet's; numbers are outputs)",
        nargs="+",
    )
    skip: bool = option(False, "leave out broken pictures", flag="--skip-corrupt")

    def __post_init__(self):
        check(self)
        if not (isinstance(self.resize, int) and 1 <= self.resize <= SIDE):
            choose("The resize", self.resize, (*RESIZES, f"1 to {SIDE} pixels"))
        shape = self.shape
        if shape and not (len(shape) in (2, 3) and all(n >= 1 and n % 1 == 0 for n in shape)):
            raise InputError(
                f"The shape is {shape}: give the height, the width, and 1 or 3 channels."
            )

    def rows(self, pixels):
        """Pixels (n, d) in [0, 1] as the network sees them, but for the mean of the training pictures."""
        mean, deviation = (self.channels(name).to(pixels) for name in ("mean", "deviation"))
        return (pixels - mean).div_(deviation)

    def pixels(self, rows):
        """The opposite of `rows`."""
        return rows * self.channels("deviation") + self.channels("mean")

    def channels(self, name):
        """The mean or the deviation as a picture (d,), of pixels in [0, 1]; InputError if it cannot be."""
        value = getattr(self, name)
        numbers = torch.as_tensor(value, dtype=torch.float64).flatten()
        if len(numbers) not in (1, self.shape[-1]) or not numbers.isfinite().all():
            many = f"one number, or one for each of the {self.shape[-1]} channels"
            raise InputError(f"The {name} is {value}: give {many}.")
        if name == "mean" and numbers.abs().max() > 1:
            mend = "divide mean and deviation by 255"
            raise InputError(f"The mean is {value}, and pixels are in [0, 1] here: {mend}.")
        if name == "deviation" and not ((numbers > SMALLEST) & (numbers < 1 / SMALLEST)).all():
            mend = "it must be positive, for pixels in [0, 1]"
            raise InputError(f"The deviation is {value}: {mend}.")
        return numbers.expand(*self.shape).flatten()


@dataclass(frozen=True)
class Asking:
    """What is asked of a network, and how certain the answer must be."""

    accuracy: float | None = option(
        None,
        "share of its training pictures that it classified correctly when its training ended, if that was below 0.9",
        type=float,
        between=(0, 1),
    )
    shadows: int = option(
        0,
        "train so many reference networks, such as 16, on random halves of all pictures, for two more tests of"
        " membership",
    )
    train: Callable | str | None = option(
        None,
        "your function (pictures, labels, seed) that trains such a network as yours was, on normalised pictures, and"
        " returns it; its code is run",
        metavar="MODULE:FUNCTION",
    )
    loss: str = option(
        "auto",
        "it was trained by (%(default)s: by its outputs)",
        choices=("auto", "square", "logistic", "cross_entropy"),
    )
    steps: int = option(
        200,
        "of the stationarity attack (%(default)s)",
        between=(1, 10**6),
    )
    seed: int = option(
        0,
        "of what is drawn at random (%(default)s)",
        between=(0, 2**32 - 1),
    )
    level: float = option(
        0.05,
        "chance of a false alarm (%(default)s)",
        between=(1e-9, 0.999),
    )
    epsilon: float | None = option(
        None,
        "that its training promised: is it refuted, at the confidence that --level leaves? It is never confirmed",
        type=float,
        between=(1e-3, 1e3),
    )
    delta: float = option(
        1e-5,
        "chance that the promise may fail (%(default)g)",
        between=(1e-12, 0.1),
    )
    pictures: bool = option(
        True, "show none in the report, so that it can be handed on", flag="--no-pictures"
    )
    limit: float = option(
        3600.0,
        "seconds of a processor after which no further attack or test is started (%(default)g)",
        between=(0, 1e9),
    )

    def __post_init__(self):
        check(self)
