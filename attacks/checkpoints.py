"""What a training's files say of its images: rows that are combinations of them, from every entry that holds such.

A gradient of the first layer is a combination of the images, BX, and that of its biases is B1. So are sums of
gradients: what was added between two checkpoints, W(t) − αW(s) (see `known_start`), and an optimiser's first moment.
Torch's SGD adds the weight decay to a gradient before it sums it up, so that its moment is BX + cW, and c is found as α
is. Within one training all these rows are combinations of the same images: they are attacked together, one below the
other.
"""

from collections import namedtuple

import torch
from torch.nn.functional import cosine_similarity

from attacks import known_start, sparse, unmixing
from utils.errors import InputError
from utils.kernels import contrast
from utils.networks import Layer, change

NEAR, MOST, WORSE = 0.9, 0.85, 0.01  # cosine of an image and the unmixed one; share of such images; fall of their score
NO_STEP = "The moment is zero: the file was written before the first step, or the state was reset; give a later file."
# Rows of a first layer that are combinations of the images, a Layer W = BX (k, d), b = B1 (k,); the
# first layer when they began to write there and when they ended, Layers (an image that activates a
# neuron in neither is likely to have written nothing); and of every entry what was removed: α, or c
# in units of the moment.
Written = namedtuple("Written", "layer first last removed", defaults=[()])


def of_difference(released, after, before, alpha=None):
    """What training wrote between two networks; α is found unless it is given: Written."""
    changed, alpha = known_start.trained_part(released._replace(network=after), before, alpha)
    first, last = change((before[0], after[0]), torch.Tensor.double)
    return Written(changed.network[0], first, last, (alpha,))


def of_moment(released, checkpoint, factor=None):
    """What the first moment of a Checkpoint holds, less c times the weights; c is found unless it is given: Written."""
    moment, (weights, *_) = change(checkpoint.first[:1], torch.Tensor.double), checkpoint.network
    size = moment[0].weight.norm() / weights.weight.norm()
    if not size:
        raise InputError(NO_STEP)
    scaled = change(moment, lambda p: p / size)
    given = None if factor is None else factor / size.item()
    changed, found = known_start.trained_part(released._replace(network=scaled), checkpoint.network[:1], given)
    (weights,) = change((weights,), torch.Tensor.double)
    return Written(changed.network[0], weights, weights, (found * size.item(),))


def stacked(*several):
    """Rows of several entries, one below the other, all of the same size: Written."""
    sizes = [one.layer.weight.norm() / len(one.layer.weight) ** 0.5 for one in several]
    scaled = [change((one.layer,), lambda p, size=size: p / size)[0] for one, size in zip(several, sizes)]
    parts = (scaled, [one.first for one in several], [one.last for one in several])
    layer, first, last = (Layer(*map(below, zip(*part))) for part in parts)
    return Written(layer, first, last, tuple(number for one in several for number in one.removed))


def below(parts):
    """Tensors one below the other, or None if one of them is missing."""
    return None if None in parts else torch.cat(parts)


def written(released, moments=True):
    """What all checkpoints say together: `moments`, or else what was written from each to the next."""
    files = released.checkpoints
    found = [of_moment(released, file) for file in files if file.first and moments]
    if not found:
        found = [of_difference(released, late.network, early.network) for early, late in zip(files, files[1:])]
    if not found:
        raise InputError("No file holds a moment, and there are no two to compare: give a file with the state, or two.")
    return stacked(*found)


def attempt(released, rows, shape, count, seed=0):
    """Unmix what is Written in these rows, with the count that they tell or else the given one, or refuse: Attack."""
    of_rows = released._replace(network=(rows.layer,))
    return unmixing.attempt(of_rows, shape, count, seed, unmixing.SOON)


def exact(rows, unmixed, shape):
    """The `unmixed` Attack of `attempt`, with exact images where their columns of B are sparse: Attack.

    Moments fade, and with them a column's zeros: so two of three readings must agree (`sparse.agreed`). If a column is
    wrong none the less, many images come out far from the unmixed ones, or less like photographs. Then the far ones are
    not believed: the unmixed images stay in their places, and are not sure.
    """
    found = known_start.refined(rows.layer, (rows.first, rows.last), unmixed, shape, sparse.agreed)
    before, after = (contrast.score(x, unmixed.images, shape).mean() for x in (unmixed.images, found.images))
    near = cosine_similarity(found.images, unmixed.images).abs() > NEAR
    near |= near.double().mean() > MOST and before - after < WORSE
    images = torch.where(near[:, None], found.images, unmixed.images)
    details = found.details._replace(matrix=images @ found.details.basis, sure=found.details.sure & near.cpu())
    return found._replace(images=images, details=details)
