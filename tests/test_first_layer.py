"""Files of a training: what their entries say of the images, and how moments are kept."""

import pytest
import torch

from attacks import first_layer, sparse
from conftest import refused
from evaluation import measures
from experiments import files
from training import ordinary
from utils.networks import Checkpoint, Layer, change

M, NEURONS, EPOCHS = 20, 60, 8


@pytest.fixture(scope="module")
def victims(data):
    names, settings = ("sgd_decay", "adamw"), ((NEURONS, 30), EPOCHS, 0, (4, EPOCHS))
    return {name: ordinary.train(data.secret, None, data.shape, name, *settings) for name in names}


def outside(layer, x):
    """The share of a layer's weights, and of its biases, that images x (m, d) do not explain."""
    mixing = layer.weight @ torch.linalg.pinv(x)
    return [((a - b).norm() / a.norm()).item() for a, b in zip(layer, (mixing @ x, mixing.sum(1)))]


@pytest.mark.parametrize("trainer, factor", [("sgd_decay", 5e-4 / (1 - 0.9)), ("adamw", 0)])
def test_a_moment_is_a_mixture_of_images_without_decay(victims, data, trainer, factor):
    victim = victims[trainer]
    assert [len(file.second) for file in victim.released.checkpoints] == [
        3 * (trainer == "adamw")
    ] * 2
    rows = first_layer.of_moment(victim.released.checkpoints[-1])
    inputs, others = (victim.subtract_mean(part.images) for part in (data.secret, data.held_out))
    assert max(outside(rows.layer, inputs)) < 1e-3 < min(outside(rows.layer, others))
    assert rows.removed[0] == pytest.approx(factor, rel=0.2, abs=1e-7)
    if trainer == "adamw":  # it hides in the weights what its moment shows
        half, end = victim.released.checkpoints
        rows = first_layer.difference(end.network, half.network)
        assert min(outside(rows.layer, inputs)) > 0.05


@pytest.mark.parametrize("trainer", ["sgd_decay", "adamw"])
def test_images_come_back_from_a_moment_and_held_out_ones_do_not(victims, data, trainer):
    victim = victims[trainer]
    rows = first_layer.of_files(victim.released.checkpoints[-1:])
    found = first_layer.attempt(victim.released, rows, data.shape, M)
    inputs = (victim.subtract_mean(part.images) for part in (data.secret, data.held_out))
    ours, theirs = (measures.match(x, found.images) for x in inputs)
    assert found.details.count == M and ours.some >= M // 2 and theirs.some <= M // 4
    exact = first_layer.refine_by_vote(rows, found, data.shape)
    assert exact.images.shape == found.images.shape and exact.details.sure.shape == (M,)


def test_entries_are_stacked_at_one_size_and_moments_go_before_differences(victims):
    checkpoints = victims["sgd_decay"].released.checkpoints
    rows = first_layer.of_files(checkpoints)
    assert (
        rows.layer.weight.shape[0] == rows.first.weight.shape[0] == 2 * NEURONS
        and len(rows.removed) == 2
    )
    sizes = [part.norm() for part in rows.layer.weight.chunk(2)]
    assert sizes[0] == pytest.approx(sizes[1].item())
    (alpha,) = first_layer.of_files(checkpoints, moments=False).removed
    assert 0.9 < alpha < 1


def test_more_images_than_neurons_are_counted_by_none_and_some_come_back(data):
    """With twelve neurons the number, twenty, cannot be read; a given one is believed if that is asked."""
    settings = ("sgd", (12, 30), EPOCHS, 0, (EPOCHS // 2, EPOCHS))
    victim = ordinary.train(data.secret, None, data.shape, *settings)
    sides = [victim.subtract_mean(part.images) for part in (data.secret, data.held_out)]
    for name, (rows, found) in files.crowded(
        victim.released, victim.initial, data.shape, M, 0
    ).items():
        read, given = (found[counted].unmixed for counted in ("read", "given"))
        assert read.images is None or name == "states"
        assert given.images.shape == sides[0].shape and given.images.isfinite().all()
        ours, theirs = files.inside(rows.layer, sides)
        assert theirs < ours <= M


def test_files_that_say_nothing_are_refused_in_one_sentence(victims):
    (last,) = victims["adamw"].released.checkpoints[-1:]
    assert refused(first_layer.of_files, (Checkpoint(last.network),)).endswith(
        "give a file with the state, or two."
    )
    empty = last._replace(first=change(last.first, torch.zeros_like))
    assert refused(first_layer.of_moment, empty).startswith("The moment is zero")
    other = last._replace(first=(Layer(torch.ones(5, 7), torch.ones(5)),))
    assert "give its own" in refused(first_layer.of_moment, other)


def test_a_column_is_sure_where_two_readings_share_it(monkeypatch):
    """Of three readings, the first two share one column, the last two another."""
    torch.manual_seed(0)
    columns, wrong = torch.randn(2, 40, 3, dtype=torch.float64)
    basis = torch.eye(147, dtype=torch.float64)[:, :3]
    sure = torch.tensor([[1, 0, 1], [1, 1, 1], [0, 1, 1]]).bool()
    last = torch.cat([wrong[:, :1], columns[:, 1:2], wrong[:, 2:]], 1)
    several = iter([(None, one, found) for one, found in zip(sure, (columns, columns, last))])
    monkeypatch.setattr(sparse, "refine", lambda *_: next(several))
    x = torch.eye(3, 147, dtype=torch.float64)
    _, agreed, found = sparse.refine_by_vote(x, columns, columns.sum(1), basis, None, (7, 7, 3))
    assert agreed.tolist() == [True, True, True]
    likeness = torch.nn.functional.cosine_similarity(found, columns, dim=0).abs()
    assert likeness.min() > 0.999


def test_8_bits_are_as_published_and_small_tensors_stay():
    levels = files.levels()
    assert len(levels) == 256 and (levels.diff() > 0).all() and 0 in levels and levels[-1] == 1
    part = torch.randn(5000, dtype=torch.float64)
    rounded = files.in_8_bits(part)
    assert torch.equal(files.in_8_bits(part[:100]), part[:100])
    assert len(rounded.unique()) < len(part) and (rounded - part).norm() < 0.02 * part.norm()
    block = rounded[: files.BLOCK] / part[: files.BLOCK].abs().max()
    assert (block[:, None] - levels).abs().amin(1).max() < 1e-12


def test_hooks_change_a_training_as_they_say(data):
    def trained(**settings):
        victim = ordinary.train(
            data.secret, None, data.shape, "sgd", (8,), 2, keep=(2,), **settings
        )
        return victim.released.checkpoints[0]

    named = files.settings(2)
    emptied, plain = (
        trained(**named[name]) for name in ("moments emptied before the last step", "as it is")
    )
    assert 0 < emptied.first[0].weight.norm() < plain.first[0].weight.norm()
    halted, once = trained(**named["last epoch at rate zero"]), trained()
    assert torch.equal(once.network[0].weight, plain.network[0].weight)
    assert not torch.equal(halted.network[0].weight, plain.network[0].weight)
    prepare, average = files.averaging(0.0)  # the mean of the last weights alone
    end = trained(prepare=prepare)
    assert torch.equal(average()[0].weight, end.network[0].weight)
