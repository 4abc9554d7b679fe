"""Whole texts of an encoder, whose attention looks both ways: from an optimiser's first moment, or from a change.

The row of a word in the embedding is the sum of the gradients g of all places where it stood, and the row of a place is
the sum over the words that stood there. Where a word stood at one place, its row is a part of that place's row:

    P_i ≈ Σ_v c_iv G_v    with c_iv ≥ 0 and Σ_i c_iv = 1                                          (places)

Words of one text have rows that point alike. The first attention mixes all words of a text into a context at each of
its places, and the layer after it has these contexts as inputs: they lie in the row space of what training added to it,
and have no share in the directions N where this is least, as in `attacks.text`. So a text is begun from a word whose
place is known, and words are exchanged one by one while the contexts' share falls; first in many directions N, in which
it falls smoothly, and then in the few in which hardly anything else passes.
"""

from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import layer_norm, linear, normalize

from attacks.text import drop_similar, share
from utils.errors import InputError

EPSILON = 1e-12  # of BERT's norms
STEPS = 400  # of projected gradients
SHARP = 0.8, 0.25  # a word has one place if its largest part is above, and its second below
PART = 0.05  # of a word, from which it may stand at a place
KIN = 5.0  # weight of the cosine of two words' rows
FLOOR = 0.02  # added to parts of a word, before their logarithm is taken
UNLIKELY = -9.0  # a logarithm: of other words where a text is begun
LEAST = -10.0  # of words that have another place: they are tried in the last stage alone
NEVER = -99.0  # of the edges of a text within it, and of other words at its ends
# N has one of so many directions, and how much a text's likelihood weighs beside its share there
STAGES = (2, 3e-4), (6, 2e-5), (6, 0.0)
SWEEPS = 6  # over the places of a text, in each stage
START = 0.3  # part of a word from which a text is begun
STARTS = 6  # for each text that is sought


class Rows(NamedTuple):
    """What words and places of one length T say by themselves."""

    words: Tensor  # numbers (n,) of the words that were used
    parts: Tensor  # c (T, n), of each word at each place
    kin: Tensor  # cosines (n, n) of the words' rows


class Block(NamedTuple):
    """Inputs of the first attention for words (n,) at places (T,), and the directions that no context has."""

    query: Tensor  # (T, n, heads, width of a head)
    key: Tensor
    value: Tensor
    unseen: Tensor  # (d, d), the directions that contexts have least first


def part_of(state: Mapping[str, Tensor], name: str) -> Tensor:
    """The tensor of a state dict whose name ends in this one; InputError if there is none."""
    for key, one in state.items():
        if f".{key}".endswith(f".{name}"):
            return one
    raise InputError(f"There is no {name}: give an encoder of BERT's kind, under its names.")


def project(parts: Tensor) -> Tensor:
    """The columns (T, n) that are nearest to these, not negative, and sum to one: Duchi et al. (2008), Fig. 1."""
    ordered = parts.sort(0, descending=True).values
    count = torch.arange(1, len(parts) + 1)[:, None]
    excess = (ordered.cumsum(0) - 1) / count
    last = (ordered > excess).sum(0, keepdim=True) - 1
    return (parts - excess.gather(0, last)).clamp_min(0)


def find_parts(words: Tensor, places: Tensor) -> Tensor:
    """c (T, n) for rows of words G (n, d) and of places P (T, d), by projected gradients with momentum: (places)."""
    gram = words @ words.mT
    cross = places @ words.mT
    step = 1 / torch.linalg.eigvalsh(gram)[-1]
    parts = ahead = torch.full_like(cross, 1 / len(places))
    for k in range(STEPS):
        before = parts
        parts = project(ahead - step * (ahead @ gram - cross))
        ahead = parts + k / (k + 3) * (parts - before)
    return parts


def read_rows(change: Mapping[str, Tensor], words: Tensor, length: int) -> Rows:
    """The Rows of a change or moment {parameter: tensor}, for words (n,) in texts of this length."""
    of_words = part_of(change, "word_embeddings.weight")[words].double()
    of_places = part_of(change, "position_embeddings.weight")[:length].double()
    directions = normalize(of_words, dim=1)
    return Rows(words, find_parts(of_words, of_places), directions @ directions.mT)


def read_block(
    state: Mapping[str, Tensor],
    change: Mapping[str, Tensor],
    words: Tensor,
    length: int,
    heads: int,
) -> Block:
    """The Block of words (n,) at places up to a length, by a state dict and what training added, or a moment."""
    x = part_of(state, "word_embeddings.weight")[words]
    x = x + part_of(state, "position_embeddings.weight")[:length, None]
    x = x + part_of(state, "token_type_embeddings.weight")[0]
    scale, shift = (part_of(state, f"embeddings.LayerNorm.{end}") for end in ("weight", "bias"))
    x = layer_norm(x, x.shape[-1:], scale, shift, EPSILON)
    projected = [
        linear(
            x,
            *(part_of(state, f"layer.0.attention.self.{name}.{end}") for end in ("weight", "bias")),
        )
        for name in ("query", "key", "value")
    ]
    added = part_of(change, "layer.0.attention.output.dense.weight").double()
    unseen = torch.linalg.svd(torch.linalg.qr(added)[1])[2].flip(0).mT.float()
    query, key, value = (one.unflatten(-1, (heads, -1)) for one in projected)
    return Block(query / query.shape[-1] ** 0.5, key, value, unseen)


@torch.no_grad()
def find_contexts(block: Block, texts: Tensor) -> Tensor:
    """What attention mixes of texts (b, T) of indices of a Block's words, at each place: (b, T, d)."""
    q, k, v = (one[torch.arange(texts.shape[1]), texts].transpose(1, 2) for one in block[:3])
    return ((q @ k.mT).softmax(-1) @ v).transpose(1, 2).flatten(2)


def shares(block: Block, texts: Tensor) -> Tensor:
    """The log-shares (b, T) of contexts of texts (b, T) in the last of STAGES' directions N."""
    unseen = block.unseen[:, : len(block.unseen) // STAGES[-1][0]]
    return torch.cat([share(find_contexts(block, some), unseen) for some in texts.split(512)])


def exchange(block: Block, values: Tensor, text: Tensor, place: int, words: Tensor) -> Tensor:
    """What contexts miss if each of words (c,) stands at a place of a text (T,): the mean square (c,) in directions N.

    `values` (T, n, heads, k) are the Block's, times N. Without the place, a context is a sum of values over a sum of
    weights by the softmax, to both of which a word adds its own.
    """
    at = torch.arange(len(text))
    query, key, value = (one[at, text] for one in (block.query, block.key, values))
    its_query, its_key, its_value = (one[place, words] for one in (block.query, block.key, values))
    kept = torch.einsum("ihd,jhd->ijh", query, key).exp()
    kept[:, place] = 0
    others = torch.einsum("ijh,jhk->ihk", kept, value)
    added = torch.einsum("ihd,chd->cih", query, its_key).exp()
    weight = 1 / (kept.sum(1) + added)
    missed = torch.einsum("cih,ihk->cik", weight, others)
    missed += torch.einsum("cih,chk->cik", weight * added, its_value)
    seen = torch.einsum("chd,jhd->cjh", its_query, key).exp()  # by the word itself
    seen[:, place] = torch.einsum("chd,chd->ch", its_query, its_key).exp()
    seen = seen / seen.sum(1, keepdim=True)
    own = torch.einsum("ch,chk->ck", seen[:, place], its_value)
    seen[:, place] = 0
    missed[:, place] = own + torch.einsum("cjh,jhk->ck", seen, value)
    return missed.square().sum(2).mean(1)


def swaps(text: Tensor) -> Tensor:
    """A text (T,), and all in which two of its inner words have changed places: (1 + (T − 2)(T − 3)/2, T)."""
    one, two = torch.triu_indices(len(text) - 2, len(text) - 2, 1) + 1
    row = torch.arange(1, len(one) + 1)
    texts = text.repeat(len(one) + 1, 1)
    texts[row, one] = text[two]
    texts[row, two] = text[one]
    return texts


@torch.no_grad()
def settle(block: Block, likely: Tensor, text: Tensor) -> Tensor:
    """A text (T,) near this one whose contexts hardly miss N: words are exchanged, then swapped, in all STAGES."""
    at = torch.arange(len(text))
    size = find_contexts(block, text[None]).norm(dim=2).mean()
    for part, weight in STAGES:
        unseen = block.unseen[:, : len(block.unseen) // part] / size
        values = torch.einsum(
            "inhd,hdk->inhk", block.value, unseen.unflatten(0, block.value.shape[2:])
        )
        for _ in range(SWEEPS):
            before = text.clone()
            for place in shares(block, text[None])[0].argsort(descending=True).tolist():
                words = (likely[place] > (LEAST if weight else NEVER)).nonzero()[:, 0]
                missed = exchange(block, values, text, place, words)
                text[place] = words[(missed - weight * likely[place, words]).argmin()]
            texts = swaps(text)
            missed = (find_contexts(block, texts) @ unseen).square().sum(2).mean(1)
            text = texts[(missed - weight * likely[at, texts].sum(1)).argmin()]
            if torch.equal(text, before):
                break
    return text


def find_likely(rows: Rows, edges: tuple[int, int]) -> tuple[Tensor, Tensor]:
    """Which words may stand where (T, n), as the `edges` of a text do, and which are likely to: by their parts."""
    first, last = (rows.words == edge for edge in edges)
    possible = (~first & ~last).repeat(len(rows.parts), 1)
    possible[0] = first
    possible[-1] = last
    top = rows.parts.topk(2, 0).values
    return possible, possible & ((rows.parts > PART) | (top[0] < SHARP[0]) | (top[1] > SHARP[1]))


def search(rows: Rows, block: Block, edges: tuple[int, int], count: int) -> Tensor:
    """At most `count` texts (…, T) of indices of words, the surest first; begun from words whose places are likeliest.

    A text that was found twice is taken for one of them, and no other begins from its words.
    """
    possible, usual = find_likely(rows, edges)
    left = rows.parts.masked_fill(~usual, 0.0)
    left[[0, -1]] = 0.0
    at = torch.arange(len(left))
    found: list = []
    while left.max() > START and len(found) < STARTS * count:
        place, word = divmod(int(left.argmax()), left.shape[1])
        left[place, word] = 0.0
        likely = (KIN * rows.kin[word] + (rows.parts + FLOOR).log()).float()
        likely[place] = UNLIKELY
        likely[place, word] = 0.0
        likely = likely.masked_fill(~usual, LEAST).masked_fill(~possible, NEVER)
        text = settle(block, likely, likely.argmax(1))
        if any(torch.equal(text, one) for one in found):
            left[at, text] = 0.0
        found.append(text)
    if not found:
        return torch.zeros(0, len(left), dtype=torch.long)
    texts = torch.stack(found).unique(dim=0)
    return drop_similar(texts[shares(block, texts).mean(1).argsort()], count)
