"""Data sets, and one clear sentence for every way in which a file can be wrong."""

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
    assert np.bincount(four.labels).tolist() == [87, 75, 64, 98]
    assert np.array_equal(four.labels // 2, two.labels)
    # in the second walk through the file
    sha256 = "610bcdf7d410ef8b789889a871ad471f95ced0c11e66fec1c8de1d975010373b"
    assert images.split(two, 100, 100, seed=4).sha256 == sha256


@pytest.mark.parametrize("seed", [0, 1])
def test_parts_are_disjoint_balanced_and_reproducible(seed):
    labelled = images.load("photos", binary=False)
    without, data = (images.split(labelled, 48, 100, seed, held_out=count) for count in (0, 48))
    assert torch.equal(without.secret.images, data.secret.images)
    assert torch.equal(without.known.images, data.known.images)
    parts = data.secret, data.known, data.held_out
    for part, each in zip(parts, (12, 25, 12)):
        assert part.labels.tolist() == sorted(part.labels.tolist())
        assert part.labels.long().bincount().tolist() == [each] * 4
    assert torch.pdist(torch.cat([part.images for part in parts])).min() > 0.1


def test_seed_zero_is_file_order_and_pixels_are_counted_as_doubles(toy_npz):
    labelled = images.load(str(toy_npz))
    data = images.split(labelled, 10, 10)
    expected = labelled.images[np.flatnonzero(labelled.labels == 0)[:5]].reshape(5, -1)
    assert np.array_equal(data.secret.images[:5].numpy(), expected)
    short = labelled._replace(images=labelled.images.astype("f4"))
    long = short._replace(images=short.images.astype("f8"))
    assert images.split(short, 10, 10).sha256 == images.split(long, 10, 10).sha256


def test_grey_and_eight_bit_images(tmp_path):
    pictures = np.arange(4 * 7 * 9, dtype=np.uint8).reshape(4, 7, 9)
    loaded = images.load(save(tmp_path / "grey.npz", images=pictures, labels=[7, 7, 2, 2]))
    assert loaded.images.shape == (4, 7, 9, 1) and loaded.labels.tolist() == [1, 1, 0, 0]
    first = images.split(loaded, 2, 2).secret.images[0]
    assert torch.equal(first, torch.from_numpy(pictures[2] / 255.0).flatten())


def test_seeds_walk_through_the_file_and_share_no_secret_while_a_class_lasts():
    labelled = images.Labelled(np.arange(22 * 7 * 7).reshape(22, 7, 7, 1) / 2000, np.arange(22) % 2)
    secret = [images.split(labelled, 6, 4, seed).secret.images[:, 0].tolist() for seed in range(3)]
    assert len(set(sum(secret, []))) == 18


def test_the_recorded_images_are_the_first_of_some_batches(monkeypatch):
    def numbered(binary, train=True):
        return images.Labelled(np.arange(50_000) + (not train), np.arange(50_000) % 2)

    monkeypatch.setattr(images, "cifar10", numbered)
    old = [*range(1017), *range(10_000, 11_017), *range(20_000, 21_017)]
    fresh = images.load("cifar10-fresh")
    assert images.load("cifar10-subset").images.tolist() == old
    assert fresh.images.tolist() == [*range(30_000, 31_017), *old]
    assert fresh.unused.images.tolist() == [*range(1, 1018)]


def test_held_out_images_come_from_those_that_nothing_is_trained_on(tmp_path):
    pictures = np.random.default_rng(0).random((40, 8, 8))
    halves = {"images": pictures[:20], "held_out_images": pictures[20:]}
    labels = {"labels": np.arange(20) % 2, "held_out_labels": np.arange(20) % 2}
    both = images.load(save(tmp_path / "both.npz", **halves, **labels))
    data = images.split(both, 4, 8, 3, held_out=4)
    alone = images.split(both._replace(unused=None), 4, 8, 3)
    assert torch.equal(data.secret.images, alone.secret.images)
    expected = pictures[20:][[12, 14, 13, 15]]
    assert np.array_equal(data.held_out.images.numpy(), expected.reshape(4, -1))
    both.unused.images[0] = both.images[0]
    assert "Images 0 and 20 of the data set" in refused(images.split, both, 4, 8, held_out=4)


def test_halves_give_the_attacker_twice_as_many():
    four = images.load("photos", binary=False)
    data = images.halves(four, 21, seed=1)
    assert data.sha256 == images.split(four, 8, 20, 1, held_out=8).sha256
    assert "the 4 classes of the stationarity attack need" in refused(images.halves, four, 7)


FINE = {"images": np.full((4, 8, 8), 0.5), "labels": [0, 0, 1, 1]}
DARK, NONE = (np.where(np.arange(256) > 0, 0.5, k).reshape(4, 8, 8) for k in (-0.1, np.nan))
WRONG = [  # what is wrong in a file, and what is said
    ({"labels": [3] * 4}, "two classes are needed"),
    ({"labels": ["cat", "dog", "dog", "cat"]}, "the label cat"),
    ({"labels": [0, 1, np.nan, np.nan]}, "the label nan"),
    ({"labels": [0, 1, 1]}, "labels have the shape (3,); 4 images need (4,)"),
    ({"images": np.zeros((4, 6, 6))}, "images have the shape (4, 6, 6)"),
    ({"images": np.zeros((4, 8, 8), int)}, "images are of type int64"),
    ({"images": NONE}, "pixels reach from nan to nan"),
    ({"images": DARK}, "pixels reach from -0.1 to 0.5"),
    ({"images": None}, "numpy.savez(path, images=…, labels=…)"),
    ({"held_out_images": np.zeros((2, 8, 8), np.uint8), "held_out_labels": [0, 1]}, "type: save"),
]


@pytest.mark.parametrize("wrong, words", WRONG)
def test_wrong_files(tmp_path, wrong, words):
    arrays = {name: array for name, array in (FINE | wrong).items() if array is not None}
    path = save(tmp_path / "wrong.npz", **arrays)
    said = refused(images.load, path)
    assert words in said and path in said


MANY = [  # images of each class, the sizes of three parts, and what is said
    ([40, 40], (50, 50, 0), "50 training and 50 partition images need 50 of each class"),
    ([40, 40], (7, 8, 0), "The training part is to hold 7 images (IMAGES"),
    ([40, 40], (8, 8, -2), "The held-out part is to hold -2 images"),
    ([40, 40], (20, 30, 32), "there are at most 30 held-out ones, not 32"),
    ([3, 0, 1], (3, 3, 0), "one class has only 0"),
]


@pytest.mark.parametrize("counts, sizes, words", MANY)
def test_more_images_than_there_are(counts, sizes, words):
    labels = np.repeat(range(len(counts)), counts)
    labelled = images.Labelled(np.random.rand(len(labels), 8, 8, 1), labels)
    assert words in refused(images.split, labelled, *sizes[:2], held_out=sizes[2])


def test_an_image_in_two_parts(toy_npz):
    labelled = images.load(str(toy_npz))
    first, *_, last = np.flatnonzero(labelled.labels == 0)[:30]
    labelled.images[last] = labelled.images[first]
    images.split(labelled, 20, 10)  # leaves one of them out
    said = refused(images.split, labelled, 20, 20, held_out=40)  # all images
    assert said.startswith(f"Images {first} and {last} of the data set")
    assert "one is for the training part and one for the held-out part" in said


def test_cifar10_is_in_file_order_and_a_failed_download_names_ways_out(monkeypatch, tmp_path):
    # frog, truck, truck, deer, automobile
    files = Mock(data=np.zeros((5, 32, 32, 3), np.uint8), targets=[6, 9, 9, 4, 1])
    made = Mock(side_effect=[files, OSError("no network")])
    monkeypatch.setattr(torchvision.datasets, "CIFAR10", made)
    assert images.cifar10(tmp_path).labels.tolist() == [1, 0, 0, 1, 0]
    assert "cifar-10-python.tar.gz" in refused(images.cifar10, tmp_path)
    assert "check its path" in refused(images.load, "nowhere.npz")
    assert "There is no data set 'imagenet'" in refused(images.load, "imagenet")


def test_squares_tile_photographs_and_are_of_two_kinds():
    labelled = images.load("photos-224")
    assert labelled.images.shape == (71, 224, 224, 3) and labelled.labels.sum() == 36
    assert len({square.tobytes() for square in labelled.images}) == 71
    small = {square.tobytes() for square in images.load("photos-64").images}
    corners = [square[:64, :64].tobytes() in small for square in images.load("photos-128").images]
    assert sum(corners) > 150  # the same pixels: only plain ones are missing
