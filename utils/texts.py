"""Short texts as tokens: a public book, and another from which secret ones are drawn.

A token is a word or a mark; token 0 stands at the beginning of a text. The vocabulary is that of both books.
"""

import gzip
import hashlib
import re
from collections import namedtuple
from pathlib import Path

import torch

from utils.errors import InputError
from utils.images import DATA

PUBLIC, OTHER = (DATA / "texts" / f"{name}.txt.gz" for name in ("as-you-like-it", "alice-in-wonderland"))
TOKEN = r"[A-Za-z]+(?:'[a-z]+)?|[^\sA-Za-z]"
EDGE = "⁋"  # token 0

# Texts (n, length + 1) of token numbers, the last of which is only said, never shown: public ones, secret ones, and
# others of the same book; and the words of the numbers.
Texts = namedtuple("Texts", "public secret twin held_out words sha256")


def read(path):
    """The tokens of a text file, compressed or not."""
    try:
        whole = Path(path).read_bytes()
        return re.findall(TOKEN, (gzip.decompress(whole) if str(path).endswith(".gz") else whole).decode())
    except (OSError, EOFError, UnicodeError) as error:
        raise InputError(f"{path} cannot be read as a text ({error}): give a text file in UTF-8.") from error


def split(dataset, count, held_out, seed, length=32):
    """Draw so many secret texts, as many for a twin, and held-out ones, which share no place: Texts.

    A `dataset` that ends in .txt is the path of the book they are from.
    """
    books = [read(PUBLIC), read(dataset if dataset.endswith(".txt") else OTHER)]
    words = [EDGE, *sorted({word for book in books for word in book})]
    place = {word: number for number, word in enumerate(words)}
    public, other = (torch.tensor([place[word] for word in book]).unfold(0, length + 1, length) for book in books)
    if 2 * count + held_out > len(other):
        raise InputError(f"Twice {count} texts and {held_out} others are more than the {len(other)} of the book.")
    order = torch.randperm(len(other), generator=torch.Generator().manual_seed(seed))
    secret, twin, rest = other[order[: 2 * count + held_out]].split([count, count, held_out])
    return Texts(public, secret, twin, rest, words, hashlib.sha256(secret.numpy().tobytes()).hexdigest())
