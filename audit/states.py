"""Optimisers' states of strangers: the first moment of a first layer, from a file with which a training goes on.

A state numbers parameters as the network or its groups order them, without names: they are told by their shapes.
"""

import math
import re
from collections.abc import Mapping
from itertools import pairwise
from typing import NamedTuple

import torch

from attacks.first_layer import NO_STEP
from audit import files, weights
from utils.errors import InputError
from utils.networks import Checkpoint, Layer, change

MOMENTS = "exp_avg", "momentum_buffer"  # sums of gradients
# which Adam and its kind keep beside such a sum; beside anything else it may be another thing
SQUARES = "exp_avg_sq", "max_exp_avg_sq", "exp_inf"
# numbers that share a largest value, where bitsandbytes stores moments in 8 bits
BLOCKS = 256, 2048
WRAPPED = "__bnb_optimizer_quant_state__"
ROUGH = "The moment is stored in 8 bits, so that what it gives away is known roughly."
LIKELY = (
    "which is not read here, and in all likelihood tells of the pictures, too: do not publish it"
)
SPLIT = "The state is in shards, or not that of its parameter groups: gather it in one file, by optimizer.state_dict()."
ADVICE = (
    "Leave the optimiser's state out of what you publish (Lightning: save_weights_only=True; Hugging Face:"
    " save_only_model=True, or delete optimizer.pt), and audit the weights alone: they may leak, too."
)


class State(NamedTuple):
    """What an optimiser's state holds of a first layer, or a sentence on why it was not read."""

    entry: str = ""  # one of MOMENTS, if it was read
    # the network, and that moment of its first layer, pixels as (H, W, C)
    checkpoint: Checkpoint | None = None
    refusal: str = ""
    notes: tuple = ()  # sentences


def read(sources, layers, shape, layout):
    """The State in files or dicts, for a network's layers as `weights.read` gives them; an empty one if none is there.

    InputError for a file that cannot be read.
    """
    found = []
    for source in sources:
        name, content = files.opened(source, "The dict")
        for where, state in states_in(content, name):
            try:
                found.append(of_one(state, layers, shape, layout, where))
            # of a state of another make
            except (InputError, AttributeError, IndexError, KeyError, TypeError) as error:
                said = error if isinstance(error, InputError) else SPLIT
                found.append(State(refusal=f"{where}: {said}", notes=(ADVICE,)))
    if sum(bool(one.entry) for one in found) > 1:
        two = "Two states hold a moment of the first layer's shape: give a file with one of them."
        return State(refusal=two, notes=(ADVICE,))
    return max(found, key=lambda one: (bool(one.entry), bool(one.refusal)), default=State())


def states_in(content, where):
    """Pairs (where, it) of what has parameter groups, or else is called an optimiser's and holds tensors."""
    content = dict(enumerate(content)) if isinstance(content, list | tuple) else content
    if not isinstance(content, Mapping) or "param_groups" in content:
        return [(where, content)] if isinstance(content, Mapping) else []
    found = [pair for key, part in content.items() for pair in states_in(part, f"{where}, {key}")]
    called = re.search("optimi[sz]er", where.partition(", ")[2].lower())
    return found or [(where, content)] * bool(called and holds(content))


def holds(part):
    """Whether a tensor of more than one number is in a part of a file, however deep."""
    if isinstance(part, Mapping | list | tuple):
        return any(map(holds, part.values() if isinstance(part, Mapping) else part))
    return torch.is_tensor(part) and part.numel() > 1


def of_one(state, layers, shape, layout, where):
    """The State in one optimiser's state; InputError, in a sentence, if it cannot be read, or holds nothing yet."""
    if not layers:
        raise InputError(f"It is a state of other layers, {LIKELY}.")
    groups = [[*one["params"]] for one in state["param_groups"]]
    stored = {key: one | one.get(WRAPPED, {}) for key, one in state["state"].items()}
    states = {key: by_torch(one) for key, one in stored.items()}
    there = {name for one in states.values() for name, part in one.items() if holds(part)}
    if not states.keys() <= {name for group in groups for name in group}:
        raise InputError(SPLIT)
    entry = next((name for name in MOMENTS if name in there), "")
    if (others := there - {*MOMENTS, *SQUARES}) or (there and not entry):
        raise InputError(f"It holds {', '.join(sorted(others or there))}, {LIKELY}.")
    if groups and not there and all(one.get("momentum") == 0 for one in state["param_groups"]):
        return State(notes=(f"{where}: SGD without momentum keeps no gradient.",))
    moments = {key: one[entry] for key, one in states.items() if torch.is_tensor(one.get(entry))}
    keys = first_of(moments, groups, layers, entry)
    weight, bias = (moments.get(key) for key in keys)
    (first,) = change(
        (Layer(weight, bias),), lambda part: weights.checked(part, entry).cpu().double()
    )
    first = first._replace(weight=weights.reordered(first.weight, shape, layout, "HWC"))
    if not first.weight.any():
        raise InputError(NO_STEP)
    if "state1" in stored[keys[0]] and not (first.weight < 0).any():
        raise InputError(f"It holds squares of gradients alone, {LIKELY}.")
    network = (layers[0]._replace(bias=None), *layers[1:]) if bias is None else layers
    rough = (ROUGH,) * ("qmap1" in stored[keys[0]])
    return State(entry, Checkpoint(network, (first,)), notes=(ADVICE, *rough))


def by_torch(entries):
    """One parameter's entries, those of bitsandbytes' optimisers under torch's names and in real numbers."""
    if "state1" not in entries or not (entries["state1"].is_floating_point() or "qmap1" in entries):
        return entries
    first = entries["state1"]
    if "qmap1" in entries:
        first = dequantised(first, entries["qmap1"], entries.get("absmax1", entries.get("max1")))
    if "state2" in entries:
        return {"exp_avg": first, "exp_avg_sq": entries["state2"]}
    return {"momentum_buffer": first}


def dequantised(codes, table, largest):
    """The numbers that codes stand for: entries of a table, times the largest (blocks,) of all in their block."""
    size = codes.numel()
    blocks = [block for block in (*BLOCKS, size) if math.ceil(size / block) == len(largest)]
    if not blocks:
        raise InputError(SPLIT)
    scale = largest.repeat_interleave(blocks[0])[:size]
    return table[codes.long()] * scale.view(codes.shape)


def first_of(moments, groups, layers, entry):
    """The names of the first weight and its biases in moments {name: tensor}, or None for biases that are not told.

    A group keeps the order of the network: the first one is known where all of a shape stand in one group.
    """
    sizes = {key: tuple(part.shape) for key, part in moments.items()}
    shapes = [part if part is None else tuple(part.shape) for layer in layers for part in layer]

    def place(shape):
        there = [
            some for group in groups if (some := [key for key in group if sizes.get(key) == shape])
        ]
        return there[0][0] if len(there) == 1 and len(there[0]) == shapes.count(shape) else None

    if not moments:
        raise InputError(NO_STEP)
    if (key := place(shapes[0])) is None:
        size = "×".join(map(str, layers[0].weight.shape))
        none = f"It does not tell which {entry} of {size} is the first layer's, or holds none (was it frozen?)"
        raise InputError(f"{none}: save the state of one group, neither flat nor in shards.")
    after = next((two for group in groups for one, two in pairwise(group) if one == key), None)
    return key, after if sizes.get(after) == shapes[1] else place(shapes[1])
