"""The stationarity attack against its plain version: one step, a whole attack, and many restarts in one call.

The plain version is what is published: autograd makes ∇_θ of the weighted outputs with a graph and differentiates the
residual once more; the backward pass of the ReLU is σ(αz). Both must agree, in float64 to 1e-12.
"""

import statistics
import time

import torch

from utils import decoreco, images, mlp, rules, starts
from utils.stationarity import Stationarity

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
PUBLISHED = decoreco.SETTINGS["sgd"]


class SmoothBackward(torch.autograd.Function):
    """ReLU forward, σ(αz) backward."""

    @staticmethod
    def forward(ctx, z, sharpness):
        ctx.save_for_backward(z)
        ctx.sharpness = sharpness
        return z.clamp_min(0)

    @staticmethod
    def backward(ctx, upstream):
        (z,) = ctx.saved_tensors
        return upstream * torch.sigmoid(ctx.sharpness * z), None


def plain(network, x, coefficients, sharpness):
    """R and its gradients in x and λ (signed rule), by differentiating twice."""
    x, coefficients = x.clone().requires_grad_(), coefficients.clone().requires_grad_()
    network = mlp.change(network, lambda p: p.clone().requires_grad_())
    a = x
    for layer in network[:-1]:
        z = a @ layer.weight.T if layer.bias is None else torch.addmm(layer.bias, a, layer.weight.T)
        a = SmoothBackward.apply(z, sharpness)
    weighted = (coefficients / len(x)) @ (a @ network[-1].weight.T)
    flat = [p for layer in network for p in layer if p is not None]
    gradients = torch.autograd.grad(weighted.sum(), flat, create_graph=True)
    value = sum((p.detach() - g).square().sum() for p, g in zip(flat, gradients))
    return value.detach(), *torch.autograd.grad(value, (x, coefficients))


def seconds(function, repeats=5):
    """Return the last result and the median time of one call, after a warm-up."""
    times = []
    for _ in range(repeats + 1):
        synchronise()
        begun = time.perf_counter()
        result = function()
        synchronise()
        times.append(time.perf_counter() - begun)
    return result, statistics.median(times[1:])


def synchronise():
    if DEVICE.type == "cuda":
        torch.cuda.synchronize()


def victim(width, epochs):
    """A regression network, 3072-width-width-1, trained on fifty photographs."""
    data = images.split(images.load("photos"), 50, 50, 0, DEVICE)
    recipe = mlp.RECIPES["regression"]._replace(epochs=epochs)
    return mlp.victim(*data.secret, recipe, width).weights


def halfway(network, n):
    """Candidates (n, d) and λ (n,) as they are after a short attack with the published start."""
    start = starts.normal(n, 3072, PUBLISHED.scale, 0, DEVICE)
    found = decoreco.attack(network, start[:, 0], start, iterations=30, range_weight=0.0)
    return found.images, found.coefficients


def step_table():
    """One evaluation of R and its gradients, in pixels and in the coordinates of W₁'s row space."""
    network = victim(1000, 500)
    basis = decoreco.span(network, 0.0)
    double, single = (mlp.change(network, lambda p: p.to(dtype)) for dtype in (torch.float64, torch.float32))
    for n in (50, 200, 1000):
        x, coefficients = halfway(network, n)
        slow = {}
        for net in (double, single):
            dtype = net[0].weight.dtype
            at = x.to(dtype), coefficients.to(dtype)
            within = decoreco.in_span(net, basis.to(dtype))
            pixels, reduced = (Stationarity(w, rules.Signed(), PUBLISHED.sharpness) for w in (net, within))
            theirs, slow[dtype] = seconds(lambda: plain(net, *at, PUBLISHED.sharpness))
            ours, fast = seconds(lambda: pixels(*at))
            error = ((ours.x_gradient - theirs[1]).norm() / theirs[1].norm()).item()
            assert error < (1e-12 if dtype == torch.float64 else 1e-3), f"the gradients differ by {error:.1e}"
            inside = at[0] @ basis.to(dtype)
            _, coordinates = seconds(lambda: reduced(inside, at[1]))
            print(
                f"step/{n} candidates, {str(dtype)[6:]}: {slow[dtype] / fast:.1f}× in pixels, "
                f"{slow[dtype] / coordinates:.1f}× in coordinates; against float64: {slow[torch.float64] / fast:.1f}× and "
                f"{slow[torch.float64] / coordinates:.1f}× "
                f"({1e3 * fast:.1f} and {1e3 * coordinates:.1f} ms against {1e3 * slow[dtype]:.0f} ms)"
            )
    limit(single)


def limit(network, n=200):
    """How near a step comes to the speed of its matrix products alone."""
    x = torch.rand(n, 3072, dtype=torch.float32, device=DEVICE)
    _, product = seconds(lambda: x @ network[0].weight.T)
    square = torch.rand(2048, 2048, device=DEVICE)
    _, peak = seconds(lambda: square @ square)
    print(
        f"step limit, float32: the first layer's product runs at {2e-9 * n * 3072 * 1000 / product:.0f} of the "
        f"{2e-9 * 2048**3 / peak:.0f} GFLOP/s that a large product reaches"
    )


def attack_time(published_steps=4000, n=100, width=500):
    """Time to the loss that the published optimiser reaches: its own steps in plain float64, against Adam in the span."""
    network = victim(width, mlp.RECIPES["regression"].epochs)
    start = starts.normal(n, 3072, PUBLISHED.scale, 0, DEVICE)
    labels = start[:, 0]
    settings = {"optimiser": "sgd", "iterations": published_steps, "dtype": torch.float64}
    goal = decoreco.attack(network, labels, start, **settings).loss.total.item()
    x, coefficients = halfway(network, n)
    _, step = seconds(lambda: plain(network, x, coefficients.double(), PUBLISHED.sharpness))
    basis = decoreco.span(network)
    for budget in (50, 100, 150, 200, 250, 300, 400, 800):
        begun = time.perf_counter()
        found = decoreco.attack(network, labels, start, basis=basis, iterations=budget)
        synchronise()
        taken = time.perf_counter() - begun
        if found.loss.total <= goal:
            break
    print(
        f"attack/signed: the loss {goal:.2g} of {published_steps} published steps in {taken:.2f} s ({budget} steps of Adam), "
        f"{published_steps * step / taken:.0f}× faster than {published_steps} plain steps of {1e3 * step:.0f} ms"
    )
    for few in (20, n):
        restarts(network, basis, few)


def restarts(network, basis, n, many=32, steps=50):
    """Many restarts in one call against as many calls."""
    start = torch.stack([starts.normal(n, 3072, PUBLISHED.scale, seed, DEVICE) for seed in range(many)])
    settings = {"basis": basis, "iterations": steps, "range_weight": 0.0}
    _, together = seconds(lambda: decoreco.attack(network, start[0, :, 0], start, **settings), 3)
    _, one = seconds(lambda: decoreco.attack(network, start[0, :, 0], start[0], **settings), 9)
    print(
        f"restarts of {n} candidates: {many} in one call take {together / (many * one):.2f} of the time of {many} calls "
        f"({together:.2f} s against {many} × {one:.3f} s)"
    )


if __name__ == "__main__":
    step_table()
    attack_time()
