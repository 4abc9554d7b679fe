"""What a notebook may write to RESULTS: the names, kinds, meanings and baselines of data/quantities.yaml."""

import functools
import math
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

import yaml

from utils.errors import InputError, from_fields, located

FILE = Path(__file__).parents[1] / "data" / "quantities.yaml"
ROUNDING = 1e-6  # how far beyond a bound a number may be, as a cosine in single precision


class Registry(NamedTuple):
    """What data/quantities.yaml holds."""

    kinds: dict  # {name: Kind}
    placeholders: dict  # {name: (values, meaning)}
    entries: list  # Quantities and topics {topic, about}, in order


class Kind(NamedTuple):
    """A set of values."""

    name: str
    bounds: str  # the smallest interval that holds them, as in [0, 1], (0, 1] or [0, ∞)
    meaning: str
    whole: bool = False  # whole numbers only

    def holds(self, value):
        """Whether a number is one of the values, up to rounding at the bounds."""
        least, most = (
            float(end.replace("−", "-").replace("∞", "inf"))
            for end in self.bounds[1:-1].split(", ")
        )
        above = value > least if self.bounds[0] == "(" else value >= least - ROUNDING
        return (
            math.isfinite(value)
            and above
            and value <= most + ROUNDING
            and (value % 1 == 0 or not self.whole)
        )


@dataclass(frozen=True)
class Quantity:
    """An entry of the registry, of all names that its pattern gives."""

    name: str  # with alternatives and <placeholders>
    kind: Kind
    meaning: str
    pattern: re.Pattern
    baseline: str = ""  # what the baseline is; empty: there is none
    most: str = ""  # the parameter that bounds number and baseline; empty: none does
    where: tuple = ()  # the parameters that differ within a run, columns of a record
    # of its record, if it is computed again
    repeats: Literal["exactly", "within the spread"] = "within the spread"


@functools.cache
def load(path: Path = FILE) -> Registry:
    """Read a Registry, whose topics are {topic, about}; InputError if it cannot be read, or an entry is wrong."""
    try:
        content = yaml.load(
            path.read_text(encoding="utf-8"), getattr(yaml, "CSafeLoader", yaml.SafeLoader)
        )
        kinds = {name: Kind(name, **fields) for name, fields in content["kinds"].items()}
        placeholders = {
            name: next(iter(one.items())) for name, one in content["placeholders"].items()
        }
        stands = {"number": r"\d+(?:\.\d+)?"}
        for name, (values, _) in placeholders.items():
            stands[name] = expression(values, stands)
        entries = [
            one if "topic" in one else quantity(one, kinds, stands) for one in content["quantities"]
        ]
    except (OSError, UnicodeError, AttributeError, TypeError, KeyError, yaml.YAMLError) as error:
        raise InputError(
            f"{path} cannot be read ({' '.join(str(error).split())}): mend it."
        ) from error
    return Registry(kinds, placeholders, entries)


def expression(text, stands):
    """The regular expression of alternatives with <placeholders>, of which each `stands` for one {name: expression}."""
    if unknown := set(re.findall("<(.*?)>", text)) - stands.keys():
        raise InputError(
            f"{text} has <{min(unknown)}>, which is not defined: add it to the placeholders, above it."
        )
    plain = text.replace(" ", "").replace(".", r"\.")
    return re.sub("<(.*?)>", lambda match: f"(?:{stands[match[1]]})", plain)


def quantity(fields, kinds, stands):
    """The Quantity of an entry, whose meaning stands under its kind; InputError if it is wrong."""
    with located(f"{FILE.name}, {fields.get('name')}"):
        own = [key for key in fields if key.partition(" ≤ ")[0] in kinds]
        if len(own) != 1:
            raise InputError(
                f"it has {len(own)} kinds, but it must have one of {', '.join(kinds)}."
            )
        kind, _, most = own[0].partition(" ≤ ")
        own = {"kind": kinds[kind], "most": most, "meaning": fields.pop(own[0])}
        return from_fields(
            Quantity, fields | own | {"pattern": re.compile(expression(fields["name"], stands))}
        )


@functools.cache
def find(name: str) -> Quantity:
    """The Quantity that a name in RESULTS stands for; InputError if it is not registered, or by two patterns."""
    entries = [
        one for one in load().entries if isinstance(one, Quantity) and one.pattern.fullmatch(name)
    ]
    if len(entries) != 1:
        by = "".join(f", by {one.name}" for one in entries)
        raise InputError(
            f"{name} is registered {len(entries)} times{by}: data/quantities.yaml must have it once."
        )
    return entries[0]


def check(
    name: str,
    value: float,
    baseline: float | None,
    parameters: Mapping[str, Any],
    where: Collection[str] = (),
) -> None:
    """InputError unless a name, its number and its baseline are as registered, with the run's `parameters`."""
    entry = find(name)
    if {*where} != {*entry.where}:
        raise InputError(
            f"{name} has the parameters {[*where]}, but data/quantities.yaml says {[*entry.where]}."
        )
    if baseline is not None and not entry.baseline:
        raise InputError(
            f"{name} has no baseline: say in data/quantities.yaml what it is, or leave it out."
        )
    most = parameters.get(entry.most, math.inf)
    for what, number in ((name, value), (f"The baseline of {name}", baseline)):
        if number is not None and not (entry.kind.holds(number) and number <= most):
            limit = f", at most {entry.most} = {most}" if most < math.inf else ""
            raise InputError(
                f"{what} is {number}, but its kind, {entry.kind.name}, is in {entry.kind.bounds}{limit}."
            )
