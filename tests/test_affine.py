import pytest
import torch
from torch.autograd.functional import hessian

from utils import networks
from utils.kernels import affine

MU = 1e-2


def plain_energy(x, y, theta):
    losses = torch.nn.functional.binary_cross_entropy_with_logits(x @ theta[:-1] + theta[-1], y)
    return losses + MU / 2 * theta @ theta


def test_derivatives_are_those_of_autograd(small):
    x, y, generator = small
    theta = torch.randn(31, dtype=torch.float64, generator=generator).requires_grad_()
    energy = plain_energy(x, y, theta)
    assert torch.allclose(affine.energy(x, y, theta, MU), energy, rtol=1e-14)
    assert torch.allclose(affine.energy_gradient(x, y, theta, MU), torch.autograd.grad(energy, theta)[0], atol=1e-15)


@pytest.mark.parametrize("weight_decay", [1e-4, 1e-2, 1.0])
@pytest.mark.parametrize("kind", ["zero", "uniform", "standard"])
def test_training_is_stationary_from_every_start(photos, weight_decay, kind):
    x, y = photos[0].secret
    start = None if kind == "zero" else networks.flatten(networks.initial(networks.affine(MU, kind), x.shape[1], 1))
    solved = affine.solve(x, y, weight_decay, start)
    gradient = affine.energy_gradient(x, y, solved.weights, weight_decay).norm()
    assert gradient <= 2e-12 and solved.gradient_norm <= 1e-12
    assert torch.allclose(solved.logits, affine.logits(x, solved.weights), atol=1e-9)
    assert torch.allclose(solved.weights, affine.solve(x, y, weight_decay).weights, atol=1e-6 * solved.weights.norm())


def test_problems_in_one_call_equal_single_ones(small):
    x, y, generator = small
    batch = torch.rand(4, 12, 30, dtype=torch.float64, generator=generator)
    together = affine.solve(batch, y, MU)
    for k in range(4):
        alone = affine.solve(batch[k], y, MU)
        assert torch.allclose(together.weights[k], alone.weights, atol=1e-10)


def test_repeated_images_train_too(small):
    x, y, _ = small
    solved = affine.solve(x[:1].expand(12, 30), y, MU)  # a singular Gram matrix
    assert solved.gradient_norm <= 1e-12


def test_inverse_hessian_product_inverts_the_hessian(small):
    x, y, generator = small
    u = torch.randn(31, dtype=torch.float64, generator=generator)
    solved = affine.solve(x, y, MU)
    p = affine.inverse_hessian_product(x, solved, u, MU)
    full = hessian(lambda t: plain_energy(x, y, t), solved.weights)
    assert torch.allclose(full @ p, u, atol=1e-12)
