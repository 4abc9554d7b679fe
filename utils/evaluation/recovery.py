"""How many training images unmixing gave back, what leaked beside, and the numbers of its chapters for RESULTS."""

from typing import NamedTuple

from utils.evaluation import membership
from utils.evaluation.experiment import Row
from utils.kernels.similarity import ncc

STRONG, SOME = 0.9, 0.7  # normalised cross-correlations above which an image counts as given back
EXACT = 0.99  # above which no difference is seen
DEPTHS = {2: "two_layers", 3: "three_layers"}  # of a network, in RESULTS


class Recovered(NamedTuple):
    """Of m images, how many are like one of the images that an attack found."""

    strong: int  # |NCC| > 0.9
    some: int  # |NCC| > 0.7
    signed: int  # NCC > 0.7: not its negative


def recovered(images, found):
    """Count how many images (m, d) come back among images found (n, d), both without the trainer's mean: Recovered.

    Nothing found, None, gives nothing back.
    """
    if found is None:
        return Recovered(0, 0, 0)
    likeness = ncc(images, found)  # (m, n)
    either, own = likeness.abs().amax(1), likeness.amax(1)
    return Recovered(*(mask.sum().item() for mask in (either > STRONG, either > SOME, own > SOME)))


def twins(x):
    """The share of images x (n, d) that another one repeats, with an NCC above 0.9."""
    return (ncc(x, x).fill_diagonal_(0).amax(1) > STRONG).double().mean().item()


def above(bar, images, found):
    """How many images (m, d) have an |NCC| above a bar with one of those found (n, d); none if that is None."""
    return 0 if found is None else (ncc(images, found).abs().amax(1) > bar).sum().item()


def leak(found, training, held_out, known, shape):
    """A membership.Leak of images found without a mean (n, d); the others lose that of `known`, never their own."""
    mean = known.mean(0)
    return membership.leak(found, training - mean, held_out - mean, shape)


def prefix(layers, rule):
    """The first part of the names in RESULTS for a network with so many layers and the rule of its training."""
    return f"unmixing/{DEPTHS[layers]}/{rule}"


def rows(prefix, seed, quantities):
    """The Rows for RESULTS of {quantity: (value, baseline)}; a value or a baseline may be None, a missing one."""
    return [
        Row(f"{prefix}/{name}", seed, float(value), baseline=None if baseline is None else float(baseline))
        for name, (value, baseline) in quantities.items()
        if value is not None
    ]
