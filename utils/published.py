"""Networks that others trained, as victims: the `.pth` files of Haim et al. (2022) and of Buzaglo et al. (2023).

github.com/nivha/dataset_reconstruction and github.com/gonbuzaglo/decoreco publish perceptrons d-n₁-…-K with ReLUs that
take images flattened as (C, H, W); ours are flattened as (H, W, C).
"""

import math
from pathlib import Path

import torch

from utils import victims
from utils.attacks.contract import check_layers
from utils.errors import InputError
from utils.kernels.layers import Layer, change


def load(path, shape):
    """The network in a `.pth` file, for images of `shape` (H, W, C): a tuple of Layers in float64, in our order.

    The file holds a state dict, by itself or under "state_dict": layers.0.weight (n₁, CHW), layers.1.weight (n₂, n₁), …
    and layers.0.bias (n₁,), … where a layer has one; older files say convnet for layers. InputError for anything else.
    """
    (height, width, channels), network = shape, layers_of(path)
    check_layers(network)
    (weight, bias), *rest = change(network, lambda p: p.detach().double())
    if weight.shape[1] != math.prod(shape):
        images = f"images of {height}×{width}×{channels} have {math.prod(shape)}"
        raise InputError(f"{path} takes {weight.shape[1]} values and {images}: give weights of this architecture.")
    weight = weight.unflatten(1, (channels, height, width)).permute(0, 2, 3, 1).flatten(1)
    return Layer(weight, bias), *rest


def layers_of(path):
    """The Layers of a file that holds their weights, and nothing else; no code in it is run."""
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
    except FileNotFoundError as error:
        raise InputError(f"There is no file {Path(path).resolve()}: check the path of the weights.") from error
    except Exception as error:
        raise InputError(f"{path} is not a file of tensors alone: save a state_dict() with torch.save.") from error
    state = state.get("state_dict", state) if isinstance(state, dict) else state
    state = state if isinstance(state, dict) else {f"a value of type {type(state).__name__}": state}
    state = {str(name).replace("convnet.", "layers."): part for name, part in state.items()}
    depth = sum(name.endswith("weight") for name in state)
    known = {f"layers.{k}.{part}" for k in range(depth) for part in Layer._fields}
    if not depth or state.keys() - known or not all(map(torch.is_tensor, state.values())):
        found = ", ".join([*state][:5]) + ", …" * (len(state) > 5) or "nothing"
        raise InputError(f"{path} holds {found}; it must hold layers.0.weight, layers.0.bias, layers.1.weight, … only.")
    for name, part in state.items():
        if part.dtype not in (torch.float32, torch.float64):
            raise InputError(f"{path}: {name} is of type {part.dtype}; save the weights as float32 or float64.")
        if part.dim() != 1 + name.endswith("weight"):
            raise InputError(f"{path}: {name} has the shape {tuple(part.shape)}; all layers must be fully connected.")
        if not part.isfinite().all():
            raise InputError(f"{path}: {name} holds values that are NaN or infinite; train the network anew.")
    return [Layer(*(state.get(f"layers.{k}.{part}") for part in Layer._fields)) for k in range(depth)]


def victim(path, secret, recipe, shape):
    """The Victim whose network is that of a file, as `load` reads it, instead of one that is trained here.

    `recipe` says how it was trained, such as networks.perceptron("margin"); widths and biases are those of the file.
    `secret` is the Part of the images that it was trained on, which the file does not say, and all that is measured
    here is measured on it. For the published files that is CIFAR-10 in file order: of vehicles and animals the first
    250 each, `images.split` of 500 with seed 0 (DATASET=cifar10, SEED=0, IMAGES=500; `images.halves` takes twice as
    many for the same); of ten classes the first 50 each.
    """
    network = change(load(path, shape), lambda p: p.to(secret.images))
    widths, biases = [len(layer.weight) for layer in network], [layer.bias is not None for layer in network]
    recipe = recipe._replace(hidden=tuple(widths[:-1]), biases=any(biases[1:]), sharpness=math.inf, stages=0)
    outputs = victims.check(recipe, secret.labels, smooth=False)
    if widths[-1] != outputs:
        needed = f"these labels and the {recipe.loss} loss need K = {outputs}: choose another recipe or other labels"
        raise InputError(f"{path} has K = {widths[-1]} outputs, but {needed}.")
    return victims.measured(network, secret, recipe)
