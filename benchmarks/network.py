"""One outer iteration of the attack on the one-hidden-layer network, against the same iteration in plain autograd.

The plain version holds all of W₁ (h, d) and lets autograd make gradients and Hessian products. At default size both solve
the inner problem to the same tolerance and must agree. At paper size (d = 3072, h = 6144, m = 100, float32) the plain
version's time is that of as many gradients and products as ours used, each timed; without our preconditioner it would
need more of them, so the printed ratio is a lower bound.
"""

import statistics
import time

import torch
from torch.nn.functional import binary_cross_entropy_with_logits, softplus

from utils import bilevel, hidden, images, solvers, starts

WEIGHT_DECAY, SHARPNESS = 1e-2, 10.0
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


class Plain:
    """E of the whole network, its derivatives by autograd; θ is one vector of h(d+1) + h + 1 numbers."""

    def __init__(self, x, y, width):
        self.x, self.y, self.width = x, y, width

    def energy(self, x, theta):
        first, second = theta[: -self.width - 1].view(self.width, -1), theta[-self.width - 1 :]
        active = softplus(x @ first[:, :-1].T + first[:, -1], beta=SHARPNESS, threshold=40)
        losses = binary_cross_entropy_with_logits(active @ second[:-1] + second[-1], self.y)
        return losses + WEIGHT_DECAY / 2 * theta @ theta

    def objective(self, theta):
        theta = theta.detach().requires_grad_()
        value = self.energy(self.x, theta)
        return value.detach(), torch.autograd.grad(value, theta)[0]

    def hessian(self, theta):
        theta = theta.detach().requires_grad_()
        (gradient,) = torch.autograd.grad(self.energy(self.x, theta), theta, create_graph=True)
        return lambda v: torch.autograd.grad(gradient, theta, v, retain_graph=True)[0], lambda r: r

    def cross(self, theta, p):
        x, theta = self.x.clone().requires_grad_(), theta.detach().requires_grad_()
        (gradient,) = torch.autograd.grad(self.energy(x, theta), theta, create_graph=True)
        return -torch.autograd.grad(gradient @ p, x)[0]

    def hypergradient(self, start, target):
        """Inner solve from `start`, p = H⁻¹(θ − θ*), and dl/dx."""
        theta = solvers.newton_cg(self.objective, self.hessian, start, products=20_000).x
        p = solvers.cg(self.hessian(theta)[0], theta - target, 1e-10, 20_000).x
        return self.cross(theta, p)


def flat(network):
    return torch.cat([network.first.flatten(), network.second])


def seconds(function, repeats=1):
    """Return the last result and the median time of one call."""
    times = []
    for _ in range(repeats):
        synchronise()
        begun = time.perf_counter()
        result = function()
        synchronise()
        times.append(time.perf_counter() - begun)
    return result, statistics.median(times)


def synchronise():
    if DEVICE.type == "cuda":
        torch.cuda.synchronize()


def problem(width, dtype):
    """A victim, the trainer's θ⁰ and a partition start."""
    data = images.split(images.load("photos"), 100, 100, 0, DEVICE)
    x, y, known = (t.to(dtype) for t in (*data.secret, starts.partition(data.known, 100)))
    theta0 = hidden.initial_weights(x.shape[1], width, 0, "standard", SHARPNESS, DEVICE)
    theta0 = hidden.Network(theta0.first.to(dtype), theta0.second.to(dtype), SHARPNESS)
    return hidden.train(x, y, WEIGHT_DECAY, theta0).weights, theta0, known, y


def next_iterate(x, y, target, theta0):
    """θ(x₀) and the images after a first small step: where a warm outer iteration begins."""
    h = bilevel.hypergradient(x, y, target, WEIGHT_DECAY, "cg", theta0)
    return h.trained, x - h.gradient / h.gradient.norm()


def default_size(width=64):
    target, theta0, x, y = problem(width, torch.float64)
    last, x = next_iterate(x, y, target, theta0)
    ours, fast = seconds(lambda: bilevel.hypergradient(x, y, target, WEIGHT_DECAY, "cg", last), 5)
    plain = Plain(x, y, width)
    theirs, slow = seconds(lambda: plain.hypergradient(flat(last.weights), flat(target)))
    error = ((ours.gradient - theirs).norm() / theirs.norm()).item()
    assert error < 1e-5, f"the two hypergradients differ by {error:.1e}"
    print(
        f"iteration/one_hidden h = {width}, float64, against plain autograd: {slow / fast:.0f}× "
        f"({fast:.2f} s against {slow:.1f} s, relative difference below 1e-5)"
    )


def paper_size(width=6144, steps=8):
    target, theta0, x, y = problem(width, torch.float32)
    last, ahead = next_iterate(x, y, target, theta0)
    ours, fast = seconds(lambda: bilevel.hypergradient(ahead, y, target, WEIGHT_DECAY, "cg", last), 3)
    assert ours.sound
    plain, theta, goal = Plain(ahead, y, width), flat(last.weights), flat(target)
    (product, _), once = seconds(lambda: plain.hessian(theta))
    _, per_product = seconds(lambda: product(goal), 5)
    _, per_gradient = seconds(lambda: plain.objective(theta), 5)
    _, cross = seconds(lambda: plain.cross(theta, goal))
    slow = ours.trained.iterations * per_product + per_gradient + once + cross
    print(
        f"iteration/one_hidden h = {width}, float32, against as many plain products: at least {slow / fast:.0f}× "
        f"({fast:.2f} s against {slow:.1f} s)"
    )
    gram = torch.rand(width, 100, device=DEVICE)
    _, gemm = seconds(lambda: gram @ gram[:100], 21)
    print(
        f"iteration/one_hidden limit: {ours.trained.iterations} steps of training, {1e3 * fast / ours.trained.iterations:.0f} ms each "
        f"with the solve for p; one (h, m) by (m, m) product takes {1e3 * gemm:.1f} ms"
    )
    times = []
    settings = {"weight_decay": WEIGHT_DECAY, "theta_start": theta0, "iterations": steps}
    bilevel.attack(target, y, x, watch=lambda x, loss: times.append(time.perf_counter()), **settings)
    each = [after - before for before, after in zip(times, times[1:])]
    print(
        f"attack/one_hidden h = {width}, float32: {statistics.median(each):.2f} s per outer iteration after the first "
        f"(median of {len(each)}, largest {max(each):.1f} s)"
    )


if __name__ == "__main__":
    default_size()
    paper_size()
