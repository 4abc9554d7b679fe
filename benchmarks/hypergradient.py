"""One exact hypergradient of the affine model (m = 100, d = 3072, float64) against two plain autograd versions.

All three compute dl/dx at the same x and the same solved lower level, and must agree to 1e-8.
"""

import time

import torch

from utils import affine, bilevel, images, starts

WEIGHT_DECAY = 1e-2
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


def autograd_energy(x, y, theta):
    losses = torch.nn.functional.binary_cross_entropy_with_logits(x @ theta[:-1] + theta[-1], y)
    return losses + WEIGHT_DECAY / 2 * theta @ theta


def plain(x, y, theta, target):
    """Autograd builds the Hessian (d+1, d+1); a dense solve inverts it."""
    hessian = torch.func.hessian(lambda t: autograd_energy(x, y, t))(theta)
    return cross(x, y, theta, torch.linalg.solve(hessian, theta - target))


def plain_cg(x, y, theta, target):
    """Conjugate gradients on Hessian-vector products by double backward."""
    theta = theta.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(autograd_energy(x, y, theta), theta, create_graph=True)
    u = (theta - target).detach()
    p, r = torch.zeros_like(u), u
    direction, square = r, r @ r
    while square > 1e-20 * (u @ u):
        (product,) = torch.autograd.grad(gradient, theta, direction, retain_graph=True)
        step = square / (direction @ product)
        p, r = p + step * direction, r - step * product
        direction, square = r + (r @ r) / square * direction, r @ r
    return cross(x, y, theta.detach(), p)


def cross(x, y, theta, p):
    """−∇_x⟨∇_θ E, p⟩ by double backward."""
    x, theta = x.clone().requires_grad_(), theta.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(autograd_energy(x, y, theta), theta, create_graph=True)
    return -torch.autograd.grad(gradient @ p, x)[0]


def fast(x, y, theta, target):
    """What `bilevel.hypergradient` computes after its inner solve; like the plain versions, from x and θ alone."""
    trained = affine.Trained(theta, affine.logits(x, theta), x @ x.mT + 1, None, 0, None)
    p = affine.inverse_hessian_product(x, trained, theta - target, WEIGHT_DECAY)
    return -affine.cross_gradient(x, y, trained, p)


def seconds(function, *arguments, repeats):
    """Return the last result and the median time of one call, after a warm-up."""
    times = []
    for _ in range(repeats + 1):
        synchronise()
        begun = time.perf_counter()
        result = function(*arguments)
        synchronise()
        times.append(time.perf_counter() - begun)
    return result, sorted(times[1:])[repeats // 2]


def synchronise():
    if DEVICE.type == "cuda":
        torch.cuda.synchronize()


def main():
    data = images.split(images.load("photos"), 100, 100, 0, DEVICE)
    target, y = affine.train(*data.secret, WEIGHT_DECAY).weights, data.secret.labels
    x = starts.partition(data.known, 100)
    compare_hypergradients(x, y, affine.train(x, y, WEIGHT_DECAY).weights, target)
    for name, start in {"random": starts.random(*x.shape, 0, DEVICE), "partition": x}.items():
        time_attack(name, start, y, target)


def compare_hypergradients(x, y, theta, target):
    ours, time_fast = seconds(fast, x, y, theta, target, repeats=51)
    for name, function, repeats in (("dense autograd Hessian", plain, 3), ("autograd and CG", plain_cg, 9)):
        theirs, time_plain = seconds(function, x, y, theta, target, repeats=repeats)
        error = ((ours - theirs).norm() / theirs.norm()).item()
        assert error < 1e-8, f"the two hypergradients differ by {error:.1e}"
        print(
            f"hypergradient/affine against {name}: {time_plain / time_fast:.0f}× "
            f"({1e3 * time_fast:.2f} ms against {1e3 * time_plain:.1f} ms, relative difference below 1e-8)"
        )
    _, time_gram = seconds(lambda: x @ x.mT, repeats=51)
    square = torch.rand(2048, 2048, dtype=x.dtype, device=DEVICE)
    _, time_square = seconds(lambda: square @ square, repeats=5)
    rate, peak = 2 * len(x) * x.numel() / time_gram / 1e9, 2 * 2048**3 / time_square / 1e9
    print(
        f"hypergradient/affine limit: its Gram matrix takes {time_gram / time_fast:.0%} of the time, "
        f"at {rate:.0f} GFLOP/s of the {peak:.0f} that a large product reaches"
    )


def time_attack(name, start, y, target):
    begun = time.perf_counter()
    found = bilevel.attack(target, y, start, weight_decay=WEIGHT_DECAY, tolerance=1e-12)
    synchronise()
    assert found.stopped == "converged"
    print(
        f"attack/affine/{name}: relative squared distance ≤ 1e-12 in {time.perf_counter() - begun:.1f} s, "
        f"{len(found.history) - 1} outer steps"
    )


if __name__ == "__main__":
    main()
