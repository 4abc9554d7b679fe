"""Nothing is computed twice: results of slow calls are kept on disk, under all that they depend on."""

import functools
import hashlib
import inspect
import os
import time
from pathlib import Path

import torch

from utils import source

FOLDER = Path(__file__).parent.parent / "_build" / "cache"  # None: keep nothing
SECONDS = 0.5  # a call that is faster is made again


def kept(function):
    """Keep what a slow function returns: its next call with equal arguments reads it from disk.

    Equal means equal contents: of tensors, numbers, texts and tuples of them, on the same type of device, for the same
    source of all functions of `utils` that are reached; `progress` has no influence. A call that is given a function,
    to watch it, is always made.
    """

    @functools.wraps(function)
    def call(*arguments, **named):
        given = inspect.signature(function).bind(*arguments, **named)
        given.apply_defaults()
        given = {**given.arguments, "progress": None}
        if FOLDER is None or any(map(callable, given.values())):
            return function(*arguments, **named)
        key = described((source.function_fingerprint(function), torch.__version__, given))
        path = FOLDER / f"{function.__name__}-{hashlib.sha256(key.encode()).hexdigest()}.pt"
        try:
            return torch.load(path, weights_only=False)
        except Exception:  # nothing was kept, or it cannot be read
            begun = time.perf_counter()
        found = function(*arguments, **named)
        if time.perf_counter() - begun > SECONDS:
            write(path, found)
        return found

    return call


def described(value):
    """A text that stands for a value's contents: the same in every process."""
    if isinstance(value, torch.Tensor):
        contents = hashlib.sha256(value.detach().cpu().contiguous().numpy().tobytes()).hexdigest()
        return f"{value.dtype}{tuple(value.shape)}{value.device.type}{contents}"
    if isinstance(value, dict):
        value = sorted(value.items())
    if isinstance(value, (tuple, list)):
        return f"{type(value).__name__}({', '.join(map(described, value))})"
    return repr(value)


def write(path, found):
    """Write a result, whole or not at all; a full disk keeps nothing."""
    temporary = path.with_suffix(f".{os.getpid()}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        torch.save(found, temporary)
        os.replace(temporary, path)
    except (OSError, RuntimeError):  # torch says the latter of a full disk
        temporary.unlink(missing_ok=True)
