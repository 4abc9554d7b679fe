"""One hypergradient dl/dx of the bilevel attack, for the affine model and for one hidden layer."""

from functools import cache, partial

import pytest
import torch
from problems import DEVICE, PHOTOS, SHARPNESS, WEIGHT_DECAY, Plain, agree, counted, problem

from utils import images, networks
from utils.attacks import bilevel, starts
from utils.attacks.contract import Released
from utils.kernels import affine

M = 100  # images


@cache
def affine_versions():
    """{name: function} at θ(x): one hypergradient from x and θ alone, and what takes most of it."""
    released, x = problem(networks.affine(WEIGHT_DECAY))
    target, y = networks.flatten(released.network), released.labels
    theta, plain = affine.solve(x, y, WEIGHT_DECAY).weights, Plain(x, y, released.network)

    def ours():
        solved = affine.Solved(theta, affine.logits(x, theta), x @ x.mT + 1, None, 0, None)
        p = affine.inverse_hessian_product(x, solved, theta - target, WEIGHT_DECAY)
        return -affine.cross_gradient(x, y, solved, p)

    named = {"ours": ours, "its Gram matrix alone": lambda: x @ x.mT}
    plain = {"dense autograd Hessian": plain.dense, "autograd and CG": plain.by_cg}
    return named | {name: partial(function, theta, target) for name, function in plain.items()}


@pytest.mark.filterwarnings("ignore:.*torch.jit.script.*:FutureWarning")  # of torch.func, about torch
@pytest.mark.parametrize("version", ["ours", "dense autograd Hessian", "autograd and CG", "its Gram matrix alone"])
def test_hypergradient_affine(version, measure):
    versions = affine_versions()
    own = version in ("ours", "its Gram matrix alone")
    work = {"flops": counted(versions[version]) if own else None, "bytes": 2 * 8 * M * 3072 if own else None}
    found = measure(versions[version], "hypergradient", version, {"images": M, "hidden": 0}, "float64", **work)
    if version in ("dense autograd Hessian", "autograd and CG"):
        agree(versions["ours"](), found, 1e-8)


@cache
def near(width):
    """A victim with one hidden layer, images near the secret ones, and a basis of the span of both."""
    released, _ = problem(networks.one_hidden(width, WEIGHT_DECAY, SHARPNESS))
    secret = images.split(PHOTOS, M, M, 0, DEVICE).secret.images
    start = secret + 0.01 * (starts.random(*secret.shape, 0, DEVICE) - 0.5)
    small = bilevel.condensed(released)
    basis = networks.span_of(start, small.network[0].weight)
    return released, start, small._replace(network=networks.in_span(small.network, basis)), basis


def ours(width, dtype=torch.float64):
    """The Hypergradient in the span, training from θ*."""
    _, start, few, basis = near(width)
    network, recipe = networks.change(few.network, lambda p: p.to(dtype)), few.recipe
    recipe = recipe._replace(sharpness=recipe.sharpness.to(dtype))
    released = Released(network, few.labels.to(dtype), recipe)
    return bilevel.hypergradient(released, (start @ basis).to(dtype), start=network)


@cache
def known(width):
    """Ours in double precision, for what the others are compared with: dl/dx, and the steps of its training."""
    found = ours(width)
    return found.gradient @ near(width)[3].mT, found.solved.iterations


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("width", [64, 6144])  # 6144 is the first paper's
def test_hypergradient_hidden(width, dtype, measure):
    distinct, steps = len(near(width)[2].network[0].weight), known(width)[1]
    note = f"with training from θ*, {steps} steps in float64; {distinct} different neurons"
    function, size = partial(ours, width, getattr(torch, dtype)), {"images": M, "hidden": width}
    measure(function, "hypergradient", "ours", size, dtype, rounds=3, note=note)


@pytest.mark.parametrize("width", [64, 6144])
def test_hypergradient_hidden_plain(width, measure):
    released, start, *_ = near(width)
    plain, target = Plain(start, released.labels, released.network), networks.flatten(released.network)
    gradient, steps = known(width)
    size = {"images": M, "hidden": width}
    if width == 64:
        function = partial(plain.whole, target, target)
        found = measure(function, "hypergradient", "plain autograd", size, "float64", rounds=1)
        agree(gradient, found, 1e-4)
    else:
        note = f"extrapolated: {steps} products with the Hessian, as many as ours takes steps"
        product, name = plain.product(target), "plain autograd, at least"
        measure(lambda: product(target), "hypergradient", name, size, "float64", rounds=3, scale=steps, note=note)
