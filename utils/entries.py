"""Results as files without code: tensors, plain values and the named tuples of `utils`, in one `.npz` archive.

Tensors are its arrays. One more array is JSON that says how they nest: what is not plain is {kind: contents}, where a
kind is `tensor`, `dtype`, `list`, `tuple`, or the full name of a named tuple. To read an entry imports and calls
nothing that the entry names: a named tuple is looked up among those that loaded modules of `utils` define.
"""

import io
import json
import sys

import numpy as np
import torch

PLAIN = type(None), bool, int, float, str


def packed(value, key):
    """The bytes of an entry that holds a value and the key that it belongs to; TypeError if it cannot be described."""
    arrays, buffer = {}, io.BytesIO()
    text = json.dumps([key, describe(value, arrays)])
    np.savez(buffer, description=np.frombuffer(text.encode(), np.uint8), **arrays)
    return buffer.getvalue()


def unpacked(path, key):
    """The value in an entry, on its device and with its strides; some Exception unless it is whole and of this key."""
    with np.load(path, allow_pickle=False) as archive:
        found, description = json.loads(archive["description"].tobytes())
        if found != key:
            raise ValueError(f"{path} is an entry for {found}")
        return restore(description, archive)


def describe(value, arrays):
    """What JSON can say of a value; its tensors are added to `arrays`. TypeError for what is not listed here."""
    kind = type(value)
    if kind in PLAIN:
        return value
    if kind is torch.dtype:
        return {"dtype": str(value).removeprefix("torch.")}
    if kind is torch.Tensor and not value.requires_grad:
        value = value.contiguous() if 0 in value.stride() else value  # an expanded tensor overlaps itself
        name = str(len(arrays))
        arrays[name] = value.cpu().numpy()
        return {"tensor": [name, value.stride(), str(value.device)]}
    name = kind.__name__ if kind in (list, tuple) else f"{kind.__module__}.{kind.__name__}"
    if kind not in (list, tuple) and named_tuple(name) is not kind:
        raise TypeError(f"{name} has a namesake")
    return {name: [describe(part, arrays) for part in value]}


def restore(description, archive):
    """The value that was described; some Exception unless all of it fits."""
    if type(description) in PLAIN:
        return description
    [(kind, contents)] = description.items()
    if kind == "dtype" and isinstance(vars(torch)[contents], torch.dtype):
        return vars(torch)[contents]
    if kind == "tensor":
        name, strides, device = contents
        array = torch.from_numpy(archive[name])
        return torch.empty_strided(array.shape, strides, dtype=array.dtype, device=device).copy_(array)
    parts = [restore(part, archive) for part in contents]
    if kind in ("list", "tuple"):
        return parts if kind == "list" else tuple(parts)
    return named_tuple(kind)._make(parts)


def named_tuple(name):
    """The named tuple that a loaded module of `utils` defines under this full name; TypeError or KeyError else."""
    module, _, last = name.rpartition(".")
    found = vars(sys.modules[module]).get(last) if module.startswith("utils.") else None
    if isinstance(found, type) and issubclass(found, tuple) and hasattr(found, "_make"):
        return found
    raise TypeError(f"{name} is no named tuple of utils")
