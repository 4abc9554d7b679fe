"""One hypergradient dl/dx of the bilevel attack, for the affine model and for one hidden layer."""

from functools import cache, partial

import pytest
import torch
from problems import DEVICE, agree, released

from utils import networks
from utils.attacks import bilevel, starts
from utils.kernels import affine, layers, naive, solvers

M, WEIGHT_DECAY, SHARPNESS = 100, 1e-2, 10.0  # images; of the victims


class Plain:
    """The same by autograd, from E as a function of the images x and of one vector θ."""

    def __init__(self, x, released):
        self.x, self.released = x.clone().requires_grad_(), released

    def energy(self, theta):
        network = layers.unflatten(theta, self.released.network)
        return naive.energy(self.x, self.released.labels, network, WEIGHT_DECAY, SHARPNESS)

    def gradient(self, theta):
        """E, ∇E with a graph, and products with the Hessian."""
        theta = theta.detach().requires_grad_()
        value = self.energy(theta)
        (gradient,) = torch.autograd.grad(value, theta, create_graph=True)
        return value.detach(), gradient, lambda v: torch.autograd.grad(gradient, theta, v, retain_graph=True)[0]

    def hypergradient(self, theta, dense=False):
        """Eq. (7), dl/dx = −∂/∂x ⟨∇E, H⁻¹(θ − θ*)⟩ at θ = θ(x), with the whole Hessian or by conjugate gradients."""
        u = theta - networks.flatten(self.released.network)
        _, gradient, product = self.gradient(theta)
        p = torch.linalg.solve(torch.func.hessian(self.energy)(theta), u) if dense else solvers.cg(product, u).x
        return -torch.autograd.grad(gradient @ p, self.x)[0]

    def whole(self):
        """With training from θ*, by Newton's method without a preconditioner."""

        def objective(theta):
            return [part.detach() for part in self.gradient(theta)[:2]]

        hessian, start = lambda theta: (self.gradient(theta)[2], lambda r: r), networks.flatten(self.released.network)
        return self.hypergradient(solvers.newton_cg(objective, hessian, start).x)


@pytest.mark.parametrize("version", ["ours", "dense autograd Hessian"])
def test_hypergradient_affine(version, measure):
    """From the images and θ(x) alone."""
    victim, _, x = released(networks.affine(WEIGHT_DECAY), M)
    y, theta = victim.labels, affine.solve(x, victim.labels, WEIGHT_DECAY).weights

    def ours():
        solved = affine.Solved(theta, affine.logits(x, theta), x @ x.mT + 1, None, 0, None)
        p = affine.inverse_hessian_product(x, solved, theta - networks.flatten(victim.network), WEIGHT_DECAY)
        return -affine.cross_gradient(x, y, solved, p)

    dense = partial(Plain(x, victim).hypergradient, theta, dense=True)
    agree(ours(), dense(), 1e-8)
    function = ours if version == "ours" else dense
    measure(function, "hypergradient", version, {"images": M, "hidden": 0}, "float64")


@cache
def near(width):
    """A victim with one hidden layer, images near the secret ones, and ours in the span of both, with its basis."""
    victim, secret, _ = released(networks.one_hidden(width, WEIGHT_DECAY, SHARPNESS), M)
    x = secret + 0.01 * (starts.random(*secret.shape, 0, DEVICE) - 0.5)
    small = bilevel.condensed(victim)
    basis = networks.span_of(x, small.network[0].weight)
    few = small._replace(network=networks.in_span(small.network, basis))
    return victim, x, partial(bilevel.hypergradient, few, x @ basis, start=few.network), basis


@pytest.mark.parametrize("width, version", [
    (64, "ours"), (64, "plain autograd"), (6144, "ours"), (6144, "plain autograd, at least"),
])  # fmt: skip
def test_hypergradient_hidden(width, version, measure):
    """6144 is the first paper's; the plain version takes at least as many products as ours takes steps."""
    victim, x, function, basis = near(width)
    plain, found = Plain(x, victim), function()
    steps, scale = found.solved.iterations, 1
    note = f"with training from θ*, {steps} steps"
    if width == 64:
        agree(found.gradient @ basis.mT, plain.whole(), 1e-4)
    if version == "plain autograd":
        function, note = plain.whole, ""
    elif version != "ours":
        _, gradient, product = plain.gradient(networks.flatten(victim.network))
        function, scale = partial(product, gradient.detach()), steps
        note = f"extrapolated: {steps} products with the Hessian, as many as ours takes steps"
    measure(function, "hypergradient", version, {"images": M, "hidden": width}, "float64", scale=scale, note=note)
