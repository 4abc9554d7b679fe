"""Nothing is computed twice: results of slow calls are kept on disk, under all that they depend on. Loads no torch."""

import contextlib
import functools
import hashlib
import inspect
import os
import time
from importlib.metadata import version
from pathlib import Path

from utils import fingerprint

FOLDER = None if "NO_CACHE" in os.environ else fingerprint.ROOT / "_build" / "cache"  # None: keep nothing
SECONDS = 0.5  # a call that is faster is made again


def cached(function):
    """Keep what a slow function returns: its next call with equal arguments reads it from disk.

    Equal means equal contents: of tensors, numbers, texts and tuples of them, on the same type of device and number of
    threads, for the same code of its file and of what this reaches in `utils`; not `progress`. A call given a function
    is always made. What cannot be read, or is of another type than the function says that it returns, is computed anew.
    """
    code = fingerprint.here().fingerprint(fingerprint.parsed(Path(inspect.getfile(function)).read_bytes()))
    signature = inspect.signature(function)
    returns = object if signature.return_annotation is signature.empty else signature.return_annotation

    @functools.wraps(function)
    def call(*arguments, **named):
        from utils import entries  # this loads torch

        bound = signature.bind(*arguments, **named)
        bound.apply_defaults()
        given = {**bound.arguments, "progress": None}
        if FOLDER is None or any(map(callable, given.values())):
            return function(*arguments, **named)
        key = text_of((code, version("torch"), os.environ.get("OMP_NUM_THREADS"), given))
        path = FOLDER / f"{function.__name__}-{hashlib.sha256(key.encode()).hexdigest()}.npz"
        with contextlib.suppress(Exception):  # nothing was kept, or it cannot be read
            if isinstance(found := entries.unpacked(path, path.stem), returns):
                return found
        begun = time.perf_counter()
        found = function(*arguments, **named)
        if time.perf_counter() - begun > SECONDS:
            with contextlib.suppress(OSError, TypeError, MemoryError):  # a full disk keeps nothing
                write(path, entries.packed(found, path.stem))
        return found

    return call


def text_of(value):
    """A text that stands for a value's contents: the same in every process."""
    if hasattr(value, "detach"):  # a tensor
        contents = hashlib.sha256(value.detach().cpu().contiguous().numpy().tobytes()).hexdigest()
        return f"{value.dtype}{tuple(value.shape)}{value.device.type}{contents}"
    if isinstance(value, dict):
        value = sorted(value.items())
    if isinstance(value, (tuple, list)):
        return f"{type(value).__name__}({', '.join(map(text_of, value))})"
    return repr(value)


def write(path, contents):
    """Write bytes, whole or not at all: beside the file, then in its place in one step."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    try:
        temporary.write_bytes(contents)
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
