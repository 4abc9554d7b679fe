"""A known start: what comes back of networks that torch trained, wholly or the last layer alone."""

import pytest
import torch
from torch.nn.functional import binary_cross_entropy_with_logits, normalize

from attacks import decoreco, first_layer, fixed_layer, known_start, sparse, starts, unmixing
from conftest import chapter_functions, drawn, refused
from evaluation import measures
from experiments import last_layer, patching
from training import images, ordinary
from utils.kernels.similarity import ncc
from utils.networks import Layer, change, forward

M, NEURONS, EPOCHS = 20, 60, 40


@pytest.fixture(scope="module")
def trained(data):
    names, settings = ("sgd", "sgd_decay", "sgd_flips"), ((NEURONS, 30), EPOCHS)
    return {name: ordinary.train(data.secret, None, data.shape, name, *settings) for name in names}


@pytest.mark.parametrize("alpha", [1.0, 0.93, 0.2, 0.0])
def test_the_factor_of_the_start_is_found_exactly(alpha):
    initial = drawn(40, 90)
    weight = drawn(40, 7, seed=1) @ drawn(7, 90, seed=2) / 20 + alpha * initial
    assert first_layer.shrinkage(weight, initial, 20) == pytest.approx(alpha, abs=1e-9)


def test_all_that_sgd_adds_lies_in_the_span_of_the_images(data, trained):
    """Torch's own float32 training, with the α that weight decay leaves after so many steps."""
    mirrored = ordinary.mirror(data.secret.images, data.shape)
    for name, victim in trained.items():
        rows = first_layer.difference(victim.released.network, victim.initial)
        (added, bias), (alpha,) = rows.layer, rows.removed
        versions = (
            torch.cat([data.secret.images, *[mirrored] * (name == "sgd_flips")]) - victim.mean
        )
        basis = torch.linalg.qr(versions.mT)[0]
        assert victim.versions == len(versions)
        assert (added - added @ basis @ basis.mT).norm() < 1e-4 * added.norm(), name
        ones = (added @ torch.linalg.pinv(versions)).sum(1)  # b₁ = B1 for W₁ = BX
        assert (bias - ones).norm() < 1e-3 * bias.norm(), name
        assert abs(alpha - 1) < 1e-6 or (name == "sgd_decay" and 0.5 < alpha < 1)


def test_the_count_and_more_images_than_held_out_ones_come_back(data, trained):
    victim, parts = trained["sgd"], (data.secret, data.held_out)
    found, _ = known_start.attempt(victim.released, victim.initial, data.shape, M)
    ours, theirs = (measures.match(part.images - victim.mean, found.images) for part in parts)
    assert found.details.count == M and ours.some >= M // 2 and theirs.some <= M // 4
    upright = (ours.signed > measures.SOME).sum()  # by the biases: activity cannot tell it
    assert upright >= 0.8 * ours.some
    assert (
        unmixing.attempt(victim.released, data.shape, M).details.count is None
    )  # without the start


def test_a_layer_of_squares_is_a_convolution_and_training_writes_squares_into_it(data):
    """Torch's own convolution gives what the cut gives; what SGD adds is in the squares' span."""
    x, side = (data.secret.images - 0.4).float(), 16
    layer = torch.nn.Conv2d(3, 5, side, stride=side)
    seen = layer(x.view(-1, *data.shape).permute(0, 3, 1, 2)).flatten(2).mT  # (M, k, 5)
    weight = layer.weight.permute(0, 2, 3, 1).flatten(1)
    ours = patching.cut(x, data.shape, side) @ weight.mT + layer.bias
    torch.testing.assert_close(ours, seen, rtol=1e-4, atol=1e-5)
    few = images.Part(*(part[:4] for part in data.secret))
    trained = patching.train(few, data.shape, side, 60, 30)
    added = first_layer.difference(trained.released.network, trained.initial).layer.weight
    squares = patching.cut(few.images - trained.mean, data.shape, side).flatten(0, 1)
    basis = torch.linalg.qr(squares.mT)[0]
    assert trained.versions == len(squares) == 16
    assert (added - added @ basis @ basis.mT).norm() < 1e-4 * added.norm()
    assert (
        known_start.attempt(trained.released, trained.initial, (side, side, 3), 16)[0].details.count
        == 16
    )


def test_an_ignored_weight_decay_and_a_wrong_start_hide_the_count(trained, data):
    released, initial = trained["sgd_decay"].released, trained["sgd_decay"].initial
    assert known_start.attempt(released, initial, data.shape, M)[0].details.count == M
    assert known_start.attempt(released, initial, data.shape, M, alpha=1.0)[0].details.count != M
    other = ordinary.layers_of(ordinary.perceptron(3072, (NEURONS, 30), 99))
    found, _ = known_start.attempt(released, other, data.shape, None)
    assert found.details.count is None and found.images is None and "no gap" in found.refusals[0]


def test_a_last_layer_that_is_trained_alone_leaves_nothing_to_unmix(data):
    settings = data.shape, "sgd", (NEURONS, 30), 3
    victim = ordinary.train(
        data.secret, data.known, *settings, prepare=lambda net, _: net[:-1].requires_grad_(False)
    )
    *ours, last = zip(victim.released.network, victim.initial)
    assert all(torch.equal(*pair) for layers in ours for pair in zip(*layers))
    assert not torch.equal(*(layer.weight for layer in last))
    whole, other = (ordinary.train(data.secret, known, *settings) for known in (data.known, None))
    assert torch.equal(
        whole.initial[0].weight, victim.initial[0].weight
    )  # by the same public images
    assert not torch.equal(whole.initial[0].weight, other.initial[0].weight)
    assert victim.mean.unique().numel() == 3  # of the public images, one number per colour
    found, rows = known_start.attempt(victim.released, victim.initial, data.shape, M)
    assert (
        found.images is None and rows is None and "nothing was trained there" in found.refusals[0]
    )


def test_the_halves_by_kind_share_none_and_have_the_same_labels(toy_npz):
    by_kind = chapter_functions("known-start")["by_kind"]
    kinds = images.load("photos", binary=False).labels
    ours, theirs = by_kind("photos")
    assert [len(ours.labels), len(theirs.labels)] == [(kinds % 2 == k).sum() for k in (0, 1)]
    assert set(ours.labels) == set(theirs.labels) == {0, 1}
    assert "has too few kinds of images: four are needed" in refused(by_kind, str(toy_npz))


def test_wrong_starts_and_trainings_that_cannot_be_are_refused_in_one_sentence(trained, data):
    released, initial = trained["sgd"].released, trained["sgd"].initial
    wide = (Layer(drawn(NEURONS, 5), drawn(NEURONS)), *initial[1:])
    for wrong, sentence in (
        (wide, "The start has a layer of (60, 5) where the network has (60, 3072): give its own"),
        (initial[:2], "The start has 2 layers and the network 3"),
        (released.network, "The first layer is that of its start"),
        (change(initial, lambda p: p * torch.nan), "values that are NaN or infinite"),
    ):
        assert sentence in refused(first_layer.difference, released.network, wrong)
    said = refused(patching.cut, data.secret.images, data.shape, 5)
    assert "not cut into squares of 5: take a divisor" in said
    far = data.secret._replace(images=data.secret.images * 1e30)
    for trainer, sentence in (("lion", "TRAINER is 'lion'"), ("sgd", "TRAINER='sgd' diverged")):
        assert sentence in refused(ordinary.train, far, None, data.shape, trainer, (8,), 2)


def test_rate_and_batches_reach_the_optimiser(data):
    """One step moves the weights in proportion to the rate, and two steps move them further."""

    def moved(rate, batches):
        one = ordinary.train(
            data.secret, None, data.shape, "sgd", (8,), 1, rate=rate, batches=batches
        )
        return one.released.network[0].weight - one.initial[0].weight

    torch.testing.assert_close(2 * moved(0.5, 1), moved(1.0, 1), rtol=1e-3, atol=1e-7)
    assert moved(1.0, 2).norm() > 1.5 * moved(1.0, 1).norm()


def test_the_stationarity_attack_with_the_start_explains_what_training_added(data, trained):
    """Its loss is far below that of no image, 1, and below that without the start."""
    released, initial = trained["sgd"].released, trained["sgd"].initial
    noise = starts.normal(2 * M, data.secret.images.shape[1], scale=0.02, seed=0)
    settings = decoreco.ADAM._replace(rule="margin", iterations=200)
    found = known_start.stationarity(released, initial, noise, 1.0, M, settings)
    without = decoreco.attack(released, noise, settings)
    assert found.loss < 0.6 and found.loss < without.loss


# ---- Exact images from the zeros of their coefficients ----

FEW, H, D = 12, 120, 60


@pytest.mark.parametrize("dense", [0, 3])
def test_images_whose_columns_have_zeros_become_exact_with_size_and_sign(dense):
    """A zero stands where an image leaves a neuron far from active by the weights of the start; the first have none."""
    x, weight = 0.2 * drawn(FEW, D), drawn(H, D, seed=1)
    reached = x @ weight.mT
    silent = reached < reached.quantile(0.4, dim=1, keepdim=True)
    silent[:dense] = False
    b = drawn(H, FEW, seed=2) * ~silent.mT
    added, bias, before = b @ x, b.sum(1), torch.zeros(H, dtype=torch.float64)
    layers = Layer(weight, before), Layer(weight + added / 100, bias / 100)
    basis = (
        torch.linalg.svd(added, full_matrices=False)[2][:FEW].mT
        @ torch.linalg.qr(drawn(FEW, FEW, seed=3))[0]
    )
    near = -normalize(x + 0.08 * drawn(FEW, FEW, seed=4) @ x)  # sizes and signs are lost
    found, sure, columns = sparse.refine(near, added @ basis, bias, basis, layers, (5, 4, 3))
    assert sure.tolist() == [False] * dense + [True] * (FEW - dense)
    mixed = found @ torch.linalg.pinv(x)  # (FEW, FEW), what each image is a combination of
    sizes = mixed.diagonal()
    assert (mixed - sizes.diag())[:, dense:].abs().max() < 1e-6 and (
        dense or (sizes - 1).abs().max() < 1e-6
    )
    assert (normalize(columns, dim=0) * normalize(b, dim=0)).sum(0)[dense:].abs().min() > 1 - 1e-9


def taken(*vectors):
    """Which of three vectors are sure, where two columns are zero at thirty of sixty neurons, 25 of them shared."""
    rows = drawn(60, 3)
    rows[:30, 0] = rows[5:35, 1] = rows[20:50, 2] = 0
    found = normalize(torch.tensor(vectors).double(), dim=1)
    nothing = torch.zeros(3, dtype=torch.bool)
    return sparse.classify(found, torch.eye(3).double(), nothing, rows, 0.5).tolist()


def test_of_equal_columns_one_is_taken_and_no_difference_of_columns_is_sure_beside_one_of_them():
    assert taken([1.0, 0, 0], [1.0, 0, 0], [0, 0, 1]) == [True, False, True]
    assert taken([1.0, 0, 0], [0, 1.0, 0], [0, 0, 1]) == [True, True, True]
    assert taken([1.0, 0, 0], [-0.5, 1.0, 0], [0, 0, 1]) == [True, False, True]


def test_images_behind_ordinary_training_become_exact(data):
    victim = ordinary.train(data.secret, None, data.shape, "sgd", (160, 30), 40)
    attempt, rows = known_start.attempt(victim.released, victim.initial, data.shape, M)
    found = first_layer.refine(rows, attempt, data.shape)
    own, others = (part.images - victim.mean for part in (data.secret, data.held_out))
    before, after = (measures.match(own, x).above(0.999) for x in (attempt.images, found.images))
    assert after > before and found.details.sure.sum() >= 10
    assert measures.match(others, found.images).above(measures.EXACT) == 0
    unread = attempt._replace(details=attempt.details._replace(count=None))
    same = first_layer.refine(rows, unread, data.shape)
    assert same.images is attempt.images and not same.details.sure.any()


# ---- A first layer that stays as it was drawn ----


@pytest.fixture(scope="module")
def behind():
    """Grey pictures, a Victim whose last layer the four secret ones trained, and its change."""
    data = images.split(images.thumbnails(images.load("photos"), 7), 4, 4, 1, "cpu", held_out=4)
    victim = last_layer.train(data.secret, 1500, seed=1)
    return data, victim, victim.released.network[1].weight - victim.initial[1].weight


def test_steps_of_the_trainer_of_the_last_layer_are_those_of_gradient_descent(behind):
    secret = behind[0].secret
    one, shrink = last_layer.train(secret, 40, 0.1, 2, seed=2), 0.1
    (first, last), x = one.initial, secret.images - one.mean
    rows, w = torch.relu(x @ first.weight.mT + first.bias), last.weight
    rate = 4 * len(x) / torch.linalg.matrix_norm(rows @ rows.mT, 2)
    for _ in range(2):
        w = w.detach().requires_grad_()
        z = forward((first, last._replace(weight=w)), x)[1][-1]
        (slope,) = torch.autograd.grad(binary_cross_entropy_with_logits(z[:, 0], secret.labels), w)
        w = (1 - shrink) * w - rate * slope
    torch.testing.assert_close(one.released.network[1].weight, w)


def test_the_features_of_the_images_explain_the_change_and_give_them_back(behind):
    data, victim, change = behind
    first, x = victim.released.network[0], victim.subtract_mean(data.secret.images)
    share, absence, _ = fixed_layer.missed(first, change, x)
    assert 0 <= share < 1e-7
    fewer = torch.stack(
        [fixed_layer.missed(first, change, x[torch.arange(4) != i])[0] for i in range(4)]
    )
    torch.testing.assert_close(share + absence, fewer, rtol=1e-4, atol=0)
    assert fixed_layer.missed(first, change, victim.subtract_mean(data.held_out.images))[0] > 0.01
    found = fixed_layer.attack(victim.released.network[0], change, 4, seed=1)
    likeness = ncc(victim.subtract_mean(data.secret.images), found.images).abs()
    assert found.loss < 1e-4 and likeness.amax(1).min() > 0.99


def test_what_is_no_change_of_a_last_layer_is_refused(behind):
    _, victim, change = behind
    for wrong in (torch.zeros_like(change), change[:, 1:], change / 0):
        said = refused(fixed_layer.attack, victim.released.network[0], wrong, 4)
        assert "give its change, one row for an output" in said
    for side in (6, 99):
        said = refused(images.thumbnails, images.load("photos"), side)
        assert said == f"SIDE is {side}; these images have from 7 to 32 pixels."
