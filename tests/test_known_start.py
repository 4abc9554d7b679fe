"""A known start: what comes back of networks that torch trained, wholly or the last layer alone."""

import pytest
import torch
from torch.nn.functional import (
    binary_cross_entropy_with_logits,
    normalize,
)

from attacks import decoreco, first_layer, fixed_layer, known_start, sparse, starts, unmixing
from conftest import drawn, outside, refused
from evaluation import measures
from experiments import last_layer, patching
from training import images, ordinary
from utils.kernels.similarity import ncc
from utils.networks import Layer, change

M, NEURONS, EPOCHS = 20, 60, 40


@pytest.fixture(scope="module")
def trained(data):
    names, settings = ("sgd", "sgd_decay", "sgd_flips"), ((NEURONS, 30), EPOCHS)
    return {name: ordinary.train(data.secret, None, data.shape, name, *settings) for name in names}


@pytest.mark.parametrize("alpha", [1.0, 0.93, 0.0])
def test_the_factor_of_the_start_is_found_exactly(alpha):
    initial = drawn(40, 90)
    weight = drawn(40, 7, seed=1) @ drawn(7, 90, seed=2) / 20 + alpha * initial
    assert first_layer.shrinkage(weight, initial, 20) == pytest.approx(alpha, abs=1e-9)


def test_files_in_single_precision_are_read_some_columns_at_a_time(trained, monkeypatch):
    victim = trained["sgd_decay"]
    whole = first_layer.difference(victim.released.network, victim.initial)
    single = [change(net, torch.Tensor.float) for net in (victim.released.network, victim.initial)]
    monkeypatch.setattr(first_layer, "COLUMNS", 100)
    rows = first_layer.difference(*single)
    assert rows.layer.weight.dtype == torch.float32 and rows.removed == pytest.approx(whole.removed)
    torch.testing.assert_close(rows.layer.weight.double(), whole.layer.weight, atol=1e-7, rtol=1e-5)


def test_all_that_sgd_adds_lies_in_the_span_of_the_images(data, trained):
    """Torch's own float32 training, with the α that weight decay leaves after so many steps."""
    for name, victim in trained.items():
        rows = first_layer.difference(victim.released.network, victim.initial)
        versions = data.secret.images
        if name == "sgd_flips":
            versions = torch.cat([versions, ordinary.mirror(versions, data.shape)])
        assert victim.versions == len(versions)
        assert max(outside(rows.layer, versions - victim.mean)) < 1e-3, name
        (alpha,) = rows.removed
        assert abs(alpha - 1) < 1e-6 or (name == "sgd_decay" and 0.5 < alpha < 1)


def test_without_the_start_or_with_a_wrong_one_or_factor_the_count_is_hidden(trained, data):
    victim = trained["sgd_decay"]
    other = ordinary.layers_of(ordinary.perceptron(3072, (NEURONS, 30), 99))

    def counted(initial, **given):
        found, _ = known_start.attempt(victim.released, initial, data.shape, None, **given)
        return found.details.count

    assert counted(victim.initial, alpha=1.0) != M
    assert counted(other) is None
    assert unmixing.attempt(victim.released, data.shape, M).details.count is None


def test_a_layer_of_squares_is_a_convolution_and_training_writes_squares_into_it(data):
    """Torch's own convolution gives what the cut gives; what SGD adds is in the squares' span."""
    x, side = data.secret.images.float(), 16
    layer = torch.nn.Conv2d(3, 5, side, stride=side, bias=False)
    wanted = layer(x.view(-1, *data.shape).permute(0, 3, 1, 2)).flatten(2).mT  # (M, k, 5)
    ours = patching.cut(x, data.shape, side) @ layer.weight.permute(0, 2, 3, 1).flatten(1).mT
    torch.testing.assert_close(ours, wanted, rtol=1e-4, atol=1e-5)
    few = images.Part(*(part[:4] for part in data.secret))
    victim = patching.train(few, data.shape, side, 60, 30)
    squares = patching.cut(few.images - victim.mean, data.shape, side).flatten(0, 1)
    rows = first_layer.difference(victim.released.network, victim.initial)
    assert victim.versions == len(squares) == 16 and outside(rows.layer, squares)[0] < 1e-4


def test_a_last_layer_that_is_trained_alone_leaves_nothing_to_unmix(data, trained):
    """Its start is another one behind public images, whose mean is one number for each colour."""
    settings = data.shape, "sgd", (NEURONS, 30), 3
    victim = ordinary.train(
        data.secret, data.known, *settings, prepare=lambda net, _: net[:-1].requires_grad_(False)
    )
    assert not torch.equal(victim.initial[0].weight, trained["sgd"].initial[0].weight)
    assert victim.mean.unique().numel() == 3
    found, rows = known_start.attempt(victim.released, victim.initial, data.shape, M)
    assert found.images is rows is None and found.refusals == (first_layer.UNCHANGED,)


def test_wrong_starts_are_refused_in_one_sentence(trained):
    network, initial = trained["sgd"].released.network, trained["sgd"].initial
    for wrong, says in (
        (initial[:2], "The start has layers of [(60, 3072), (30, 60)] where the network has"),
        (network, "The first layer is that of its start"),
        (change(initial, lambda p: p * torch.nan), "values that are NaN or infinite"),
    ):
        assert says in refused(first_layer.difference, network, wrong)


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


@pytest.mark.parametrize("dense", [[], [2, 5, 7]])
def test_images_whose_columns_have_zeros_become_exact_with_size_and_sign(dense):
    """A zero stands where an image leaves a neuron far from active by the first weights; the `dense` have none."""
    x, weight = 0.2 * drawn(FEW, D), drawn(H, D, seed=1)
    reached = x @ weight.mT
    silent = reached < reached.quantile(0.4, dim=1, keepdim=True)
    silent[dense] = False
    b = drawn(H, FEW, seed=2) * ~silent.mT
    added = Layer(b @ x, b.sum(1))
    layers = Layer(weight, 0 * added.bias), Layer(weight + added.weight / 100, added.bias / 100)
    basis = torch.linalg.qr(added.weight.mT @ drawn(H, FEW, seed=3))[0]
    near = -normalize(x + 0.08 * drawn(FEW, FEW, seed=4) @ x)  # sizes and signs are lost
    columns = sparse.read_columns(added, basis, (5, 4, 3))
    matrix, vectors, sure = sparse.refine(near, columns, layers)
    assert sure.tolist() == [i not in dense for i in range(FEW)]
    # (FEW, FEW), what each image is a combination of
    mixed = matrix @ basis.mT @ torch.linalg.pinv(x)
    sizes = mixed.diagonal()
    assert (mixed - sizes.diag())[:, sure].abs().max() < 1e-6
    assert dense or (sizes - 1).abs().max() < 1e-6


@pytest.mark.parametrize(
    "second, sure", [([1.0, 0, 0], False), ([0, 1, 0], True), ([-0.5, 1, 0], False)]
)
def test_of_equal_columns_one_is_sure_and_no_difference_beside_one_of_its_columns(second, sure):
    """Two columns are zero at thirty of sixty neurons, 25 of them shared."""
    rows = drawn(60, 3)
    rows[:30, 0] = rows[5:35, 1] = rows[20:50, 2] = 0
    vectors = normalize(torch.tensor([[1.0, 0, 0], second, [0, 0, 1]]).double())
    columns, near = sparse.Columns(rows, *[None] * 6), torch.eye(3).double()
    before = torch.zeros(3, dtype=torch.bool)
    assert sparse.classify(columns, vectors, near, before, 0.5).tolist() == [True, sure, True]


def test_a_vector_with_far_fewer_zeros_than_the_others_is_not_sure():
    rows = drawn(60, 3)
    rows[:30, 0] = rows[30:, 1] = rows[26:34, 2] = 0
    columns, near = sparse.Columns(rows, *[None] * 6), torch.eye(3).double()
    before = torch.zeros(3, dtype=torch.bool)
    for share, sure in ((0.5, False), (0.2, True)):  # of thirty zeros
        assert sparse.classify(columns, near, near, before, share).tolist() == [True, True, sure]


@pytest.mark.parametrize("share, right", [(0.4, 0), (0.0, 10)])
def test_columns_that_are_proportional_at_many_neurons_make_nothing_sure(share, right):
    """At a share of the neurons every image is active, and the columns are nearly multiples of one another there."""
    h, m = 500, 50
    few = 0.3 ** torch.arange(5) * drawn(h, 5, seed=2) @ drawn(5, m, seed=3)
    active = drawn(h, m) < 0
    alike = torch.arange(h)[:, None] < share * h
    own = drawn(h, m, seed=1)
    b = torch.where(alike, few, own * active)
    x = drawn(m, 192, seed=4)
    basis = torch.linalg.qr(x.mT)[0]
    columns = sparse.read_columns(Layer(b @ x, b.sum(1)), basis, (8, 8, 3))
    true = normalize(torch.linalg.pinv(columns.rows) @ (b / columns.lengths), dim=0).mT
    near = normalize(true + 0.1 * drawn(m, m, seed=5))
    vectors = sparse.search_sparse(columns, near, torch.ones(m, h).double(), sparse.FIRST)
    assert (columns.zeros(vectors).sum(0) > m + sparse.SURE * h).sum() > 10  # look sparse
    nothing = torch.zeros(m, dtype=torch.bool)
    taken = sparse.classify(columns, vectors, near, nothing, sparse.LEAST)
    assert ((vectors * true).sum(1).abs() > 0.999)[taken].sum() == taken.sum() >= right
    assert right or not taken.any()


def test_images_behind_ordinary_training_are_counted_and_come_back_and_held_out_ones_do_not(data):
    victim = ordinary.train(data.secret, None, data.shape, "sgd", (160, 30), 40)
    unmixed, rows = known_start.attempt(victim.released, victim.initial, data.shape, M)
    found = first_layer.refine(rows, unmixed, data.shape)
    sides = measures.sides(data, victim.mean)
    ours, theirs = (measures.match(x, unmixed.images) for x in sides)
    exact, others = (measures.match(x, found.images) for x in sides)
    assert unmixed.details.count == M and ours.some >= M // 2 and theirs.some <= M // 4
    upright = (ours.signed > measures.SOME).sum()  # by the biases: activity cannot tell it
    assert upright >= 0.8 * ours.some
    assert exact.above(0.999) > ours.above(0.999) and others.above(measures.EXACT) == 0
    assert found.details.sure.sum() >= 10


# ---- A first layer that stays as it was drawn ----


@pytest.fixture(scope="module")
def behind():
    """Grey pictures, a Victim whose last layer the four secret ones trained, and its change."""
    data = images.split(images.thumbnails(images.load("photos"), 7), 4, 4, 1, "cpu", held_out=4)
    victim = last_layer.train(data.secret, 1500, seed=1)
    return data, victim, victim.released.network[1].weight - victim.initial[1].weight


def test_steps_of_the_trainer_of_the_last_layer_are_those_of_gradient_descent(behind):
    secret, shrink = behind[0].secret, 0.1
    one = last_layer.train(secret, 40, shrink, 2, seed=2)
    (first, last), x = one.initial, secret.images - one.mean
    rows = torch.relu(x @ first.weight.mT + first.bias)
    w = last.weight.clone().requires_grad_()
    optimiser = torch.optim.SGD([w], lr=4 * len(x) / torch.linalg.matrix_norm(rows @ rows.mT, 2))
    for _ in range(2):
        loss = binary_cross_entropy_with_logits((rows @ w.mT)[:, 0], secret.labels)
        (w.grad,) = torch.autograd.grad(loss, w)
        w.data *= 1 - shrink
        optimiser.step()
    torch.testing.assert_close(one.released.network[1].weight, w.detach())


def test_the_features_of_the_images_explain_the_change_and_give_them_back(behind):
    data, victim, change = behind
    first = victim.released.network[0]
    x, others = measures.sides(data, victim.mean)
    share, absence, _ = fixed_layer.residual(first, change, x)
    assert 0 <= share < 1e-7 and fixed_layer.residual(first, change, others).share > 0.01
    for i in range(4):
        fewer = fixed_layer.residual(first, change, x[torch.arange(4) != i]).share
        torch.testing.assert_close(share + absence[i], fewer, rtol=1e-4, atol=0)
    found = fixed_layer.attack(first, change, 4, seed=1)
    assert found.loss < 1e-4 and ncc(x, found.images).abs().amax(1).min() > 0.99


def test_what_is_no_change_of_a_last_layer_is_refused(behind):
    _, victim, change = behind
    for wrong in (torch.zeros_like(change), change / 0):
        said = refused(fixed_layer.attack, victim.released.network[0], wrong, 4)
        assert "give its change, one row for an output" in said
