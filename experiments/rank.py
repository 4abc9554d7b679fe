"""What the row space of a victim's first layer holds of its training images, and what becomes of noise planted there.

Numbers are {quantity: (value, baseline)}: of held-out images, of candidates without the row space, of the start, None.
"""

import math

import torch

from attacks import bilevel, planting
from evaluation import measures
from utils import networks
from utils.kernels.similarity import detail_ncc


def outside(images, basis):
    """The share of the energy of images (n, d) outside of the span of a basis (d, r): ‖X(1 − UUᵀ)‖²/‖X‖²."""
    return ((images - networks.within(images, basis)).square().sum() / images.square().sum()).item()


def measured(victim, data, noise):
    """The rank of W₁, and what of a Split's images and `noise` (m, d) lies in its row space."""
    network = victim.released.network
    recipe = victim.released.recipe
    basis = networks.span(network)
    values = torch.linalg.svdvals(network[0].weight)
    z = victim.released.outputs(victim.subtract_mean(data.secret.images))
    numbers = {
        "rank": (basis.shape[1], None),
        "accuracy": (networks.accuracy(z, data.secret.labels), None),
    }
    for level in ("1e-2", "1e-4", "1e-6"):  # shares of the largest singular value
        numbers[f"above_{level}"] = (values > float(level) * values[0]).sum().item(), None
    numbers["outside"] = tuple(
        outside(part.images - part.images.mean(0) * recipe.centred, basis)
        for part in (data.secret, data.held_out)
    )
    drawn = noise - noise.mean()
    mean = data.known.images.mean(0) * recipe.centred
    pair = networks.within(drawn, basis), drawn
    numbers["leak_auc"] = tuple(measures.leak_of(x, data, mean).auc.value for x in pair)
    if math.isfinite(recipe.sharpness):  # equal neurons are one
        merged = bilevel.merge_neurons(victim.released).network
        numbers["neurons"] = len(merged[0].weight), None
    if recipe.weight_decay:
        pull = recipe.weight_decay * networks.flatten(network).norm().item()
        numbers["gradient_error"] = victim.gradient_norm / pull, None
    return numbers


def planted(released, data, noise):
    """Plant `noise` (m, d) behind a network with one hidden layer: what the pictures have become."""
    before = planting.distance(bilevel.merge_neurons(released), noise)
    attack = planting.attack(released, noise, iterations=100)
    shares = []
    for part in (data.secret, data.held_out):
        best = measures.match(part.images, attack.images, data.shape).signed
        shares.append((best > measures.ALIKE).double().mean().item())
    likeness = detail_ncc(attack.images, noise, data.shape).diagonal().mean().item()
    basis = networks.span(released.network)
    orthogonal, target = (
        part - networks.within(part, basis) for part in (attack.images, noise - noise.mean())
    )
    stays = (orthogonal * target).sum().item() / target.square().sum().item()
    return {
        "planted_distance": (attack.loss.item(), before),
        "planted_kept": (likeness, None),
        "planted_stays": (stays, None),
        "planted_returned": tuple(shares),
    }
