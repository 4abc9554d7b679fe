"""Which words a fine-tuned language model was shown: the rows of its embedding that moved, in files or in a folder.

A folder is a checkpoint of `transformers`, with weights, tokenizer and the optimiser's state, which tells words alone.
"""

import contextlib
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

if __name__ == "__main__":  # before a library is loaded that may end this process
    from audit.__main__ import command

    with contextlib.suppress(OSError):
        print("This spelling is old: say `audit words NETWORK --before NETWORK`.", file=sys.stderr)
    sys.argv.insert(1, "words")
    sys.exit(command())

from torch import Tensor

from attacks import encoder, text
from audit import files, weights
from utils.errors import InputError, explained

VOCABULARY = "tokenizer.json", "vocab.json", "vocab.txt"
MOVED = 1e-3  # of the row of places that moved most: a text reached so far
CLEAR = 3  # times the part of its second place: of a word that is said to have one


class Words(NamedTuple):
    """The words that training used."""

    names: list  # in a vocabulary, or their numbers, those that moved most first
    of: int  # tokens that there are
    how: str  # they were told, as "moved"
    places: list  # of each in its texts, from 0 on; None where they do not tell one

    @property
    def sentence(self):
        """The finding."""
        told = len(self.places) - self.places.count(None)
        places = f", {told} of them with their place in the text" * bool(told)
        rows = f"{len(self.names)} of {self.of} rows of the embedding {self.how}"
        return f"Something leaks. {rows}: the words that training used{places}."


class Tables(NamedTuple):
    """Rows of words (V, d), and of places (T, d) or None."""

    words: Tensor
    places: Tensor | None


def words(
    network: str | Path | Mapping[str, Any],
    before: str | Path | Mapping[str, Any] | None = None,
    vocabulary: str | Path | None = None,
    key: str | None = None,
    embedding: str | None = None,
) -> Words:
    """The Words that two networks tell, or the state in a folder. InputError if they tell none.

    A network is a file, a folder or a state dict. A `key` names one of several in a file, and is used for `before` if
    that holds it; `embedding` is the name of a matrix that `attacks.text` does not know.
    """
    tables = read_tables(network, key, embedding)
    moments = moments_beside(network, tables, needed=before is None)
    if before is not None:
        key = files.key_in(before, key)
        bag, tables = compare(read_tables(before, key, embedding), tables)
        how = f"moved, the others by one factor, {bag.alpha:.6g}"
    elif moments:
        bag = text.bag_of_moment(moments.words)
        how = "have a moment in the optimiser's state"
    else:
        mend = "give the one before it (--before), or a folder with optimizer.pt"
        raise InputError(f"One network tells no words alone: {mend}.")
    tables = moments or tables  # the state tells places better
    tokens = bag.tokens.nonzero()[:, 0]
    if not len(tokens):
        raise InputError(
            "No row of the embedding moved: it was frozen, and in this way it tells no words."
        )
    tokens = tokens[bag.score[tokens].argsort(descending=True)]
    names = names_of(vocabulary or files.file_in(network, VOCABULARY), len(bag.tokens))
    return Words(
        names=[names[token] for token in tokens.tolist()],
        of=len(bag.tokens),
        how=how,
        places=find_places(tables.words[tokens], tables.places),
    )


def compare(before, after):
    """The Bag of two Tables, and what training added to them."""
    bag = text.bag(before.words, after.words)
    pairs = [None if None in pair else text.pair(*pair) for pair in zip(before, after)]
    return bag, Tables(*(pair and pair[1] - bag.alpha * pair[0] for pair in pairs))


def moments_beside(source, tables, needed):
    """The first moments of Tables in a folder's state, or None; if not `needed`, also where that cannot be read."""
    if (path := files.file_in(source, files.STATES)) is None:
        return None
    try:
        return read_moments(path, tables)
    except InputError:
        if needed:
            raise
        return None


def read_moments(path, tables):
    """The first moments of Tables in an optimiser's state, known by their shapes; InputError if they are not there."""
    states = files.contents(path).get("state", {}).values()
    found = []
    for table in tables:
        shape = None if table is None else table.shape
        alike = [
            one["exp_avg"] for one in states if "exp_avg" in one and one["exp_avg"].shape == shape
        ]
        if shape and len(alike) != 1:
            size = "×".join(map(str, shape))
            mend = "give the whole state of this network, or --before"
            raise InputError(f"{path.name} holds {len(alike)} moments of {size}: {mend}.")
        found += [weights.checked(one, path.name) for one in alike] or [None]
    if found[0].element_size() < 4:
        mend = "give a state in 32 bits, or --before"
        raise InputError(f"{path.name} is in 16 bits, where small rows are lost: {mend}.")
    return Tables(*found)


def find_places(rows, places):
    """The place of each word in its texts, by its row (n, d) and those of places (T, d), or None if it has not one."""
    if places is None or len(rows) > text.MANY:
        return [None] * len(rows)
    size = places.norm(dim=1)
    length = int((size > MOVED * size.max()).nonzero().max()) + 1
    parts, place = encoder.find_parts(rows.double(), places[:length].double()).topk(2, 0)
    return [
        one if most > CLEAR * other else None for one, most, other in zip(place[0].tolist(), *parts)
    ]


def read_tables(source, key, embedding):
    """The Tables of a file, a folder or a state dict; words in a matrix of this name, or as `attacks.text` finds it."""
    name, content = files.opened(source, "a state dict")
    _, state = files.chosen(content, name, key)
    state = {part: weights.checked(one, f"{name}: {part}") for part, one in state.items()}
    places = text.table(state, text.PLACES)
    if embedding in state:
        return Tables(state[embedding], places)
    if embedding is None and text.table(state, text.EMBEDDINGS) is not None:
        return Tables(text.embedding(state), places)
    called = f"is called {embedding}" if embedding else "has one of the usual names"
    matrices = files.listed(part for part, one in state.items() if one.dim() == 2)
    raise InputError(
        f"No matrix of {name} {called}: name the embedding (--embedding), of {matrices}."
    )


def names_of(path, count):
    """The words of a vocabulary, {word: number} in JSON, as tokenizers have it, or one in a line; or their numbers."""
    if path is None:
        return [*range(count)]
    mend = "give {word: number} as JSON, or one word in a line"
    with explained(f"{path} is no vocabulary", mend):
        content = Path(path).read_text(encoding="utf-8")
        known: Any = json.loads(content) if Path(path).suffix == ".json" else content.splitlines()
        if isinstance(known, dict):
            known = known.get("model", known).get("vocab", known)
        is_list = isinstance(known, list)
        pairs = zip(known, range(len(known))) if is_list else known.items()
        named = {int(number): word for word, number in pairs}
    if max(named, default=0) >= count or (is_list and len(named) < count):
        many = f"{len(named)} words, and the embedding {count} rows"
        raise InputError(f"{path} has {many}: give the tokenizer of this network.")
    return [named.get(number, str(number)) for number in range(count)]
