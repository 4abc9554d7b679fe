"""A known start: what training added to the first layer is what the images wrote there, whatever was there before.

Gradient descent adds combinations of images to the rows of W₁, and weight decay shrinks all rows by one factor: so W₁ =
BX + αW₁⁰ for training images X, the start W₁⁰ and a number α, one without decay; and b₁ = B1 + αb₁⁰. Who knows the
start, such as public weights that were fine-tuned, takes αW₁⁰ away, and attacks the rest as if it had begun at zero.
"""

import torch

from attacks import decoreco, sparse, unmixing
from utils.errors import InputError
from utils.networks import Layer, change, leading_span

ROUNDS = 60  # of alternating least squares, at most
SETTLED = 1e-9  # change of α at which they end; single precision tells no more
NEURONS = 160, 700  # to estimate α from: roughly, then from as many as there are
SPARE = 0.1  # share of the directions of these neurons that is taken to be free of images
UNCHANGED = "The first layer is that of its start: nothing was trained there, or the start is no start."


def check(network, initial):
    """Raise InputError unless a start is a network of the same shape, with other and finite weights."""
    for ours, theirs in zip(network, initial, strict=False):
        shapes = [tuple(layer.weight.shape) for layer in (ours, theirs)]
        if (ours.bias is None) != (theirs.bias is None):
            has, lacks = ("network", "start") if theirs.bias is None else ("start", "network")
            raise InputError(f"A layer of the {has} has a bias that the {lacks} lacks: give the network's own start.")
        if shapes[0] != shapes[1]:
            raise InputError(f"The start has a layer of {shapes[1]} where the network has {shapes[0]}: give its own.")
    if len(network) != len(initial):
        raise InputError(f"The start has {len(initial)} layers and the network {len(network)}: give its own start.")
    first, before = network[0].weight, initial[0].weight
    if not (first.isfinite().all() and before.isfinite().all()):
        raise InputError("The network or its start holds values that are NaN or infinite: give weights as they were.")
    if unchanged(network, initial):
        raise InputError(UNCHANGED)


def unchanged(network, initial):
    """Whether the first layer of a network is that of its start."""
    return torch.equal(network[0].weight, initial[0].weight.to(network[0].weight))


def shrinkage(weight, initial, rank, alpha=None):
    """α for which W₁ − αW₁⁰ (h, d) is nearest to a matrix of this `rank`, by alternating least squares from `alpha`.

    In turns, V (h, h − rank) is taken as the left directions in which W₁ − αW₁⁰ is smallest, and α as the regression of
    VᵀW₁ on VᵀW₁⁰. The rank may be larger than that of the images' part BX, but not smaller: V must be free of images.
    """
    alpha = ((weight * initial).sum() / initial.square().sum()).item() if alpha is None else alpha
    for _ in range(ROUNDS):
        rest = weight - alpha * initial
        vectors = torch.linalg.eigh(rest @ rest.mT)[1][:, :-rank]  # of the trailing left directions, (h, h − rank)
        ours, theirs = vectors.mT @ weight, vectors.mT @ initial
        before, alpha = alpha, ((ours * theirs).sum() / theirs.square().sum()).item()
        if abs(alpha - before) <= SETTLED:
            break
    return alpha


def trained_part(released, initial, alpha=None):
    """The Released network with (W₁ − αW₁⁰, b₁ − αb₁⁰) as its first layer, and α; InputError as `check` says.

    α is estimated unless it is given, such as 1 for a training without weight decay.
    """
    check(released.network, initial)
    (first,), (before,) = (change(network[:1], torch.Tensor.double) for network in (released.network, initial))
    if alpha is None:
        for some in NEURONS:
            ours, theirs = (layer.weight[:some] for layer in (first, before))
            alpha = shrinkage(ours, theirs, int((1 - SPARE) * min(ours.shape)), alpha)
    bias = None if first.bias is None else first.bias - alpha * before.bias
    first = Layer(first.weight - alpha * before.weight, bias)
    return released._replace(network=(first, *released.network[1:])), alpha


def attempt(released, initial, shape, count, seed=0, alpha=None):
    """Unmix what training added to a known start: `unmixing.attempt`, and α; a refusal if it added nothing."""
    if unchanged(released.network, initial):
        return unmixing.refused(UNCHANGED), 1.0
    changed, alpha = trained_part(released, initial, alpha)
    return unmixing.attempt(changed, shape, count, seed, unmixing.SOON), alpha


def stationarity(released, initial, candidates, alpha, count, **settings):
    """The stationarity attack on θ* − αθ⁰, in the span of `count` leading directions of W₁ − αW₁⁰.

    To first order that is right for a training that hardly moves the weights (Loo et al., 2024, of wide networks).
    """
    changed, _ = trained_part(released, initial, alpha)
    pairs = zip(released.network, initial)
    target = tuple(Layer(*(p - alpha * q for p, q in zip(ours, theirs))) for ours, theirs in pairs)
    basis = leading_span(changed.network, count)
    return decoreco.attack(released, candidates, rule="margin", target=target, basis=basis, **settings)


def exact(released, initial, alpha, unmixed, shape):
    """The `unmixed` Attack of `attempt`, with exact images where their columns of B are sparse: `refined`."""
    changed, _ = trained_part(released, initial, alpha)
    return refined(changed.network[0], (initial[0], released.network[0]), unmixed, shape)


def refined(first, layers, unmixed, shape, refine=sparse.refine):
    """An `unmixed` Attack with exact images where their columns of B are sparse, for W = BX and b = B1 in `first`.

    `layers` are two Layers with the neurons of `first`, such as the layer at the start and at the end: an image that
    activates a neuron in neither is likely to have written nothing there. `refine` is `sparse.refine` or
    `sparse.agreed`. If the layer does not tell the count, its span holds more than images: then the images are returned
    as they were, none of them sure.
    """
    details, device = unmixed.details, unmixed.images.device
    if details.count != details.basis.shape[1]:
        return unmixed._replace(details=details._replace(sure=torch.zeros(len(unmixed.images), dtype=torch.bool)))
    layers = change(layers, lambda p: p.double().cpu())
    on_cpu = (part.cpu() for part in (unmixed.images, first.weight @ details.basis, first.bias, details.basis))
    images, sure, columns = (part.to(device) for part in refine(*on_cpu, layers, shape))
    details = details._replace(matrix=images @ details.basis, sure=sure, columns=columns)
    return unmixed._replace(images=images, details=details)
