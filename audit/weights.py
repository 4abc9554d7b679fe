"""Networks of strangers: weights of a file, a state dict or a module, under whatever names; no code in them is run."""

import contextlib
import copy
import math
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import torch
from torch.nn import functional

from audit import files
from audit.showing import ACTIVATIONS
from utils import networks
from utils.errors import InputError, choose, explained
from utils.kernels.similarity import planes
from utils.networks import Layer

ADAPTERS = "lora|hada|lokr|vera|b?oft|ia3|adapter"
PART = re.compile(
    rf"(?i)(^|[._])(parametrizations\.|(weight|bias)_(orig|mask|[guv])$|({ADAPTERS})[._])"
)
LARGEST = 1e30  # weight
SMALLEST = 7  # pixels of a side, from which a number of inputs is taken for a picture's
AT_ONCE = 2**20  # numbers that a function is given at once: more leave a processor's caches
LOOK = 1e-3  # largest relative difference of two outputs that count as equal
# of a network
Source: TypeAlias = str | Path | Mapping[str, Any] | Sequence[Layer] | torch.nn.Module | Callable
BUILD = "name the function that builds the network (--model)"
MISFIT = "The network does not take these pictures", "give their size (--shape)"


class Network(NamedTuple):
    """A network to be audited, as far as it could be read. Rows (n, d) are pictures as it sees them, as (H, W, C)."""

    name: str
    source: Any = None  # what `read` takes to read it in another way
    layers: tuple = ()  # in double precision: all, if ReLUs alone are between, or the first alone, or none
    stack: tuple = ()  # all layers, whatever stands between them; empty if there is more
    # rows (n, d) -> outputs (n, K); None if only a part could be read
    logits: Callable | None = None
    notes: tuple = ()  # sentences on what could not be read
    # mean and deviation, (1,) or (C,), where its file holds them
    normalisation: tuple | None = None
    module: torch.nn.Module | None = None  # as it computes, in eval mode, if it was given or built
    takes: Callable | None = None  # rows (n, d) -> what the module takes

    @property
    def is_more(self):
        """Whether it is a module that computes more than its layers do."""
        return self.module is not None and not self.stack


def square(inputs):
    """The shape (H, W, C) of a square picture of so many values, grey or in colour; None if there is none."""
    for channels in (1, 3):
        side = math.isqrt(inputs // channels)
        if side >= SMALLEST and side * side * channels == inputs:
            return side, side, channels
    return None


def outputs(layers, activation="relu"):
    """The logits of layers with one of ACTIVATIONS between them: a function of rows (n, d) -> (n, K)."""
    between = getattr(functional, choose("The activation", activation, ACTIVATIONS))
    return lambda x: networks.forward(layers, x, between)[1][-1]


def read(
    network: Source,
    shape: Sequence[int] | None = None,
    layout: str = "CHW",
    key: str | None = None,
    activation: str = "relu",
) -> Network:
    """The Network that is a file (.pth, .safetensors, .npz), a state dict, a torch module, or a function of pictures.

    Or our own Layers, which take pictures as (H, W, C). With no `shape` (H, W, C), the first layer must take square
    pictures. `layout` says how the trainer flattened them, CHW as torch does or HWC; the Network takes HWC. A function
    takes a batch (n, C, H, W) and gives (n, K). Of several networks in a file `key` names one. With another of
    ACTIVATIONS than ReLUs between the layers, the first one and the outputs are used. InputError if none can be read.
    """
    if callable(network):
        if key is not None or activation != "relu":
            mend = "are those of a file or a state dict: leave them out here"
            raise InputError(f"A key and an activation {mend}.")
        if isinstance(network, torch.nn.Module):
            return of_module(network, shape, layout)
        name = getattr(network, "__name__", "a function")
        notes = ("The network is a function: only its outputs were looked at.",)
        return Network(name, network, logits=of_function(network, taking(shape)), notes=notes)
    name, state = files.opened(network, "a state dict")
    if isinstance(state, tuple | list) and all(isinstance(layer, Layer) for layer in state):
        found = Network(name, network, networks.change(state, lambda part: part.cpu().double()))
    else:
        path, state = files.chosen(state, name, key)
        found = of_state(state, name, shape, choose("The layout", layout, ("CHW", "HWC")))
        found = found._replace(name=f"{path} of {name}" if path else name, source=state)
    if found.notes:
        return found
    found = found._replace(stack=found.layers, logits=outputs(found.layers, activation))
    if activation == "relu":
        return found
    note = f"As the activation is {activation}, the first layer and the outputs were used."
    return found._replace(layers=found.layers[:1], notes=(note,))


def of_state(state, source, shape, layout):
    """The Network of named tensors, without its outputs: all layers, or the first alone and why it is alone."""
    state = {name: checked(part, f"{source}: {name}") for name, part in state.items()}
    normalisation = normalised(state)
    state = merged(state, source)
    names, rest = matrices(state, source, shape)
    named = (Layer(state[name], state.get(bias_of(name, state))) for name in names)
    first, *others = networks.change(named, torch.Tensor.double)
    if not first.weight.any():
        raise InputError(f"{source}: {names[0]} is zero everywhere: give a trained network.")
    weight = reordered(first.weight, shape or square(first.weight.shape[1]), layout, "HWC")
    layers = first._replace(weight=weight), *others
    if not rest:
        return Network(source, layers=layers, normalisation=normalisation)
    why = f"and its outputs are not known, as {files.listed(rest)} may come between: {BUILD}."
    note = f"Only {names[0]} of {source} was read, {why}"
    return Network(source, layers=layers[:1], notes=(note,), normalisation=normalisation)


def of_function(function, takes):
    """The logits of a function of what `takes` makes of rows (n, d)."""

    @torch.no_grad()
    def logits(x):
        parts = x.split(min(256, 1 + AT_ONCE // x.shape[1]))
        found = [logits_of(function(takes(some)))[0] for some in parts]
        return torch.cat(found).flatten(1).double()

    return logits


def taking(shape, layout=None):
    """What makes of rows (n, d) a batch (n, C, H, W) in single precision, flattened if a `layout` says how."""
    if shape is None:
        raise InputError(
            "A function does not tell the size of its pictures: give them as arrays, or give `shape`."
        )

    def takes(x):
        if layout:
            return reordered(x, shape, "HWC", layout).float()
        return planes(x, shape).float().contiguous()

    return takes


def of_module(module, shape, layout):
    """The Network that is a torch module: its layers, if fully connected, and its own outputs."""
    name, source = type(module).__name__, module
    module = copy.deepcopy(module).cpu().float().eval()
    read_as = Network(name)
    with contextlib.suppress(InputError):
        read_as = read(dict(module.state_dict()), shape, layout)
    # where it normalises, the module sees other pictures than its layers
    layers = () if read_as.normalisation else read_as.layers
    shape = shape or (square(layers[0].weight.shape[1]) if layers else None)
    takes, notes = tried(module, shape, layout)
    module.register_forward_hook(lambda module, given, returned: logits_of(returned)[0])
    logits = of_function(module, takes)
    found = Network(name, source, layers[:1], (), logits, notes, module=module, takes=takes)
    if layers and read_as.logits and agree(read_as.logits, found.logits, shape):
        return found._replace(layers=layers, stack=layers)
    note = "The module is more than layers with ReLUs between them: only its first layer was read."
    none = "No first layer of the module was read, so no picture was reconstructed: membership alone was asked."
    return found._replace(notes=(*notes, note if layers else none))


def tried(module, shape, layout):
    """What makes of rows what a module takes, pictures (n, C, H, W) or else rows in a layout; and notes on its logits.

    Where a trainer flattened pictures as HWC, rows are tried first. InputError if it takes neither.
    """
    ways = [taking(shape), taking(shape, layout)]
    errors = []
    for takes in ways if layout == "CHW" else ways[::-1]:
        try:
            with torch.no_grad():
                returned = module(takes(torch.zeros(2, math.prod(shape), dtype=torch.float64)))
            logits, notes = logits_of(returned)
            if len(logits) != 2:
                raise ValueError(f"it returns {len(logits)} rows for 2 pictures")
            return takes, notes
        except Exception as error:  # of a stranger's code
            errors.append(error)
    with explained(*MISFIT):
        raise errors[layout != "CHW"]


def logits_of(returned):
    """The logits in what a module returns, and notes on how they were told. InputError if they are not.

    They are a tensor, or its entry `logits`, or the first one of a tuple if that is (n, K), or the only one that is.
    """
    if torch.is_tensor(returned):
        return (returned if returned.dim() > 1 else returned.view(-1, 1)), ()
    kind = type(returned).__name__
    parts = entries_of(returned)
    tables = [name for name, part in parts.items() if torch.is_tensor(part) and part.dim() == 2]
    first = [*parts][:1] if isinstance(returned, tuple | list) else []
    told = [name for name in ("logits", *first) if name in tables] or tables * (len(tables) == 1)
    if not told:
        inside = files.listed(map(str, parts)) or "nothing"
        mend = "let it return its logits (n, K) alone, or as its entry logits"
        raise InputError(f"The network returns a {kind} of {inside}: {mend}.")
    note = f"The network returns a {kind}, of which entry {told[0]} was taken for its logits."
    return parts[told[0]], (note,)


def entries_of(returned):
    """What a dict, a tuple or an object holds, by name or number."""
    if isinstance(returned, Mapping):
        return returned
    if hasattr(returned, "_asdict"):
        return returned._asdict()
    if isinstance(returned, tuple | list):
        return dict(enumerate(returned))
    return getattr(returned, "__dict__", {})


def agree(one, other, shape):
    """Whether two logits are the same for random pictures of a shape (H, W, C)."""
    draw = torch.Generator().manual_seed(0)
    probe = torch.rand(8, math.prod(shape), dtype=torch.float64, generator=draw)
    ours, theirs = one(probe), other(probe)
    return ours.shape == theirs.shape and (ours - theirs).norm() <= LOOK * theirs.norm()


def reordered(rows, shape, layout, other):
    """Rows (n, d) of pictures (H, W, C) in a layout, CHW or HWC, as rows in another one."""
    if layout == other:
        return rows
    if layout == "HWC":
        return planes(rows, shape).flatten(1)
    return rows.view(-1, shape[2], *shape[:2]).permute(0, 2, 3, 1).flatten(1)


def normalised(state):
    """Take the mean and deviation of pixels, such as normalize.mean, from a state dict: both (1,) or (C,), or None."""
    for name in state:
        for word in ("std", "deviation"):
            pair = name, re.sub("mean$", word, name)
            shapes = {state[one].shape for one in pair if one in state}
            told = name != pair[1] and pair[1] in state and len(shapes) == 1
            if told and state[name].numel() in (1, 3):
                return tuple(state.pop(one).double().flatten() for one in pair)
    return None


def merged(state, source):
    """The tensors of a state dict, with pruned weights times their masks; InputError for others that are in parts."""
    pruned = {
        name[:-5] for name in state if name.endswith("_mask") and f"{name[:-5]}_orig" in state
    }
    found = {name[:-5] if name[:-5] in pruned else name: part for name, part in state.items()}
    found |= {name: state[f"{name}_orig"] * state[f"{name}_mask"] for name in pruned}
    if parts := [name for name in found if PART.search(name)]:
        mend = "merge it (peft: merge_and_unload; torch: remove_parametrizations), and save the state_dict()"
        raise InputError(
            f"{source}: {parts[0]} is a part of a weight that the network puts together: {mend}."
        )
    return found


def checked(part, name):
    """A tensor; InputError if it is of a kind that holds no plain weights."""
    kinds = part.is_meta, part.layout != torch.strided, part.is_quantized, part.is_complex()
    if any(kinds) or (part.dtype in (torch.int8, torch.uint8) and part.dim() > 1):
        kind = f"{part.dtype}, {part.layout}, on {part.device}".replace("torch.", "")
        raise InputError(
            f"{name} holds no dense real numbers ({kind}): save the state_dict() on the CPU, in float32."
        )
    if part.is_floating_point() and not (part.double().abs() < LARGEST).all():
        kind = f"NaN, infinite or larger than {LARGEST:g}"
        raise InputError(
            f"{name} holds values that are {kind}: give a network that was trained to an end."
        )
    return part


def matrices(state, source, shape):
    """The names of the weights of fully connected layers, from the first one on, and of what else there is.

    Of several that follow each other in no order, or in more than one, it is the first alone. InputError without one.
    """
    many = {
        name: part.shape
        for name, part in state.items()
        if part.dim() > 1 and part.is_floating_point()
    }
    size = {name: f"{name} of {'×'.join(map(str, of))}" for name, of in many.items()}
    if other := next((name for name, of in many.items() if len(of) > 2), ""):
        raise InputError(
            f"{source} has {size[other]}, and of files only matrices are read: {BUILD}."
        )
    able = [
        name for name, (_, n) in many.items() if (n == math.prod(shape) if shape else square(n))
    ]
    if not able:
        raise InputError(f"{source} has no matrix that takes {no_matrix(many, size, shape)}")
    given = {n for n, _ in many.values()}
    order = in_order(many, able)
    first = order[:1] or [name for name in able if many[name][1] not in given] or able
    if first[1:]:
        said = f"{source} does not tell which of {files.listed(first, 4)} takes the pictures"
        raise InputError(
            f"{said}: name the network by --key, if its names begin as no others do, or {BUILD}."
        )
    used = {one for name in order or first for one in (name, bias_of(name, state))}
    rest = [
        name
        for name, part in state.items()
        if name not in used and (part.is_floating_point() or part.dim())
    ]
    return order or first, rest


def no_matrix(many, size, shape):
    """What no matrix of these takes, which there are, and what to do: the end of a sentence."""
    likely = [of for _, n in many.values() if (of := square(n))]
    mend = "check the network and the pictures"
    if shape and likely:
        such = " ".join(map(str, likely[0]))
        mend = f"give the shape of its pictures (such as --shape {such})"
    what = f"pictures of {'×'.join(map(str, shape))}" if shape else "square pictures"
    return f"{what}, but {files.listed(size.values(), 4) or 'none'}: {mend}, or {BUILD}."


def in_order(sizes, able):
    """The names of matrices (outputs, inputs), one of those `able` first, so that each takes what the one before gives.

    Of several that fit, and behind which another one fits, it is the first in the file, or by the numbers in the names
    of a file that is sorted by them. Empty where these do not tell, or not all matrices fit.
    """
    alphabet = [*sizes] == sorted(sizes)
    order = []
    left = sorted(sizes, key=by_number) if alphabet else [*sizes]
    fits = [name for name in left if name in able]
    while left:
        inputs = [sizes[name][1] for name in left]
        on = [
            name
            for name in fits
            if not left[1:] or inputs.count(sizes[name][0]) > (sizes[name][0] == sizes[name][1])
        ]
        if not on or (alphabet and len({re.sub(r"\d+", "", name) for name in on}) > 1):
            return []
        order.append(on[0])
        left.remove(on[0])
        fits = [name for name in left if sizes[name][1] == sizes[on[0]][0]]
    return order


def by_number(name):
    """What sorts names by the numbers in them: layers.10 is behind layers.9."""
    return [int(part) if part.isdecimal() else part for part in re.split(r"(\d+)", name)]


def bias_of(name, state):
    """The name of the bias of a weight in a state dict: fc1.weight has fc1.bias, and W1 has b1; None if it has none."""
    names = re.sub(r"weight(?=[^.]*$)", "bias", name), re.sub(r"\b[Ww](?=[\d_]*$)", "b", name)
    return next(
        (one for one in names if one in state and state[one].shape == state[name].shape[:1]), None
    )
