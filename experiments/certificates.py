"""Deniability certificates: how far a trained network's training images can be split, and sets in their place.

The evaluator has the training images: all is about what a KKT set of them (`kkt_sets`) allows.
"""

from typing import NamedTuple

import torch
from scipy.optimize import nnls
from torch.nn.functional import normalize

from attacks import decoreco
from evaluation import measures
from experiments import kkt_sets
from experiments.margin import distance_with_slopes, smallest_residual
from training import images, stationary
from utils import networks
from utils.errors import InputError
from utils.kernels import losses
from utils.kernels.layers import change, forward, joint
from utils.kernels.similarity import detail_ncc
from utils.networks import within

NEAR = 0.01  # a neuron bends at an image if its hyperplane is so near


class Compared(NamedTuple):
    """Two networks compared."""

    agreement: float  # the share of fresh photographs that both put into the same class
    cosine: float  # the smaller cosine of the two groups' Σ_j |v_j|(w_j, b_j)


# ---- The network and its training images ----


def photographs_of(name, data, count, seed, device):
    """The Part of photographs to plant: of `name`, as for `images.load`, or if it is empty others of the Split."""
    if not name:
        return data.known
    other = images.split(images.load(name), count, count, seed, device)
    if other.shape != data.shape:
        raise InputError(f"DENY has images of {other.shape}, DATASET of {data.shape}.")
    return other.known


def trained(part, neurons, epochs, seed):
    """The network of gradient descent on a Part as it is, without touching its mean."""
    recipe = networks.perceptron("margin", neurons)._replace(epochs=epochs, centred=False)
    return stationary.train(part, recipe, seed).released.network


def fitted(network, points, signs):
    """The set of a trained network, scaled to a smallest margin of 1, with its best λ."""
    smallest = kkt_sets.margins(kkt_sets.KKTSet(network, points, signs, None)).min().item()
    if smallest <= 0:
        raise InputError("A training image is misjudged: raise EPOCHS or NEURONS.")
    return explained(
        change(network, lambda p: p / smallest**0.5), images.Part(points, (signs + 1) / 2)
    )


def explained(network, part):
    """The set of any Part's images, with the λ ≥ 0 that explain a network best."""
    return kkt_sets.KKTSet(
        network, part.images, losses.signs(part.labels), smallest_residual(network, *part)[1]
    )


def at_kinks(kkt, near=NEAR):
    """ε/‖θ‖ with λ ≥ 0 and slopes in [0, 1] at kinks nearer than `near`, made small in turns."""
    bends = kkt_sets.to_hyperplanes(kkt.network, kkt.points) < near
    return distance_with_slopes(kkt.network, kkt.points, kkt.signs, bends)


# ---- Splits towards photographs ----


def shortest(rows, least):
    """The shortest v with rows·v ≥ least (Lawson and Hanson)."""
    system = torch.cat([rows, least[:, None]], 1).mT.cpu().numpy()
    target = [0.0] * (len(system) - 1) + [1.0]
    solution, _ = nnls(system, target, maxiter=30 * system.shape[1])
    missed = torch.from_numpy(system @ solution - target).to(rows)
    return -missed[:-1] / missed[-1]


def halves(network, x, photographs):
    """u (n, d) of (eq-halves), a hundredth shorter, so that cells are not left."""
    basis = networks.span(network, 1e-9)
    rooms = kkt_sets.to_hyperplanes(network, x)
    weight = normalize(network[0].weight) @ basis  # (h, r)
    moves = (photographs - x) @ basis  # (n, d) @ (d, r)
    for i, (room, slope) in enumerate(zip(rooms, kkt_sets.input_gradients(network, x) @ basis)):
        bends = room < NEAR
        fixed = networks.span_of(torch.cat([weight[bends], normalize(slope[None])]))
        rows = weight[~bends] - within(weight[~bends], fixed)
        rows = torch.cat([rows, -rows])
        room = room[~bends].repeat(2)
        aim = moves[i] - within(moves[i], fixed)
        moves[i] = aim + shortest(rows, -room - rows @ aim)
    return 0.99 * moves @ basis.mT


# ---- Sets in place of the training set ----


def moved(network, photographs, labels, steps):
    """Photographs (n, d), moved by the stationarity attack, in the span of W₁ only."""
    recipe = networks.perceptron("margin", len(network[0].weight))
    settings = decoreco.ADAM._replace(
        rule="margin", iterations=steps, lambda_min=0.0, range_weight=0.0, dtype=torch.float64
    )
    basis = networks.span(network, 1e-9)
    attack = decoreco.attack(
        networks.Released(network, labels, recipe),
        photographs,
        settings,
        labels=labels,
        basis=basis,
    )
    return explained(network, images.Part(attack.images, labels))


def alternatives(truth, chosen, u, steps):
    """Sets in place of the training set, {name: KKTSet}, and their ε/‖θ‖ with the best slopes, {name: number}.

    `chosen` are photographs, a Part, and u (n, d) the `halves` towards them. *split* and *planted* bend as the truth.
    """
    photographs = chosen.images
    network = truth.network
    hidden = kkt_sets.unseen(truth, chosen.images)
    inside = moved(network, photographs, chosen.labels, steps)
    free = photographs - within(photographs, networks.span(network, 1e-9))
    sets = {
        "original": truth,
        "planted": kkt_sets.paired(truth, hidden),
        "split": kkt_sets.paired(truth, u + hidden),
        "moved": kkt_sets.paired(inside, free),
        "photographs": explained(network, chosen),
    }
    numbers = {
        "original": at_kinks(truth),
        "moved": at_kinks(inside),
        "photographs": at_kinks(sets["photographs"]),
    }
    return sets, numbers | {name: numbers["original"] for name in ("planted", "split")}


def as_part(kkt):
    """The points with their labels, by class."""
    order = kkt.signs.argsort(stable=True)
    return images.Part(kkt.points[order], (kkt.signs[order] + 1) / 2)


def compare(one, other, fresh):
    """Compare two networks on fresh photographs (k, d): Compared."""
    named = [forward(net, fresh)[1][-1] > 0 for net in (one, other)]
    # s₊ and s₋ of both networks: (h,) @ (h, d + 1) -> (d + 1,)
    sums = [
        [(s * net[1].weight[0]).clamp_min(0) @ joint(net[0]) for s in (1, -1)]
        for net in (one, other)
    ]
    cosines = [torch.cosine_similarity(a, b, dim=0).item() for a, b in zip(*sums)]
    return Compared((named[0] == named[1]).double().mean().item(), min(cosines))


def lookalikes(sets, truth, photographs, centre, shape):
    """{name: the shares of a set's pictures like any training image, and like the photograph chosen for them}.

    Of a pair x ± u the plus counts; of the split set the minus, too, and what merging gives back: `centre` (n, d) are
    the centres of the cells of its points, and of them those count whose training image has λ > 0.
    """
    n = len(photographs)
    needed = truth.multipliers > 0
    shares = {}
    shown = {name: (kkt.points[:n], photographs) for name, kkt in sets.items()}
    shown["split/second"] = sets["split"].points[n:], photographs
    shown["split/merged"] = centre[needed], photographs[needed]
    for name, (points, own) in shown.items():
        best = (
            measures.match(points, truth.points, shape).signed,
            detail_ncc(points, own, shape).diagonal(),
        )
        shares[name] = [(part > measures.ALIKE).double().mean().item() for part in best]
    return shares
