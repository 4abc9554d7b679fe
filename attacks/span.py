"""The span test: what a layer was shown lies in the row space of what training added to it.

The gradient of a layer's weights is a sum of outer products δaᵀ with its inputs a: the features behind the layers
below, one vector for each place of a convolution or token of a text. So W − αW⁰ = BA behind SGD, and likewise an
optimiser's first moment. While there are fewer inputs than rows and columns, and the layers below do not move, an image
was trained on only if r(x) = ‖a(x) − VVᵀa(x)‖ / ‖a(x)‖ is zero, V being a basis of that row space.
"""

import torch
from torch.nn.functional import unfold

from attacks.first_layer import shrinkage
from utils.errors import InputError
from utils.networks import gap

TAKEN = 0.9  # share of the directions that images may take, where α is found


def inputs(module: torch.nn.Module, layer: torch.nn.Module, x: torch.Tensor) -> torch.Tensor:
    """What images x (n, …) are to a `layer` of a module, at all its places: (n, places, inputs)."""
    (seen,) = inputs_of(module, [layer], x)
    return seen


def inputs_of(
    module: torch.nn.Module, layers: list[torch.nn.Module], x: torch.Tensor
) -> list[torch.Tensor]:
    """The `inputs` of each of some layers, which the module gives them in one pass."""
    for layer in layers:
        check(layer)
    captured: list = [[] for _ in layers]
    hooks = [
        layer.register_forward_hook(lambda _, given, output, own=own: own.append(given[0].detach()))
        for layer, own in zip(layers, captured)
    ]
    try:
        with torch.no_grad():
            module(x)
    finally:
        for hook in hooks:
            hook.remove()
    return [unfolded(layer, given, len(x)) for layer, (given,) in zip(layers, captured)]


def check(layer):
    """InputError unless the inputs of a layer are read."""
    if not isinstance(layer, torch.nn.Linear | torch.nn.Conv2d):
        raise InputError(f"The layer is a {type(layer).__name__}: give a Linear or a Conv2d.")
    if getattr(layer, "groups", 1) > 1 or getattr(layer, "padding_mode", "zeros") != "zeros":
        raise InputError(
            "The convolution has groups or does not pad by zeros: its inputs are not read."
        )


def unfolded(layer, given, count):
    """What a layer was given of so many images, at all its places: (count, places, inputs)."""
    if isinstance(layer, torch.nn.Conv2d):
        given = unfold(given, layer.kernel_size, layer.dilation, layer.padding, layer.stride).mT
    return given.double().reshape(count, -1, given.shape[-1])


def basis(
    after: torch.Tensor, before: torch.Tensor, alpha: float | None = None, rank: int | None = None
) -> torch.Tensor:
    """A basis (inputs, r) of the row space of W − αW⁰, for weights (outputs, …); r by the gap in singular values.

    α is found unless given. A moment may stand for W, and the weights for W⁰: then α is the decay in it.
    """
    after, before = (weight.detach().double().flatten(1) for weight in (after, before))
    if alpha is None:
        alpha = shrinkage(after, before, int(TAKEN * min(after.shape)))
    values, vectors = torch.linalg.svd(after - alpha * before, full_matrices=False)[1:]
    if rank is None and (rank := gap(None, 10.0, values=values).count) is None:
        raise InputError(
            "What training added has full rank: too many inputs for this layer, or Adam's steps."
        )
    return vectors[:rank].mT


def distances(a: torch.Tensor, basis: torch.Tensor) -> torch.Tensor:
    """r(x) of inputs a (n, places, inputs): (n,), from 0 to 1."""
    return ((a - a @ basis @ basis.mT).square().sum((1, 2)) / a.square().sum((1, 2))).sqrt()
