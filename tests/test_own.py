"""The page for the reader's own pictures takes folders, and says in one sentence what is wrong with one."""

import numpy as np
import pytest
import torch
from PIL import Image

from conftest import chapter_functions
from utils import images
from utils.errors import InputError
from utils.evaluation.membership import Area, Leak


@pytest.fixture(scope="module")
def page():
    return chapter_functions("try-your-own")


def folder_of(path, counts, size=(60, 40)):
    """A folder with folders of pictures: on the left of each a red half, on the right a blue one; and a text."""
    for name, count in counts.items():
        (path / name).mkdir()
        (path / name / "notes.txt").write_text("no picture")
        for k in range(count):
            picture = np.zeros((*size[::-1], 3), dtype=np.uint8)
            picture[:, : size[0] // 2, 0] = 200 + k
            picture[:, : size[0] // 2, 1] = len(name) + count
            picture[:, size[0] // 2 :, 2] = 255
            Image.fromarray(picture).save(path / name / f"{k}.png")
    return str(path)


def test_a_folder_becomes_two_classes_of_squares(page, tmp_path, capsys):
    (tmp_path / ".hidden").mkdir()
    found = page["labelled_folder"](folder_of(tmp_path, {"cats": 4, "dogs": 6}))
    assert capsys.readouterr().out == "cats: 4 pictures, 1 other files\ndogs: 6 pictures, 1 other files\n"
    assert found.images.shape == (10, 32, 32, 3) and found.images.dtype == np.uint8
    assert found.labels.tolist() == [0] * 4 + [1] * 6
    reds = found.images[:4, 16, 2, 0].tolist()
    assert sorted(reds) == [200, 201, 202, 203] != reds  # shuffled, because names may sort them by subject
    assert found.images[0, 16, 30].tolist() == [0, 0, 255]
    parts = images.split(found, 2, 2, held_out=2)
    assert parts.secret.images.shape == (2, 3072)


@pytest.mark.parametrize("counts", [{}, {"cats": 3}, {"cats": 3, "dogs": 0}, {"a": 1, "b": 1, "c": 1}])
def test_another_folder_is_refused_in_one_sentence(counts, page, tmp_path):
    with pytest.raises(InputError, match="^FOLDER is /.* give a folder that holds two folders with pictures.$") as told:
        page["labelled_folder"](folder_of(tmp_path, counts))
    said = [f"{name}: {count} pictures, 1 other files" for name, count in counts.items()]
    assert ("; ".join(said) or "no folder in it") in str(told.value)


def test_a_folder_that_is_not_there_is_refused(page):
    with pytest.raises(InputError, match="^FOLDER is /nowhere, with no folder in it: give a folder"):
        page["labelled_folder"]("/nowhere")


def leak(value, low, high, alike=0, held_out=0):
    return Leak(torch.zeros(2), torch.zeros(2), Area(value, low, high), 0.01, 0, alike, held_out)


@pytest.mark.parametrize(
    "low, alike, held_out, said",
    [(0.5, 9, 0, "no sign of it"), (0.6, 3, 3, "something leaks, no picture"), (0.6, 4, 3, "pictures come back")],
)
def test_the_answer_needs_both_the_interval_and_the_count(low, alike, held_out, said, page):
    assert page["answer"](leak(0.7, low, 0.8, alike, held_out), leak(0.5, 0.4, 0.6)) == said


@pytest.mark.parametrize("control", [leak(0.73, 0.6, 0.86, 8, 1), leak(0.27, 0.15, 0.41)])
def test_there_is_no_answer_if_photographs_without_an_attack_tell_the_parts_apart(control, page):
    assert page["answer"](leak(0.9, 0.8, 1.0, 9, 0), control) == "no answer: the parts differ"


def test_an_attack_must_return_more_than_photographs_without_one(page):
    attack = leak(0.7, 0.6, 0.8, 5, 3)
    assert page["answer"](attack, leak(0.5, 0.4, 0.6, 7, 3)) == "something leaks, no picture"
    assert page["answer"](attack, leak(0.5, 0.4, 0.6, 4, 3)) == "pictures come back"
