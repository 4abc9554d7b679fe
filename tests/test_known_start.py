"""A known start: α, what is taken away, and what comes back of networks that torch itself has trained."""

import pytest
import torch

from conftest import chapter_functions, drawn
from utils import images, measures
from utils.attacks import decoreco, known_start, starts, unmixing
from utils.errors import InputError
from utils.networks import Layer, change
from utils.training import torch_trainer

M, NEURONS, EPOCHS = 20, 60, 40


@pytest.fixture(scope="module")
def data():
    return images.split(images.load("photos"), M, 100, 1, held_out=M)


@pytest.fixture(scope="module")
def trained(data):
    return {
        name: torch_trainer.train(data.secret, None, data.shape, name, (NEURONS, 30), EPOCHS)
        for name in ("sgd", "sgd_decay", "sgd_flips", "adam")
    }


@pytest.mark.parametrize("alpha", [1.0, 0.93, 0.2, 0.0])
def test_the_factor_of_the_start_is_found_exactly(alpha):
    start = drawn(40, 90)
    weight = drawn(40, 7, seed=1) @ drawn(7, 90, seed=2) / 20 + alpha * start
    assert known_start.shrinkage(weight, start, 20) == pytest.approx(alpha, abs=1e-9)


def test_all_that_sgd_adds_lies_in_the_span_of_the_images(data, trained):
    """Torch's own float32 training, with the α that weight decay leaves after so many steps."""
    mirrored = torch_trainer.mirrored(data.secret.images, data.shape)
    for name, seen in {"sgd": (), "sgd_flips": (mirrored,), "sgd_decay": ()}.items():
        changed, alpha = known_start.trained_part(trained[name].released, trained[name].start)
        versions = torch.cat([data.secret.images, *seen]) - trained[name].mean
        basis = torch.linalg.qr(versions.mT)[0]
        assert trained[name].versions == len(versions)
        added, bias = changed.network[0]
        assert (added - added @ basis @ basis.mT).norm() < 1e-4 * added.norm(), name
        ones = (added @ torch.linalg.pinv(versions)).sum(1)  # b₁ = B1 for W₁ = BX
        assert (bias - ones).norm() < 1e-3 * bias.norm(), name
    assert 0.5 < alpha < 1
    assert known_start.trained_part(trained["sgd"].released, trained["sgd"].start)[1] == pytest.approx(1, abs=1e-6)


def test_the_count_and_more_images_than_held_out_ones_come_back(data, trained):
    victim, parts = trained["sgd"], (data.secret, data.held_out)
    found, _ = known_start.attempt(victim.released, victim.start, data.shape, M)
    ours, theirs = (measures.match(part.images - victim.mean, found.images) for part in parts)
    assert found.details.count == M and ours.some >= M // 2 and theirs.some <= M // 4
    assert (
        ours.signed > measures.SOME
    ).sum() >= 0.8 * ours.some  # by the biases: which neurons an image activates cannot tell its sign
    assert unmixing.attempt(victim.released, data.shape, M).details.count is None  # without the start


def test_a_layer_of_squares_is_a_convolution_and_training_writes_squares_into_it(data):
    """Torch's own convolution gives what the cut gives, and what SGD adds lies in the span of the squares."""
    x, side = (data.secret.images - 0.4).float(), 16
    layer = torch.nn.Conv2d(3, 5, side, stride=side)
    seen = layer(x.view(-1, *data.shape).permute(0, 3, 1, 2)).flatten(2).mT  # (M, k, 5)
    weight = layer.weight.permute(0, 2, 3, 1).flatten(1)
    torch.testing.assert_close(
        torch_trainer.cut(x, data.shape, side) @ weight.mT + layer.bias, seen, rtol=1e-4, atol=1e-5
    )
    few = data.secret._replace(images=data.secret.images[:4], labels=data.secret.labels[:4])
    trained = torch_trainer.train_patches(few, data.shape, side, 60, 30)
    changed, alpha = known_start.trained_part(trained.released, trained.start)
    squares = torch_trainer.cut(few.images - trained.mean, data.shape, side).flatten(0, 1)
    basis, added = torch.linalg.qr(squares.mT)[0], changed.network[0].weight
    assert trained.versions == len(squares) == 16
    assert (added - added @ basis @ basis.mT).norm() < 1e-4 * added.norm()
    assert known_start.attempt(trained.released, trained.start, (side, side, 3), 16)[0].details.count == 16


def test_weight_decay_that_is_ignored_hides_the_count(trained, data):
    released, start = trained["sgd_decay"].released, trained["sgd_decay"].start
    assert known_start.attempt(released, start, data.shape, M)[0].details.count == M
    assert known_start.attempt(released, start, data.shape, M, alpha=1.0)[0].details.count != M


def test_training_begins_at_the_start_that_is_released(data):
    victim = torch_trainer.train(data.secret, data.known, data.shape, "sgd", (NEURONS, 30), 3)
    again = torch_trainer.train(data.secret, data.known, data.shape, "sgd", (NEURONS, 30), 3)
    other = torch_trainer.train(data.secret, None, data.shape, "sgd", (NEURONS, 30), 3)
    assert all(map(torch.equal, victim.start[0], again.start[0]))
    assert not torch.equal(victim.start[0].weight, other.start[0].weight)
    assert victim.mean.unique().numel() == 3  # of the public images, one number per colour


def test_a_last_layer_that_is_trained_alone_leaves_nothing_to_unmix(data):
    victim = torch_trainer.train(data.secret, data.known, data.shape, "sgd", (NEURONS, 30), 3, last=True)
    *ours, last = zip(victim.released.network, victim.start)
    assert all(torch.equal(*pair) for layers in ours for pair in zip(*layers)) and not torch.equal(
        *(l.weight for l in last)
    )
    found, alpha = known_start.attempt(victim.released, victim.start, data.shape, M)
    assert found.images is None and alpha == 1 and "nothing was trained there" in found.refusals[0]


def test_the_halves_by_kind_share_none_and_have_the_same_labels(toy_npz):
    by_kind, kinds = chapter_functions("known-start")["by_kind"], images.load("photos", binary=False).labels
    ours, theirs = by_kind("photos")
    assert [len(ours.labels), len(theirs.labels)] == [(kinds % 2 == k).sum() for k in (0, 1)]
    assert set(ours.labels) == set(theirs.labels) == {0, 1}
    with pytest.raises(InputError, match="has too few kinds of images: four are needed"):
        by_kind(str(toy_npz))


def test_wrong_starts_are_refused_in_one_sentence(trained):
    released, start = trained["sgd"].released, trained["sgd"].start
    wide = (Layer(drawn(NEURONS, 5), drawn(NEURONS)), *start[1:])
    for wrong, sentence in (
        (wide, "The start has a layer of .60, 5. where the network has .60, 3072.: give its own"),
        (start[:2], "The start has 2 layers and the network 3"),
        (released.network, "The first layer is that of its start"),
        (change(start, lambda p: p * torch.nan), "values that are NaN or infinite"),
    ):
        with pytest.raises(InputError, match=sentence):
            known_start.trained_part(released, wrong)


def test_a_start_that_is_not_the_start_leaves_no_gap(trained, data):
    other = torch_trainer.layers_of(torch_trainer.perceptron(3072, (NEURONS, 30), 99))
    found, _ = known_start.attempt(trained["sgd"].released, other, data.shape, None)
    assert found.details.count is None and found.images is None and "no gap" in found.refusals[0]


def test_trainings_that_cannot_be_and_one_that_diverges_are_told(data):
    with pytest.raises(InputError, match="not cut into squares of 5: take a divisor"):
        torch_trainer.cut(data.secret.images, data.shape, 5)
    with pytest.raises(InputError, match="TRAINER is 'lion'"):
        torch_trainer.train(data.secret, None, data.shape, "lion", (8,), 1)
    far = data.secret._replace(images=data.secret.images * 1e30)
    with pytest.raises(InputError, match="TRAINER='sgd' diverged"):
        torch_trainer.train(far, None, data.shape, "sgd", (8,), 2)


def test_rate_and_batches_reach_the_optimiser(data):
    """One step on all images moves the weights in proportion to the rate, and two steps move them further."""

    def moved(rate, batches):
        one = torch_trainer.train(data.secret, None, data.shape, "sgd", (8,), 1, rate=rate, batches=batches)
        return one.released.network[0].weight - one.start[0].weight

    torch.testing.assert_close(2 * moved(0.5, 1), moved(1.0, 1), rtol=1e-3, atol=1e-7)
    assert moved(1.0, 2).norm() > 1.5 * moved(1.0, 1).norm()


def test_the_stationarity_attack_with_the_start_explains_what_training_added(data, trained):
    """Its loss is far below that of no image at all, 1, and below that of the attack without the start."""
    released, start = trained["sgd"].released, trained["sgd"].start
    noise = starts.normal(2 * M, data.secret.images.shape[1], scale=0.02, seed=0)
    found = known_start.stationarity(released, start, noise, 1.0, M, iterations=200)
    without = decoreco.attack(released, noise, rule="margin", iterations=200)
    assert found.loss < 0.6 and found.loss < without.loss
