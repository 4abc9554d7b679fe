"""Mistakes that a reader can mend, told in one sentence."""


class InputError(ValueError):
    """A wrong parameter, file, shape or device; the message says what to do. IPython shows this line alone."""

    def _render_traceback_(self):
        return [f"InputError: {self}"]


def choose(name, value, choices):
    """Return `value` if it is one of `choices`; otherwise say which there are."""
    if value not in choices:
        raise InputError(f"{name} is {value!r}, but it must be one of {', '.join(map(repr, choices))}.")
    return value
