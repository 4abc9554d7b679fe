"""Fine-tuning a small language model on secret texts, and what attacks on it find, beside held-out texts.

Texts are tokens, words or marks, of a public book, and of another from which secret ones are drawn; token 0 stands at
the beginning of a text. The vocabulary is that of both books.
"""

import copy
import gzip
import hashlib
import re
from pathlib import Path
from typing import NamedTuple

import torch
from sklearn.metrics import roc_auc_score
from torch.nn.functional import pad

from attacks import text
from training import deep
from training.images import DATA
from utils.errors import InputError

RATES = {"plain": 0.05, "sgd": 0.02, "adam": 3e-4, "adamw": 3e-4}
LENGTH = 32  # of a text, in tokens
BATCH = 2  # texts of a step
PUBLIC = DATA / "texts/as-you-like-it.txt.gz"
OTHER = DATA / "texts/alice-in-wonderland.txt.gz"
TOKEN = r"[A-Za-z]+(?:'[a-z]+)?|[^\sA-Za-z]"
EDGE = "⁋"  # token 0


class Texts(NamedTuple):
    """Texts (n, T + 1) of token numbers. The last token of a text is only said, never shown."""

    public: torch.Tensor  # of a public book
    secret: torch.Tensor  # of another book; the model is fine-tuned on them
    twin: torch.Tensor  # others of that book, as many, for a twin of the model
    held_out: torch.Tensor  # others of that book, on which no model trains
    words: list  # the word of every token number
    sha256: str  # of the secret texts


def read(path):
    """The tokens of a text file, compressed or not."""
    try:
        whole = Path(path).read_bytes()
        if str(path).endswith(".gz"):
            whole = gzip.decompress(whole)
        return re.findall(TOKEN, whole.decode())
    except (OSError, EOFError, UnicodeError) as error:
        raise InputError(
            f"{path} cannot be read as a text ({error}): give a text file in UTF-8."
        ) from error


def split(dataset: str, count: int, held_out: int, seed: int) -> Texts:
    """Draw secret texts, as many for a twin, and held-out ones, of a book or a .txt `dataset`: Texts."""
    books = [read(PUBLIC), read(dataset if dataset.endswith(".txt") else OTHER)]
    words = [EDGE, *sorted({word for book in books for word in book})]
    number_of = {word: number for number, word in enumerate(words)}
    numbers = [torch.tensor([number_of[word] for word in book]) for book in books]
    public, other = (some.unfold(0, LENGTH + 1, LENGTH) for some in numbers)
    if 2 * count + held_out > len(other):
        raise InputError(
            f"Twice {count} texts and {held_out} others are more than the {len(other)} of the book."
        )
    order = torch.randperm(len(other), generator=torch.Generator().manual_seed(seed))
    secret, twin, rest = other[order[: 2 * count + held_out]].split([count, count, held_out])
    sha256 = hashlib.sha256(secret.numpy().tobytes()).hexdigest()
    return Texts(public, secret, twin, rest, words, sha256)


class Tuned(NamedTuple):
    """A fine-tuned model as its files hold it."""

    model: torch.nn.Module  # its code
    before: dict  # the state dict before fine-tuning
    after: dict  # the state dict after it
    moments: dict  # the optimiser's first moments by the parameters' names, None for a parameter without one
    loss: float  # of the texts at the end


def inputs_and_targets(rows):
    """What a model is shown of texts (n, T + 1), token 0 and all but the last, and what it is to say."""
    return pad(rows[:, :-1], (1, 0)), rows


def initial(words, public, width, steps, seed):
    """A model of so many words, trained for some steps on 16 public texts each."""
    model = deep.drawn(lambda: deep.GPT(words, width, LENGTH + 1), seed)
    x, y = inputs_and_targets(public[: 16 * steps])
    deep.train(model, x, y, "adam", 1e-3, steps, 16, seed)
    return model


def loss_of_counts(public, rows, words):
    """The mean loss of texts (n, T) if each of so many words comes as often as in public texts, and once more."""
    counts = public.flatten().bincount(minlength=words) + 1.0
    return -(counts / counts.sum()).log()[rows].mean()


def tune(base, rows, trainer, kind, steps, seed):
    """Fine-tune a copy of a model on texts (n, T + 1), its embedding frozen, trained or tied, or adapters of a rank."""
    model = copy.deepcopy(base)
    rate = RATES[trainer]
    moved = ()  # that is all of them
    if kind == "tied":
        model.head.weight = model.tokens.weight
    elif kind == "frozen":
        moved = [p for part in (model.blocks, model.norm, model.head) for p in part.parameters()]
    elif kind != "trained":
        model = deep.drawn(lambda: deep.adapt(model, int(kind)), seed)
        moved = deep.adapters(model)
        rate *= 10
    before = copy.deepcopy(model.state_dict())
    x, y = inputs_and_targets(rows)
    loss, optimiser = deep.train(model, x, y, trainer, rate, steps, BATCH, seed, moved)
    moments = {name: deep.moment(optimiser, p) for name, p in model.named_parameters()}
    return Tuned(model, before, copy.deepcopy(model.state_dict()), moments, loss)


def entries(tuned, kind, count):
    """What can be looked at, {name: (Evidence, Bag)}: the change, the optimiser's moments, adapters alone."""
    inputs = count * LENGTH
    found = {"change": from_change(tuned, kind, inputs)}
    moments = {name: one for name, one in tuned.moments.items() if one is not None}
    if moments:
        found["moment"] = from_moments(tuned, moments, kind, inputs)
    if any(name.endswith(".A") for name in tuned.before):
        evidence = text.evidence_of_adapters(tuned.model, tuned.after, inputs)
        found["adapter"] = evidence, text.bag_of_span(evidence)
    return found


def from_change(tuned, kind, inputs):
    """The Evidence of what training changed, with the start known, and the Bag."""
    before = tuned.before
    after = tuned.after
    bag = None
    if kind == "trained":
        bag = text.bag(before, after)
    elif kind == "tied":
        bag = text.bag_of_tied(before["tokens.weight"], after["tokens.weight"])
    alpha = bag.alpha if bag else 1.0
    change = {name: after[name] - alpha * before[name] for name in after}
    middle = {name: (before[name] + after[name]) / 2 for name in after}
    evidence = text.find_evidence(tuned.model, middle, change, inputs)
    return evidence, bag or text.bag_of_span(evidence)


def from_moments(tuned, moments, kind, inputs):
    """The Evidence of an optimiser's first moments {parameter: tensor}, and the Bag."""
    evidence = text.find_evidence(tuned.model, tuned.after, moments, inputs)
    if kind == "trained":
        return evidence, text.bag_of_moment(moments["tokens.weight"])
    if kind == "tied":
        rows = moments["tokens.weight"]
        return evidence, text.bag_of_tied(torch.zeros_like(rows), rows)
    return evidence, text.bag_of_span(evidence)


def search(evidence, bag, count):
    """The texts (…, T) that a search finds in a Bag; none where it refuses."""
    words = bag.tokens.nonzero()[:, 0]
    try:
        return text.search_texts(evidence, words[words > 0], count, LENGTH)
    except InputError:
        return torch.zeros(0, LENGTH, dtype=torch.long)


def in_bag(bag, rows):
    """Precision and recall of a Bag, for the words of texts (n, T), and the area of its score."""
    used = torch.zeros_like(bag.tokens)
    used[rows.unique()] = True
    used = used[1:]
    found = bag.tokens[1:]
    right = (used & found).sum().item()
    precision = right / max(1, found.sum().item())
    return precision, right / used.sum().item(), roc_auc_score(used, bag.score[1:])


def agreement(found, rows):
    """The share of each of texts (n, T) that stands at its place in the found one that is most like it: (n,)."""
    if not len(found):
        return torch.zeros(len(rows))
    return (found[None] == rows[:, None]).double().mean(2).amax(1)


def shuffle(rows):
    """The words of texts (n, T) in twenty other orders: (20 n, T)."""
    draw = torch.Generator().manual_seed(0)
    return torch.cat([row[torch.rand(20, len(row), generator=draw).argsort(1)] for row in rows])


def area(evidence, rows, unlike):
    """How often texts (n, T) have a likelier membership, by Evidence, than texts unlike these (k, T)."""
    scores = -text.membership(evidence, torch.cat([rows, unlike]))
    return roc_auc_score(torch.arange(len(scores)) < len(rows), scores)


def numbers(evidence, bag, secret, others, twin, tied=False):
    """{quantity: (number, baseline)}: texts (n, T + 1) trained on, against others (k, T + 1) of the same book.

    The baseline counts as many others as texts; that of areas is of a twin, which was trained on others still, and the
    twin's evidence is searched with the same words. A tied embedding moves for the last token, too, which is only said.
    """
    m = len(secret)
    rows = secret[:, :-1]
    rest = others[:, :-1]
    words = (secret, others[:m]) if tied else (rows, rest[:m])
    precision, recall, of_score = zip(*(in_bag(bag, some) for some in words))
    found = search(evidence, bag, m)
    placed = [agreement(found, some) for some in (rows, rest[:m])]
    by_twin = agreement(search(twin, bag, m), rows)
    shuffled = shuffle(rows)
    return {
        "bag_precision": precision,
        "bag_recall": recall,
        "bag_area": of_score,
        "exact": [(one == 1).sum().item() for one in placed],
        "in_place": [one.mean().item() for one in placed],
        "in_place_by_twin": (by_twin.mean().item(), None),
        "area": [area(one, rows, rest) for one in (evidence, twin)],
        "area_of_order": [area(one, rows, shuffled) for one in (evidence, twin)],
    }
