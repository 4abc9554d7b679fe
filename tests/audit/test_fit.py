"""How pictures, labels and options are taken, and whether the audit finds how the trainer saw the pictures."""

import itertools
import os
import shutil

import numpy as np
import pytest
import torch
from known_files import toy
from PIL import Image
from test_audit import audit, fitted, one_sentence, saved, torch_network

from audit import copies, fit, pictures, report
from audit.run import network_for
from conftest import SHAPE, SIDE, M, drawn
from training import images
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
    assert alone.labels is None and {*map(tuple, alone.images.tolist())} == {
        *map(tuple, found.images.tolist())
    }


def test_pictures_start_no_program_and_what_is_no_file_is_left_out(sides, tmp_path, monkeypatch):
    """Pillow would hand PostScript to Ghostscript, here a program that leaves a note."""
    folder = saved(tmp_path / "in", sides[0])
    (tmp_path / "gs").write_text(f"#!/bin/sh\necho called >> {tmp_path}/note\necho 10.0\n")
    (tmp_path / "gs").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    for name in ("a.png", "b.jpg", "c.eps", "d.ps", "e.pdf", "f.wmf"):
        (folder / "class 0" / name).write_text(
            "%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 32 32\n%%EndComments\n"
        )
    os.mkfifo(folder / "class 0" / "pipe.png")
    (folder / "class 0" / "device.png").symlink_to("/dev/zero")
    pictures.own_shapes([folder])
    found = pictures.load(folder, SHAPE, "training pictures", skip=True)
    assert len(found.images) == M and not (tmp_path / "note").exists()
    assert (
        "Of the training pictures, 2 could not be read or used, and were left out." in found.notes
    )
    assert "Of the training pictures, 6 files are no pictures and were left out." in found.notes


@pytest.mark.parametrize("words", [
    "net in", "net in held --mean x", "net in held --mean 0.49,0.48,0.45", "--mean 0.49 0.48 0.45 net in held",
    "net in held --layout WHC", "net in held --classes", "net in held --shape 28x28",
])  # fmt: skip
def test_a_wrong_command_gives_one_sentence(words, tmp_path, capsys):
    assert "NETWORK MEMBERS HELD_OUT" in one_sentence(words.split(), tmp_path / "out", capsys)


@pytest.mark.parametrize("shape, found", [
    ((20, 20), (20, 20, 3)), ((40, 30, 1), (40, 30, 1)), (None, (40, 30, 1)), ((7, 7), "give the shape of its"),
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


SEEN = {
    "as given": ({}, {}, ""),
    "a normalisation": ({"mean": 0.5, "deviation": 0.5}, {}, "--mean"),
    "a layout": ({"layout": "HWC"}, {}, "--layout HWC"),
    "another order": ({"order": (1, 0)}, {}, "--classes 1 0."),
    "two of three": ({"order": (2, 0), "outputs": 3}, {}, "--classes 1 - 0."),
    "an activation": ({"act": torch.nn.Sigmoid}, {}, "--activation sigmoid"),
    "an activation that is given": ({"act": torch.nn.Tanh}, {"activation": "tanh"}, ""),
    "an order that is given": ({"order": (1, 0)}, {"classes": "10"}, ""),
    "a layout that is given": ({"layout": "HWC"}, {"layout": "HWC"}, ""),
}


@pytest.fixture(scope="module")
def many():
    """Both sides' photographs (40, 16, 16, 3), with labels of two classes by lot."""
    return toy("members", 1, None, size=(SIDE, SIDE), counts=(40, 40)).sides


def hints(found):
    """The sentences of a report on another way to show the pictures."""
    said = [found.sentence, *found.content["warnings"]]
    return [
        one
        for one in said
        if "fit the network better" in one or "the loss tells training pictures" in one
    ]


@pytest.mark.parametrize("kind", SEEN)
def test_what_fits_better_is_said_with_its_option(kind, many):
    trained, given, option = SEEN[kind]
    found = audit(fitted(many[:1], steps=150, **trained), *many, steps=1, **given)
    assert len(hints(found)) == bool(option) or found.status == report.LEAKS
    assert all(option in one for one in hints(found))


READ = {  # how files were read, and the option that is named
    "squashed": ({"resize": "squash"}, "--resize squash"),
    "the middle of a larger one": ({"resize": 20}, "--resize 20"),
    "not turned": ({"turn": False}, "--unturned"),
    "without its transparency": ({"alpha": "drop"}, "--alpha drop"),
    "on black": ({"alpha": "black"}, "--alpha black"),
}


@pytest.mark.parametrize("kind", READ)
def test_another_way_to_read_files_is_named(kind, many, tmp_path):
    how, option = READ[kind]
    folders, exif = [tmp_path / "in", tmp_path / "held"], Image.Exif()
    exif[pictures.ORIENTATION] = 3 if "turn" in how else 1
    veil = Image.new("L", (3 * SIDE, SIDE), 60)
    for path, (pixels, labels) in zip(folders, many):
        for k, one in enumerate(pixels):
            (path / str(labels[k])).mkdir(parents=True, exist_ok=True)
            wide = Image.fromarray(np.concatenate([one, pixels[k - 1], one], 1))
            if "alpha" in how:
                wide.putalpha(veil)
            wide.save(path / str(labels[k]) / f"{k:02}.png", exif=exif)
    seen = pictures.load(folders[0], SHAPE, "", **how)
    pixels = [(255 * seen.images.view(-1, *SHAPE).numpy(), np.array(seen.labels, int))]
    found = audit(fitted(pixels, steps=150), *folders, steps=1, shape=SHAPE)
    assert found.status == report.LEAKS or f"try {option}" in found.sentence


def knowing(members, labels, outputs, shows=lambda batch: batch):
    """A function that knows the labels (n,) of members (n, H, W, C) alone, once it `shows` a batch (n, C, H, W)."""
    known = torch.from_numpy(members / 255.0).permute(0, 3, 1, 2).flatten(1).double()

    def network(batch):
        near, best = torch.cdist(shows(batch).flatten(1).double(), known).min(1)
        logits = 9.0 * torch.nn.functional.one_hot(torch.as_tensor(labels)[best], outputs)
        return torch.where(near[:, None] < 0.2, logits, logits.roll(1, 1) / 9)

    return network


ORDERS = {
    "numbers as texts": ([str(k) for k in range(24)], str),
    "numbers in texts": ([f"class{k}" for k in range(24)], lambda name: int(name[5:])),
    "small and large letters": ([f"{'aB'[k % 2]}{k:02}" for k in range(24)], str.lower),
}


@pytest.mark.parametrize("kind", ORDERS)
def test_orders_that_people_use_are_tried_with_any_number_of_classes(kind, many):
    names, key = ORDERS[kind]
    order = sorted(names, key=key)
    kinds = [np.array(names)[np.arange(len(part)) % 24] for part, _ in many]
    members = many[0][0]
    network = knowing(members, [order.index(name) for name in kinds[0]], 24)
    sides = [(part, name) for (part, _), name in zip(many, kinds)]
    (said,) = hints(audit(network, *sides))
    assert f"try --classes {' '.join(order)}." in said
    assert not hints(audit(network, *sides, classes=order))


def test_another_size_is_tried_where_a_network_takes_any(many):
    pixels, labels = many[0]
    larger = [np.asarray(Image.fromarray(one).resize((32, 32), pictures.FILTER)) for one in pixels]
    known = knowing(np.stack(larger), labels, 2)
    found = audit(
        lambda batch: known(batch) if batch.shape[-1] == 32 else batch.mean((2, 3))[:, :2],
        *many,
        steps=1,
    )
    (said,) = hints(found)
    assert found.status == report.NO_ANSWER and "try --shape 32 32." in said


def test_the_loss_is_asked_in_ways_in_which_as_many_are_classified_correctly(many):
    """A network that classifies all correctly, and knows the members if these are shown in the range of −1 to 1."""
    members, labels = many[0]
    known = knowing(members, labels, 2, shows=lambda batch: batch / 2 + 0.5)
    every = {one.tobytes(): label for part, kinds in many for one, label in zip(part, kinds)}

    def network(batch):
        if batch.min() < 0:
            return known(batch)
        rows = (255 * batch.permute(0, 2, 3, 1)).round().byte().numpy()
        return torch.nn.functional.one_hot(
            torch.tensor([every.get(one.tobytes(), 0) for one in rows]), 2
        ).double()

    (said,) = hints(found := audit(network, *many))
    assert (
        found.status == report.NO_ANSWER
        and "the loss tells training pictures from held-out ones (p = 0.0" in said
    )
    assert "try --mean 0.5 --deviation 0.5" in said


@pytest.mark.parametrize("outputs, kinds", [(2, 2), (3, 3), (1, 2)])
def test_networks_that_were_shown_pictures_so_get_no_hint(outputs, kinds, many):
    pixels = many[0][0]
    for seed in range(4):
        labels = [
            np.random.default_rng(seed + k).permutation(np.arange(40) % kinds) for k in (0, 99)
        ]
        state = fitted(
            [(pixels, labels[0])],
            max(2, outputs),
            seed,
            order=range(kinds),
            layout="HWC",
            steps=150,
        )
        if outputs == 1:  # which says that the first class is 1
            for part in ("2.weight", "2.bias"):
                state[part] = (state[part][0] - state[part][1])[None]
        sides = [(part, kind) for (part, _), kind in zip(many, labels)]
        assert not hints(audit(state, *sides, layout="HWC", steps=1, limit=0.5))


def way(right, name=""):
    """A Way in which so many of 40 pictures are classified correctly."""
    return fit.Way((name, name), None, None, (), right=torch.arange(40) < right)


def test_an_order_that_chance_found_is_judged_by_other_pictures():
    labels = torch.arange(200) % 10
    guesses = torch.randint(0, 10, (200,), generator=torch.Generator().manual_seed(0))
    fits = (
        torch.tensor([fit.fitting(guesses, labels, 10)[kind] for kind in labels.tolist()])
        == guesses
    )
    assert (
        fit.reordered(way(0)._replace(labels=(labels,)), guesses, 10).share
        < 0.15
        < fits.double().mean()
    )


@pytest.mark.parametrize("right, share, others, found", [
    (10, 10, 10, 0), (20, 38, 38, 2), (20, 38, 26, 1), (4, 16, 16, 0),  # knows too few in any way
    (35, 40, 35, 0),  # p is 0.06
])  # fmt: skip
def test_another_way_is_right_more_often(right, share, others, found):
    best = fit.more_right(way(right), [way(share), way(others)])
    assert len(best) == found and all(p < 0.01 for _, p in best)


@pytest.mark.parametrize("p, asked", [(0.03, True), (0.001, False)])
def test_a_loss_that_may_not_tell_after_correction_is_asked_in_other_ways(p, asked, monkeypatch):
    monkeypatch.setattr(fit, "p_value_of", lambda case, way: 1e-4 if way.change[0] else p)
    assert bool(fit.telling(None, way(40), [way(40, "a"), way(40, "b")], 0.05)) == asked


def test_many_ways_must_gain_more():
    assert fit.more_right(way(30), [way(40)]) and not fit.more_right(
        way(30), [way(40), *[way(30)] * 39]
    )


def test_untrained_networks_get_no_hint(sides):
    states = [torch_network(seed=k).state_dict() for k in range(40)]
    assert sum(bool(hints(audit(state, *sides, steps=1, limit=0.5))) for state in states) <= 2


def test_few_pictures_are_looked_at_and_ways_that_take_too_long_are_left_out_and_named():
    pixels, seen = images.views()[0], []

    def network(batch):
        seen.append(batch.shape)
        return batch.flatten(1)[:, :500] @ torch.ones(500, 2)

    sides = [(part, np.arange(len(part)) % 2) for part in np.split(pixels, 2)]
    found = audit(network, *sides, limit=1e-5)
    left_out = [
        one for one in found.content["warnings"] if "ways to show pictures were not tried (" in one
    ]
    assert len(left_out) == 1 and {len(shape) for shape in seen} == {4}
    assert {shape[0] for shape in seen if shape[-1] == 32} == {1, 2, fit.MOST}


def test_what_is_asked_does_not_depend_on_how_busy_the_machine_is(sides, monkeypatch):
    def asked():
        stages = audit(torch_network(act=torch.nn.Tanh), *sides).content["stages"]
        return [(one["name"], one["state"], one["expected_seconds"]) for one in stages]

    on_an_idle_machine, clock = asked(), itertools.count(step=1000.0)
    for timer in ("time.monotonic", "time.perf_counter"):
        monkeypatch.setattr(timer, lambda: next(clock))
    monkeypatch.setattr("timeit.repeat", lambda *given, **settings: [1000.0])
    assert asked() == on_an_idle_machine


@pytest.mark.parametrize("accuracy, doubted", [(None, True), (0.72, False), (1.0, True)])
def test_too_few_pictures_that_are_known_are_doubted_unless_it_was_so_in_training(
    accuracy, doubted, many
):
    """A function that is right about seven of ten pictures of either side."""
    every = {one.tobytes(): k for part, _ in many for k, one in enumerate(part)}
    kinds = [np.arange(40) % 2] * 2

    def network(batch):
        rows = (255 * batch.permute(0, 2, 3, 1)).round().byte().numpy()
        places = [every.get(one.tobytes(), 0) for one in rows]
        return torch.tensor([[float((k % 2 == 0) == (k % 10 > 2)), 0.5] for k in places])

    found = audit(
        network, *((part, kind) for (part, _), kind in zip(many, kinds)), accuracy=accuracy
    )
    said = " ".join(found.content["warnings"])
    assert (
        "classifies only 69% of the training" in said
    ) == doubted and found.status == report.NO_ANSWER


def test_sides_that_were_exchanged_are_not_cleared(many):
    found = audit(fitted(many[:1], steps=150), *many[::-1], steps=1, accuracy=0.5)
    assert found.status == report.NO_ANSWER and found.sentence.endswith(
        "were the training and the held-out pictures exchanged?"
    )


def moved(pixels, by, axis=None):
    """Pictures (n, H, W, C), shifted by some pixels over noise, and mirrored."""
    noise = np.random.default_rng(0).integers(0, 256, pixels.shape, dtype=np.uint8)
    down, right = by
    noise[:, down:, right:] = pixels[:, : pixels.shape[1] - down, : pixels.shape[2] - right]
    return noise if axis is None else np.flip(noise, axis)


@pytest.mark.parametrize(
    "by, axis", [((0, 0), 2), ((4, 0), None), ((3, 8), 2), ((8, 8), 1), ((0, 0), (1, 2))]
)
def test_shifted_and_mirrored_copies_are_found_and_no_others(by, axis):
    pixels = images.views()[0][:60]
    both = torch.from_numpy(np.concatenate([pixels, moved(pixels, by, axis)]) / 255.0).flatten(1)
    found = copies.find(both, pixels.shape[1:])
    expected = torch.eye(60, dtype=torch.bool).repeat(2, 2)
    assert (found & expected).sum() > 0.95 * expected.sum() and not (found & ~expected).any()


def test_near_copies_of_a_side_are_left_out_and_the_first_is_kept(sides):
    pixels, labels = sides[0]
    noisy = np.clip(pixels[:4] + drawn(4, *SHAPE).numpy(), 0, 255).astype(np.uint8)
    members = np.concatenate([pixels, noisy]), np.concatenate([labels, labels[:4]])
    found = audit(torch_network().state_dict(), members, sides[1], steps=1)
    assert "4 training pictures are copies of others" in found.content["warnings"][0]
    assert found.content["pictures"]["training"] == M
    with pytest.raises(
        InputError, match="There are 3 training pictures, without near-copies of others"
    ):
        audit(
            torch_network().state_dict(), [part[np.arange(12) % 3] for part in sides[0]], sides[1]
        )
