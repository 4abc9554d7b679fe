"""One step of Adam on a thousand candidates and their coefficients, ours and torch's."""

import pytest
import torch
from problems import DEVICE, agree

from utils.kernels.solvers import STEPS

RATES, MANY = (0.03, 0.03), 10**9  # of x and λ; iterations so many that the rates do not fall
OPTIONS = {"torch.optim": {}, "torch.optim, foreach": {"foreach": True}, "torch.optim, fused": {"fused": True}}


def problem():
    """x (1000, 3072) and λ (1000,), and their gradients."""
    generator = torch.Generator().manual_seed(0)
    shapes = (1000, 3072), (1000,)
    return [[torch.randn(shape, generator=generator).to(DEVICE) for shape in shapes] for _ in range(2)]


def our_adam(values, gradients, memory, k=0):
    """New values after one step of ours; the memory, two tensors for each value, changes in place."""
    move, schedule = STEPS["adam"]
    return [move(*given, schedule(k, MANY) * rate) for *given, rate in zip(values, gradients, memory, RATES)]


def zeros(values):
    """The memory before the first step."""
    return [[torch.zeros_like(value), torch.zeros_like(value)] for value in values]


def their_adam(values, gradients, **options):
    """The same by torch.optim: the values, which change in place, and a function that makes one step."""
    values = [value.clone().requires_grad_() for value in values]
    for value, gradient in zip(values, gradients):
        value.grad = gradient.clone()
    groups = [{"params": [value], "lr": rate} for value, rate in zip(values, RATES)]
    return values, torch.optim.Adam(groups, eps=1e-12, **options).step


@pytest.mark.parametrize("version", ["ours", *OPTIONS])
def test_optimiser(version, measure):
    values, gradients = problem()
    if version == "ours":
        memory, note = zeros(values), ""
        after = our_adam(values, gradients, memory)
        function = lambda: our_adam(values, gradients, memory, 1)  # noqa: E731
    else:
        after, function = their_adam(values, gradients, **OPTIONS[version])
        function()
        after, note = [value.detach().clone() for value in after], "in place"
    for mine, theirs, value in zip(our_adam(values, gradients, zeros(values)), after, values):
        agree(mine - value, theirs - value, 1e-4)
    least = 7 * 4 * sum(map(torch.numel, values))  # reads g, m, v and x, writes m, v and x
    measure(function, "optimiser", version, {"candidates": 1000, "pixels": 3072}, "float32", bytes=least, note=note)
