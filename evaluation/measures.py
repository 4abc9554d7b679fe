"""How like found and true images are, rows (n, d), and what that says of a leak; no attack calls anything here."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import torch

from evaluation import null
from training.images import Split
from utils.errors import InputError
from utils.kernels.layers import Shape
from utils.kernels.similarity import SOME as SOME
from utils.kernels.similarity import STRONG, match, ncc

ALIKE = 0.5  # above, two pictures count as alike; about 1 % of the best matches among unlike ones reach it
EXACT = 0.99  # above which no difference is seen
BARS = SOME, STRONG, EXACT  # of |NCC|


def twins(x: torch.Tensor) -> float:
    """The share of images x (n, d) that another one repeats, with an NCC above 0.9."""
    return (ncc(x, x).fill_diagonal_(0).amax(1) > STRONG).double().mean().item()


class Leak(NamedTuple):
    """How much better reconstructions match m training images than m held-out ones, by `detail_ncc`."""

    training: torch.Tensor  # (m,): of every training image, the similarity of its best match
    held_out: torch.Tensor  # (m,): the same for the held-out images
    auc: null.Area  # how often a training image is matched better than a held-out one; chance: 0.5
    p: float  # of an AUC this large if training and held-out images may be exchanged
    above: int  # training images that are matched better than 99 % of the held-out ones
    alike: int  # training images with a match that counts as alike
    alike_held_out: int  # held-out images with one

    def numbers(self, prefix=""):
        """What RESULTS keep of it, {name: number}."""
        return {
            f"{prefix}leak_auc": self.auc.value,
            f"{prefix}alike": float(self.alike),
            f"{prefix}alike_held_out": float(self.alike_held_out),
        }


def sides(data: Split, mean: torch.Tensor | float = 0.0) -> list[torch.Tensor]:
    """The training and the held-out images (m, d) of a Split, each less one mean (d,): what every count compares."""
    return [part.images - mean for part in (data.secret, data.held_out)]


def back(
    found: torch.Tensor | None,
    sides: Iterable[torch.Tensor],
    bars: Sequence[float] = (SOME, STRONG),
) -> dict[str, tuple[int, int]]:
    """How many training images came back, and how many held-out ones would count as such, above each bar of |NCC|.

    `sides` are both kinds of images (m, d), and `found` those of an attack (n, d), or None. The keys are the names that
    RESULTS has, as in {"ncc_above_0.9": (training images, held-out ones)}.
    """
    ours, theirs = (match(images, found) for images in sides)
    return {f"ncc_above_{bar}": (ours.above(bar), theirs.above(bar)) for bar in bars}


def leak(
    candidates: torch.Tensor | None, training: torch.Tensor, held_out: torch.Tensor, shape: Shape
) -> Leak:
    """Match training and held-out images (m, d) in the same order of classes with candidates (n, d): Leak."""
    if len(held_out) != len(training):
        raise InputError(
            f"There are {len(held_out)} held-out images for {len(training)} training images; equally many are needed: "
            "split the data with held_out=IMAGES, or choose fewer IMAGES."
        )
    ours, theirs = (
        match(images, candidates, shape).signed.cpu() for images in (training, held_out)
    )
    return Leak(
        training=ours,
        held_out=theirs,
        auc=null.area(ours, theirs),
        p=null.p_value(ours, theirs),
        above=(ours > torch.quantile(theirs, 0.99)).sum().item(),
        alike=(ours > ALIKE).sum().item(),
        alike_held_out=(theirs > ALIKE).sum().item(),
    )


def leak_of(candidates: torch.Tensor | None, data: Split, mean: float | torch.Tensor = 0.0) -> Leak:
    """What candidates (n, d) give away of a Split's secret images less a guess of their mean: Leak."""
    training, held_out = sides(data, mean)  # never the mean of one side
    return leak(candidates, training, held_out, data.shape)
