"""Which words a fine-tuned language model was shown: the rows of its embedding that moved."""

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

from attacks import text
from audit import weights
from utils.errors import InputError, explained


class Words(NamedTuple):
    """The words that training used."""

    names: list  # in a vocabulary, or their numbers, those that moved most first
    of: int  # tokens that there are
    alpha: float  # by which all other rows shrank

    @property
    def sentence(self):
        """The finding."""
        moved = f"{len(self.names)} of {self.of} rows of the embedding moved"
        return f"Something leaks. {moved}, the others by one factor, {self.alpha:.6g}: the words that training used."


def words(
    network: str | Path | Mapping[str, Any],
    before: str | Path | Mapping[str, Any],
    vocabulary: str | Path | None = None,
    key: str | None = None,
    embedding: str | None = None,
) -> Words:
    """The Words that two networks, files or state dicts, tell. InputError if they tell none.

    A `key` names one of several networks in a file, and is used for `before` if that holds it; `embedding` is the name
    of a matrix that `attacks.text` does not know.
    """
    initial = matrix_of(before, weights.key_in(before, key), embedding)
    bag = text.bag(initial, matrix_of(network, key, embedding))
    tokens = bag.tokens.nonzero()[:, 0]
    if not len(tokens):
        raise InputError(
            "No row of the embedding moved: it was frozen, and in this way it tells no words."
        )
    names = names_of(vocabulary, len(bag.tokens)) if vocabulary else [*range(len(bag.tokens))]
    tokens = tokens[bag.score[tokens].argsort(descending=True)].tolist()
    return Words([names[token] for token in tokens], len(bag.tokens), bag.alpha)


def matrix_of(source, key, embedding):
    """The embedding of a file or a state dict: a matrix of this name, or else as `attacks.text` finds it."""
    name, content = weights.opened(source, "a state dict")
    _, state = weights.chosen(content, name, key)
    state = {part: weights.checked(one, f"{name}: {part}") for part, one in state.items()}
    if embedding in state:
        return state[embedding]
    if embedding is None and text.table(state, text.EMBEDDINGS) is not None:
        return text.embedding(state)
    called = f"is called {embedding}" if embedding else "has one of the usual names"
    matrices = weights.listed(part for part, one in state.items() if one.dim() == 2)
    raise InputError(
        f"No matrix of {name} {called}: name the embedding (--embedding), of {matrices}."
    )


def names_of(path, count):
    """The words of a vocabulary, {word: number} in JSON, as tokenizers have it, or one in a line: a list."""
    mend = "give {word: number} as JSON, or one word in a line"
    with explained(f"{path} is no vocabulary", mend):
        content = Path(path).read_text(encoding="utf-8")
        known: Any = json.loads(content) if Path(path).suffix == ".json" else content.splitlines()
        if isinstance(known, dict):
            known = known.get("model", known).get("vocab", known)
        is_list = isinstance(known, list)
        pairs = zip(known, range(len(known))) if is_list else known.items()
        named = {int(number): word for word, number in pairs}
    if is_list and len(named) < count:
        many = f"{len(named)} words, and the embedding {count}"
        raise InputError(f"{path} has {many}: give that of this network.")
    return [named.get(number, str(number)) for number in range(count)]
