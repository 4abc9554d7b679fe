"""Mistakes that a reader can mend, told in one sentence."""

import dataclasses
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
    """A dataclass of fields {name: value} that a file gives; InputError if one is missing, empty or unknown."""
    known = dataclasses.fields(kind)
    needed = [one.name for one in known if one.default is one.default_factory is dataclasses.MISSING]
    if missing := [name for name in needed if fields.get(name) in (None, "", [], {})]:
        raise InputError(f"{missing[0]} is missing.")
    if unknown := sorted(fields.keys() - {one.name for one in known}):
        raise InputError(f"there is no field {unknown[0]}; use {', '.join(one.name for one in known)}.")
    return kind(**fields)


@contextmanager
def located(place):
    """Say where in a file the mistake of a block is."""
    try:
        yield
    except InputError as error:
        raise InputError(f"{place}: {error}") from None
