"""Networks of strangers: weights of a file, a state dict or a module, under whatever names; no code in them is run."""

import copy
import math
import os
import re
import warnings
from collections.abc import Callable, Mapping
from itertools import pairwise, permutations
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from safetensors.torch import load_file
from torch.nn import functional
from torch.serialization import safe_globals

from utils import networks
from utils.errors import InputError, choose
from utils.networks import Layer

scalar = np.float64(0).__reduce__()[0]  # by which numpy's numbers are pickled
NUMBERS = [np.dtype, scalar, (scalar, "numpy.core.multiarray.scalar"),
           *(type(np.dtype(kind)) for kind in ("f2", "f4", "f8", "i4", "i8", "?"))]  # fmt: skip
ADAPTERS = "lora|hada|lokr|vera|b?oft|ia3|adapter"
PART = re.compile(rf"(?i)(^|[._])(parametrizations\.|(weight|bias)_(orig|mask|[guv])$|({ADAPTERS})[._])")
SHARD = re.compile(r"-\d+-of-\d+\.\w+$|(model|optim)_states\.pt$|\.distcp$")
KINDS = {
    "a recurrent network": r"lstm|(^|[._])(bi)?(gru|rnn)\d*([._]|$)|_[ih]h(_|$)",
    "attention": "attn|attention",
    "an embedding": r"embeddings?(\.weight)?$",
}  # by parts of names, of what takes no pictures
FORMATS = {
    rb"\x89HDF": "HDF5, as Keras writes", rb"....TFL3": "TensorFlow Lite", rb"\x08[\x03-\x20][\x12\x3a\x42]": "ONNX",
    rb"\x93NUMPY": "an array of numpy without names", rb"\x80[\x03-\x05]": "a pickle",
}  # fmt: skip
CODE = "which takes code to read, and none is run"
UNREAD = {  # by what torch and numpy say
    "TorchScript": "is TorchScript, which holds code: save the state_dict() of what torch.jit.load makes of it",
    "operand 149": "was pickled by protocol 4 or later, which is not read: call torch.save without pickle_protocol",
    "allow_pickle": f"holds an object, {CODE}: save arrays of numbers alone",
    "": "is not a whole file of torch, of safetensors or of numpy (.npz): save the network's state_dict()",
}
SORTABLE = 7  # matrices, up to which every order of them is looked at
SMALLEST = 7  # pixels of a side, from which a number of inputs is taken for a picture's
ACTIVATIONS = {  # of its layers, by name
    name: getattr(functional, name) for name in ("relu", "leaky_relu", "gelu", "silu", "tanh", "sigmoid")
}
LOOK = 1e-3  # largest relative difference of two outputs that count as equal


class Whole(NamedTuple):
    """A network as it computes."""

    module: torch.nn.Module  # in eval mode
    takes: Callable  # pictures as it sees them, rows (n, d) -> what it takes
    before: torch.nn.Module | None = None  # from before the training


class Target(NamedTuple):
    """A network to be audited, as far as it could be read."""

    name: str
    layers: tuple  # of Layers in double precision: all, or the first one alone; empty if that is not fully connected
    logits: Callable | None  # pictures as it sees them (n, d) -> outputs (n, K); None if only a part could be read
    notes: list  # sentences on what could not be read
    normalisation: tuple | None = None  # mean and deviation of pixels, (1,) or (C,), where the file holds them
    module: Whole | None = None  # where these layers are not all
    guess: str = ""  # a sentence, if the size of its pictures is one
    all_layers: tuple = ()  # of a file or a state dict, if all were read, whatever stands between them


def square(inputs):
    """The shape (H, W, C) of a square picture of so many values, grey or in colour; None if there is none."""
    sides = {channels: math.isqrt(inputs // channels) for channels in (1, 3)}
    return next(((n, n, k) for k, n in sides.items() if n >= SMALLEST and n * n * k == inputs), None)


def outputs(layers, activation="relu"):
    """The logits of layers with one of ACTIVATIONS between them: a function of rows (n, d) -> (n, K)."""
    between = ACTIVATIONS[choose("The activation", activation, ACTIVATIONS)]
    return lambda x: networks.forward(layers, x, between)[1][-1]


def read(network, shape=None, layout="CHW", key=None, activation="relu"):
    """The Target that is a file (.pth, .safetensors, .npz), a state dict, a torch module, or a function of pictures.

    Or our own Layers, which take pictures as (H, W, C). With no `shape` (H, W, C), the first layer must take square
    pictures. `layout` says how the trainer flattened them, CHW as torch does or HWC; the Target takes HWC. A function
    takes a batch (n, C, H, W) and gives (n, K). Of several networks in a file `key` names one. With another of
    ACTIVATIONS than ReLUs between the layers, the Target has the first layer and the outputs. InputError if nothing can
    be read.
    """
    if key is not None and not isinstance(network, str | Path | Mapping):
        raise InputError("A key names one of several networks in a file or a state dict: leave it away here.")
    if activation != "relu" and callable(network):
        raise InputError("An activation is that of a file's layers, and this network has its own: leave it away here.")
    if isinstance(network, torch.nn.Module):
        return of_module(network, shape, layout)
    if callable(network):
        note = "The network is a function: only its outputs were looked at."
        return Target(getattr(network, "__name__", "a function"), (), of_function(network, taking(shape)), [note])
    (name, state), note, normalisation = opened(network, "a state dict"), "", None
    if isinstance(state, tuple | list) and all(isinstance(layer, Layer) for layer in state):
        layers = networks.change(tuple(state), lambda part: part.cpu().double())
    else:
        name, layers, note, normalisation = of_state(state, name, shape, layout, key)
    if note:
        return Target(name, layers, None, [note], normalisation)
    notes = [f"As the activation is {activation}, the first layer and the outputs were used."]
    used, notes = (layers, []) if activation == "relu" else (layers[:1], notes)
    return Target(name, used, outputs(layers, activation), notes, normalisation, all_layers=layers)


def of_state(state, name, shape, layout, key):
    """What to call a network in a checkpoint, its Layers, "" or why the first alone was read, and its normalisation."""
    path, parts = chosen(state, name, key)
    if reason := beside(path, networks_in(state)) if key is not None else "":
        mend = "name the function that builds the whole (--model), or save its state_dict() alone if it is one"
        raise InputError(f"{name}: {path.strip('.') or key} may be a part of a network, as {reason}: {mend}.")
    parts, normalisation = normalised({part: checked(one, f"{name}: {part}") for part, one in parts.items()})
    layers, note = layers_of(whole(parts, name), name, shape)
    shape = shape or square(layers[0].weight.shape[1])
    columns = flattened(batched(layers[0].weight, shape, choose("The layout", layout, ("CHW", "HWC"))), "HWC")
    layers = layers[0]._replace(weight=columns), *layers[1:]
    return f"{path.strip('.')} of {name}" if path else name, layers, note, normalisation


def of_function(function, takes):
    """The logits of a function of what `takes` makes of rows (n, d)."""

    @torch.no_grad()
    def logits(x):
        return torch.cat([function(takes(some)) for some in x.split(256)]).flatten(1).double()

    return logits


def taking(shape, layout=None):
    """What makes of rows (n, d) a batch (n, C, H, W) in single precision, flattened if a `layout` says how."""
    if shape is None:
        raise InputError("A function does not tell the size of its pictures: give them as arrays, or give `shape`.")

    def takes(x):
        batch = batched(x, shape, "HWC").float().contiguous()
        return flattened(batch, layout) if layout else batch

    return takes


def of_module(module, shape, layout):
    """The Target that is a torch module: its layers, if fully connected, and its own outputs."""
    name, module = type(module).__name__, copy.deepcopy(module).cpu().float().eval()
    try:
        target = read(dict(module.state_dict()), shape, layout)
        layers = () if target.normalisation else target.layers  # then the module sees other pictures than its layers
    except InputError:
        layers = ()
    flat = isinstance(next(part for part in module.modules() if not [*part.children()]), torch.nn.Linear)
    shape = shape or (square(layers[0].weight.shape[1]) if layers else None)
    takes = taking(shape, layout if flat else None)
    own = of_function(module, takes)
    if layers and target.logits:
        probe = torch.rand(8, math.prod(shape), dtype=torch.float64, generator=torch.Generator().manual_seed(0))
        ours, theirs = target.logits(probe), own(probe)
        if ours.shape == theirs.shape and (ours - theirs).norm() <= LOOK * theirs.norm():
            return target._replace(name=name, logits=own, all_layers=())
    note = "The module is more than layers with ReLUs between them: only its first layer was read."
    none = "No first layer of the module was read, so no picture was reconstructed: membership alone was asked."
    return Target(name, layers[:1], own, [note if layers else none], module=Whole(module, takes))


def batched(rows, shape, layout):
    """Rows (n, d) in a layout as a batch (n, C, H, W), for pictures of the shape (H, W, C)."""
    height, width, channels = shape
    return rows.view(-1, channels, height, width) if layout == "CHW" else rows.view(-1, *shape).permute(0, 3, 1, 2)


def flattened(batch, layout):
    """A batch (n, C, H, W) as rows in a layout."""
    return (batch if layout == "CHW" else batch.permute(0, 2, 3, 1)).flatten(1)


def opened(source, name):
    """What to call a source, a file or what a file holds, and what it holds; a `name` is for the latter."""
    return (Path(source).name, tensors(source)) if isinstance(source, str | Path) else (name, source)


def tensors(path):
    """{name: tensor} of a file of weights, on the CPU; no code in it is run."""
    path = Path(path)
    if not path.is_file():
        raise InputError(f"There is no file {path}: check its path.")
    if SHARD.search(path.name) or path.name.endswith(".index.json"):
        raise InputError(f"{path} is a part of a sharded network or state: save it whole, in one file.")
    try:
        if path.suffix == ".safetensors":
            return load_file(path)
        if path.suffix == ".npz":
            with np.load(path, allow_pickle=False) as file:
                return {name: torch.from_numpy(file[name]) for name in file if file[name].dtype.kind in "fiub"}
        with warnings.catch_warnings(action="ignore"), safe_globals(NUMBERS):  # of layouts that `checked` refuses
            return torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:
        raise InputError(f"{path} {unread(path, str(error))}.") from error


def unread(path, reason):
    """Why torch, numpy or safetensors did not read a file, from the `reason` they gave: the rest of a sentence."""
    if path.suffix == ".safetensors":
        return "is not a file of safetensors: save the network's state_dict()"
    with path.open("rb") as file:
        start = file.read(8)
    if kind := next((kind for first, kind in FORMATS.items() if re.match(first, start, re.DOTALL)), ""):
        mend = "give the network as a Python function, or its weights by name, outputs × inputs, in an .npz file"
        return f"is {kind}, which is not read here: {mend}"
    if kind := re.search(r"GLOBAL ([\w.]+)", reason):
        what = re.sub("numpy.*_reconstruct", "numpy.ndarray", kind[1])
        return f"holds an object ({what}), {CODE}: save the state_dict() alone"
    return next(sentence for said, sentence in UNREAD.items() if said in reason)


def chosen(state, source, key=None):
    """Where in a checkpoint a network is, "" for the file's own, and its {name: tensor}; InputError if none or several.

    A `key` is the place of one, or what its names begin with before a dot.
    """
    if not isinstance(state, Mapping):
        kind = type(state).__name__
        raise InputError(f"{source} holds a {kind}, not named weights: save the network's state_dict().")
    inside = networks_in(state)
    parts = inside or {"": named(state)}
    flat = {f"{path}.{name}": part for path, of in parts.items() for name, part in of.items()}
    if not flat:
        raise InputError(f"{source} holds no tensor: save the network's state_dict().")
    if kernel := next((name for name, part in flat.items() if re.search(r"(^|[./])kernel$", name)), ""):
        mend = "give their transposes as weights, such as Dense_0.weight and Dense_0.bias, and the layout HWC"
        raise InputError(f"{source} holds {kernel.lstrip('.')}, as Flax and Keras save networks: {mend}.")
    if key is None and len(inside) > 1:
        choices = ", ".join(path or "the file's own: ." for path in inside)
        mend = "name one by --key, or save the state_dict() of one alone"
        raise InputError(f"{source} holds {len(inside)} networks ({choices}): {mend}.")
    if key is None:
        return next(iter(parts.items()))
    (path, alone), *others = parts.items()
    for place in (key.strip("."), f"{path}.{key.strip('.')}"):  # of names, or of those of one alone
        if place in parts:
            return place, parts[place]
        if found := {name[len(place) + 1 :]: part for name, part in flat.items() if name.startswith(f"{place}.")}:
            return place, found
    words = dict.fromkeys(name.split(".")[0] for name in alone if "." in name)
    keys = [one or "." for one in (inside if others else words) if others or not beside(f"{path}.{one}", parts)]
    mend = f"give one of {listed(keys)} as the key" if keys else "it holds one, so leave the key away"
    raise InputError(f"{source} holds no network {key}: {mend}.")


def beside(place, inside):
    """Why what is at a place in networks {path: {name: tensor}} may be no whole one, by what is beside it; "" if not.

    That takes another number of values, or gives as many as the place takes, so that either may feed the other.
    """
    flat = {f"{path}.{name}": part.shape for path, of in inside.items() for name, part in of.items() if part.dim() > 1}
    words, groups = place.split("."), {}
    for name in ordered(flat):
        common = len(os.path.commonprefix([words, name.split(".")]))
        groups.setdefault(tuple(name.split(".")[: common + 1] if common < len(words) else ()), []).append(name)
    if () not in groups:
        return "it holds no matrix"
    takes, apart = flat[groups.pop(())[0]][1], any(f"{path}.".startswith(f"{place}.") for path in inside)
    for first, last in ((some[0], some[-1]) for some in groups.values()):
        if flat[first][1] != takes:
            return f"{first.strip('.')} beside it takes {flat[first][1]} values, and it takes {takes}"
        if not apart and flat[last][0] == takes:
            return f"{last.strip('.')} beside it gives the {takes} values that it takes"
    return ""


def ordered(names):
    """Names in their order, or by the numbers in them, layers.10 behind layers.9, if sorted as safetensors are."""
    names = [*names]
    return sorted(names, key=by_number) if names == sorted(names) else names


def by_number(name):
    """What sorts names by the numbers in them."""
    return [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", name)]


def listed(names, most=6):
    """Names in a sentence, the first few and how many there are more."""
    names = [*names]
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


def normalised(state):
    """The tensors of a state dict but for the mean and deviation of pixels, such as normalize.mean; and these or None.

    Both are a number, or one for each channel.
    """
    for name, mean in state.items():
        for other in {re.sub("mean$", word, name) for word in ("std", "deviation")} & state.keys() - {name}:
            if mean.numel() in (1, 3) and state[other].shape == mean.shape:
                rest = {one: part for one, part in state.items() if one not in (name, other)}
                return rest, (mean.double().flatten(), state[other].double().flatten())
    return state, None


def networks_in(state, path=""):
    """What holds matrices in a checkpoint, other than an optimiser's or of three numbers: {path: {name: tensor}}."""
    if "param_groups" in state:
        return {}
    own = named(state)
    sizes = [part.numel() for part in own.values() if part.dim() > 1]
    inside = {path: own} if max(sizes, default=0) > 3 else {}
    for key, part in state.items():
        if isinstance(part, Mapping):
            inside |= networks_in(part, f"{path}.{key}" if path else str(key))
    return inside


def named(state):
    """The tensors of a dict by their names."""
    return {str(name): part.detach() for name, part in state.items() if torch.is_tensor(part)}


def whole(state, source):
    """The tensors of a state dict, with pruned weights times their masks; InputError for others that are in parts."""
    pruned = {name[:-5] for name in state if name.endswith("_mask") and f"{name[:-5]}_orig" in state}
    merged = {name[:-5] if name[:-5] in pruned else name: part for name, part in state.items()}
    merged |= {name: state[f"{name}_orig"] * state[f"{name}_mask"] for name in pruned}
    if parts := [name for name in merged if PART.search(name)]:
        mend = "merge it (peft: merge_and_unload; torch: remove_parametrizations), and save the state_dict()"
        raise InputError(f"{source}: {parts[0]} is a part of a weight that the network puts together: {mend}.")
    return merged


def checked(part, name):
    """A tensor; InputError if it is of a kind that holds no plain weights."""
    if part.is_meta:
        raise InputError(f"{name} has a shape and no numbers: save the network's state_dict() after it was loaded.")
    kinds = {"sparse": part.layout != torch.strided, "quantised": part.is_quantized, "complex": part.is_complex()}
    if kind := next((kind for kind, holds in kinds.items() if holds), ""):
        raise InputError(f"{name} is {kind}: save it as dense real numbers, in float32.")
    if part.is_floating_point() and not part.isfinite().all():
        raise InputError(f"{name} holds values that are NaN or infinite: give a network that was trained to an end.")
    if part.dtype in (torch.int8, torch.uint8) and part.dim() > 1:
        raise InputError(f"{name} holds whole numbers ({part.dtype}), as quantised weights are: save it in float32.")
    return part


def layers_of(state, source, shape):
    """The Layers of named tensors, and "" or why only the first one could be read: weights are matrices, in order."""
    many = {name: part.double() for name, part in state.items() if part.dim() > 1 and part.is_floating_point()}
    if not many:
        raise InputError(f"{source} has no matrix of weights: save the state_dict() of a fully connected network.")
    read = "these attacks read fully connected layers: name the function that builds the network (--model)"
    for name, part in many.items():
        if part.dim() > 2:
            what = f"{name} of {'×'.join(map(str, part.shape))}"
            what = f"a convolution, {what}" if name.endswith("weight") and part.dim() < 6 else f"{what}, no matrix"
            raise InputError(f"{source} has {what}, and {read}.")
        for kind, words in KINDS.items():
            if re.search(words, name.lower()):
                raise InputError(f"{source} has {name}, which by its name belongs to {kind}, and {read}.")
    order, chain = in_order(many, source, shape)
    if not many[order[0]].any():
        raise InputError(f"{source}: {order[0]} is zero everywhere: give a trained network.")
    siblings, layers = {name: bias_of(name, state) for name in order}, []
    for name, sibling in siblings.items():
        bias = state.get(sibling)
        if bias is not None and bias.shape != many[name].shape[:1]:
            gives = f"{name} gives {len(many[name])} values"
            raise InputError(f"{source}: {gives}, and its bias has the shape {tuple(bias.shape)}.")
        layers.append(Layer(many[name], None if bias is None else bias.double()))
    used = {*siblings, *siblings.values()}
    rest = [name for name, part in state.items() if name not in used and (part.is_floating_point() or part.dim())]
    if chain and not rest:
        return tuple(layers), ""
    why = f"{listed(rest)} {'are no parts' if rest[1:] else 'is no part'} of a fully connected layer" if rest else ""
    why = why or "the shapes behind it do not follow"
    return (layers[0],), f"Only the first layer of {source} was read, as {why}; its outputs are not known."


def bias_of(name, state):
    """The name of the bias of a weight in a state dict: fc1.weight has fc1.bias, and W1 has b1; "" for none."""
    head, _, last = name.rpartition(".")
    letter = re.sub(r"^[Ww](?=[\d_]*$)", "b", last)
    names = (f"{head}.bias" if head else name.replace("weight", "bias"), f"{head}.{letter}".lstrip("."))
    return next((one for one in names if one in state and one != name), "")


def in_order(matrices, source, shape):
    """The names of matrices from the pixels on, and whether all of them follow each other, else the first one alone.

    That is the order of the file, or of the numbers in the names, or else the only one in which shapes follow. A file
    that is sorted by its names, as safetensors are, says less than their numbers.
    """
    sizes = {name: tuple(part.shape) for name, part in matrices.items()}
    able = [name for name, (_, n) in sizes.items() if (n == math.prod(shape) if shape else square(n))]
    if not able:
        some = ", ".join(f"{name} {size}" for name, size in [*sizes.items()][:4])
        size = "square pictures" if shape is None else f"pictures of {'×'.join(map(str, shape))}"
        raise InputError(f"{source} has {some}: none of these takes {size}; check the network and the pictures.")

    def follow(names):
        return names[0] in able and all(sizes[after][1] == sizes[before][0] for before, after in pairwise(names))

    names, order = [*matrices], ordered(matrices)
    others = [*filter(follow, permutations(names))] if len(names) <= SORTABLE else []
    alphabet = names == sorted(names) and not any(map(str.isdigit, "".join(names)))  # says nothing
    orders = [*filter(follow, (order, names, sorted(names, key=by_number)))]
    if orders and not (alphabet and len({order[0] for order in others}) > 1):
        return orders[0], True
    if len(others) == 1:
        return others[0], True
    return [first_of(order, alphabet, sizes, able, source)], False


def first_of(order, alphabet, sizes, able, source):
    """Which of the matrices `able` to take the pictures does, in an order that may be that of the alphabet alone."""
    given, by_name = {size[0] for size in sizes.values()}, [*sizes] == sorted(sizes)
    lead = next(name for name in order if name in able or not (by_name and sizes[name][1] in given))
    if lead not in able:
        first = f"{lead}, its first matrix, takes {sizes[lead][1]} values, and no such picture"
        raise InputError(f"{source}: {first}: name the function that builds the network (--model).")
    before = {name: set() if alphabet else {sizes[one][0] for one in order[:k]} for k, name in enumerate(order)}
    heads = [name for name in order if name in able and sizes[name][1] not in before[name]] or [lead]
    if not heads[1:]:
        return heads[0]
    said = f"{source} has {len(heads)} matrices that take such pictures ({listed(heads, 4)})"
    mend = "save the state_dict() of one alone, or name it by --key, if its names begin as no others do"
    raise InputError(f"{said}, as two networks have: {mend}.")
