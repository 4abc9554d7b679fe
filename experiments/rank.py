"""What the row space of a victim's first layer holds of its training images, and what becomes of noise planted there.

Every number comes with a baseline, or None: {quantity: (value, baseline)}. The baseline is that of held-out images, of
candidates without the row space, or of the start.
"""

import math

import torch

from utils import measures, networks
from utils.attacks import bilevel, planting
from utils.kernels import one_hidden
from utils.kernels.similarity import detail_ncc

LEVELS = ("1e-2", "1e-4", "1e-6")  # shares of the largest singular value


def outside(images, basis):
    """The share of the energy of images (n, d) outside of the span of a basis (d, r): ‖X(1 − UUᵀ)‖²/‖X‖²."""
    return ((images - networks.within(images, basis)).square().sum() / images.square().sum()).item()


def distinct_neurons(released):
    """How many neurons of a softplus network with one hidden layer differ; equal ones are one."""
    theta = one_hidden.weights(released.network, released.recipe.sharpness)
    return len(one_hidden.merged(theta).first)


def measured(victim, data, noise):
    """The rank of W₁, and what of a Split's images and of `noise` (m, d) lies in its row space."""
    network, recipe = victim.released.network, victim.released.recipe
    basis, values = networks.span(network), torch.linalg.svdvals(network[0].weight)
    z = victim.released.outputs(victim.seen(data.secret.images))
    found = {"rank": (basis.shape[1], None), "accuracy": (networks.accuracy(z, data.secret.labels), None)}
    for level in LEVELS:
        found[f"above_{level}"] = (values > float(level) * values[0]).sum().item(), None
    parts = (part.images - part.images.mean(0) * recipe.centred for part in (data.secret, data.held_out))
    found["outside"] = tuple(outside(part, basis) for part in parts)
    drawn, mean = noise - noise.mean(), data.known.images.mean(0) * recipe.centred
    found["leak_auc"] = tuple(measures.leaked(x, data, mean).auc.value for x in (networks.within(drawn, basis), drawn))
    if math.isfinite(recipe.sharpness):
        found["neurons"] = distinct_neurons(victim.released), None
    if recipe.weight_decay:
        pull = recipe.weight_decay * networks.flatten(network).norm().item()
        found["gradient_error"] = victim.gradient_norm / pull, None
    return found


def planted(released, data, noise):
    """Plant `noise` (m, d) behind a network with one hidden layer: the pictures (m, d), and what they have become."""
    before = planting.distance(bilevel.condensed(released), noise)
    found = planting.attack(released, noise, iterations=100)
    best = [measures.match(part.images, found.images, data.shape).signed for part in (data.secret, data.held_out)]
    share, null = ((b > measures.ALIKE).double().mean().item() for b in best)
    likeness = detail_ncc(found.images, noise, data.shape).diagonal().mean().item()
    seen = networks.span(released.network)
    rest, wished = (part - networks.within(part, seen) for part in (found.images, noise - noise.mean()))
    stays = (rest * wished).sum().item() / wished.square().sum().item()
    return found.images, {
        "planted_distance": (found.loss.item(), before), "planted_kept": (likeness, None),
        "planted_stays": (stays, None), "planted_returned": (share, null),
    }  # fmt: skip
