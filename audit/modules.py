"""Modules of strangers: built by a function of the user's, whose code is run, and loaded with the weights of a file."""

import copy
import importlib
import re
import runpy
import sys
from collections import Counter, defaultdict
from contextlib import contextmanager
from pathlib import Path

import torch

from audit import files, weights
from utils.errors import InputError, explained

ROOT = Path(__file__).resolve().parents[1]
OURS = {path.parent.name for path in ROOT.glob("*/__init__.py")}  # packages
# {library: (package, function)} of named networks
LIBRARIES = {"timm": ("timm", "create_model"), "torchvision": ("torchvision.models", "get_model")}
WRAPPER = re.compile(r"(?<=\.)(module|_\w+)\.")  # part of a name behind another one


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


def made(spec, like=None):
    """The module that the user's function returns, or a named one of LIBRARIES, on the CPU; InputError for none.

    The latter has as many outputs as the last layer has in parameters {name: values} that it is to be like.
    """
    library, _, name = spec.partition(":")
    mend = (
        "give MODULE:FUNCTION, as found from here, or FILE.py:FUNCTION, that builds it on the CPU"
    )
    with explained(f"{spec} built no network", mend):
        if library in LIBRARIES:
            outputs = {"num_classes": len([*like.values()][-1])} if like else {}
            module = builder(library)(name, **outputs)
        else:
            module = called(spec)
    if not isinstance(module, torch.nn.Module):
        raise InputError(
            f"{spec} returned a {type(module).__name__}: let it return a torch.nn.Module."
        )
    if any(map(torch.nn.parameter.is_lazy, module.parameters())):
        raise InputError(f"{spec} built layers of no size, such as LazyLinear: give their sizes.")
    return module.cpu()


def builder(library):
    """The function of one of LIBRARIES that builds a network by its name; InputError if it is not installed."""
    package, function = LIBRARIES[library]
    with explained(f"{library} cannot be loaded", f"pip install {library}"):
        return getattr(importlib.import_module(package), function)


def built(spec, network, key=None):
    """The module that `made` gives, with the weights that `twin` takes, and notes; InputError if not.

    A named one of LIBRARIES has as many outputs as the last layer in the file.
    """
    module = made(spec)
    if spec.partition(":")[0] in LIBRARIES:
        wanted = dict(module.named_parameters())
        _, state = state_of(network, wanted)
        places = places_in(state, wanted, key)
        module = made(
            spec, {part: state.get("".join(places[:1]) + part, wanted[part]) for part in wanted}
        )
    module, left = twin(module, network, key)
    notes = [f"The code of {spec} was run to build the network."]
    if left and key is None:
        notes.append(f"Its file holds more, which was left out: {files.listed(left, 3)}.")
    return module, tuple(notes)


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
    """A copy of a module with the weights of another one, of a state dict or of a file, and which others it holds.

    InputError if they do not fit, as `place_of` says.
    """
    module = copy.deepcopy(module).cpu().eval()
    wanted = module.state_dict()
    name, state = state_of(network, wanted)
    place = place_of(state, wanted, name, key)
    sources = sources_in(state, wanted, place)
    for part, _ in module.named_parameters(remove_duplicate=False):
        if source := sources[part]:
            weights.checked(state[source], f"{name}: {source}")
    module.load_state_dict(
        {part: state[source] if source else wanted[part] for part, source in sources.items()}
    )
    return module, [
        part for part, values in state.items() if values.dim() > 1 and not part.startswith(place)
    ]


def state_of(network, wanted):
    """What to call a network, and its {name: tensor}, without those parts of names that wrappers put inside.

    They are `module` and what begins with a line, unless a name that is wanted has them, too.
    """
    name, content = files.opened(network, "The start")
    is_module = isinstance(content, torch.nn.Module)
    state = content.state_dict() if is_module else files.named(content, name)
    own = {part for one in wanted for part in one.split(".")}
    bare = {
        WRAPPER.sub(lambda found: found[0] * (found[1] in own), part): values
        for part, values in state.items()
    }
    return name, bare if len(bare) == len(state) else state


def place_of(state, wanted, name, key=None):
    """The prefix behind which a state dict holds all that a module wants, and no more.

    It may lack whole numbers, such as counts, which the module's code sets, and weights that this ties to others.
    InputError if there is no such place, or several and no `key` tells one.
    """
    fits = [place for place in places_in(state, wanted) if not any(misfits(state, wanted, place))]
    asked = places_in(state, wanted, key)
    if not asked:
        raise InputError(files.no_key(name, key, state))
    told = [place for place in asked if place in fits]
    if told[1:]:
        raise InputError(files.several(name, told))
    place = (told or asked)[0]
    lacks, resized = misfits(state, wanted, place)
    inner = tuple(one for one in fits if one != place and one.startswith(place))
    parts = {
        "lacks": lacks,
        "has beside the module's": [
            part.removeprefix(place)
            for part, values in state.items()
            if part.startswith(place) and part.removeprefix(place) not in wanted
            if not (is_whole(values) or part.startswith(inner))
        ],
        "has in another size": resized,
    }
    if said := [f"{way} {files.listed(names, 3)}" for way, names in parts.items() if names]:
        raise InputError(
            f"{name} does not fit the module, as it {' and '.join(said)}: give what was trained."
        )
    return place


def places_in(state, wanted, key=None):
    """The prefixes of names in a state dict, or those of a `key`, which most wanted names follow: most of all first."""
    found = Counter()
    for name in state:
        parts = name.split(".")
        for k in range(len(parts)):
            found["".join(f"{one}." for one in parts[:k])] += ".".join(parts[k:]) in wanted
    places = [*found]
    if key is not None:
        asked = key.strip(".")
        places = [place for place in found if (f".{asked}." in f".{place}" if asked else not place)]
    places.sort(key=found.__getitem__, reverse=True)
    # a layer's own prefix is behind a few names
    return [place for place in places if 2 * found[place] > found[places[0]] or place == places[0]]


def misfits(state, wanted, place):
    """The names that a module wants, and that a state dict lacks behind a prefix, or has in another size."""
    sources = sources_in(state, wanted, place)
    lacks = [part for part in wanted if not sources[part] and not is_whole(wanted[part])]
    there = [part for part in wanted if sources[part]]
    return lacks, [part for part in there if state[sources[part]].shape != wanted[part].shape]


def sources_in(state, wanted, place):
    """{name that a module wants: name in a state dict, behind a prefix, or None}; of tied weights one is enough."""
    tied = defaultdict(list)
    for part, values in wanted.items():
        tied[values.data_ptr(), values.shape].append(place + part)
    return {
        part: next(
            (one for one in (place + part, *tied[values.data_ptr(), values.shape]) if one in state),
            None,
        )
        for part, values in wanted.items()
    }


def is_whole(values):
    """Whether a tensor holds whole numbers, such as a count or places, which a module's code sets itself."""
    return not (values.is_floating_point() or values.is_complex())
