"""How pictures, labels and options are taken, and whether the audit finds how the trainer saw the pictures."""

import shutil

import numpy as np
import pytest
import torch
from PIL import Image
from test_audit import audit, doubled, fitted, one_sentence, saved, torch_network

from audit import fit, pictures, report, weights
from audit.run import network_for
from conftest import SHAPE, SIDE, M, drawn
from utils.errors import InputError

LABELS = {
    "a column": lambda y: y[:, None],
    "one-hot": lambda y: np.eye(2)[y],
    "one-hot of bytes": lambda y: np.eye(2, dtype=np.uint8)[y],
    "names": lambda y: np.array(["cat", "dog"])[y],
    "bytes": lambda y: np.array([b"cat", b"dog"])[y],
    "booleans": lambda y: y == 1,
    "real numbers": lambda y: y.astype(float),
}


@pytest.mark.parametrize("form", LABELS)
def test_labels_of_any_form_are_the_same(form, sides, tmp_path):
    np.savez(tmp_path / "a.npz", images=sides[0][0], labels=LABELS[form](sides[0][1]))
    for source in (tmp_path / "a.npz", (sides[0][0], LABELS[form](sides[0][1]))):
        found = pictures.load(source, SHAPE, "training pictures")
        assert pictures.numbered((found, found), 2)[0].tolist() == sides[0][1].tolist()


@pytest.mark.parametrize("labels, said", [
    (np.ones((M, 3)), rf"labels have the shape \({M}, 3\)"), (np.full(M, None), "the label None is not a whole number"),
])  # fmt: skip
def test_other_labels_are_refused(labels, said, sides):
    with pytest.raises(InputError, match=said):
        pictures.load((sides[0][0], labels), SHAPE, "training pictures")


@pytest.mark.parametrize("kinds, classes, outputs, order", [
    ("ab", (), 2, ["a", "b"]),
    ("ab", "ba", 1, ["b", "a"]),
    ("ab", "-b-a", 10, ["-", "b", "-", "a"]),
    ("38", (), 10, [*range(10)]),
    (["03", "10"], (), 10, [3, 10]),  # the alphabet's, as 10 is no output
    ("38", "83", 2, [8, 3]),
    ("ab", "ac", 2, "No output is of the class 'b'"),
    ("abc", (), 2, "There are 3 classes, and the network has 2"),
])  # fmt: skip
def test_classes_are_outputs_in_the_order_given(kinds, classes, outputs, order):
    side = pictures.Pictures(torch.zeros(4, 3), [*kinds, *kinds][:4], [], [])
    if isinstance(order, str):
        with pytest.raises(InputError, match=order):
            pictures.numbered((side, side), outputs, classes)
        return
    numbers = pictures.numbered((side, side), outputs, classes)[1]
    assert [order[k] for k in numbers] == [pictures.named(label) for label in side.labels]


def test_links_are_followed_and_files_of_other_kinds_are_left_out(sides, tmp_path):
    folder = saved(tmp_path / "in", sides[0])
    shutil.move(folder / "class 1", tmp_path / "elsewhere")
    (folder / "class 1").symlink_to(tmp_path / "elsewhere")
    Image.fromarray(sides[0][0][0]).save(folder / "print.pdf")
    found = pictures.load(folder, SHAPE, "training pictures")
    assert len(found.images) == M and found.notes == [
        "Of the training pictures, 1 files are no pictures and were left out."
    ]
    np.save(tmp_path / "a.npy", sides[0][0])
    alone = pictures.load(str(tmp_path / "a.npy"), SHAPE, "training pictures")
    assert alone.labels is None and {*map(tuple, alone.images.tolist())} == {*map(tuple, found.images.tolist())}


@pytest.mark.parametrize("words", [
    "net in", "net in held --mean x", "net in held --mean 0.49,0.48,0.45", "--mean 0.49 0.48 0.45 net in held",
    "net in held --layout WHC", "net in held --classes", "net in held --shape 28x28",
])  # fmt: skip
def test_a_wrong_command_gives_one_sentence(words, tmp_path, capsys):
    assert "NETWORK MEMBERS HELD_OUT" in one_sentence(words.split(), tmp_path / "out", capsys)


@pytest.mark.parametrize("shape, found", [
    ((20, 20), (20, 20, 3)), ((40, 30, 1), (40, 30, 1)), (None, (40, 30, 1)), ((7, 7), "none of these takes"),
    ((0, 3), "The shape is"),
])  # fmt: skip
def test_pictures_are_of_the_shape_given_or_their_own(shape, found, tmp_path):
    Image.new("L", (30, 40)).save(tmp_path / "a.png")
    network = torch_network(1200).state_dict()
    if isinstance(found, str):
        with pytest.raises(InputError, match=found):
            network_for(network, [tmp_path], shape, "CHW")
    else:
        assert network_for(network, [tmp_path], shape, "CHW")[1] == found


def test_a_size_that_no_file_has_is_said_to_be_a_guess(tmp_path):
    Image.new("L", (25, 40)).save(tmp_path / "a.png")
    state = {"first.weight": torch.ones(5, 3072), "head.weight": torch.ones(5, 1000), "scale": torch.ones(5)}
    target, shape = network_for(state, [tmp_path], None, "CHW")
    assert shape == (32, 32, 3) and "No file is of 32×32×3, and that was guessed" in target.guess


SEEN = {
    "as given": ({}, {}, ""),
    "a normalisation": ({"mean": 0.5, "deviation": 0.5}, {}, "--mean"),
    "a layout": ({"layout": "HWC"}, {}, "--layout HWC."),
    "another order": ({"order": (1, 0)}, {}, "--classes 1 0."),
    "two of three": ({"order": (2, 0), "outputs": 3}, {}, "--classes 1 - 0."),
    "an activation that is given": ({"act": torch.nn.Tanh}, {"activation": "tanh"}, ""),
    "an order that is given": ({"order": (1, 0)}, {"classes": "10"}, ""),
    "a layout that is given": ({"layout": "HWC"}, {"layout": "HWC"}, ""),
}


@pytest.mark.parametrize("kind", SEEN)
def test_what_fits_better_is_said_with_its_option(kind, sides):
    (trained, given, option), more = SEEN[kind], doubled(sides)
    found = audit(fitted(more, **trained), *more, steps=1, **given)
    assert (found.status == report.NO_ANSWER) == bool(option) and option in found.sentence
    assert ("fit the network better" in found.sentence) == bool(option)


def test_another_activation_is_named(sides):
    state = torch_network().state_dict()
    state["0.bias"] -= 8  # ReLUs would be dead
    logits = weights.read(state, SHAPE, activation="sigmoid").logits
    gaps = [logits(torch.from_numpy(part[0] / 255.0).flatten(1)).diff(dim=1)[:, 0] for part in sides]
    middle = torch.cat(gaps).median()
    state["2.bias"][0] += middle
    labelled = [(part[0], (gap > middle).long().numpy()) for part, gap in zip(sides, gaps)]
    found = audit(state, *labelled, steps=1)
    assert found.status == report.NO_ANSWER and "try --activation sigmoid." in found.sentence


@pytest.mark.parametrize("turned", [False, True])
def test_files_are_squashed_or_turned_where_that_fits_better(turned, sides, tmp_path):
    folders = [tmp_path / "in", tmp_path / "held"]
    exif = Image.Exif()
    exif[pictures.ORIENTATION] = 3 if turned else 1
    seen = []
    for path, (pixels, labels) in zip(folders, sides):
        for k, one in enumerate(pixels):
            (path / str(labels[k])).mkdir(parents=True, exist_ok=True)
            wide = one if turned else np.concatenate([one, pixels[k - M // 2], one], 1)  # of the other class
            Image.fromarray(wide).save(path / str(labels[k]) / f"{k:02}.png", exif=exif)
        seen.append(pictures.load(path, SHAPE, "", False, "squash", False))
    pixels = [(255 * one.images.view(-1, *SHAPE).numpy(), np.array(one.labels, int)) for one in seen]
    found = audit(fitted(pixels), *folders, steps=1)
    assert ("--unturned" in found.sentence) == turned
    assert ("Pictures were squashed" in found.content["warnings"][0]) != turned
    assert found.content["settings"]["resize"] == ("crop" if turned else "squash")


def test_untrained_networks_get_no_hint(sides):
    both = torch.from_numpy(np.concatenate([part[0] for part in sides]) / 255.0).flatten(1)
    ways = fit.ways({(): both}, {(): None}, SHAPE, (0.0, 1.0, False), ["CHW", "HWC"])[:4]
    labels = [torch.from_numpy(part[1]) for part in sides]
    networks = [weights.read(torch_network(seed=k).state_dict()).logits for k in range(40)]
    hints = [fit.better([way._replace(logits=one) for way in ways], labels, 2) for one in networks]
    assert sum(one is not None for one in hints) <= 2


def test_of_a_thousand_classes_few_enter_and_the_ways_are_few(sides):
    x = torch.rand(400, 3 * SIDE**2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    labels, network = torch.arange(400) // 4 * 10, torch_network(outputs=1000, seed=1)
    networks = {(): weights.read(network.state_dict()).logits} | {(str(k), "-"): None for k in range(5)}
    ways = fit.ways({(): x, ("a", "b"): x, ("c", "d"): x}, networks, SHAPE, (0.0, 1.0, False), ["CHW", "HWC"])
    assert len(ways) <= 25
    seen = []
    few = [way._replace(logits=lambda rows: seen.append(len(rows)) or networks[()](rows)) for way in ways[:2]]
    assert fit.better(few, (labels[::2], labels[1::2]), 1000) is None
    assert seen == [4 * fit.KINDS] * 2


def test_near_copies_of_a_side_are_left_out_and_the_first_is_kept(sides):
    pixels, labels = sides[0]
    noisy = np.clip(pixels[:4] + drawn(4, *SHAPE).numpy(), 0, 255).astype(np.uint8)
    members = np.concatenate([pixels, noisy]), np.concatenate([labels, labels[:4]])
    found = audit(torch_network().state_dict(), members, sides[1], steps=1)
    assert (
        "4 training pictures are nearly copies of others and were left out of comparisons." in found.content["warnings"]
    )
    assert found.content["pictures"]["training"] == M
    with pytest.raises(InputError, match="There are 3 training pictures that are no near-copies of others"):
        audit(torch_network().state_dict(), [part[np.arange(12) % 3] for part in sides[0]], sides[1])
