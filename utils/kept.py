"""Nothing is computed twice: results of slow calls are kept on disk, under all that they depend on. Loads no torch."""

import ast
import contextlib
import functools
import hashlib
import inspect
import os
import time
from importlib.metadata import version
from pathlib import Path

ROOT = Path(__file__).parent.parent
FOLDER = None if os.environ.get("CACHE") == "no" else ROOT / "_build" / "cache"  # None: keep nothing
SECONDS = 0.5  # a call that is faster is made again


def parsed(code):
    """The syntax tree of a text of Python without docstrings; comments and layout are not in it."""
    tree = ast.parse(code)
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.FunctionDef | ast.ClassDef) and ast.get_docstring(node) is not None:
            del node.body[0]
    return tree


PATHS = {path: path.relative_to(ROOT).with_suffix("").parts for path in (ROOT / "utils").rglob("*.py")}
FILES = {".".join(name).removesuffix(".__init__"): parsed(path.read_bytes()) for path, name in PATHS.items()}


def fingerprint(code):
    """SHA-256 of a text of Python and of all files of `utils` behind its imports, as this process found them."""
    trees, known = [parsed(code)], dict(FILES)
    for node in (node for tree in trees for node in ast.walk(tree)):  # trees are added on the way
        if isinstance(node, ast.Import | ast.ImportFrom):
            base = getattr(node, "module", "")
            names = [base, *(f"{base}.{alias.name}".strip(".") for alias in node.names)]
            trees += [known.pop(name) for name in names if name in known]
    return hashlib.sha256("\n".join(map(ast.dump, trees)).encode()).hexdigest()


def kept(function):
    """Keep what a slow function returns: its next call with equal arguments reads it from disk.

    Equal means equal contents: of tensors, numbers, texts and tuples of them, on the same type of device, for the same
    code of its file and of all that this imports from `utils`; not `progress`. A call given a function is always made.
    What cannot be read, or is of another type than the function says that it returns, is computed anew.
    """
    code, signature = fingerprint(Path(inspect.getfile(function)).read_bytes()), inspect.signature(function)
    returns = object if signature.return_annotation is signature.empty else signature.return_annotation

    @functools.wraps(function)
    def call(*arguments, **named):
        from utils import entries  # this loads torch

        bound = signature.bind(*arguments, **named)
        bound.apply_defaults()
        given = {**bound.arguments, "progress": None}
        if FOLDER is None or any(map(callable, given.values())):
            return function(*arguments, **named)
        key = described((code, version("torch"), given))
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


def described(value):
    """A text that stands for a value's contents: the same in every process."""
    if hasattr(value, "detach"):  # a tensor
        contents = hashlib.sha256(value.detach().cpu().contiguous().numpy().tobytes()).hexdigest()
        return f"{value.dtype}{tuple(value.shape)}{value.device.type}{contents}"
    if isinstance(value, dict):
        value = sorted(value.items())
    if isinstance(value, (tuple, list)):
        return f"{type(value).__name__}({', '.join(map(described, value))})"
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
