"""Mistakes that a reader can mend, told in one sentence; and files that are whole or not there."""

import dataclasses
import os
import typing
from contextlib import contextmanager


class InputError(ValueError):
    """A wrong parameter, file, shape or device; the message says what to do. IPython shows this line alone."""

    def _render_traceback_(self):
        return [f"InputError: {self}"]


def choose(name, value, choices):
    """Return `value` if it is one of `choices`; otherwise say which there are."""
    if value not in choices:
        raise InputError(f"{name} is {value!r}, but it must be one of {', '.join(map(repr, choices))}.")
    return value


def from_fields(kind, fields):
    """A dataclass of fields {name: value} that a file gives; InputError if one is missing, empty, unknown or no choice.

    The choices of a field are those of its type, Literal["a", "b"].
    """
    known = {one.name: one for one in dataclasses.fields(kind)}
    for name, one in known.items():
        if one.default is one.default_factory is dataclasses.MISSING and fields.get(name) in (None, "", [], {}):
            raise InputError(f"{name} is missing.")
        if typing.get_origin(one.type) is typing.Literal and name in fields:
            choose(name, fields[name], typing.get_args(one.type))
    if unknown := sorted(fields.keys() - known):
        raise InputError(f"there is no field {unknown[0]}; use {', '.join(known)}.")
    return kind(**fields)


def write(path, contents):
    """Write bytes to a Path, whole or not at all: beside the file, then in its place in one step. Makes its folder."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    try:
        temporary.write_bytes(contents)
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


@contextmanager
def located(place):
    """Say where in a file the mistake of a block is."""
    try:
        yield
    except InputError as error:
        raise InputError(f"{place}: {error}") from None
