"""Words and texts from what fine-tuning changed, at toy size, and what is said where that cannot be."""

import pytest
import torch

from attacks import text
from conftest import drawn, refused
from experiments import language

WORDS, WIDTH, M = 200, 64, 1  # one text of 32 tokens leaves half of 64 directions
SMALL = drawn(50, 4, dtype=torch.float32)


def texts(count, seed):
    """Texts (count, 33) of random words."""
    return torch.randint(1, WORDS, (count, 33), generator=torch.Generator().manual_seed(seed))


@pytest.fixture(scope="module")
def base():
    return language.initial(WORDS, texts(16, 5), WIDTH, 3, seed=0)


@pytest.mark.parametrize("trainer", ["plain", "sgd", "adam", "adamw"])
def test_rows_of_an_embedding_tell_the_words_and_no_others(base, trainer):
    rows = texts(2, 1)
    tuned = language.tune(base, rows, trainer, "trained", 4, 0)
    used = {0, *rows[:, :-1].flatten().tolist()}
    bags = [text.bag(tuned.before, tuned.after)]
    if trainer != "plain":
        bags.append(text.bag_of_moment(tuned.moments["tokens.weight"]))
    assert all({*bag.tokens.nonzero()[:, 0].tolist()} == used for bag in bags)
    assert (bags[0].alpha < 1 - 1e-6) == (trainer == "adamw")  # decay moves the other rows


@pytest.mark.parametrize(
    "kind, trainer, entry",
    [("frozen", "sgd", "change"), ("frozen", "sgd", "moment"), ("64", "adam", "moment")],
)
def test_a_text_comes_back_whole_and_a_held_out_one_does_not(base, kind, trainer, entry):
    secret, others = texts(M, 2), texts(8, 3)
    (evidence, bag), (other, _) = (
        language.entries(language.tune(base, rows, trainer, kind, 3, 0), kind, M)[entry]
        for rows in (secret, others[:M])
    )
    found = language.numbers(evidence, bag, secret, others, other)
    assert found["bag_precision"][0] == found["bag_recall"][0] == 1
    assert found["exact"] == [M, 0] and found["area"][0] == 1 and found["in_place"][1] < 0.2


def test_texts_that_begin_alike_both_come_back(monkeypatch):
    """In one beam, variants of the surer text would leave the other no room."""
    costs = {(1, 2, 2, 2, last): 0.1 for last in range(1, 9)} | {(1, 3, 4, 5, 6): 0.3}

    def score_next(_, prefixes, tokens):
        ahead = [
            [[*prefix[1:], token] for token in tokens.tolist()] for prefix in prefixes.tolist()
        ]
        return torch.tensor(
            [
                [
                    min((c for t, c in costs.items() if [*t[: len(one)]] == one), default=9.0)
                    for one in row
                ]
                for row in ahead
            ]
        )

    monkeypatch.setattr(text, "score_next", score_next)
    surer, other = text.search_texts(None, torch.arange(1, 9), 2, 5).tolist()
    assert surer[:4] == [1, 2, 2, 2] and other == [1, 3, 4, 5, 6]


def test_a_beam_keeps_the_best_of_all_candidates(base):
    """One step of the search, beside scores of whole prefixes, each by itself."""
    tuned = language.tune(base, texts(M, 2), "sgd", "frozen", 3, 0)
    evidence, _ = language.entries(tuned, "frozen", M)["change"]
    beams, tokens = torch.tensor([[[0, 3], [0, 9]], [[0, 7], [0, 8]]]), torch.arange(1, 30)
    scores = drawn(2, 2, dtype=torch.float32)
    found, their = text.extend(evidence, beams, scores, tokens)
    for beam, before, rows, after in zip(beams, scores, found, their):
        each = {
            (*prefix, token): score
            + text.membership(evidence, torch.tensor([[*prefix[1:], token]])) * len(prefix)
            - text.membership(evidence, torch.tensor([prefix[1:]]))
            for prefix, score in zip(beam.tolist(), before)
            for token in tokens.tolist()
        }
        best = sorted(each, key=lambda row: each[row].item())[: text.BEAM]
        assert [*map(tuple, rows.tolist())] == best
        torch.testing.assert_close(after, torch.cat([each[row] for row in best]))


def test_the_counts_of_words_lose_what_a_model_that_knows_them_alone_would():
    public, rows = torch.tensor([[1, 1, 2], [1, 3, 2]]), torch.tensor([[1, 4]])
    counted = -(torch.tensor([4 / 11, 1 / 11])).log().mean()  # of 6 words and one for each of 5
    torch.testing.assert_close(language.loss_of_counts(public, rows, 5), counted)


def test_the_change_is_asked_in_the_middle_of_training_and_the_moment_at_its_end(base):
    tuned = language.tune(base, texts(M, 2), "sgd", "trained", 3, 0)
    found = language.entries(tuned, "trained", M)
    for name, one in found["change"][0].model.state_dict().items():
        torch.testing.assert_close(one, (tuned.before[name] + tuned.after[name]) / 2)
        assert torch.equal(found["moment"][0].model.state_dict()[name], tuned.after[name])


def test_a_tied_embedding_tells_the_words_by_the_way_they_went(base):
    rows = texts(1, 8)
    tuned = language.tune(base, rows, "plain", "tied", 3, 0)
    assert language.in_bag(language.entries(tuned, "tied", M)["change"][1], rows)[2] > 0.99


def test_texts_share_no_place_and_are_those_of_the_book(tmp_path):
    data = language.split("photos", 6, 20, 0)
    parts = [*data.secret, *data.twin, *data.held_out]
    assert len({tuple(row.tolist()) for row in parts}) == 32 and data.words[0] == language.EDGE
    (file := tmp_path / "mine.txt").write_text("so it goes, said she. " * 60)
    mine = language.split(str(file), 1, 1, 0)
    words = {mine.words[k] for k in mine.secret.flatten()}
    assert " ".join(sorted(words)) == ", . goes it said she so"
    assert "more than the" in refused(language.split, str(file), 6, 20, 0)
    assert "cannot be read" in refused(language.split, f"{tmp_path}/none.txt", 1, 1, 0)


def test_what_tells_no_words_is_said(base):
    for words, *both in (
        ("There is no embedding", {"body.weight": SMALL}, {"body.weight": SMALL}),
        ("tied to the head, so that all", {"wte.weight": SMALL, "lm_head.weight": SMALL}, SMALL),
        ("Most rows of the embedding moved", SMALL, SMALL + 0.1 * SMALL.flip(0)),
        ("another tokenizer", SMALL, SMALL[:-1]),
        ("16 bits", SMALL.half(), (0.99 * SMALL).half()),
        ("NaN or infinite", SMALL, SMALL / 0),
    ):
        assert words in refused(text.bag, *both)
    assert "moment are not zero" in refused(text.bag_of_moment, SMALL)
    many = torch.arange(text.MANY + 1)
    for tokens in (many, many[:0]):
        assert "give 1 to" in refused(text.search_texts, text.Evidence(base, {}), tokens, 1, 4)
    after = SMALL.half().clone()  # half precision tells words where nothing decayed
    after[3] += 1
    assert text.bag(SMALL.half(), after).tokens.nonzero().tolist() == [[3]]
