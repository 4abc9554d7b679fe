"""The words that two files of a language model tell, and one sentence where they do not."""

import json

import pytest
import torch
from safetensors.torch import save_file

from audit.command import main
from audit.report import LEAKS, NO_ANSWER
from experiments.encoder import SMALL
from training import bert

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
    known = {"model": {"vocab": VOCABULARY}} if form == "tokenizer.json" else VOCABULARY
    text = "\n".join(VOCABULARY) if form == "words.txt" else json.dumps(known)
    (tmp_path / form).write_text(text)
    assert ended(tmp_path, AFTER, BEFORE, "--vocabulary", tmp_path / form) == LEAKS
    finding, *names = capsys.readouterr().out.splitlines()
    assert "3 of 50 rows of the embedding moved, the others by one factor, 0.99" in finding
    assert {*names} == {f"word {k}" for k in USED}


def test_an_embedding_of_another_name_can_be_named(tmp_path):
    after, before = ({"emb.weight": state["tokens.weight"]} for state in (AFTER, BEFORE))
    assert ended(tmp_path, after, before, "--embedding", "emb.weight", "--key", "model") == LEAKS


REFUSED = {
    "it was frozen": (AFTER | {"tokens.weight": BEFORE["tokens.weight"]},),
    "No matrix of after.pt has one of the usual names": ({"body.weight": torch.ones(9, 9)},),
    "No matrix of after.pt is called none": (AFTER, BEFORE, "--embedding", "none"),
    "is another tokenizer": (AFTER, {"tokens.weight": torch.ones(60, 8)}),
    "tied to the head": (AFTER | {"head.weight": AFTER["tokens.weight"]},),
    "none.json is no vocabulary": (AFTER, BEFORE, "--vocabulary", "none.json"),
}
TEXT = [1, 20, 21, 22, 23, 2]  # the words of one text, at the places 0, 1, …


@pytest.mark.parametrize("said", REFUSED)
def test_where_nothing_is_told_one_sentence_says_why(said, tmp_path, capsys):
    assert ended(tmp_path, *REFUSED[said]) == NO_ANSWER
    error = capsys.readouterr().err
    assert said in error and error.count("\n") == 1


@pytest.fixture
def checkpoint(tmp_path):
    """A folder as the trainer of `transformers` leaves it, of a small BERT that was fine-tuned on TEXT."""
    model = bert.drawn(SMALL | {"vocab_size": COUNT}, classes=2, seed=0)
    save_file(model.state_dict(), tmp_path / "start.safetensors")
    labels = torch.tensor([1])
    optimiser = bert.tune(model, torch.tensor([TEXT]), labels, rate=5e-5, epochs=2, batch=1, seed=0)
    folder = tmp_path / "checkpoint-2"
    folder.mkdir()
    save_file(model.state_dict(), folder / "model.safetensors")
    torch.save(optimiser.state_dict(), folder / "optimizer.pt")
    (folder / "tokenizer.json").write_text(json.dumps({"model": {"vocab": VOCABULARY}}))
    return folder


@pytest.mark.parametrize("known", ["its state", "its start"])
def test_a_checkpoint_tells_its_words_with_their_places(known, checkpoint, capsys):
    before = ["--before", f"{checkpoint.parent}/start.safetensors"] * (known == "its start")
    assert main(["words", str(checkpoint), *before]) == LEAKS
    finding, *lines = capsys.readouterr().out.splitlines()
    assert "6 of 50 rows of the embedding" in finding and "6 of them with their place" in finding
    assert {*lines} == {f"word {word}\t{place}" for place, word in enumerate(TEXT)}


def spoil(path, change):
    content = torch.load(path)
    change(content)
    torch.save(content, path)


SPOILED = {
    "give the tokenizer of this network": lambda folder: (folder / "tokenizer.json").write_text(
        json.dumps({"model": {"vocab": VOCABULARY | {"one more": COUNT}}})
    ),
    "optimizer.pt holds 0 moments of 50×96": lambda folder: spoil(
        folder / "optimizer.pt", lambda content: content["state"].pop(0)
    ),
    "optimizer.pt is in 16 bits": lambda folder: spoil(
        folder / "optimizer.pt",
        lambda content: content["state"][0].update(exp_avg=content["state"][0]["exp_avg"].half()),
    ),
    "but optimizer.pt, tokenizer.json: give the file of its weights": lambda folder: (
        folder / "model.safetensors"
    ).unlink(),
    "or a folder with optimizer.pt": lambda folder: (folder / "optimizer.pt").unlink(),
}


@pytest.mark.parametrize("said", SPOILED)
def test_where_a_checkpoint_tells_nothing_one_sentence_says_why(said, checkpoint, capsys):
    SPOILED[said](checkpoint)
    assert main(["words", str(checkpoint)]) == NO_ANSWER
    error = capsys.readouterr().err
    assert said in error and error.count("\n") == 1


def test_with_a_start_a_state_that_cannot_be_read_stops_nothing(checkpoint, capsys):
    SPOILED["optimizer.pt is in 16 bits"](checkpoint)
    assert (
        main(["words", str(checkpoint), "--before", f"{checkpoint.parent}/start.safetensors"])
        == LEAKS
    )
    assert "6 of 50 rows of the embedding moved" in capsys.readouterr().out
