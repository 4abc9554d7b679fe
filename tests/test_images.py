"""Data sets, and one clear sentence for every way in which a file can be wrong."""

import io
import tracemalloc
import zipfile
from unittest.mock import Mock

import numpy as np
import pytest
import torch
import torchvision

from conftest import refused
from training import images


def save(path, **arrays):
    np.savez(path, **arrays)
    return str(path)


def test_photographs_and_their_parts_are_those_of_recorded_results():
    two, four = images.load("photos"), images.load("photos", binary=False)
    assert two.images.shape[1:] == (32, 32, 3) and two.images.dtype == np.uint8
    assert np.bincount(four.labels).tolist() == [87, 75, 64, 98] and np.array_equal(
        four.labels // 2, two.labels
    )
    sha256 = "610bcdf7d410ef8b789889a871ad471f95ced0c11e66fec1c8de1d975010373b"
    assert (
        images.split(two, 100, 100, seed=4).sha256 == sha256
    )  # in the second walk through the file


@pytest.mark.parametrize("seed", [0, 1])
def test_parts_are_disjoint_balanced_and_reproducible(seed):
    labelled = images.load("photos", binary=False)
    without, data = (images.split(labelled, 48, 100, seed, held_out=count) for count in (0, 48))
    assert torch.equal(without.secret.images, data.secret.images)
    assert torch.equal(without.known.images, data.known.images)
    assert (
        data.secret.labels.tolist()
        == data.held_out.labels.tolist()
        == [0] * 12 + [1] * 12 + [2] * 12 + [3] * 12
    )
    assert data.known.labels.long().bincount().tolist() == [25] * 4
    assert torch.cdist(data.secret.images, data.known.images).min() > 0.1
    assert (
        torch.cdist(data.held_out.images, torch.cat([data.secret.images, data.known.images])).min()
        > 0.1
    )
    assert without.held_out.images.shape == (0, 3072) and without.held_out.labels.shape == (0,)
    assert data.sha256 != without.sha256


def test_seed_zero_is_file_order_and_others_are_not(toy_npz):
    labelled = images.load(str(toy_npz))
    data = images.split(labelled, 10, 10)
    expected = labelled.images[np.flatnonzero(labelled.labels == 0)[:5]].reshape(5, -1)
    assert data.secret.images.dtype == torch.float64
    assert np.array_equal(data.secret.images[:5].numpy(), expected)
    assert images.split(labelled, 10, 10, seed=1).sha256 != data.sha256
    short = labelled._replace(images=labelled.images.astype("f4"))
    long = short._replace(images=short.images.astype("f8"))
    assert (
        images.split(short, 10, 10).sha256 == images.split(long, 10, 10).sha256
    )  # the sum is of float64


def test_grey_and_eight_bit_images(tmp_path):
    pictures = np.arange(4 * 7 * 9, dtype=np.uint8).reshape(4, 7, 9)
    loaded = images.load(save(tmp_path / "grey.npz", images=pictures, labels=[7, 7, 2, 2]))
    assert loaded.images.shape == (4, 7, 9, 1) and np.array_equal(loaded.images[..., 0], pictures)
    assert loaded.labels.tolist() == [1, 1, 0, 0]
    assert torch.equal(
        images.split(loaded, 2, 2).secret.images[0], torch.from_numpy(pictures[2] / 255.0).flatten()
    )


def test_loading_costs_the_file_and_what_a_split_uses(tmp_path):
    pictures = np.random.default_rng(0).integers(0, 256, (10_000, 32, 32, 3), np.uint8)
    path = save(tmp_path / "many.npz", images=pictures, labels=np.arange(10_000) % 2)
    tracemalloc.start()
    images.split(images.load(path), 100, 100, seed=1)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < pictures.nbytes + 20e6


def test_seeds_walk_through_the_file_and_share_no_secret_while_a_class_lasts():
    labelled = images.Labelled(np.arange(22 * 7 * 7).reshape(22, 7, 7, 1) / 2000, np.arange(22) % 2)
    secret = [
        {x[0].item() for x in images.split(labelled, 6, 4, seed).secret.images} for seed in range(5)
    ]
    assert all(len(part) == 6 for part in secret)
    assert not secret[0] & secret[1] and not secret[1] & secret[2] and not secret[0] & secret[2]
    assert len(secret[3] & secret[0]) == 2  # eleven of a class are used up in the fourth turn


def test_the_recorded_images_are_the_first_of_some_batches(monkeypatch):
    numbers = np.arange(50_000)
    monkeypatch.setattr(
        images,
        "cifar10",
        lambda binary, train=True: images.Labelled(numbers + (not train), numbers % 2),
    )
    old = [*range(1017), *range(10_000, 11_017), *range(20_000, 21_017)]
    fresh = [*range(30_000, 31_017)]
    unused = 1017
    assert (
        images.load("cifar10-subset").images.tolist() == old
        and images.load("cifar10-subset").unused is None
    )
    assert images.load("cifar10-fresh").images.tolist() == fresh + old
    assert images.load("cifar10-fresh").unused.images.tolist() == [*range(1, unused + 1)]


def test_held_out_images_come_from_those_that_nothing_is_trained_on(tmp_path):
    pictures = np.random.default_rng(0).random((40, 8, 8))
    own = {"images": pictures[:20], "labels": np.arange(20) % 2}
    others = {"held_out_images": pictures[20:]}
    both = images.load(
        save(tmp_path / "both.npz", **own, **others, held_out_labels=np.arange(20) % 2)
    )
    for seed in range(4):
        data = images.split(both, 4, 8, seed, held_out=4)
        alone = images.split(both._replace(unused=None), 4, 8, seed)
        assert torch.equal(data.secret.images, alone.secret.images)
        assert torch.equal(data.known.images, alone.known.images)
        expected = pictures[20:][[4 * seed, 4 * seed + 2, 4 * seed + 1, 4 * seed + 3]]
        assert np.array_equal(data.held_out.images.numpy(), expected.reshape(4, -1))
    both.unused.images[0] = both.images[0]
    assert "Images 0 and 20 of the data set" in refused(images.split, both, 4, 8, held_out=4)
    assert "at most 20 held-out ones, not 22" in refused(images.split, both, 4, 8, held_out=22)
    none = save(tmp_path / "none.npz", **own, **others)
    assert "labels have the shape (0,); 20 images need" in refused(images.load, none)
    others = {"held_out_images": np.zeros((2, 8, 8), np.uint8), "held_out_labels": [0, 1]}
    bytes_ = save(tmp_path / "bytes.npz", **own, **others)
    assert "the held-out images are of another shape or type" in refused(images.load, bytes_)


def test_halves_give_the_attacker_twice_as_many():
    four = images.load("photos", binary=False)
    data = images.halves(four, 21, seed=1)
    assert data.secret.labels.tolist() == [0, 0, 1, 1, 2, 2, 3, 3] and len(data.known.labels) == 20
    assert (
        data.sha256 == images.split(four, 8, 20, 1, held_out=8).sha256
        and len(data.held_out.labels) == 8
    )
    assert "the 4 classes of the stationarity attack need" in refused(images.halves, four, 7)


FINE = {"images": np.zeros((4, 8, 8)), "labels": [0, 0, 1, 1]}


@pytest.mark.parametrize(
    "wrong, sentence",
    [
        ({"labels": [0, 0, 0, 0]}, "with label_names; there are 1"),
        ({"labels": ["cat", "dog", "dog", "cat"]}, "the label cat is not a whole number"),
        ({"images": np.zeros((0, 8, 8)), "labels": []}, "N×H×W or N×H×W×C from 7×7 on is needed"),
        ({"labels": [0, 1, 1]}, "labels have the shape (3,); 4 images need (4,)"),
        ({"labels": [0, 1, np.nan, np.nan]}, "the label nan is not a whole number; correct it"),
        (
            {"images": np.array([0.5] * 255 + [np.nan]).reshape(4, 8, 8)},
            "pixels reach from nan to nan; bring them",
        ),
        (
            {"images": np.array([0.5] * 255 + [-0.1]).reshape(4, 8, 8)},
            "pixels reach from -0.1 to 0.5; bring them",
        ),
        ({"images": np.zeros((4, 8, 8), int)}, "images are of type int64"),
        ({"images": np.zeros((4, 6, 6))}, "N×H×W×C from 7×7 on is needed"),
        ({"images": None}, "has no array 'images'"),
    ],
)
def test_wrong_files(tmp_path, wrong, sentence):
    arrays = {name: array for name, array in (FINE | wrong).items() if array is not None}
    assert sentence in refused(images.load, save(tmp_path / "wrong.npz", **arrays))


def test_the_labels_of_several_classes(tmp_path):
    ten = {
        "images": np.zeros((10, 8, 8)),
        "labels": np.arange(10),
        "label_names": images.CIFAR10_NAMES,
    }
    assert images.load(save(tmp_path / "ten.npz", **ten)).labels.tolist() == [
        0,
        0,
        1,
        1,
        1,
        1,
        1,
        1,
        0,
        0,
    ]
    one = save(tmp_path / "one.npz", **{**FINE, "labels": [3] * 4})
    assert "two classes are needed" in refused(images.load, one, binary=False)


def archive(path, header, size=4 * 8 * 8):
    """Write an archive whose images have any header, and `size` bytes of pixels; return its path."""
    stream = io.BytesIO()
    np.lib.format.write_array_header_1_0(stream, {"descr": "|u1", "fortran_order": False, **header})
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("images.npy", stream.getvalue() + bytes(size))
        stream = io.BytesIO()
        np.save(stream, [0, 0, 1, 1])
        file.writestr("labels.npy", stream.getvalue())
    return str(path)


@pytest.mark.parametrize("shape", [(400, 8, 8), (2, 8, 8), (-4, -8, 8), (4, 8, 8, 2)])
def test_a_header_that_lies(tmp_path, shape):
    assert images.load(archive(tmp_path / "fine.npz", {"shape": (4, 8, 8)})).images.shape == (
        4,
        8,
        8,
        1,
    )
    lie = archive(tmp_path / "lie.npz", {"shape": shape})
    assert "cannot be read as an .npz file of numbers" in refused(images.load, lie)


def test_more_than_fits_into_memory_is_not_unpacked(monkeypatch, tmp_path):
    header = archive(tmp_path / "header.npz", {"shape": (4 * 10**9, 32, 32, 3)})
    assert "does not fit into memory: it unpacks to 12,288.0 GB" in refused(images.load, header)
    path = archive(
        tmp_path / "directory.npz", {"shape": (1000, 100, 100)}, 10**7
    )  # ten megabytes, as the zip says
    monkeypatch.setattr(images.os, "sysconf", lambda name: 3000)
    tracemalloc.start()
    assert "and there are 0.0 GB. Save fewer images" in refused(images.load, path)
    assert tracemalloc.get_traced_memory()[1] < 2e6
    tracemalloc.stop()


@pytest.mark.parametrize(
    "counts, sizes, sentence",
    [
        (
            [40, 40],
            (50, 50, 0),
            "50 training and 50 partition images need 50 of each class, but one class has only 40",
        ),
        (
            [40, 40],
            (7, 8, 0),
            "The training part is to hold 7 images (IMAGES): give an even number",
        ),
        ([40, 40], (8, 8, -2), "The held-out part is to hold -2 images"),
        (
            [40, 40],
            (20, 30, 32),
            "Beside 20 training and 30 partition images there are at most 30 held-out ones",
        ),
        ([3, 1], (2, 2, 0), "Class 1 has 1 images: give every class one"),
        ([3, 0, 1], (3, 3, 0), "Class 1 has 0 images: give every class one"),
    ],
)
def test_more_images_than_there_are(counts, sizes, sentence):
    labels = np.repeat(range(len(counts)), counts)
    labelled = images.Labelled(np.random.default_rng(0).random((len(labels), 8, 8, 1)), labels)
    assert sentence in refused(images.split, labelled, *sizes[:2], held_out=sizes[2])


def test_an_image_in_two_parts(toy_npz):
    labelled = images.load(str(toy_npz))
    first, *_, last = np.flatnonzero(labelled.labels == 0)[:30]
    labelled.images[last] = labelled.images[first]
    images.split(labelled, 20, 10)  # leaves one of them out
    said = refused(images.split, labelled, 20, 20, held_out=40)  # all images
    assert said.startswith(f"Images {first} and {last} of the data set")
    assert "one is for the training part and one for the held-out part" in said


def test_cifar10_is_in_file_order_and_a_failed_download_names_three_ways_out(monkeypatch, tmp_path):
    targets = [6, 9, 9, 4, 1]  # frog, truck, truck, deer, automobile
    files = Mock(data=np.zeros((5, 32, 32, 3), np.uint8), targets=targets)
    monkeypatch.setattr(
        torchvision.datasets, "CIFAR10", Mock(side_effect=[files, OSError("no network")])
    )
    loaded = images.cifar10(tmp_path)
    assert loaded.labels.tolist() == [1, 0, 0, 1, 0] and loaded.images is files.data
    said = refused(images.cifar10, tmp_path)
    assert all(
        way in said
        for way in ("connect to the network", "put cifar-10-python.tar.gz into", "or use DATASET=")
    )
    assert "nowhere.npz: check the path in DATASET." in refused(images.load, "nowhere.npz")
    words = (
        "must be 'photos', 'cifar10', 'cifar10-subset', 'cifar10-fresh' or the path of an .npz file"
    )
    assert words in refused(images.load, "imagenet")
