"""The closed-form residual against autograd in float64, in both forms, for every rule, in slices."""

import math

import pytest
import torch

from attacks.decoreco import make_rule
from conftest import drawn
from utils import networks
from utils.kernels import naive, residual
from utils.kernels.layers import change
from utils.kernels.losses import LOSSES, signs
from utils.kernels.residual import Stationarity, direct_share, gram_share

N, D, MU = 12, 30, 0.02
LABELS = {1: (torch.arange(N) % 2).double(), 3: (torch.arange(N) % 3).double()}


def margins(z):
    own = torch.nn.functional.one_hot(LABELS[3].long(), 3).bool()
    return z[own] - z.masked_fill(own, -torch.inf).max(1).values


def loss(name, outputs=1):
    return lambda z, c: -LOSSES[name].value(z, LABELS[outputs]).sum() / (N * MU)


WEIGHTED = {  # of each rule or loss the number of outputs, and Σ_i c_iΦ(x_i) as a function of both
    "signed": (1, lambda z, c: (c * z[:, 0]).sum() / N),
    "margin": (1, lambda z, c: (c * signs(LABELS[1]) * z[:, 0]).sum() / N),
    "multiclass": (3, lambda z, c: (c * margins(z)).sum() / N),
    "logistic": (1, loss("logistic")),
    "square": (1, loss("square")),
    "cross_entropy": (3, loss("cross_entropy", 3)),
}


def problem(name, hidden, biases):
    """A network, a rule and whether that has no coefficients."""
    outputs, tied = WEIGHTED[name][0], name in LOSSES
    recipe = networks.Recipe(hidden, name if tied else "square", MU, initial=0.3, biases=biases)
    net = networks.initial(recipe, D, 0, outputs)
    return net, make_rule("tied" if tied else name, LABELS[outputs], net, recipe), tied


def candidates(*sets):
    return drawn(*sets, N, D, seed=1), drawn(*sets, N, seed=2).sigmoid()


@pytest.mark.parametrize("biases", [False, True])
@pytest.mark.parametrize("share", [gram_share, direct_share])
@pytest.mark.parametrize("sharpness", [math.inf, 3.0])
@pytest.mark.parametrize("hidden", [(), (20,), (9, 40, 11)])
@pytest.mark.parametrize("name", WEIGHTED)
def test_equals_double_backward(name, hidden, sharpness, share, biases):
    net, rule, tied = problem(name, hidden, biases)
    x, c = candidates()
    ours = Stationarity(net, rule, sharpness, share)(x, c)
    value, in_x, in_c = naive.residual(naive.module_of(net), x, c, sharpness, WEIGHTED[name][1])
    assert torch.allclose(ours.value, value, rtol=1e-12)
    assert torch.allclose(ours.layers.sum(-1), value, rtol=1e-12)
    assert (ours.x_gradient - in_x).norm() <= 1e-12 * in_x.norm()
    assert (ours.coefficient_gradient - in_c).norm() <= 1e-12 * in_c.norm()
    assert bool(in_c.any()) is not tied


@pytest.mark.parametrize("biases", [False, True])
@pytest.mark.parametrize("name", WEIGHTED)
def test_any_module_has_the_residual_and_the_quadratic_of_the_closed_form(name, biases):
    """Also where a target takes the place of the weights, and not in their gradients."""
    net, rule, _ = problem(name, (9, 8), biases)
    x, c = candidates(2)
    for wanted in (None, change(net, lambda p: p.flip(0) + 0.1)):
        fast = Stationarity(net, rule, 5.0, target=wanted)
        module = wanted and naive.module_of(wanted)
        slow = naive.Stationarity(naive.module_of(net), rule, 5.0, module)
        ours, theirs = (
            [one.squares.sum(), *one(x, c)[2:], *one.quadratic(x)] for one in (fast, slow)
        )
        for a, b in zip(ours, theirs):
            assert (a - b).norm() <= 1e-12 * b.norm()


@pytest.mark.parametrize("relu", [torch.nn.ReLU(inplace=True), torch.relu, lambda z: z.relu()])
def test_every_way_to_write_a_relu_has_the_slopes_of_the_surrogate(relu):
    z = torch.tensor([-1.0, 0.5], requires_grad=True)
    with naive.Smoothed(2.0):
        (slope,) = torch.autograd.grad(relu(1 * z).sum(), z)
    assert torch.allclose(slope, torch.sigmoid(2 * z))


def test_a_batch_equals_its_members_also_in_slices(monkeypatch):
    net, rule, _ = problem("signed", (20, 17), False)
    x, c = candidates(5)
    for rows in (10**6, 2 * N, 1):
        monkeypatch.setattr(residual, "ROWS", rows)
        r = Stationarity(net, rule, 5.0)
        for k, *together in zip(range(5), *r(x, c)):
            for ours, alone in zip(together, r(x[k], c[k])):
                assert torch.allclose(ours, alone, rtol=1e-12)
