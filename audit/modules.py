"""Modules of strangers: built by a function of the user's, whose code is run, and loaded with the weights of a file."""

import copy
import importlib
import runpy
import sys
from contextlib import contextmanager
from pathlib import Path

import torch

from audit import weights
from utils.errors import InputError, explained

ROOT = Path(__file__).resolve().parents[1]
OURS = {path.parent.name for path in ROOT.glob("*/__init__.py")}  # packages
PREFIXES = "module.", "_orig_mod.", "model."  # of wrappers


def called(spec, *arguments):
    """What the user's function MODULE:FUNCTION or FILE.py:FUNCTION returns.

    A module is found from the folder in which Python runs, and what a file imports beside it, too.
    """
    place, _, name = spec.rpartition(":")
    folders = [Path(place).parent.resolve(), Path.cwd()]
    sys.path[:] = dict.fromkeys([*map(str, folders), *sys.path])
    with own_packages(folders):
        if place.endswith(".py"):
            return runpy.run_path(place)[name](*arguments)
        return getattr(importlib.import_module(place), name)(*arguments)


@contextmanager
def own_packages(folders):
    """Take those of our packages out of the way, for a while, whose names a stranger's code has in its folders."""
    names = {name for name in OURS if first_with(name, folders) not in (None, ROOT)}

    def taken():
        return {
            name: sys.modules.pop(name)
            for name in [*sys.modules]
            if name.partition(".")[0] in names
        }

    ours = taken()
    try:
        yield
    finally:
        taken()
        sys.modules.update(ours)


def first_with(name, folders):
    """The first of some folders in which Python finds a module or a package of a name, or None."""
    return next(
        (one for one in folders if (one / name).is_dir() or (one / f"{name}.py").is_file()), None
    )


def made(spec):
    """The module that the user's function returns, on the CPU; InputError if it returns none."""
    mend = "give MODULE:FUNCTION, as found from here, or FILE.py:FUNCTION"
    with explained(f"{spec} built no network", mend):
        module = called(spec)
    if not isinstance(module, torch.nn.Module):
        raise InputError(
            f"{spec} returned a {type(module).__name__}: let it return a torch.nn.Module."
        )
    return module.cpu()


def built(spec, network, key=None):
    """The module that the user's function returns, with the weights that `twin` takes; InputError if not."""
    return twin(made(spec), network, key)


def redrawn(module):
    """A copy of a module whose layers are drawn anew, in their order, as torch does."""
    module = copy.deepcopy(module)
    for part in module.modules():
        if hasattr(part, "reset_parameters"):
            part.reset_parameters()
    return module


def equal(module, other):
    """Whether two modules have the same weights."""
    return all(map(torch.equal, module.state_dict().values(), other.state_dict().values()))


def twin(module, network, key=None):
    """A copy of a module with the weights of another one, of a state dict or of a file; InputError if they do not fit.

    Prefixes of wrappers fall where that makes the names fit.
    """
    module = copy.deepcopy(module).cpu().eval()
    name, network = weights.opened(network, "The start")
    is_module = isinstance(network, torch.nn.Module)
    state = network.state_dict() if is_module else weights.chosen(network, name, key)[1]
    wanted = module.state_dict()
    while state.keys() != wanted.keys() and (
        prefix := [p for p in PREFIXES if all(n.startswith(p) for n in state)]
    ):
        state = {part.removeprefix(prefix[0]): values for part, values in state.items()}
    parts = {
        "lacks": [part for part in wanted if part not in state],
        "has beside the module's": [part for part in state if part not in wanted],
        "has in another size": [
            part for part in wanted if part in state and state[part].shape != wanted[part].shape
        ],
    }
    if said := [f"{way} {weights.listed(names, 3)}" for way, names in parts.items() if names]:
        raise InputError(
            f"{name} does not fit the module, as it {' and '.join(said)}: give what was trained."
        )
    module.load_state_dict(state)
    return module
