"""Text: which tokens a fine-tuned language model was shown, and in what order, from what training changed.

The rows of an embedding whose tokens were never used move by weight decay alone, one factor α for all: the others are
the bag of words. Every layer's change, or its first moment, has its inputs in its row space (`attacks.span`): a prefix
that was trained on has no share in the rest. Texts are found by extending such prefixes, as DAGER does from a gradient
(Petrov et al., 2024).
"""

import copy
from collections.abc import Mapping, Sequence
from typing import NamedTuple, TypeAlias

import torch
from torch.nn.functional import normalize, pad

from utils.errors import InputError

EMBEDDINGS = (
    "tokens",
    "wte",
    "embed_tokens",
    "word_embeddings",
    "tok_embeddings",
    "embed_in",
    "embedding",
)
PLACES = ("places", "wpe", "position_embeddings", "embed_positions")
HEADS = ("head", "lm_head", "embed_out", "output")
ROUNDING = 1e-4  # relative move of most rows above which it is not rounding
MOVED = 20  # times the median move is more than rounding
# layers of a block with the same inputs
GROUPS = {"q": ("q", "k", "v"), "out": ("out",), "mlp.0": ("mlp.0",)}
# one of so many directions that the inputs leave is asked: others have drifted in training
PART = 4
MANY = 1000  # words of a bag
BEAM = 3  # prefixes that a search keeps of each beginning


# an embedding (V, d), or a state dict
Weights: TypeAlias = torch.Tensor | Mapping[str, torch.Tensor]


class Bag(NamedTuple):
    """Which of V tokens training used."""

    tokens: torch.Tensor  # a mask (V,): the tokens that were used
    score: torch.Tensor  # (V,), larger for these
    alpha: float = 1.0  # α, the factor by which all other rows of the embedding shrank


def table(state: Mapping[str, torch.Tensor], names: Sequence[str]) -> torch.Tensor | None:
    """The first matrix of a state dict whose name ends in one of `names`, or None."""
    for name in names:
        for key, one in state.items():
            if f".{key}".endswith(f".{name}.weight") and one.dim() == 2:
                return one
    return None


def embedding(one: Weights) -> torch.Tensor:
    """The embedding (V, d) of a state dict, or itself; InputError if there is none, or it is tied to the head."""
    if isinstance(one, torch.Tensor):
        return one
    found = table(one, EMBEDDINGS)
    head = table(one, HEADS)
    if found is None:
        raise InputError(
            f"There is no embedding, a matrix called {', '.join(EMBEDDINGS)}: give it as a tensor."
        )
    if head is not None and head.shape == found.shape and torch.equal(head, found):
        raise InputError("The embedding is tied to the head, so that all of its rows move.")
    return found


def pair(before, after):
    """Two embeddings (V, d) in double precision; InputError unless they are of one shape, and finite."""
    if before.shape != after.shape:
        shapes = f"{tuple(before.shape)} and {tuple(after.shape)}"
        raise InputError(
            f"The embeddings are {shapes}: that is another tokenizer, give the start of this network."
        )
    if not (before.isfinite().all() and after.isfinite().all()):
        raise InputError("An embedding holds values that are NaN or infinite: give it as it was.")
    return before.detach().double(), after.detach().double()


def bag(before: Weights, after: Weights) -> Bag:
    """The Bag of two embeddings (V, d), or of two state dicts: the rows that moved, but for a common factor."""
    before, after = (embedding(one) for one in (before, after))
    short = after.element_size() < 4
    before, after = pair(before, after)
    if short and (before != after).any(1).double().mean() > 0.5:
        raise InputError(
            "The weights have 16 bits, in which decay rounds every row anew: give them in 32 bits."
        )
    size = before.norm(dim=1).clamp_min(1e-30)
    alpha = ((before * after).sum(1) / size.square()).median().item()
    moved = (after - alpha * before).norm(dim=1) / size
    if (rounding := moved.median().item()) > ROUNDING:
        raise InputError(
            "Most rows of the embedding moved: it is tied to the head, or most tokens were used."
        )
    return Bag(moved > MOVED * rounding, moved, alpha)


def bag_of_moment(moment: torch.Tensor) -> Bag:
    """The Bag of an optimiser's first moment (V, d) of an embedding: its rows that are not zero. It needs no start."""
    size = moment.detach().double().norm(dim=1)
    if size.median() > 0:
        raise InputError(
            "Most rows of the moment are not zero: the embedding is tied to the head, or decays in it."
        )
    return Bag(size > 0, size)


def bag_of_tied(before: torch.Tensor, after: torch.Tensor) -> Bag:
    """The Bag of embeddings (V, d) that are the head as well: rows that did not move as most did.

    The head moves the rows of all other tokens against the mean of the vectors behind the last block, and those of the
    texts' own tokens along with them.
    """
    before, after = pair(before, after)
    moved = normalize(after - before)
    score = 1 - moved @ normalize(moved.median(0).values, dim=0)
    return Bag(above_the_gap(score.clamp_min(1e-12).log()), score)


def above_the_gap(score):
    """Which scores (V,) are above the widest gap among the larger half of them."""
    ordered = score.sort(descending=True).values[: len(score) // 2]
    return score >= ordered[int((ordered[:-1] - ordered[1:]).argmax())]


class Evidence(NamedTuple):
    """What training left in the first block of a model."""

    model: torch.nn.Module  # with the weights at which the inputs are taken
    unseen: dict  # {layer: (inputs, k)}, directions that no input of the layer had


def unseen_directions(change, inputs):
    """Directions (d, k) of least size in the row space of a change (h, d): a part of those that many inputs leave."""
    width = change.shape[1]
    left = max(1, max(width - inputs, width // 16) // PART)
    square = torch.linalg.qr(change.double())[1]  # whose row space is that of the change
    return torch.linalg.svd(square)[2][-left:].mT


def at(model, weights):
    """A copy of a model with these weights, a state dict."""
    model = copy.deepcopy(model)
    model.load_state_dict(weights)
    return model


def find_evidence(
    model: torch.nn.Module,
    weights: Mapping[str, torch.Tensor],
    change: Mapping[str, torch.Tensor],
    inputs: int,
) -> Evidence:
    """Evidence of a change {parameter: tensor} by so many inputs, of layers or of their adapters' A.

    `weights` are the state dict at which the model is to show what its layers are given: of a change, one from the
    middle of training; of an optimiser's moment, that of the end.
    """
    found = {}
    for group, layers in GROUPS.items():
        names = [f"blocks.0.{layer}.{end}" for layer in layers for end in ("weight", "A")]
        if parts := [change[name] for name in names if name in change and change[name].any()]:
            found[group] = unseen_directions(torch.cat(parts), inputs).float()
    return Evidence(at(model, weights), found)


def evidence_of_adapters(
    model: torch.nn.Module, weights: Mapping[str, torch.Tensor], inputs: int
) -> Evidence:
    """Evidence of adapters whose start is not known: what A makes of the inputs is the row space of B."""
    found = {}
    for group, layers in GROUPS.items():
        names = [f"blocks.0.{layer}" for layer in layers if f"blocks.0.{layer}.B" in weights]
        if parts := [
            weights[f"{name}.A"].double().mT @ unseen_directions(weights[f"{name}.B"], inputs)
            for name in names
        ]:
            found[group] = torch.linalg.qr(torch.cat(parts, 1))[0].float()
    return Evidence(at(model, weights), found)


def share(inputs, directions):
    """The log-share (…) of inputs (…, d) in directions (d, k)."""
    return ((inputs @ directions).norm(dim=-1) / inputs.norm(dim=-1)).clamp_min(1e-7).log()


@torch.no_grad()
def bag_of_span(evidence: Evidence) -> Bag:
    """The Bag of Evidence, where the embedding did not train: tokens that some place leaves without a share."""
    model = evidence.model
    shares = [
        share(model.blocks[0].norm(model.tokens.weight + place), evidence.unseen["q"])
        for place in model.places.weight[1:]
    ]  # (V,) of every place behind the first one
    score = -torch.stack(shares).amin(0)
    return Bag(above_the_gap(score), score)


@torch.no_grad()
def sum_shares(evidence, tokens, at, mask, first):
    """The summed log-shares (m, T − first) of tokens (m, T) at places (T,), which see others by a mask (T, T)."""
    model = evidence.model
    inputs = model.blocks[0].attend(model.tokens(tokens) + model.places(at), mask)[1]
    return sum(share(inputs[name][:, first:], unseen) for name, unseen in evidence.unseen.items())


def score_next(evidence, prefixes, tokens):
    """The summed log-shares (m, n) of the last inputs where each of tokens (n,) follows each of prefixes (m, place)."""
    (m, place), n = prefixes.shape, len(tokens)
    mask = torch.eye(place + n, dtype=torch.bool)  # a token sees the prefix and itself
    mask[:, :place] = True
    mask[:place] &= torch.ones_like(mask[:place]).tril()
    at = torch.cat([torch.arange(place), torch.full((n,), place)])
    return sum_shares(evidence, torch.cat([prefixes, tokens.expand(m, n)], 1), at, mask, place)


def extend(evidence, beams, scores, tokens):
    """The best of all prefixes of beams (b, w, place) with one more of tokens (n,), and their summed scores (b, w)."""
    added = score_next(evidence, beams.flatten(0, 1), tokens)  # (b·w, n)
    candidates = (scores.flatten()[:, None] + added).view(len(beams), -1)  # (b, w·n)
    scores, best = candidates.topk(min(BEAM, candidates.shape[1]), largest=False)
    row = torch.arange(len(beams))[:, None]
    kept = beams[row, best // len(tokens)]  # (b, w, place)
    return torch.cat([kept, tokens[best % len(tokens), None]], 2), scores


def search_texts(evidence: Evidence, tokens: torch.Tensor, count: int, length: int) -> torch.Tensor:
    """At most `count` sequences (…, length) of `tokens` (n,) that no layer leaves unseen, the surest first.

    A beam search begins with token 0 and each of the best first tokens; its score is the summed log-share. Every first
    token, and each second one after it, has a beam of its own: some texts wrote more than others, and some begin alike.
    """
    if not 0 < len(tokens) <= MANY:
        raise InputError(f"{len(tokens)} words cannot be tried at every place: give 1 to {MANY}.")
    first = score_next(evidence, torch.zeros(1, 1, dtype=torch.long), tokens)[0]
    beams = pad(tokens[first.argsort()[:count], None, None], (1, 0))  # (b, 1, 2)
    beams, scores = extend(evidence, beams, torch.zeros(len(beams), 1), tokens)
    beams = beams.flatten(0, 1)[:, None]  # (b·w, 1, 3)
    scores = scores.flatten()[:, None]
    while beams.shape[2] <= length:
        beams, scores = extend(evidence, beams, scores, tokens)
    rows = beams[:, :, 1:].flatten(0, 1)
    return drop_similar(rows[scores.flatten().argsort()], count)


def drop_similar(rows, count):
    """The first of rows (n, T) that agree with none before them at more than half of the places, at most `count`."""
    chosen: list = []
    for row in rows:
        if all((row == one).double().mean() <= 0.5 for one in chosen):
            chosen.append(row)
    return torch.stack(chosen[:count])


def membership(evidence: Evidence, rows: torch.Tensor) -> torch.Tensor:
    """The mean log-share (n,) of whole texts (n, T): the lower, the likelier they were trained on."""
    at = torch.arange(rows.shape[1] + 1)
    return sum_shares(evidence, pad(rows, (1, 0)), at, at[:, None] >= at, 1).mean(1)
