"""The closed-form residual against autograd in float64, in both forms, for every rule, in slices."""

import math

import pytest
import torch

from attacks.decoreco import make_rule
from utils import networks
from utils.kernels import naive, residual
from utils.kernels.coefficients import Signed
from utils.kernels.layers import change
from utils.kernels.losses import LOSSES, signs
from utils.kernels.residual import Stationarity, cheaper_share, direct_share, gram_share

N, D, MU = 12, 30, 0.02
LABELS = {1: (torch.arange(N) % 2).double(), 3: (torch.arange(N) % 3).double()}


def margins(z):
    own = torch.nn.functional.one_hot(LABELS[3].long(), 3).bool()
    return z[own] - z.masked_fill(own, -torch.inf).max(1).values


WEIGHTED = {
    "signed": (1, lambda z, c: (c * z[:, 0]).sum() / N),
    "margin": (1, lambda z, c: (c * signs(LABELS[1]) * z[:, 0]).sum() / N),
    "multiclass": (3, lambda z, c: (c * margins(z)).sum() / N),
    "logistic": (1, lambda z, c: -LOSSES["logistic"].value(z, LABELS[1]).sum() / (N * MU)),
    "square": (1, lambda z, c: -LOSSES["square"].value(z, LABELS[1]).sum() / (N * MU)),
    "cross_entropy": (
        3,
        lambda z, c: -LOSSES["cross_entropy"].value(z, LABELS[3]).sum() / (N * MU),
    ),
}


def network_of(hidden, biases, outputs=1):
    return networks.initial(
        networks.Recipe(hidden, "square", MU, initial=0.3, biases=biases), D, 0, outputs
    )


def candidates(seed=1):
    generator = torch.Generator().manual_seed(seed)
    return (
        draw(*size, dtype=torch.float64, generator=generator)
        for draw, size in ((torch.randn, (N, D)), (torch.rand, (N,)))
    )


@pytest.mark.parametrize("biases", [False, True])
@pytest.mark.parametrize("share", [gram_share, direct_share, cheaper_share])
@pytest.mark.parametrize("sharpness", [math.inf, 3.0, 200.0])
@pytest.mark.parametrize("hidden", [(), (20,), (20, 17), (9, 40, 11)])
@pytest.mark.parametrize("name", WEIGHTED)
def test_equals_double_backward(name, hidden, sharpness, share, biases):
    outputs, weighted = WEIGHTED[name]
    net, (x, c) = network_of(hidden, biases, outputs), candidates()
    tied = name in LOSSES
    recipe = networks.Recipe(hidden, name if tied else "square", MU)
    rule = make_rule("tied" if tied else name, LABELS[outputs], net, recipe)
    ours = Stationarity(net, rule, sharpness, share)(x, c)
    value, in_x, in_c = naive.residual(naive.module_of(net), x, c, sharpness, weighted)
    assert torch.allclose(ours.value, value, rtol=1e-12)
    assert torch.allclose(ours.layers.sum(-1), value, rtol=1e-12)
    assert (ours.x_gradient - in_x).norm() <= 1e-12 * in_x.norm()
    assert (ours.coefficient_gradient - in_c).norm() <= 1e-12 * in_c.norm()
    assert bool(in_c.any()) is not tied


@pytest.mark.parametrize("biases", [False, True])
@pytest.mark.parametrize("name", WEIGHTED)
def test_any_module_has_the_residual_and_the_quadratic_of_the_closed_form(name, biases):
    """Also where a target takes the place of the weights, and not in their gradients."""
    outputs, _ = WEIGHTED[name]
    net, tied = network_of((9, 8), biases, outputs), name in LOSSES
    recipe = networks.Recipe((9, 8), name if tied else "square", MU)
    rule = make_rule("tied" if tied else name, LABELS[outputs], net, recipe)
    x, c = (torch.stack(parts) for parts in zip(*(candidates(seed) for seed in range(2))))
    for wanted in (None, change(net, lambda p: p.flip(0) + 0.1)):
        fast = Stationarity(net, rule, 5.0, target=wanted)
        slow = naive.Stationarity(
            naive.module_of(net), rule, 5.0, wanted and naive.module_of(wanted)
        )
        pairs = [(fast.squares.sum(), slow.squares.sum()), (fast(x, c).value, slow(x, c).value)]
        pairs += [*zip(fast(x, c)[2:], slow(x, c)[2:]), *zip(fast.quadratic(x), slow.quadratic(x))]
        for ours, theirs in pairs:
            assert (ours - theirs).norm() <= 1e-12 * theirs.norm()


@pytest.mark.parametrize(
    "relu", [torch.nn.ReLU(), torch.nn.ReLU(inplace=True), torch.relu, lambda z: z.relu()]
)
def test_every_way_to_write_a_relu_has_the_slopes_of_the_surrogate(relu):
    z = torch.tensor([-1.0, 0.5], requires_grad=True)
    with naive.Smoothed(2.0):
        (slope,) = torch.autograd.grad(relu(1 * z).sum(), z)
    assert torch.allclose(slope, torch.sigmoid(2 * z)) and not relu(-z.detach().abs()).any()


def test_a_batch_equals_its_members_also_in_slices(monkeypatch):
    net = network_of((20, 17), False)
    x, c = (torch.stack(parts) for parts in zip(*(candidates(seed) for seed in range(5))))
    for rows in (10**6, 2 * N, 1):
        monkeypatch.setattr(residual, "ROWS", rows)
        r = Stationarity(net, Signed(), 5.0)
        together = r(x, c)
        for k in range(5):
            for ours, alone in zip(together, r(x[k], c[k])):
                assert torch.allclose(ours[k], alone, rtol=1e-12)
