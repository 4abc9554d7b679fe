"""The networks to attack: files that the seeds give again, a count with a null, and a page that works to the letter."""

import re
from pathlib import Path

import nbformat
import numpy as np
import pytest
import torch

from audit import benchmark
from tools import train_victims
from utils import networks
from utils.errors import InputError

ROOT = Path(__file__).parents[2]
NAMES = [*benchmark.index()]
ALIKE = 1e-2  # ‖θ − θ*‖²/‖θ*‖² of two trainings from one seed, whatever the order of additions


def seen(name, side):
    """Training (0) or held-out (1) images of a victim as the network saw them."""
    entry = benchmark.index()[name]
    mean = torch.tensor(entry["mean"], dtype=torch.float64).repeat(32 * 32)
    parts = [part - mean for part in benchmark.sides(entry)]
    return parts[side] - parts[0].mean(0) * entry["recipe"]["centred"]


@pytest.fixture(scope="module")
def again(tmp_path_factory):
    folder = tmp_path_factory.mktemp("victims")
    train_victims.main([str(folder)])
    return folder


@pytest.mark.parametrize("name", NAMES)
def test_seeds_give_the_networks_again(name, again):
    old, new = (benchmark.load(name, folder) for folder in (benchmark.FOLDER, again))
    assert benchmark.index(again)[name]["training"] == benchmark.index()[name]["training"]
    if name != "small-start":  # its polish makes rounding large
        assert networks.distance(new.released.network, old.released.network) < ALIKE
    assert len(old.released.labels) == 20 and old.released.recipe == new.released.recipe
    for ours, theirs in zip(old.initial, new.initial):
        torch.testing.assert_close(ours, theirs)


def counts(score):
    """How many training and held-out images a score counts above each bar."""
    return [[score[f"{of}above_{bar}"] for bar in benchmark.BARS] for of in ("", "held_out_")]


@pytest.mark.parametrize("name", NAMES)
def test_the_images_themselves_count_and_held_out_ones_do_not(name):
    right, wrong = (
        benchmark.evaluate(name, scale * seen(name, side)) for side, scale in ((0, -3), (1, 1))
    )
    (ours, theirs), (none, others) = counts(right), counts(wrong)
    assert ours == others == [20, 20, 20] and theirs[1:] == none[1:] == [0, 0]
    assert right["auc"] > 0.99 and right["p"] < 0.01 and wrong["auc"] < 0.01 and wrong["p"] > 0.9


@pytest.mark.parametrize(
    "wrong", [np.zeros((2, 7)), np.zeros((0, 3072)), np.full((2, 3072), np.nan)]
)
def test_what_cannot_be_counted_is_told(wrong):
    with pytest.raises(InputError, match="Pictures have the shape"):
        benchmark.evaluate("affine", wrong)


def test_other_images_than_the_victims_are_refused():
    with pytest.raises(InputError, match="photos does not hold the images of this victim"):
        benchmark.sides(benchmark.index()["affine"] | {"sha256": ""})


def test_the_page_says_how_to_enter(tmp_path, monkeypatch, capsys):
    cells = nbformat.read(ROOT / "book" / "try-your-own.ipynb", as_version=4).cells
    text = "\n".join(cell.source for cell in cells)
    code = re.search(r"```python\n(.*?)```", text, re.S).group(1)
    monkeypatch.chdir(tmp_path)
    exec(compile(code, "try-your-own", "exec"), {})
    *_, file = capsys.readouterr().out.splitlines()
    assert not [*tmp_path.iterdir()]  # it prints, and leaves nothing
    assert benchmark.main(["small-start", file]) == 0
    said = dict(line.split(": ") for line in capsys.readouterr().out.splitlines())
    assert int(said["above_0.9"]) >= 15 and said["held_out_above_0.9"] == "0"


def test_one_entry_replaces_another(tmp_path):
    score = benchmark.evaluate("affine", torch.rand(4, 3072))
    path = tmp_path / "entries.csv"
    for attack, pictures in (("mine", 4), ("yours", 4), ("mine", 7)):
        benchmark.enter(score | {"attack": attack, "pictures": pictures}, path)
    rows = [(row["attack"], row["pictures"]) for row in benchmark.entries(path)]
    assert rows == [("mine", "7"), ("yours", "4")]


REFUSED = {
    "nofile.npz": "There is no file",
    "damaged.npz": "damaged.npz is not an .npz file of numbers",
    "returned.npz --enter --attack a|b": "An entry needs a name of its attack",
}


@pytest.mark.parametrize("words", REFUSED)
def test_an_entry_that_cannot_be_made_is_said_in_one_sentence(words, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    np.savez("returned.npz", images=np.zeros((1, 32, 32, 3)))
    Path("damaged.npz").write_bytes(b"no archive")
    assert benchmark.main(["small-start", *words.split()]) == 2
    printed = capsys.readouterr()
    assert REFUSED[words] in printed.err and printed.err.count("\n") == 1 and not printed.out
