"""Mistakes that a reader can mend, each one sentence; and files that are whole or not there."""

import contextlib
import dataclasses
import os
import tempfile
import typing
from contextlib import contextmanager
from pathlib import Path

PROBE = 2**20  # bytes that must fit where a file is to be written; results are smaller


class InputError(ValueError):
    """A wrong parameter, file, shape or device; the message says what to do. IPython shows this line alone."""

    def _render_traceback_(self):
        return [f"InputError: {printable(str(self))}"]


def printable(text):
    """A text whose control characters, which would steer a terminal, are escaped: names may hold any."""
    return "".join(
        one if one.isprintable() else one.encode("unicode_escape").decode() for one in text
    )


def choose(name, value, choices):
    """Return `value` if it is one of `choices`; otherwise say which there are."""
    if value not in choices:
        allowed = ", ".join(map(repr, choices))
        raise InputError(f"{name} is {value!r}, but it must be one of {allowed}.")
    return value


def from_fields(kind, fields):
    """A dataclass of a file's {name: value}; InputError if one is missing, empty, unknown or not in its Literal."""
    by_name = {one.name: one for one in dataclasses.fields(kind)}
    for name, one in by_name.items():
        needed = one.default is one.default_factory is dataclasses.MISSING
        if needed and fields.get(name) in (None, "", [], {}):
            raise InputError(f"{name} is missing.")
        if typing.get_origin(one.type) is typing.Literal and name in fields:
            choose(name, fields[name], typing.get_args(one.type))
    if unknown := sorted(fields.keys() - by_name):
        raise InputError(f"there is no field {unknown[0]}; use {', '.join(by_name)}.")
    return kind(**fields)


def write(path, contents):
    """Write bytes to a Path, whole or not at all, as `write_all`."""
    write_all({path: contents})


def write_all(files):
    """Write {Path: bytes}, all whole or none at all: beside the files, then in their places. Makes their folders."""
    beside = {path: path.with_name(f"{path.name}.{os.getpid()}.tmp") for path in files}
    with folders_of(files):
        try:
            for path, temporary in beside.items():
                check_free(path)
                temporary.write_bytes(files[path])
            for path, temporary in beside.items():
                os.replace(temporary, path)
        finally:
            for temporary in beside.values():
                temporary.unlink(missing_ok=True)


@contextmanager
def folders_of(paths):
    """Make the missing folders of Paths for a block; those in which it leaves nothing go again."""
    missing = [
        folder for path in paths for folder in path.absolute().parents if not folder.exists()
    ]
    try:
        for path in paths:
            path.parent.mkdir(parents=True, exist_ok=True)
        yield
    finally:
        for folder in missing:
            with contextlib.suppress(OSError):
                folder.rmdir()


def check_free(path):
    """OSError if a Path is that of a folder or a device, which a file would replace."""
    if os.path.lexists(path) and not path.is_file():
        raise OSError("it is there, but is no file")


def check_writable(name, path):
    """Raise InputError unless a file can be written at a path; nothing is left there."""
    path = Path(path)
    with written(name, path), folders_of([path]):
        check_free(path)
        prefix = f"{path.name}."
        with tempfile.NamedTemporaryFile(dir=path.parent, prefix=prefix, suffix=".tmp") as probe:
            probe.write(bytes(PROBE))  # a buffer writes all of it, or fails


@contextmanager
def written(name, path):
    """InputError where what is to be written to a path meanwhile cannot be."""
    try:
        yield
    except (OSError, ValueError) as error:  # ValueError: a NUL byte
        reason = getattr(error, "strerror", None) or error
        raise InputError(
            f"{name} cannot be written to {str(path)!r} ({reason}): take a place in a folder of yours that has room."
        ) from error


@contextmanager
def explained(what, mend):
    """InputError that says `what` failed, why, and how to `mend` it, where code of others ends a block."""
    try:
        yield
    except InputError:
        raise
    except (Exception, SystemExit) as error:
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        raise InputError(f"{what} ({reason}): {mend}.") from error


@contextmanager
def located(place):
    """Say where in a file the mistake of a block is."""
    try:
        yield
    except InputError as error:
        raise InputError(f"{place}: {error}") from None
