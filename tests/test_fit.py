"""How pictures, labels and options are taken, and whether the audit finds how the trainer saw the pictures."""

import shutil

import numpy as np
import pytest
import torch
from known_files import toy
from PIL import Image
from scipy.stats import kstest
from test_audit import audit, fitted, one_sentence, saved, torch_network

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


@pytest.mark.parametrize("kind", SEEN)
def test_what_fits_better_is_said_with_its_option(kind, many):
    trained, given, option = SEEN[kind]
    found = audit(fitted(many[:1], steps=150, **trained), *many, steps=1, **given)
    assert option in found.sentence or found.status == report.LEAKS
    hints = [one for one in [found.sentence, *found.content["warnings"]] if "fit the network better" in one]
    assert len(hints) == bool(option) and all(option in one for one in hints)


@pytest.mark.parametrize("turned", [False, True])
def test_files_that_were_squashed_or_not_turned_are_named(turned, many, tmp_path):
    folders, exif = [tmp_path / "in", tmp_path / "held"], Image.Exif()
    exif[pictures.ORIENTATION] = 3 if turned else 1
    seen = []
    for path, (pixels, labels) in zip(folders, many):
        for k, one in enumerate(pixels):
            (path / str(labels[k])).mkdir(parents=True, exist_ok=True)
            wide = one if turned else np.concatenate([one, pixels[k - 1], one], 1)
            Image.fromarray(wide).save(path / str(labels[k]) / f"{k:02}.png", exif=exif)
        seen.append(pictures.load(path, SHAPE, "", False, "squash", False))
    pixels = [(255 * one.images.view(-1, *SHAPE).numpy(), np.array(one.labels, int)) for one in seen[:1]]
    found = audit(fitted(pixels, steps=150), *folders, steps=1, shape=SHAPE)
    said = " ".join([found.sentence, *found.content["warnings"]])
    assert ("try --unturned." if turned else "try --resize squash.") in said


@pytest.mark.parametrize("margin", [5, 36, 60, 400])
def test_the_errors_of_sure_networks_are_not_rounded(margin):
    labels = torch.arange(40) % 2
    z = margin * torch.nn.functional.one_hot(labels, 2).double()
    assert fit.lean(fit.errors_of(z, labels)) > fit.AT_REST
    torch.testing.assert_close(fit.errors_of(z / margin, labels), (z / margin).softmax(1) - z / margin)


@pytest.mark.parametrize("outputs, kinds", [(2, 2), (3, 3), (1, 2)])
def test_networks_that_were_shown_pictures_so_get_no_hint(outputs, kinds, many):
    (pixels, _), hints = many[0], []
    rows = torch.from_numpy(pixels / 255.0).flatten(1)
    for seed in range(6):
        labels = torch.from_numpy(np.random.default_rng(seed).permutation(np.arange(len(pixels)) % kinds))
        shown = {"order": range(kinds), "layout": "HWC", "steps": 150}
        state = fitted([(pixels, labels.numpy())], max(2, outputs), seed, **shown)
        if outputs == 1:  # which says that the first class is 1
            for part in ("2.weight", "2.bias"):
                state[part] = (state[part][0] - state[part][1])[None]
        logits = weights.read(state, SHAPE, "HWC").logits
        ways = fit.ways({(): rows}, {(): logits}, SHAPE, (0.0, 1.0, False), ["HWC", "CHW"])
        hints.append(fit.better(ways, labels, outputs))
    assert not any(hints)


def test_an_order_that_chance_found_is_judged_by_other_pictures():
    labels, guesses = torch.arange(200) % 10, torch.randint(0, 10, (200,), generator=torch.Generator().manual_seed(0))
    fits = torch.tensor([fit.fitting(guesses, labels, 10)[kind] for kind in labels.tolist()]) == guesses
    assert fit.reordered(guesses, labels, 10).right.double().mean() < 0.15 < fits.double().mean()


@pytest.mark.parametrize("others, found", [(1, True), (40, False)])
def test_many_ways_must_gain_more(others, found):
    given, better = torch.arange(40) >= 10, torch.arange(40) >= 0
    seen = [fit.Seen((str(k), "-"), better if k == 0 else given, 0.0) for k in range(others)]
    assert (fit.best_of(fit.Seen((), given, 0.5), *seen) is not None) == found
    few = [fit.Seen(("a", "-"), torch.arange(40) >= 5, 0.0)]
    assert fit.best_of(fit.Seen((), given, 0.5), *few) is None  # p is 0.03


def test_errors_lean_if_their_mean_is_longer_than_by_lot():
    errors = drawn(50, 3)
    chance = [fit.lean(part) for part in drawn(200, 50, 3)]
    assert kstest(chance, "uniform").pvalue > 0.01
    assert fit.lean(errors + 1) == 1 / (1 + fit.FLIPS) and fit.lean(errors - errors.mean(0)) == 1


@pytest.mark.parametrize("right, lean, share, found", [
    (10, 0.5, 10, None),  # at rest as it is
    (38, 0.0005, 38, "rest"),
    (30, 0.0005, 30, None),  # not trained to the end
    (38, 0.0005, 36, None),
    (20, 0.5, 38, "right"),
    (4, 0.5, 16, None),  # knows too few in any way
])  # fmt: skip
def test_another_way_is_right_more_often_or_at_rest(right, lean, share, found):
    def seen(name, count, p):
        return fit.Seen(name, torch.arange(40) < count, p)

    best = fit.best_of(seen((), right, lean), seen(("a", "-a"), share, 0), seen(("c", "-c"), share, 0.2))
    assert (best and best.change) == (found and ("c", "-c"))
    assert best is None or best.shares == (right / 40, share / 40)
    assert best is None or (best.p is None) == (found == "rest")  # a lean is a hint, and no proof


def test_a_gain_decides_before_a_lean():
    def seen(name, count, p):
        return fit.Seen((name, name), torch.arange(40) < count, p)

    best = fit.best_of(seen("given", 30, 0.0005), seen("at rest", 37, 0.9), seen("more", 40, 0.01))
    assert best.change[0] == "more" and best.p < 0.01 and best.others == ["at rest"]


def test_untrained_networks_get_no_hint(sides):
    rows, labels = torch.from_numpy(sides[0][0] / 255.0).flatten(1), torch.from_numpy(sides[0][1])
    ways = fit.ways({(): rows}, {(): None}, SHAPE, (0.0, 1.0, False), ["CHW", "HWC"])
    networks = [weights.read(torch_network(seed=k).state_dict()).logits for k in range(40)]
    hints = [fit.better([way._replace(logits=one) for way in ways], labels, 2) for one in networks]
    assert sum(one is not None for one in hints) <= 2


def test_few_pictures_are_looked_at_and_the_ways_are_few():
    x = torch.rand(400, 3 * SIDE**2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    labels, network = torch.arange(400) // 4 * 10, torch_network(outputs=1000, seed=1)
    networks = {(): weights.read(network.state_dict()).logits} | {(str(k), "-"): None for k in range(5)}
    ways = fit.ways({(): x, ("a", "b"): x, ("c", "d"): x}, networks, SHAPE, (0.0, 1.0, False), ["CHW", "HWC"])
    assert len(ways) <= 25
    seen = []
    few = [way._replace(logits=lambda rows: seen.append(len(rows)) or networks[()](rows)) for way in ways[:2]]
    assert fit.better(few, labels, 1000) is None
    assert seen == [fit.MOST] * 2


def test_near_copies_of_a_side_are_left_out_and_the_first_is_kept(sides):
    pixels, labels = sides[0]
    noisy = np.clip(pixels[:4] + drawn(4, *SHAPE).numpy(), 0, 255).astype(np.uint8)
    members = np.concatenate([pixels, noisy]), np.concatenate([labels, labels[:4]])
    found = audit(torch_network().state_dict(), members, sides[1], steps=1)
    assert "4 training pictures are copies of others" in found.content["warnings"][0]
    assert found.content["pictures"]["training"] == M
    with pytest.raises(InputError, match="There are 3 training pictures, without near-copies of others"):
        audit(torch_network().state_dict(), [part[np.arange(12) % 3] for part in sides[0]], sides[1])
