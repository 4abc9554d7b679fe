"""What a chapter may write to RESULTS: the names, kinds, meanings and baselines of data/quantities.yaml."""

import functools
import itertools
import math
import re
from pathlib import Path
from typing import NamedTuple

import yaml

from utils.errors import InputError, choose

FILE = Path(__file__).parent.parent / "data" / "quantities.yaml"
REPEATS = "exactly", "within the spread"
ROUNDING = 1e-6  # how far beyond a bound a number may be, as a cosine in single precision


class Kind(NamedTuple):
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


class Quantity(NamedTuple):
    """An entry of the registry, of one name or of all that its placeholders give."""

    name: str  # with <placeholders>
    kind: Kind
    meaning: str
    baseline: str = ""  # what the baseline is; empty: there is none
    most: str = ""  # the parameter that bounds number and baseline; empty: none does
    repeats: str = "within the spread"  # of its record, for a run that is computed again; or "exactly", up to rounding


class Placeholder(NamedTuple):
    """What may stand in the place of <name>."""

    name: str
    meaning: str
    values: list  # of text, which may hold placeholders that are defined before


class Topic(NamedTuple):
    """Quantities that belong together."""

    title: str
    about: str
    quantities: list


class Registry(NamedTuple):
    """All of a file."""

    kinds: dict  # {name: Kind}
    placeholders: dict  # {name: Placeholder}
    topics: list
    names: dict  # {name without placeholders but <number>: Quantity}


@functools.cache
def load(path=FILE):
    """Read a Registry; InputError if it cannot be read, or an entry is wrong."""
    try:
        content = yaml.load(path.read_text(encoding="utf-8"), getattr(yaml, "CSafeLoader", yaml.SafeLoader))
        kinds, placeholders = content["kinds"].items(), content["placeholders"].items()
        topics = [entry(Topic, topic) for topic in content["topics"]]
    except (OSError, UnicodeError, AttributeError, TypeError, KeyError, yaml.YAMLError) as error:
        raise InputError(f"{path} cannot be read ({' '.join(str(error).split())}): mend it.") from error
    kinds = {name: entry(Kind, fields, name=name) for name, fields in kinds}
    placeholders = {name: entry(Placeholder, fields, name=name) for name, fields in placeholders}
    topics = [topic._replace(quantities=[quantity(one, kinds) for one in topic.quantities]) for topic in topics]
    values = {"number": ["<number>"]}
    for one in placeholders.values():
        values[one.name] = [text for value in one.values for text in expanded(value, values)]
    return Registry(kinds, placeholders, topics, unique(topics, values))


def entry(kind, fields, **named):
    """The named tuple of an entry's fields {name: value}; InputError if one is missing or unknown."""
    try:
        return kind(**named, **fields)
    except TypeError as error:
        needed = [field for field in kind._fields if field not in kind._field_defaults]
        more = "".join(f", perhaps {field}" for field in kind._field_defaults)
        raise InputError(f"The entry {named or ''}{fields} must have {', '.join(needed)}{more}, no others.") from error


def quantity(fields, kinds):
    """The Quantity of an entry; InputError if its kind is unknown."""
    found = entry(Quantity, fields)
    if found.kind not in kinds:
        raise InputError(f"{found.name} is of the kind {found.kind!r}, but it must be one of {', '.join(kinds)}.")
    choose(f"repeats of {found.name}", found.repeats, REPEATS)
    return found._replace(kind=kinds[found.kind])


def expanded(text, values):
    """All that a text means, with each of the `values` {placeholder: [text]} in the place of <placeholder>."""
    parts = re.split("<(.*?)>", text)  # text, a placeholder, text, …, text
    for name in parts[1::2]:
        if name not in values:
            raise InputError(f"{text} has <{name}>, which is not defined: add it to the placeholders, above its use.")
    choices = [values[part] if k % 2 else [part] for k, part in enumerate(parts)]
    return ["".join(words) for words in itertools.product(*choices)]


def unique(topics, values):
    """Every name without placeholders and its Quantity; InputError if a name means two, or could not be found."""
    names = {}
    for one in itertools.chain.from_iterable(topic.quantities for topic in topics):
        for name in expanded(one.name, values):
            if general(name.replace("<number>", "0")) != name:
                raise InputError(f"{name} has a number that is not <number> between two slashes: rename it.")
            if name in names:
                raise InputError(f"{name} is registered twice, by {names[name].name} and by {one.name}: leave one.")
            names[name] = one
    return names


def general(name):
    """The name with <number> in the place of numbers between slashes."""
    return re.sub(r"(?<=/)\d+(\.\d+)?(?=/)", "<number>", name)


def find(name):
    """The Quantity that a name in RESULTS stands for; InputError if it is not registered."""
    try:
        return load().names[general(name)]
    except KeyError:
        raise InputError(f"{name} is not registered: add it to data/quantities.yaml.") from None


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
