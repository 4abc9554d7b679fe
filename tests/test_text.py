"""Words and texts from what fine-tuning changed, at toy size, and what is said where that cannot be."""

import pytest
import torch

from attacks import text
from conftest import refused
from experiments import language
from training import deep

WORDS, WIDTH, M = 200, 64, 1  # one text of 32 tokens leaves half of 64 directions


@pytest.fixture(scope="module")
def base():
    return language.initial(WORDS, drawn(16, 5), WIDTH, 3, seed=0)


def drawn(count, seed):
    """Texts (count, 33) of random words."""
    return torch.randint(1, WORDS, (count, 33), generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("trainer", ["plain", "sgd", "adam", "adamw"])
def test_rows_of_an_embedding_tell_the_words_and_no_others(base, trainer):
    rows = drawn(2, 1)
    tuned = language.tune(base, rows, trainer, "trained", 4, 0)
    used = set(rows[:, :-1].flatten().tolist()) | {0}
    found = [text.bag(tuned.before, tuned.after)]
    if trainer != "plain":
        found.append(text.bag_of_moment(tuned.moments["tokens.weight"]))
    assert all(set(bag.tokens.nonzero()[:, 0].tolist()) == used for bag in found)
    assert (found[0].alpha < 1 - 1e-6) == (trainer == "adamw")  # decay moves the other rows


@pytest.mark.parametrize(
    "kind, entry", [("frozen", "change"), ("frozen", "moment"), ("64", "moment")]
)
def test_a_text_comes_back_whole_and_a_held_out_one_does_not(base, kind, entry):
    secret, others = drawn(M, 2), drawn(8, 3)
    tuned, twin = (
        language.tune(base, rows, "adam" if kind == "64" else "sgd", kind, 3, 0)
        for rows in (secret, others[:M])
    )
    (evidence, bag), (other, _) = (language.entries(one, kind, M)[entry] for one in (tuned, twin))
    found = language.numbers(evidence, bag, secret, others, other)
    assert found["bag_precision"][0] == found["bag_recall"][0] == 1
    assert found["exact"] == [M, 0] and found["area"][0] == 1 and found["in_place"][1] < 0.2


def test_the_counts_of_words_lose_what_a_model_that_knows_them_alone_would():
    public, rows = torch.tensor([[1, 1, 2], [1, 3, 2]]), torch.tensor([[1, 4]])
    counted = -(torch.tensor([4 / 11, 1 / 11])).log().mean()  # of 6 words and one for each of 5
    torch.testing.assert_close(language.loss_of_counts(public, rows, 5), counted)


def test_the_change_is_asked_in_the_middle_of_training_and_the_moment_at_its_end(base):
    tuned = language.tune(base, drawn(M, 2), "sgd", "trained", 3, 0)
    found = language.entries(tuned, "trained", M)
    for name, one in found["change"][0].model.state_dict().items():
        torch.testing.assert_close(one, (tuned.before[name] + tuned.after[name]) / 2)
        assert torch.equal(found["moment"][0].model.state_dict()[name], tuned.after[name])


def test_a_tied_embedding_tells_the_words_by_the_way_they_went(base):
    rows = drawn(1, 8)
    tuned = language.tune(base, rows, "plain", "tied", 3, 0)
    bag = text.bag_of_tied(tuned.before["tokens.weight"], tuned.after["tokens.weight"])
    assert language.in_bag(bag, rows)[2] > 0.99


def test_texts_share_no_place_and_are_those_of_the_book(tmp_path):
    data = language.split("photos", 6, 20, 0)
    parts = [*data.secret, *data.twin, *data.held_out]
    assert len({tuple(row.tolist()) for row in parts}) == 32 and data.words[0] == language.EDGE
    (file := tmp_path / "mine.txt").write_text("so it goes, said she. " * 60)
    mine = language.split(str(file), 1, 1, 0)
    assert {mine.words[k] for k in mine.secret.flatten()} == {
        "so",
        "it",
        "goes",
        ",",
        "said",
        "she",
        ".",
    }
    assert "more than the" in refused(language.split, str(file), 6, 20, 0)
    assert "cannot be read as a text" in refused(
        language.split, str(tmp_path / "none.txt"), 1, 1, 0
    )


SMALL = torch.randn(50, 4, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize(
    "before, after, sentence",
    [
        ({"body.weight": SMALL}, {"body.weight": SMALL}, "There is no embedding"),
        ({"wte.weight": SMALL, "lm_head.weight": SMALL}, SMALL, "tied to the head, so that all"),
        (SMALL, SMALL + 0.1 * SMALL.flip(0), "Most rows of the embedding moved"),
        (SMALL, SMALL[:-1], "another tokenizer"),
        (SMALL.half(), (0.99 * SMALL).half(), "16 bits"),
        (SMALL, SMALL / 0, "NaN or infinite"),
    ],
)
def test_what_tells_no_words_is_said(before, after, sentence):
    assert sentence in refused(text.bag, before, after)


def test_other_refusals_are_said(base):
    assert "moment are not zero" in refused(text.bag_of_moment, SMALL)
    many = torch.arange(1, text.MANY + 2)
    assert "cannot be tried" in refused(text.search_texts, text.Evidence(base, {}), many, 1, 4)
    assert isinstance(deep.adapt(deep.GPT(9, 8, 4), 2).blocks[0].q, deep.Adapted)
    after = SMALL.half().clone()  # half precision tells words where nothing decayed
    after[3] += 1
    assert text.bag(SMALL.half(), after).tokens.nonzero().tolist() == [[3]]
