"""Exact images from the zeros of their coefficients, and none where there are no zeros."""

import torch
from torch.nn.functional import normalize

from conftest import drawn
from utils import images, measures
from utils.attacks import known_start, sparse
from utils.kernels.layers import Layer
from utils.kernels.similarity import ncc
from utils.training import torch_trainer

M, H, D = 12, 120, 60


def refined(share, dense=0):
    """Images (M, D), what they added to a layer, images near them, and what `sparse.refine` makes of these.

    A neuron that an image leaves far from active, by the weights of the start, has a zero, and that is a `share` of
    them; of the first `dense` images none.
    """
    x, weight = 0.2 * drawn(M, D), drawn(H, D, seed=1)
    reached = x @ weight.mT
    silent = reached < reached.quantile(share, dim=1, keepdim=True)
    silent[:dense] = False
    b = drawn(H, M, seed=2) * ~silent.mT
    added, bias, before = b @ x, b.sum(1), torch.zeros(H, dtype=torch.float64)
    layers = Layer(weight, before), Layer(weight + added / 100, bias / 100)
    basis = torch.linalg.svd(added, full_matrices=False)[2][:M].mT @ torch.linalg.qr(drawn(M, M, seed=3))[0]
    near = -normalize(x + 0.08 * drawn(M, M, seed=4) @ x)  # sizes and signs are lost
    return x, added, near, sparse.refine(near, added @ basis, bias, basis, layers, (5, 4, 3))


def test_near_images_become_exact_with_size_and_sign():
    x, added, _, (found, sure, columns) = refined(0.4)
    assert sure.all()
    b = normalize(added @ torch.linalg.pinv(x), dim=0)
    assert (normalize(columns, dim=0) * b).sum(0).abs().min() > 1 - 1e-9
    torch.testing.assert_close(found, x, rtol=1e-6, atol=1e-6)


def test_without_zeros_nothing_is_sure_and_images_stay():
    _, _, near, (found, sure, _) = refined(0.0)
    assert not sure.any() and ncc(near, found).diagonal().abs().min() > 0.999


def test_images_with_sure_columns_are_true_but_for_those_without():
    x, _, _, (found, sure, _) = refined(0.4, dense=3)
    assert sure.tolist() == [False] * 3 + [True] * (M - 3)
    mixed = found @ torch.linalg.pinv(x)  # (M, M), what each image is a combination of
    assert mixed[:, 3:].masked_fill(torch.eye(M).bool()[:, 3:], 0.0).abs().max() < 1e-6 < mixed[:, :3].abs().max()


def taken(*vectors):
    """Which of three vectors are sure, where two columns are zero at thirty of sixty neurons, 25 of them shared."""
    rows = drawn(60, 3)
    rows[:30, 0] = rows[5:35, 1] = rows[20:50, 2] = 0
    found = normalize(torch.tensor(vectors).double(), dim=1)
    nothing = torch.zeros(3, dtype=torch.bool)
    return sparse.judged(found, torch.eye(3).double(), nothing, rows, 0.5).tolist()


def test_of_equal_columns_one_is_taken():
    assert taken([1.0, 0, 0], [1.0, 0, 0], [0, 0, 1]) == [True, False, True]


def test_a_difference_of_columns_is_not_sure_beside_one_of_them():
    assert taken([1.0, 0, 0], [0, 1.0, 0], [0, 0, 1]) == [True, True, True]
    assert taken([1.0, 0, 0], [-0.5, 1.0, 0], [0, 0, 1]) == [True, False, True]


def test_images_behind_ordinary_training_become_exact():
    data = images.split(images.load("photos"), 20, 20, 1, held_out=20)
    victim = torch_trainer.train(data.secret, None, data.shape, "sgd", (160, 30), 40)
    attempt, alpha = known_start.attempt(victim.released, victim.start, data.shape, 20)
    found = known_start.exact(victim.released, victim.start, alpha, attempt, data.shape)
    own, others = (part.images - victim.mean for part in (data.secret, data.held_out))
    before, after = (measures.match(own, x).above(0.999) for x in (attempt.images, found.images))
    assert after > before and found.details.sure.sum() >= 10
    assert measures.match(others, found.images).above(measures.EXACT) == 0
    unread = attempt._replace(details=attempt.details._replace(count=None))
    same = known_start.exact(victim.released, victim.start, alpha, unread, data.shape)
    assert same.images is attempt.images and not same.details.sure.any()
