"""Pictures of strangers: folders, files and arrays are read alike, and what was done to them is said."""

import os
import shutil

import numpy as np
import pytest
import torch
from helpers import mlp, saved
from PIL import Image

from audit import copies, pictures
from audit.run import network_for
from audit.showing import Showing
from conftest import SHAPE, M, drawn, refused
from training import images

SHOWING = Showing(shape=SHAPE)
LABELS = {
    "a column": lambda y: y[:, None],
    "one-hot": lambda y: np.eye(2)[y],
    "bytes": lambda y: np.array([b"cat", b"dog"])[y],
    "booleans": lambda y: y == 1,
    "real numbers": lambda y: y.astype(float),
}


def load(source, what="training pictures", showing=SHOWING):
    """The Pictures of a source, of which none is left out."""
    found = pictures.load(source, what, showing)
    return pictures.kept(found, torch.ones(len(found.images), dtype=torch.bool))


@pytest.mark.parametrize("form", LABELS)
def test_labels_of_any_form_are_the_same(form, sides):
    pixels, labels = sides[0]
    found = load((pixels, LABELS[form](labels)))
    assert pictures.numbered((found, found), 2)[0].tolist() == labels.tolist()


def test_other_labels_are_refused(sides):
    assert "labels" in refused(load, (sides[0][0], np.ones((M, 3))))
    assert "label None" in refused(load, (sides[0][0], np.full(M, None)))


@pytest.mark.parametrize(
    "kinds, classes, outputs, order",
    [
        ("ab", (), 2, ["a", "b"]),
        ("ab", "ba", 1, ["b", "a"]),
        ("ab", "-b-a", 10, ["-", "b", "-", "a"]),
        ("38", (), 10, [*range(10)]),
        (["03", "10"], (), 10, [3, 10]),  # the alphabet's, as 10 is no output
        ("38", "83", 2, [8, 3]),
        ("ab", "ac", 2, "No output is of the class 'b'"),
        ("abc", (), 2, "There are 3 classes, and the network has 2"),
    ],
)
def test_classes_are_outputs_in_the_order_given(kinds, classes, outputs, order):
    labels = [*kinds, *kinds][:4]
    side = pictures.Pictures(torch.zeros(4, 3), labels, [], [], kinds=labels)
    given = (side, side), outputs, classes
    if isinstance(order, str):
        assert order in refused(pictures.numbered, *given)
    else:
        numbers = pictures.numbered(*given)[1]
        assert [order[k] for k in numbers] == [pictures.named(label) for label in labels]


def test_the_same_pictures_are_read_from_folders_files_and_arrays(tmp_path, sides):
    pixels, labels = sides[0]
    np.savez(tmp_path / "a.npz", images=pixels, labels=labels)
    np.save(tmp_path / "a.npy", pixels)
    batch = torch.from_numpy(pixels).permute(0, 3, 1, 2) / 255.0
    folder = saved(tmp_path / "a", (pixels, labels))
    shutil.move(folder / "class 1", tmp_path / "elsewhere")
    (folder / "class 1").symlink_to(tmp_path / "elsewhere")  # links are followed
    first = load(folder)
    order = sorted(range(M), key=lambda k: (labels[k], k))  # of a folder: class after class
    assert pictures.numbered((first, first), 2)[0].tolist() == labels[order].tolist()
    for source in (tmp_path / "a.npz", tmp_path / "a.npy", (batch, torch.from_numpy(labels))):
        found = load(source)
        torch.testing.assert_close(found.images[order], first.images, rtol=0, atol=1e-7)


def test_pictures_are_laid_on_paper_and_brought_to_eight_bits(tmp_path):
    noise = np.random.default_rng(0).integers(0, 256, (16, 16, 4), dtype=np.uint8)
    Image.fromarray(noise).save(tmp_path / "a.png")
    Image.fromarray(noise[..., 0].astype(np.uint16) * 257).save(tmp_path / "b.png")
    (tmp_path / "c.png").write_bytes((tmp_path / "a.png").read_bytes()[:60])
    found = load(tmp_path, showing=Showing(shape=SHAPE, skip=True))
    assert found.names == ["a.png", "b.png"] and found.labels is None
    clear, deep = found.images.view(-1, *SHAPE).numpy()
    np.testing.assert_allclose(deep, noise[..., :1].repeat(3, 2) / 255)
    opacity = noise[..., 3:] / 255
    np.testing.assert_allclose(clear, 1 + (noise[..., :3] / 255 - 1) * opacity, atol=0.005)


@pytest.mark.parametrize("how", range(2, 9))
def test_pictures_are_turned_as_their_cameras_say(how, tmp_path):
    upright = np.random.default_rng(0).integers(0, 256, (9, 12, 3), dtype=np.uint8)
    undo = {2: 0, 3: 3, 4: 1, 5: 5, 6: 2, 7: 6, 8: 4}[how]  # of Image.Transpose
    exif = Image.Exif()
    exif[pictures.ORIENTATION] = how
    Image.fromarray(upright).transpose(undo).save(tmp_path / "a.png", exif=exif)
    assert pictures.own_shapes([tmp_path]) == [(9, 12, 3)]
    found = load(tmp_path, showing=Showing(shape=(9, 12, 3)))
    assert torch.equal(found.images[0], torch.from_numpy(upright).float().flatten() / 255)
    assert (
        "1 was turned as its camera says (EXIF), as its trainer may not have done."
        in found.notes[0]
    )


@pytest.mark.parametrize("mode", ["L", "RGB", "I;16"])
def test_pictures_of_the_networks_size_are_neither_cut_nor_coloured(mode, sides, tmp_path):
    for k, one in enumerate(sides[0][0]):
        grey = Image.fromarray(one).convert("L").resize((30, 40))
        deep = Image.fromarray(np.asarray(grey).astype(np.uint16) * 257)
        (deep if mode == "I;16" else grey.convert(mode)).save(tmp_path / f"{k}.png")
    network = mlp(1200).state_dict()
    found, showing = network_for(network, [tmp_path], Showing())
    assert showing.shape == (40, 30, 1) and found.logits
    assert load(tmp_path, showing=showing).images.shape == (M, 1200)
    given = Showing(shape=(20, 20))
    assert network_for(network, [tmp_path], given)[1].shape == (20, 20, 3)


def test_pictures_start_no_program_and_what_is_no_file_is_left_out(sides, tmp_path, monkeypatch):
    """Pillow would hand PostScript to Ghostscript, here a program that leaves a note."""
    folder = saved(tmp_path / "in", sides[0])
    (tmp_path / "gs").write_text(f"#!/bin/sh\necho called >> {tmp_path}/note\necho 10.0\n")
    (tmp_path / "gs").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    script = "%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 32 32\n%%EndComments\n"
    for name in ("a.png", "c.eps", "d.ps"):
        (folder / "class 0" / name).write_text(script)
    os.mkfifo(folder / "class 0" / "pipe.png")
    (folder / "class 0" / "device.png").symlink_to("/dev/zero")
    pictures.own_shapes([folder])
    found = load(folder, showing=Showing(shape=SHAPE, skip=True))
    assert len(found.images) == M and not (tmp_path / "note").exists()
    assert any("4 files are no pictures" in note for note in found.notes)


@pytest.mark.parametrize("deed", ["are grey and were taken as colour", "have 16 bits a pixel"])
def test_one_picture_is_told_in_the_singular(deed):
    one, two = (pictures.agreeing(count, deed) for count in (1, 2))
    assert two == f"2 {deed}" and one.split()[1] in ("is", "has") and "were" not in one


def test_pictures_that_are_on_both_sides_are_left_out_and_few_are_refused(sides):
    ours, theirs = map(load, sides)
    shared = theirs._replace(images=torch.cat([theirs.images[1:], 0.99 * ours.images[3:4]]))
    found, _ = pictures.distinct([ours, shared], SHAPE)
    assert [one.count for one in found] == [M, M]  # as is stated to an attacker
    assert [one.names for one in found] == [[*ours.names[:3], *ours.names[4:]], theirs.names[:-1]]
    few = ours._replace(images=ours.images[torch.arange(M) % 3])  # near-copies of a side
    said = "3 training pictures are there, without near-copies of others"
    assert said in refused(pictures.distinct, [few, theirs], SHAPE)


def moved(pixels, by, axis=None):
    """Pictures (n, H, W, C), shifted by some pixels over noise, and mirrored."""
    noise = np.random.default_rng(0).integers(0, 256, pixels.shape, dtype=np.uint8)
    down, right = by
    noise[:, down:, right:] = pixels[:, : pixels.shape[1] - down, : pixels.shape[2] - right]
    return noise if axis is None else np.flip(noise, axis)


@pytest.mark.parametrize("by, axis", [((4, 0), None), ((3, 8), 2), ((8, 8), 1), ((0, 0), (1, 2))])
def test_shifted_and_mirrored_copies_are_found_and_no_others(by, axis):
    pixels = images.views()[0][:60]
    both = torch.from_numpy(np.concatenate([pixels, moved(pixels, by, axis)]) / 255.0).flatten(1)
    found = copies.find(both, pixels.shape[1:])
    expected = torch.eye(60, dtype=torch.bool).repeat(2, 2)
    assert (found & expected).sum() > 0.95 * expected.sum() and not (found & ~expected).any()


def test_noisy_copies_are_found():
    pixels = drawn(6, 3 * 16**2).abs()
    both = torch.cat([pixels, pixels + 0.01 * drawn(*pixels.shape, seed=1)])
    assert torch.equal(copies.find(both, SHAPE), torch.eye(6, dtype=torch.bool).repeat(2, 2))
