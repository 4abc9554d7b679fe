"""Data sets, and one clear sentence for every way in which a file can be wrong."""

from pathlib import Path

import numpy as np
import pytest
import torch
import torchvision

from utils import images
from utils.errors import InputError

CIFAR_SUBSET = Path(__file__).parent.parent.parent / "shared" / "data" / "cifar10-subset.npz"


def save(path, **arrays):
    np.savez(path, **arrays)
    return str(path)


def test_photos_are_balanced_enough_and_deterministic():
    first, second = images.load("photos"), images.load("photos")
    assert np.array_equal(first.images, second.images)
    assert first.images.shape[1:] == (32, 32, 3)
    assert first.images.min() >= 0 and first.images.max() <= 1
    assert min(np.bincount(first.labels)) >= 100
    assert first.images.std(axis=(1, 2, 3)).min() > 0.05


@pytest.mark.parametrize("seed", [0, 1])
def test_parts_are_disjoint_balanced_and_reproducible(seed):
    labelled = images.load("photos")
    data, again = (images.split(labelled, 60, 40, seed) for _ in range(2))
    assert torch.equal(data.secret.images, again.secret.images) and data.sha256 == again.sha256
    assert data.secret.labels.tolist() == [0] * 30 + [1] * 30
    assert data.known.labels.tolist() == [0] * 20 + [1] * 20
    assert torch.cdist(data.secret.images, data.known.images).min() > 0.1


def test_seed_zero_is_file_order_and_others_are_not(toy_npz):
    labelled = images.load(str(toy_npz))
    data = images.split(labelled, 10, 10)
    expected = labelled.images[np.flatnonzero(labelled.labels == 0)[:5]].reshape(5, -1)
    assert np.array_equal(data.secret.images[:5].numpy(), expected)
    assert images.split(labelled, 10, 10, seed=1).sha256 != data.sha256


def test_grey_and_eight_bit_images(tmp_path):
    pictures = np.arange(4 * 7 * 9, dtype=np.uint8).reshape(4, 7, 9)
    loaded = images.load(save(tmp_path / "grey.npz", images=pictures, labels=[7, 7, 2, 2]))
    assert loaded.images.shape == (4, 7, 9, 1) and np.allclose(loaded.images[..., 0] * 255, pictures)
    assert loaded.labels.tolist() == [1, 1, 0, 0]


def test_ten_named_classes_become_vehicles_and_animals(tmp_path):
    path = save(
        tmp_path / "ten.npz", images=np.zeros((10, 8, 8)), labels=np.arange(10), label_names=images.CIFAR10_NAMES
    )
    assert images.load(path).labels.tolist() == [0, 0, 1, 1, 1, 1, 1, 1, 0, 0]


FINE = {"images": np.zeros((4, 8, 8)), "labels": [0, 0, 1, 1]}


@pytest.mark.parametrize(
    "wrong, sentence",
    [
        ({"labels": [0, 0, 0, 0]}, "labels hold 1 class; two are needed"),
        ({"labels": [0, 1, 2, 3]}, "labels hold 4 classes; two are needed"),
        ({"labels": [0, 1, 1]}, r"labels have the shape \(3,\), but 4 images need \(4,\)"),
        ({"images": np.full((4, 8, 8), np.nan)}, "NaN or infinite"),
        ({"images": np.full((4, 8, 8), 7.0)}, "pixels reach from 7 to 7; scale them"),
        ({"images": np.zeros((4, 8, 8), int)}, "images are of type int64"),
        ({"images": np.zeros((4, 6, 6))}, "images of 6×6 pixels; similarity needs at least 7×7"),
        ({"images": np.zeros((4, 4))}, "N×H×W or N×H×W×C is needed"),
        ({"images": np.zeros((0, 8, 8)), "labels": []}, "N×H×W or N×H×W×C is needed"),
    ],
)
def test_wrong_files(tmp_path, wrong, sentence):
    with pytest.raises(InputError, match=sentence):
        images.load(save(tmp_path / "wrong.npz", **{**FINE, **wrong}))


def test_missing_and_unreadable_files(tmp_path):
    with pytest.raises(InputError, match="There is no file .*nowhere.npz: check the path"):
        images.load(str(tmp_path / "nowhere.npz"))
    broken = tmp_path / "broken.npz"
    broken.write_bytes(b"not a zip")
    with pytest.raises(InputError, match="cannot be read as an .npz file"):
        images.load(str(broken))
    with pytest.raises(InputError, match="has no array 'labels'"):
        images.load(save(tmp_path / "half.npz", images=np.zeros((4, 8, 8))))
    with pytest.raises(InputError, match="must be 'photos', 'cifar10' or the path of an .npz file"):
        images.load("imagenet")


def test_too_few_images_and_odd_sizes(toy_npz):
    labelled = images.load(str(toy_npz))
    with pytest.raises(
        InputError, match="50 training and 50 partition images need 50 of each class, but one class has only 30"
    ):
        images.split(labelled, 50, 50)
    with pytest.raises(InputError, match=r"The training part is to hold 7 images \(IMAGES\): give an even number"):
        images.split(labelled, 7, 8)


def test_a_failed_download_names_three_ways_out(monkeypatch, tmp_path):
    def unreachable(*arguments, **settings):
        raise OSError("no network")

    monkeypatch.setattr(torchvision.datasets, "CIFAR10", unreachable)
    with pytest.raises(InputError, match="connect to the network .* or put cifar-10-python.tar.gz .* or use DATASET"):
        images.cifar10(tmp_path)


def test_torchvision_images_are_taken_in_file_order(monkeypatch, tmp_path):
    class Files:
        def __init__(self, root, train, download):
            self.data = np.arange(5 * 32 * 32 * 3, dtype=np.uint8).reshape(5, 32, 32, 3)
            self.targets = [6, 9, 9, 4, 1]  # frog, truck, truck, deer, automobile

    monkeypatch.setattr(torchvision.datasets, "CIFAR10", Files)
    loaded = images.cifar10(tmp_path)
    assert loaded.labels.tolist() == [1, 0, 0, 1, 0]
    assert loaded.images.shape == (5, 32, 32, 3) and loaded.images.max() <= 1


@pytest.mark.skipif(not CIFAR_SUBSET.exists(), reason=f"needs real CIFAR-10 images at {CIFAR_SUBSET}")
def test_real_cifar_images():
    data = images.split(images.load(str(CIFAR_SUBSET)), 100, 100)
    assert data.shape == (32, 32, 3) and data.secret.images.shape == (100, 3072)
