"""The words that two files of a language model tell, and one sentence where they do not."""

import json

import pytest
import torch

from audit.command import main
from audit.report import LEAKS, NO_ANSWER

USED, COUNT = [3, 7, 40], 50
BEFORE = {
    "tokens.weight": torch.randn(COUNT, 8, generator=torch.Generator().manual_seed(0)),
    "head.weight": torch.ones(COUNT, 8),
}
AFTER = {name: 0.99 * part for name, part in BEFORE.items()}
AFTER["tokens.weight"] = AFTER["tokens.weight"].index_add(
    0, torch.tensor(USED), torch.full((3, 8), 0.1)
)
VOCABULARY = {f"word {k}": k for k in range(COUNT)}


def ended(tmp_path, after, before=BEFORE, *options):
    torch.save({"model": after}, tmp_path / "after.pt")
    torch.save(before, tmp_path / "before.pt")
    files = tmp_path / "after.pt", "--before", tmp_path / "before.pt", *options
    return main(["words", *map(str, files)])


@pytest.mark.parametrize("form", ["vocab.json", "tokenizer.json", "words.txt"])
def test_the_words_that_training_used_are_named(form, tmp_path, capsys):
    known = {"tokenizer.json": {"model": {"vocab": VOCABULARY}}}.get(form, VOCABULARY)
    (tmp_path / form).write_text(
        "\n".join(VOCABULARY) if form == "words.txt" else json.dumps(known)
    )
    assert ended(tmp_path, AFTER, BEFORE, "--vocabulary", tmp_path / form) == LEAKS
    finding, *names = capsys.readouterr().out.splitlines()
    assert "3 of 50 rows of the embedding moved, the others by one factor, 0.99" in finding
    assert {*names} == {f"word {k}" for k in USED}


def test_an_embedding_of_another_name_can_be_named_and_a_key_is_for_the_files_that_hold_it(
    tmp_path,
):
    after, before = ({"emb.weight": state["tokens.weight"]} for state in (AFTER, BEFORE))
    assert ended(tmp_path, after, before, "--embedding", "emb.weight", "--key", "model") == LEAKS


REFUSED = {
    "frozen": (
        (AFTER | {"tokens.weight": BEFORE["tokens.weight"]},),
        "No row of the embedding moved: it was frozen",
    ),
    "none": (
        ({"body.weight": torch.ones(9, 9)},),
        "No matrix of after.pt has one of the usual names: name the",
    ),
    "misnamed": ((AFTER, BEFORE, "--embedding", "none"), "No matrix of before.pt is called none"),
    "another": ((AFTER, {"tokens.weight": torch.ones(60, 8)}), "is another tokenizer"),
    "tied": ((AFTER | {"head.weight": AFTER["tokens.weight"]},), "tied to the head"),
    "words": ((AFTER, BEFORE, "--vocabulary", "none.json"), "none.json is no vocabulary"),
    "file": ((AFTER, BEFORE, "--before", "none.pt"), "There is no file none.pt"),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_where_nothing_is_told_one_sentence_says_why(kind, tmp_path, capsys):
    given, said = REFUSED[kind]
    assert ended(tmp_path, *given) == NO_ANSWER
    error = capsys.readouterr().err
    assert said in error and error.count("\n") == 1
