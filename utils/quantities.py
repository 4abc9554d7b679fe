"""What a chapter may write to RESULTS: the names, kinds, meanings and baselines of data/quantities.yaml."""

import functools
import math
import re
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import yaml

from utils.errors import InputError, choose, from_fields, located

FILE = Path(__file__).parent.parent / "data" / "quantities.yaml"
REPEATS = "exactly", "within the spread"
ROUNDING = 1e-6  # how far beyond a bound a number may be, as a cosine in single precision
NUMBER = r"\d+(?:\.\d+)?"  # what <number> stands for


@dataclass(frozen=True)
class Kind:
    """A set of values."""

    name: str
    meaning: str
    least: float = -math.inf
    above: float = -math.inf  # an exclusive bound in the place of `least`
    most: float = math.inf
    whole: bool = False  # whole numbers only

    @property
    def bounds(self):
        """The smallest interval that holds the values, as in [0, 1]."""
        left = f"[{self.least:g}" if self.least > -math.inf else f"({self.above:g}"
        right = f"{self.most:g}]" if self.most < math.inf else "∞)"
        return f"{left}, {right}".replace("-inf", "−∞").replace("-", "−")

    def holds(self, value):
        """Whether a number is one of the values, up to rounding at the bounds."""
        within = self.least - ROUNDING <= value <= self.most + ROUNDING and value > self.above
        return math.isfinite(value) and within and (value == round(value) or not self.whole)


@dataclass(frozen=True)
class Quantity:
    """An entry of the registry, of all names that its pattern gives."""

    name: str  # with alternatives and <placeholders>
    kind: Kind
    meaning: str
    pattern: re.Pattern
    baseline: str = ""  # what the baseline is; empty: there is none
    most: str = ""  # the parameter that bounds number and baseline; empty: none does
    repeats: str = "within the spread"  # of its record, for a run that is computed again; or "exactly", up to rounding


@dataclass(frozen=True)
class Topic:
    """A heading above the quantities that follow it."""

    topic: str
    about: str


class Registry(NamedTuple):
    """All of a file."""

    kinds: dict  # {name: Kind}
    placeholders: dict  # {name: (values, meaning)}
    entries: list  # of Topic and Quantity


@functools.cache
def load(path=FILE):
    """Read a Registry; InputError if it cannot be read, or an entry is wrong."""
    try:
        content = yaml.load(path.read_text(encoding="utf-8"), getattr(yaml, "CSafeLoader", yaml.SafeLoader))
        placeholders = {name: next(iter(one.items())) for name, one in content["placeholders"].items()}
        stands, entries = {"number": NUMBER}, content["quantities"]
        with located(path.name):
            kinds = {name: from_fields(Kind, {"name": name} | fields) for name, fields in content["kinds"].items()}
            for name, (values, _) in placeholders.items():
                stands[name] = expression(values, stands)
            entries = [from_fields(Topic, one) if "topic" in one else quantity(one, kinds, stands) for one in entries]
    except (OSError, UnicodeError, AttributeError, TypeError, KeyError, yaml.YAMLError) as error:
        raise InputError(f"{path} cannot be read ({' '.join(str(error).split())}): mend it.") from error
    return Registry(kinds, placeholders, entries)


def expression(text, stands):
    """The regular expression of alternatives with <placeholders>, of which each `stands` for one {name: expression}."""
    parts = re.split("<(.*?)>", text.replace(" ", ""))  # text, a placeholder, text, …, text
    if unknown := [name for name in parts[1::2] if name not in stands]:
        raise InputError(f"{text} has <{unknown[0]}>, which is not defined: add it to the placeholders, above its use.")
    words = [f"(?:{stands[part]})" if k % 2 else re.escape(part) for k, part in enumerate(parts)]
    return "".join(words).replace(r"\|", "|")


def quantity(fields, kinds, stands):
    """The Quantity of an entry; InputError if it is wrong, or its kind is unknown."""
    name, said = fields.get("name"), [key for key in fields if key.partition(" ≤ ")[0] in kinds]
    with located(name):
        if len(said) != 1:
            raise InputError(f"it has {len(said)} kinds, but it must have one of {', '.join(kinds)}.")
        choose("repeats", fields.get("repeats", REPEATS[0]), REPEATS)
        kind, _, most = said[0].partition(" ≤ ")
        own = {key: value for key, value in fields.items() if key != said[0]}
        own |= {"kind": kinds[kind], "most": most, "meaning": fields[said[0]]}
        return from_fields(Quantity, own | {"pattern": re.compile(expression(name, stands))})


@functools.cache
def find(name):
    """The Quantity that a name in RESULTS stands for; InputError if it is not registered, or by two patterns."""
    found = [one for one in load().entries if isinstance(one, Quantity) and one.pattern.fullmatch(name)]
    if not found:
        raise InputError(f"{name} is not registered: add it to data/quantities.yaml.")
    if len(found) > 1:
        raise InputError(f"{name} is registered twice, by {found[0].name} and by {found[1].name}: leave one.")
    return found[0]


def check(name, value, baseline, parameters):
    """Raise InputError unless a name is registered, and a number and its baseline, or None, are what it allows.

    `parameters` are those of the run {name: value}, of which one may bound the number.
    """
    found = find(name)
    if baseline is not None and not found.baseline:
        raise InputError(f"{name} has no baseline: say in data/quantities.yaml what it is, or leave it out.")
    most = parameters.get(found.most, math.inf)
    for what, number in ((name, value), (f"The baseline of {name}", baseline)):
        if number is not None and not (found.kind.holds(number) and number <= most):
            limit = f", at most {found.most} = {most}" if most < math.inf else ""
            raise InputError(f"{what} is {number}, but its kind, {found.kind.name}, is in {found.kind.bounds}{limit}.")
