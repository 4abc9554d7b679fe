"""Files of a training: what their entries say of the images, and how moments are kept."""

import pytest
import torch
from torch.nn.functional import normalize

from attacks import first_layer, sparse
from conftest import drawn, outside, refused
from evaluation import measures
from experiments import files
from training import ordinary
from utils.networks import Checkpoint, Layer, change

M, NEURONS, EPOCHS = 20, 60, 8


@pytest.fixture(scope="module")
def victims(data):
    return {
        name: ordinary.train(
            data.secret, None, data.shape, name, (NEURONS, 30), EPOCHS, keep=(4, EPOCHS)
        )
        for name in ("sgd_decay", "adamw")
    }


@pytest.mark.parametrize("trainer, factor", [("sgd_decay", 5e-4 / (1 - 0.9)), ("adamw", 0)])
def test_images_come_back_from_a_moment_which_mixes_them_and_held_out_ones_do_not(
    victims, data, trainer, factor
):
    victim = victims[trainer]
    sides = measures.sides(data, victim.mean)
    rows = first_layer.of_files(victim.released.checkpoints[-1:])
    assert max(outside(rows.layer, sides[0])) < 1e-3 < min(outside(rows.layer, sides[1]))
    assert rows.removed[0] == pytest.approx(factor, rel=0.2, abs=1e-7)
    found = first_layer.attempt(victim.released, rows, data.shape, M)
    ours, theirs = measures.back(found.images, sides)["ncc_above_0.7"]
    assert found.details.count == M and ours >= M // 2 and theirs <= M // 4


def test_entries_are_stacked_at_one_size_and_moments_go_before_differences(victims):
    checkpoints = victims["sgd_decay"].released.checkpoints
    rows = first_layer.of_files(checkpoints)
    assert len(rows.layer.weight) == len(rows.first.weight) == 2 * NEURONS
    first, second = (part.norm() for part in rows.layer.weight.chunk(2))
    torch.testing.assert_close(first, second)
    (alpha,) = first_layer.of_files(checkpoints, moments=False).removed
    assert 0.9 < alpha < 1


def test_more_images_than_neurons_are_counted_by_none_and_some_come_back(data):
    """With twelve neurons the number, twenty, cannot be read; a given one is believed if that is asked."""
    given = data.secret, None, data.shape, "sgd", (12, 30), EPOCHS
    victim = ordinary.train(*given, keep=(EPOCHS // 2, EPOCHS))
    sides = measures.sides(data, victim.mean)
    many = files.crowded(victim.released, victim.initial, data.shape, M, 0)
    assert many["start"][1]["read"].unmixed.images is None
    for rows, found in many.values():
        assert found["given"].unmixed.images.shape == sides[0].shape
        ours, theirs = files.inside(rows.layer, sides)
        assert theirs < ours <= M


def test_files_that_say_nothing_are_refused_in_one_sentence(victims):
    last = victims["adamw"].released.checkpoints[-1]
    empty = last._replace(first=change(last.first, torch.zeros_like))
    assert "The moment is zero" in refused(first_layer.of_files, [empty])
    alone = Checkpoint(last.network)
    assert "give a file with the state, or two" in refused(first_layer.of_files, [alone])


def test_a_column_is_sure_where_two_readings_share_it(monkeypatch):
    """Of three readings, the first two share one column, the last two another."""
    b, wrong = drawn(2, 40, 3)
    basis = torch.eye(9, 3).double()
    columns = sparse.read_columns(Layer(b @ basis.mT, b.sum(1)), basis, (3, 3, 1))
    vectors, others = (normalize((columns.rows.mT @ (x / columns.lengths)).mT) for x in (b, wrong))
    sure = torch.tensor([[1, 0, 1], [1, 1, 1], [0, 1, 1]]).bool()
    last = torch.where(torch.tensor([[0], [1], [0]]).bool(), vectors, others)
    readings = zip([None] * 3, (vectors, vectors, last), sure)
    monkeypatch.setattr(sparse, "refine", lambda *_: next(readings))
    _, found, agreed = sparse.refine_by_vote(basis.mT, columns, None)
    assert agreed.all() and torch.equal(found, vectors)


def test_8_bits_are_as_published_and_small_tensors_stay():
    levels = files.levels()
    assert len(levels) == 256 and (levels.diff() > 0).all() and 0 in levels and levels[-1] == 1
    part = drawn(5000)
    rounded = files.in_8_bits(part)
    assert torch.equal(files.in_8_bits(part[:100]), part[:100])
    block = rounded[: files.BLOCK] / part[: files.BLOCK].abs().max()
    assert (block[:, None] - levels).abs().amin(1).max() < 1e-12


def test_moments_are_emptied_before_the_last_step(data):
    def trained(**settings):
        given = data.secret, None, data.shape, "sgd", (8,), 2
        return ordinary.train(*given, keep=(2,), **settings).released.checkpoints[0]

    emptied = trained(**files.settings(2)["moments emptied before the last step"])
    assert 0 < emptied.first[0].weight.norm() < trained().first[0].weight.norm()
