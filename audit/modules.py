"""Modules of strangers: built by a function of the user's, whose code is run, and loaded with the weights of a file."""

import copy
import importlib
import os
import runpy
import sys
from pathlib import Path

import torch

from audit import weights
from utils.errors import InputError

PREFIXES = "module.", "_orig_mod.", "model."  # of wrappers


def function(spec):
    """The user's function MODULE:FUNCTION, as found from the folder in which Python runs, or path/to/file.py:FUNCTION.

    What a file imports is found beside it, too.
    """
    place, _, name = spec.rpartition(":")
    sys.path[:] = dict.fromkeys([os.getcwd(), str(Path(place).parent.resolve()), *sys.path])
    if place.endswith(".py"):
        return runpy.run_path(place)[name]
    return getattr(importlib.import_module(place), name)


def built(spec, network, key=None):
    """The module that the user's `function` returns, with the weights that `twin` takes; InputError if not."""
    try:
        module = function(spec)()
    except (Exception, SystemExit) as error:
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        mend = "give MODULE:FUNCTION, as found from here, or FILE.py:FUNCTION"
        raise InputError(f"{spec} built no network ({reason}): {mend}.") from error
    if not isinstance(module, torch.nn.Module):
        raise InputError(f"{spec} returned a {type(module).__name__}: let it return a torch.nn.Module.")
    return twin(module, network, key)


def twin(module, network, key=None):
    """A copy of a module with the weights of another one, of a state dict or of a file; InputError if they do not fit.

    Prefixes of wrappers fall where that makes the names fit.
    """
    module, (name, network) = copy.deepcopy(module).cpu().eval(), weights.opened(network, "The start")
    is_module = isinstance(network, torch.nn.Module)
    state, wanted = network.state_dict() if is_module else weights.chosen(network, name, key)[1], module.state_dict()
    while state.keys() != wanted.keys() and (prefix := [p for p in PREFIXES if all(n.startswith(p) for n in state)]):
        state = {part.removeprefix(prefix[0]): values for part, values in state.items()}
    parts = {
        "lacks": [part for part in wanted if part not in state],
        "has beside the module's": [part for part in state if part not in wanted],
        "has in another size": [part for part in wanted if part in state and state[part].shape != wanted[part].shape],
    }
    if said := [f"{way} {weights.listed(names, 3)}" for way, names in parts.items() if names]:
        raise InputError(f"{name} does not fit the module, as it {' and '.join(said)}: give what was trained.")
    module.load_state_dict(state)
    return module
