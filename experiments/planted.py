"""Planted images, judged by training on them: whether the weights that they were made for come back, and from where."""

from attacks import bilevel, planting
from evaluation import notation
from evaluation.evaluate import matched_distance
from training import stationary
from training.images import Part
from utils import networks
from utils.kernels import one_hidden
from utils.kernels.layers import unflatten
from utils.kernels.similarity import ssim

# Of `measures`, what goes into RESULTS, and what of them is the baseline.
QUANTITIES = {
    "relative_distance": "untouched",
    "moved": None,
    "ssim_to_start": None,
    "stored_distance": None,
    "trained_distance": None,
    "fresh_distance": "fresh_untouched",
}


def eight_bits(images):
    """Images as a file would hold them: clipped to [0, 1] and rounded to 1/255."""
    return (images.clamp(0, 1) * 255).round() / 255


def from_perturbed(released, images, seed, basis=None):
    """‖θ(x) − θ*‖²/‖θ*‖² of training from θ* plus 0.1 % of noise, a θ⁰ drawn from `seed`, in a `basis` or none."""
    network, labels, recipe, *_ = released
    if basis is not None:
        images = images @ basis
        network = networks.in_span(network, basis)
    noise = networks.flatten(networks.initial(recipe, images.shape[1], seed, device=images.device))
    theta = networks.flatten(network)
    perturbed = unflatten(theta + 1e-3 * theta.norm() * noise / noise.norm(), network)
    solved = one_hidden.solve(
        images, labels, recipe.weight_decay, one_hidden.weights(perturbed, recipe.sharpness)
    )
    return networks.distance(one_hidden.network(solved.weights), network)


def from_start(released, images, seed):
    """The same if training begins at the trainer's θ⁰, drawn from `seed`; the order of the neurons does not count."""
    again = stationary.train(Part(images, released.labels), released.recipe, seed).released.network
    apart = matched_distance if len(again) > 1 else networks.distance
    return apart(again, released.network)


def numbers_of(released, images, targets, shape, seed):
    """What planting made of target images (m, d), for a victim whose θ⁰ was drawn from 2·`seed`: {name: number}."""
    hidden = len(released.network) > 1
    own = ssim(images, targets, shape).diagonal()
    small = bilevel.merge_neurons(released)

    def distance(x):
        return planting.distance(small, x) if hidden else from_start(released, x, 2 * seed)

    return {
        "relative_distance": distance(images),
        "untouched": distance(targets),
        "moved": (images - targets).square().mean().sqrt().item(),
        "ssim_to_start": own.mean().item(),
        "least_ssim": own.min().item(),
        "outside": (images != images.clamp(0, 1)).double().mean().item(),
        "stored_distance": distance(eight_bits(images)),
        "trained_distance": from_perturbed(released, images, seed + 5000) if hidden else None,
        "fresh_distance": from_start(released, images, 2 * seed),
        "fresh_untouched": from_start(released, targets, 2 * seed),
    }


def rows_of(name, measured, seed):
    """The numbers of `numbers_of` for RESULTS."""
    pairs = {
        quantity: (measured[quantity], measured.get(base)) for quantity, base in QUANTITIES.items()
    }
    return notation.rows(f"plant_network/{name}", seed, pairs)
