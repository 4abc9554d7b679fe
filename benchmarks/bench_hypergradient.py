"""One hypergradient dl/dx of the bilevel attack, for the affine model and for one hidden layer."""

from functools import partial

import pytest
import torch
from problems import DEVICE, agree, secret, trained

from utils import networks
from utils.attacks import bilevel, starts
from utils.kernels import affine, layers, smooth, solvers

M, WEIGHT_DECAY, SHARPNESS = 100, 1e-2, 10.0  # images; of the victims


def near(recipe):
    """What a victim gives away, its weights θ*, and images near the secret ones."""
    x = secret(M).images
    victim = trained(recipe, M).released
    return victim, networks.flatten(victim.network), x + 0.01 * (starts.random(*x.shape, 0, DEVICE) - 0.5)


def energy(theta, x, victim):
    """E, a function of one vector θ."""
    return smooth.energy(x, victim.labels, layers.unflatten(theta, victim.network), WEIGHT_DECAY, SHARPNESS)


slope = torch.func.grad(energy)  # ∇E by autograd


def product(theta, x, victim):
    """A function that multiplies a vector with the Hessian of E, by autograd."""
    back = torch.func.vjp(lambda theta: slope(theta, x, victim), theta)[1]
    return lambda v: back(v)[0]


def plain(theta, x, victim, p):
    """Eq. (7), dl/dx = −∂/∂x ⟨∇E, p⟩ with p = H⁻¹(θ − θ*) at θ = θ(x), by autograd."""
    return -torch.func.vjp(lambda x: slope(theta, x, victim), x)[1](p)[0]


def plain_trained(target, x, victim):
    """With training from θ*, by Newton's method without a preconditioner, and conjugate gradients."""

    def objective(theta):
        return torch.func.grad_and_value(energy)(theta, x, victim)[::-1]

    theta = solvers.newton_cg(objective, lambda theta: (product(theta, x, victim), lambda r: r), target).x
    return plain(theta, x, victim, solvers.cg(product(theta, x, victim), theta - target).x)


@pytest.mark.parametrize("version", ["ours", "dense autograd Hessian"])
def test_hypergradient_affine(version, measure):
    """From the images and θ(x) alone."""
    victim, target, x = near(networks.affine(WEIGHT_DECAY))
    theta = affine.solve(x, victim.labels, WEIGHT_DECAY).weights

    def ours():
        solved = affine.Solved(theta, affine.logits(x, theta), x @ x.mT + 1, None, 0, None)
        p = affine.inverse_hessian_product(x, solved, theta - target, WEIGHT_DECAY)
        return -affine.cross_gradient(x, victim.labels, solved, p)

    def dense():
        hessian = torch.func.hessian(energy)(theta, x, victim)
        return plain(theta, x, victim, torch.linalg.solve(hessian, theta - target))

    agree(ours(), dense(), 1e-8)
    function = ours if version == "ours" else dense
    measure(function, "hypergradient", version, {"images": M, "hidden": 0}, "float64")


@pytest.mark.parametrize("width, version", [
    (64, "ours"), (64, "plain autograd"), (6144, "ours"), (6144, "plain autograd, at least"),
])  # fmt: skip
def test_hypergradient_hidden(width, version, measure):
    """6144 is the first paper's; the plain version takes at least as many products as ours takes steps."""
    victim, target, x = near(networks.one_hidden(width, WEIGHT_DECAY, SHARPNESS))
    few = bilevel.condensed(victim)
    basis = networks.span_of(x, few.network[0].weight)
    few = few._replace(network=networks.in_span(few.network, basis))
    ours = partial(bilevel.hypergradient, few, x @ basis, start=few.network)
    theirs, found = partial(plain_trained, target, x, victim), ours()
    steps = found.solved.iterations
    function, scale, note = ours, 1, f"with training from θ*, {steps} steps"
    if width == 64:
        agree(found.gradient @ basis.mT, theirs(), 1e-4)
    if version == "plain autograd":
        function, note = theirs, ""
    elif version != "ours":
        function, scale = partial(product(target, x, victim), target), steps
        note = f"extrapolated: {steps} products with the Hessian, as many as ours takes steps"
    measure(function, "hypergradient", version, {"images": M, "hidden": width}, "float64", scale=scale, note=note)
