"""Files of strangers: what a file or a folder holds, and where in it a network is; no code in them is run."""

import contextlib
import json
import re
import warnings
import zipfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file
from torch.serialization import safe_globals

from training import images
from utils.errors import InputError, explained
from utils.kernels.step import full

WEIGHTS = "model.safetensors", "pytorch_model.bin"  # in a folder, as transformers calls them
INDEX = ".index.json"  # behind one of these names: of weights in several files
STATES = "optimizer.pt", "optimizer.bin"
scalar = np.float64(0).__reduce__()[0]  # by which numpy's numbers are pickled
KINDS = [type(np.dtype(kind)) for kind in ("f2", "f4", "f8", "i4", "i8", "?")]
NUMBERS = [np.dtype, scalar, (scalar, "numpy.core.multiarray.scalar"), *KINDS]
SAVE = "save the network's state_dict() by torch.save or by safetensors"
COPY = "copy it again, or save the weights alone, without objects"
NAMES = {  # patterns of names of what is not read, or of what is in such a folder: what it is, and what to do
    r"^\.metadata$|\.distcp$|_fsdp_\d+$": "is a checkpoint of torch.distributed, in shards: join them in a file"
    " (python -m torch.distributed.checkpoint.format_utils dcp_to_torch FOLDER FILE), and give that",
    r"^(global_step|zero_pp_rank_|mp_rank_|zero_to_fp32)": "is a checkpoint of DeepSpeed, in shards: join them by the"
    " zero_to_fp32.py in its folder, and give what that writes",
    r"^adapter_(model|config)\.": "is an adapter without its network: merge both (peft: merge_and_unload), and save"
    " the state_dict()",
    r"-\d{5}-of-(?!00001)\d{5}\.": "is one of several files of a network: give their folder, or the .index.json in it",
    r"\.onnx$": f"is an ONNX file: {SAVE}",
}
BEGINS = {  # how such files begin
    rb"$": "is empty: copy it again",
    rb"version https://git-lfs": "is a pointer of Git LFS, and not the file: fetch that by git lfs pull",
    rb"(?i)\s*<(!doctype )?html": "is a page of the web, and not the file: download it again",
    rb"\x89HDF": f"is an HDF5 file, as Keras writes, and no code is run: {SAVE}, or its arrays by numpy.savez",
    rb"GGUF": f"is a GGUF file: {SAVE}",
    rb".{4}TFL3": f"is a file of TensorFlow Lite: {SAVE}",
}


def opened(source, name):
    """What to call a source, a path or what a file holds, and what it holds; a `name` is for the latter."""
    if isinstance(source, str | Path):
        path = Path(source)
        return path.name, contents(path)
    return name, source


def contents(path):
    """What a file or a folder holds, on the CPU, such as {name: tensor}; InputError if it is not read."""
    if not (path.is_dir() or path.is_file()):
        raise InputError(f"There is no file {path}: check its path.")
    try:
        with explained(f"{path} cannot be read", COPY):
            return read(path, weights_in(path) if path.is_dir() else path)
    except InputError as error:
        cause = error.__cause__
        if cause and full(cause):  # which is no fault of the file
            raise cause from None
        raise


def read(path, place):
    """What the file of weights at a place of a path holds, or an index there names; InputError if there is none."""
    inside = [one.name for one in path.iterdir()] if place is None else [place.name]
    refuse(path, NAMES, inside)
    if place is None:
        none = (
            f"{path} holds no {' and no '.join(WEIGHTS)}, but {listed(sorted(inside)) or 'nothing'}"
        )
        raise InputError(f"{none}: give the file of its weights.")
    return joined(place) if place.name.endswith(INDEX) else tensors(place)


def refuse(path, kinds, found):
    """InputError for a path of which a text that was found is of one of the kinds {pattern: what it is}."""
    for pattern, said in kinds.items():
        if any(re.search(pattern, one) for one in found):
            raise InputError(f"{path} {said}.")


def weights_in(folder):
    """The file of weights, or the index of several, in a folder; None if there is none."""
    return file_in(folder, [name + end for name in WEIGHTS for end in ("", INDEX)])


def file_in(source, names):
    """The first file of these names in a folder, or None."""
    if not isinstance(source, str | Path) or not Path(source).is_dir():
        return None
    return next((path for name in names if (path := Path(source) / name).is_file()), None)


def joined(index):
    """{name: tensor} of the files that an index names."""
    with explained(f"{index} is no index of weights", "copy it again"):
        named = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
        shards = {*named.values()}
    found = {}
    for shard in sorted(shards):
        path = index.with_name(Path(shard).name)
        if not path.is_file():
            raise InputError(f"There is no file {path}, which {index.name} names: copy it, too.")
        found |= tensors(path)
    return found


def tensors(path):
    """What a file of weights holds, by torch.save, safetensors or numpy.savez, on the CPU."""
    kind = kind_of(path)
    if kind == "safetensors":
        return load_file(path)
    if kind == "npz":
        arrays = images.unpack(path, None).items()
        return {name: torch.from_numpy(part) for name, part in arrays if part.dtype.kind in "fiub"}
    try:
        # warnings of layouts that `weights.checked` refuses
        with warnings.catch_warnings(action="ignore"), safe_globals(NUMBERS):
            return torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:
        object = re.search(r"GLOBAL ([\w.]+)", str(error))
        why = (
            f"holds an object ({object[1]}), which takes code to read"
            if object
            else "is no file of weights alone"
        )
        way = 'by torch.save(network.state_dict(), "weights.pth")'
        raise InputError(
            f"{path} {why}, and no code is run: save the weights alone, {way}."
        ) from error


def kind_of(path):
    """By what a file was written, as its first bytes tell whatever its name: safetensors, npz or torch."""
    with open(path, "rb") as file:
        head = file.read(99)
    for pattern, said in BEGINS.items():
        if re.match(pattern, head, re.DOTALL):
            raise InputError(f"{path} {said}.")
    if head[8:9] == b"{":
        return "safetensors"
    if not head.startswith(b"PK"):
        return "torch"
    with zipfile.ZipFile(path) as archive:
        names = archive.namelist()
    if all(name.endswith(".npy") for name in names):
        return "npz"
    if not any(name.endswith("data.pkl") for name in names):
        raise InputError(f"{path} is an archive of other files: give the weights in it, or {SAVE}.")
    return "torch"


def named(content, source):
    """{name: tensor} of all in a checkpoint, with its place before the names; InputError if there is no matrix."""
    if not isinstance(content, Mapping | list | tuple):
        kind = type(content).__name__
        raise InputError(
            f"{source} holds a {kind}, not named weights: save the network's state_dict()."
        )
    flat = {
        f"{path}.{name}".lstrip("."): part
        for path, of in parts_in(content).items()
        for name, part in of.items()
    }
    if not networks_in(content):
        raise InputError(
            f"{source} holds no named matrix of weights: save the network's state_dict()."
        )
    if kernel := next((name for name in flat if re.search(r"(^|[./])kernel$", name)), ""):
        mend = "give their transposes as weights, such as Dense_0.weight and Dense_0.bias, and the layout HWC"
        raise InputError(f"{source} holds {kernel}, as Flax and Keras save networks: {mend}.")
    return flat


def chosen(content, source, key=None):
    """Where in a checkpoint a network is, "" for the file's own, and its {name: tensor}; InputError if none or several.

    A `key` is the place of one, or what its names begin with before a dot.
    """
    flat = named(content, source)
    inside = networks_in(content)
    (path, alone), *others = inside.items()
    if others and key is None:
        raise InputError(several(source, inside))
    if key is None or key.strip(".") == path:
        return path, alone
    for place in (key, f"{path}.{key}"):  # of names, or of those of one alone
        if found := {
            name[len(place) + 1 :]: part
            for name, part in flat.items()
            if name.startswith(f"{place}.")
        }:
            return place, found
    raise InputError(no_key(source, key, flat))


def several(source, places):
    """The sentence on a file that holds networks in several places."""
    mend = "name one by --key, or save the state_dict() of one alone"
    inside = listed(place.strip(".") or "." for place in places)
    return f"{source} holds {len(places)} networks ({inside}): {mend}."


def no_key(source, key, names):
    """The sentence on a file without a key."""
    begin = listed(dict.fromkeys(name.split(".")[0] for name in names))
    return f"{source} holds no network {key}, as its names begin with {begin}: give another key, or none."


def key_in(network, key):
    """A `key` if it names one of the networks in what a network is read from, else None: that may hold one alone."""
    if key is not None:
        with contextlib.suppress(InputError):
            name, content = opened(network, "")
            chosen(content, name, key)
            return key
    return None


def networks_in(content):
    """What holds matrices in a checkpoint, other than of three numbers: {path: {name: tensor}}."""
    return {
        path: of
        for path, of in parts_in(content).items()
        if any(part.dim() > 1 and part.numel() > 3 for part in of.values())
    }


def parts_in(content, path=""):
    """What holds named tensors in a checkpoint, other than an optimiser's: {path: {name: tensor}}."""
    is_list = isinstance(content, list | tuple)
    parts = dict(enumerate(content) if is_list else content)
    if "param_groups" in parts or re.search("optimi[sz]er", path.rpartition(".")[2].lower()):
        return {}
    own = {str(name): part.detach() for name, part in parts.items() if torch.is_tensor(part)}
    inside = {path: own} if own and not is_list else {}
    for key, part in parts.items():
        if isinstance(part, Mapping | list | tuple):
            inside |= parts_in(part, f"{path}.{key}" if path else str(key))
    return inside


def listed(names, most=6):
    """Names in a sentence, the first few and how many there are more."""
    names = [*names]
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")
