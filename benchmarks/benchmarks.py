"""Every kernel beside its plain version (autograd, or one call after the other): medians over repeats, and ratios."""

import statistics
import time
from functools import partial

import torch
from skimage.metrics import structural_similarity
from torch.nn.functional import binary_cross_entropy_with_logits, softplus

from utils import images, kept, networks, victims
from utils.attacks import bilevel, decoreco, starts
from utils.attacks.contract import Released
from utils.kernels import affine, layers, one_hidden, similarity, solvers
from utils.kernels.coefficients import Signed
from utils.kernels.residual import Stationarity

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
PHOTOS = images.load("photos")
WEIGHT_DECAY, SHARPNESS = 1e-2, 10.0  # of the victims of the bilevel attack
PUBLISHED = decoreco.SETTINGS["sgd"]
HALFWAY = {"iterations": 30, "range_weight": 0.0}  # a short attack, whose candidates are neither start nor end


def now():
    """Seconds of a monotonic clock, once the device has done what it was given."""
    if DEVICE.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


def seconds(function, repeats=1):
    """The last result and the median time of one call, after a warm-up if there are several; nothing is kept."""
    times, folder, kept.FOLDER = [], kept.FOLDER, None
    for _ in range(repeats + (repeats > 1)):
        begun = now()
        result = function()
        times.append(now() - begun)
    kept.FOLDER = folder
    return result, statistics.median(times[repeats > 1 :])


def show(what, ours, others=(), note=""):
    """Print a time, every other {name: seconds} with its ratio to it, and a note."""
    parts = [f"{name} {s:.3g} s = {s / ours:.3g}×" for name, s in dict(others).items()]
    print(f"{what}: {ours:.3g} s", *parts, *([note] if note else []), sep="; ", flush=True)


def agree(ours, theirs, tolerance):
    """Stop unless two tensors agree, relative to their norm."""
    assert (ours - theirs).norm() < tolerance * theirs.norm()


def limit(what, dtype, *sizes):
    """Print how near the product of matrices (n, k) and (k, l), sizes n, k, l, comes to the rate of a large one."""
    rates = []
    for n, k, l in (sizes, (2048, 2048, 2048)):
        a, b = (torch.rand(size, dtype=dtype, device=DEVICE) for size in ((n, k), (k, l)))
        rates.append(2e-9 * n * k * l / seconds(lambda: a @ b, 5)[1])
    print(f"{what}: its product runs at {rates[0]:.0f} of the {rates[1]:.0f} GFLOP/s of a large one", flush=True)


class Plain:
    """E of a whole network as a function of one vector θ, its derivatives by autograd."""

    def __init__(self, x, y, like):
        self.x, self.y, self.like = x, y, like

    def energy(self, x, theta):
        *hidden, last = layers.unflatten(theta, self.like)
        for layer in hidden:
            x = softplus(x @ layer.weight.T + layer.bias, beta=SHARPNESS, threshold=40)
        losses = binary_cross_entropy_with_logits(x @ last.weight[0] + last.bias, self.y)
        return losses + WEIGHT_DECAY / 2 * theta @ theta

    def gradient(self, x, theta, graph=True):
        x, theta = x.clone().requires_grad_(), theta.detach().requires_grad_()
        value = self.energy(x, theta)
        return x, theta, value.detach(), torch.autograd.grad(value, theta, create_graph=graph)[0]

    def product(self, theta):
        _, theta, _, gradient = self.gradient(self.x, theta)
        return lambda v: torch.autograd.grad(gradient, theta, v, retain_graph=True)[0]

    def cross(self, theta, p):
        x, _, _, gradient = self.gradient(self.x, theta)
        return -torch.autograd.grad(gradient @ p, x)[0]

    def dense(self, theta, target):
        """dl/dx at θ = θ(x), with the Hessian from autograd and a dense solve."""
        hessian = torch.func.hessian(lambda t: self.energy(self.x, t))(theta)
        return self.cross(theta, torch.linalg.solve(hessian, theta - target))

    def by_cg(self, theta, target):
        """The same by conjugate gradients on products with the Hessian."""
        product, r = self.product(theta), theta - target
        p, v, goal = torch.zeros_like(r), r, 1e-20 * (r @ r)
        while (square := r @ r) > goal:
            image = product(v)
            step = square / (v @ image)
            p, r = p + step * v, r - step * image
            v = r + (r @ r) / square * v
        return self.cross(theta, p)

    def whole(self, start, target):
        """The same after an inner solve from `start`, by Newton's method without a preconditioner."""
        terms = lambda t: self.gradient(self.x, t, False)[2:], lambda t: (self.product(t), lambda r: r)
        return self.by_cg(solvers.newton_cg(*terms, start, products=20_000).x, target)


def problem(recipe):
    """What a victim released, and photographs to start from."""
    data = images.split(PHOTOS, 100, 100, 0, DEVICE)
    return victims.train(data.secret, recipe).released, starts.partition(data.known, 100)


def affine_model():
    """One exact hypergradient from x and θ alone, and attacks to all digits."""
    released, x = problem(networks.affine(WEIGHT_DECAY))
    target, y, others = networks.vector(released.network), released.labels, {}
    theta, plain = affine.solve(x, y, WEIGHT_DECAY).weights, Plain(x, y, released.network)

    def fast():
        solved = affine.Solved(theta, affine.logits(x, theta), x @ x.mT + 1, None, 0, None)
        p = affine.inverse_hessian_product(x, solved, theta - target, WEIGHT_DECAY)
        return -affine.cross_gradient(x, y, solved, p)

    ours, taken = seconds(fast, 51)
    for name, function, repeats in (("dense autograd Hessian", plain.dense, 3), ("autograd and CG", plain.by_cg, 9)):
        theirs, others[name] = seconds(lambda: function(theta, target), repeats)
        agree(ours, theirs, 1e-8)
    others["its Gram matrix alone"] = seconds(lambda: x @ x.mT, 51)[1]
    show("hypergradient/affine", taken, others)
    limit("hypergradient/affine", x.dtype, 100, x.shape[1], 100)
    for name, start in {"random": starts.random(*x.shape, 0, DEVICE), "partition": x}.items():
        found, taken = seconds(lambda: bilevel.attack(released, start, tolerance=1e-12))
        assert found.stopped == "converged"
        show(f"attack/affine/{name}", taken, note=f"{len(found.history) - 1} outer steps to 1e-12")


def hidden_layer(width, steps=8):
    """A step from θ*, near the training images, against the plain one (or as many plain products); those of an attack."""
    released, _ = problem(networks.one_hidden(width, WEIGHT_DECAY, SHARPNESS))
    secret = images.split(PHOTOS, 100, 100, 0, DEVICE).secret.images
    start = secret + 0.01 * (starts.random(*secret.shape, 0, DEVICE) - 0.5)
    small = bilevel.condensed(released)
    basis = networks.span_of(start, small.network[0].weight)
    few = small._replace(network=networks.in_span(small.network, basis))
    ours, fast = seconds(lambda: bilevel.hypergradient(few, start @ basis, start=few.network), 5)
    x = (start @ basis).float()
    network = networks.change(few.network, torch.Tensor.float)
    recipe = few.recipe._replace(sharpness=few.recipe.sharpness.float())
    rough = Released(network, few.labels.float(), recipe)
    others = {"in float32": seconds(lambda: bilevel.hypergradient(rough, x, start=network), 5)[1]}
    plain, target = Plain(start, released.labels, released.network), networks.flatten(released.network)
    name, taken = f"one_hidden h = {width}, K = {len(network[0].weight)}", ours.solved.iterations
    if width <= 64:
        theirs, others["plain autograd"] = seconds(lambda: plain.whole(target, target))
        agree(ours.gradient @ basis.mT, theirs, 1e-4)
    else:
        product = plain.product(target)
        others["plain autograd, at least"] = taken * seconds(lambda: product(target), 5)[1]
    show(f"step from θ*/{name}", fast, others, f"{taken} steps of training, with p {fast / taken:.3g} s each")
    limit(f"step from θ*/{name}", target.dtype, 100, len(network[0].weight), basis.shape[1])
    times = []
    bilevel.attack(released, start, iterations=steps, watch=lambda x, loss: times.append(now()))
    each = [after - before for before, after in zip(times, times[1:])]
    show(f"attack/{name}", statistics.median(each), note=f"the median of {len(each)} iterations; at most {max(each):.3g} s")


class SmoothBackward(torch.autograd.Function):
    """ReLU forward, σ(αz) backward."""

    @staticmethod
    def forward(ctx, z):
        ctx.save_for_backward(z)
        return z.clamp_min(0)

    @staticmethod
    def backward(ctx, upstream):
        return upstream * torch.sigmoid(PUBLISHED.sharpness * ctx.saved_tensors[0])


def plain_step(network, x, coefficients):
    """R's gradients in x and λ (signed rule), by differentiating twice, as published."""
    x, coefficients = x.clone().requires_grad_(), coefficients.clone().requires_grad_()
    network, a = networks.change(network, lambda p: p.clone().requires_grad_()), x
    for layer in network[:-1]:
        z = a @ layer.weight.T if layer.bias is None else torch.addmm(layer.bias, a, layer.weight.T)
        a = SmoothBackward.apply(z)
    weighted = (coefficients / len(x)) @ (a @ network[-1].weight.T)
    theta = [p for layer in network for p in layer if p is not None]
    gradients = torch.autograd.grad(weighted.sum(), theta, create_graph=True)
    value = sum((p.detach() - g).square().sum() for p, g in zip(theta, gradients))
    return torch.autograd.grad(value, (x, coefficients))


def regression(width, **training):
    """What a network 3072-width-width-1 gives away, trained on fifty photographs."""
    recipe, data = networks.perceptron("signed", width, width), images.split(PHOTOS, 50, 50, 0, DEVICE)
    return victims.train(data.secret, recipe._replace(**training)).released


def normal(n, seed=0):
    """The published start."""
    return starts.normal(n, 3072, PUBLISHED.scale, seed, DEVICE)


def step_table():
    """One evaluation of R and its gradients, in pixels and in the coordinates of W₁'s row space."""
    released = regression(1000, epochs=500)
    basis = networks.span(released.network, 0.0)
    for n in (50, 200, 1000):
        found, slow = decoreco.attack(released, normal(n), **HALFWAY), {}
        for dtype, tolerance in ((torch.float64, 1e-12), (torch.float32, 1e-3)):
            x, coefficients, q = (t.to(dtype) for t in (found.images, found.coefficients, basis))
            network = networks.change(released.network, lambda p: p.to(dtype))
            theirs, slow[f"plain {dtype}"] = seconds(lambda: plain_step(network, x, coefficients), 5)
            for space, net, start in (("pixels", network, x), ("coordinates", networks.in_span(network, q), x @ q)):
                residual = Stationarity(net, Signed(), PUBLISHED.sharpness)
                ours, fast = seconds(lambda: residual(start, coefficients), 5)
                show(f"step/{n} candidates in {space}, {dtype}", fast, slow)
                if space == "pixels":
                    agree(ours.x_gradient, theirs[0], tolerance)
    limit("step, float32", torch.float32, 200, 3072, 1000)


def attack_time(steps=4000, n=100, width=500, many=32):
    """Time to the loss of the published optimiser, whose steps are plain float64; and restarts in one call."""
    released, start = regression(width), normal(n)
    goal = decoreco.attack(released, start, optimiser="sgd", iterations=steps, dtype=torch.float64).loss.item()
    found, basis = decoreco.attack(released, start, **HALFWAY), networks.span(released.network)
    _, step = seconds(lambda: plain_step(released.network, found.images, found.coefficients), 5)
    for budget in (50, 100, 150, 200, 250, 300, 400, 800):
        found, taken = seconds(lambda: decoreco.attack(released, start, basis=basis, iterations=budget))
        if found.loss <= goal:
            break
    show(f"attack/signed, {budget} steps to {goal:.2g}", taken, {f"{steps} plain steps of {step:.3g} s": steps * step})
    for few in (20, n):
        start = torch.stack([normal(few, seed) for seed in range(many)])
        attack = partial(decoreco.attack, released, basis=basis, iterations=50, range_weight=0.0)
        (_, together), (_, one) = seconds(lambda: attack(start), 3), seconds(lambda: attack(start[0]), 9)
        show(f"{many} restarts of {few} candidates in one call", together, {f"{many} calls": many * one})


def grid_table(width, m=50):
    """25 starts of eq. (10) in one call, against one after the other in the same coordinates, and in pixels."""
    data, total = images.split(PHOTOS, m, m, 0, DEVICE), torch.zeros(3)
    noise = starts.random(m, data.secret.images.shape[1], 0, DEVICE)
    grid = torch.cartesian_prod(*[torch.linspace(0, 1, 5, dtype=torch.float64)] * 2)
    first, second = grid.to(DEVICE).T[:, :, None, None]  # λ₁ and λ₂ of eq. (10)

    def attack(x, basis):
        if recipe.hidden:
            return decoreco.attack(released, x, iterations=100, range_weight=0.0, basis=basis)
        return bilevel.attack(released, x)  # in the span of every start, by itself

    for recipe in (networks.affine(WEIGHT_DECAY), networks.perceptron("signed", width, width)):
        victim = victims.train(data.secret, recipe)
        released, sets = victim.released, [t - victim.mean for t in (data.secret.images, data.known.images, noise)]
        basis = networks.span_of(*sets, networks.span(released.network).mT)
        x = second * (first * sets[0] + (1 - first) * sets[1]) + (1 - second) * sets[2]  # (25, m, d)
        attack(x[:2], basis)  # warm-up
        together, one = seconds(lambda: attack(x, basis))
        singles, several = seconds(lambda: [attack(start, basis) for start in x])
        _, pixels = seconds(lambda: [attack(start, None) for start in x])
        if not recipe.hidden:
            agree(together.images, torch.stack([found.images for found in singles]), 1e-4)
        total += torch.tensor([one, several, pixels])
        name = "decoreco, 100 steps" if recipe.hidden else "bilevel"
        show(f"25 starts in one call/{name}, width {width}", one, {"one by one": several, "in pixels": pixels})
    show(f"25 starts in one call/both, width {width}", total[0], {"one by one": total[1], "in pixels": total[2]})


def similarity_table(n=1000, k=500, sample=200):
    """All pairs of n and k images, against a library that is called for every pair."""
    generator, rows = torch.Generator().manual_seed(0), torch.as_tensor(PHOTOS.images)  # (N, 32, 32, 3)
    rows = rows.repeat((n + k) // len(rows) + 1, 1, 1, 1)[: n + k]
    rows = (rows + 0.1 * torch.rand(rows.shape, dtype=rows.dtype, generator=generator)).clamp(0, 1)
    x, y = rows[:n].flatten(1).to(DEVICE), rows[n:].flatten(1).to(DEVICE)
    table, fast = seconds(lambda: similarity.ssim(x, y, tuple(rows.shape[1:])), 3)
    index = torch.randint(n * k, (sample,), generator=generator).tolist()

    def loop():
        pairs = [(rows[i // k].numpy(), rows[n + i % k].numpy()) for i in index]
        return [structural_similarity(*pair, win_size=7, data_range=1.0, channel_axis=2) for pair in pairs]

    exact, slow = seconds(loop)
    agree(table.flatten()[index].cpu(), torch.tensor(exact), 1e-5)
    show(f"SSIM of {n} × {k} images", fast, {f"a loop over pairs, from {sample}": slow * n * k / sample})


if __name__ == "__main__":
    print(f"{torch.get_num_threads()} threads, {DEVICE.type}")
    affine_model()
    hidden_layer(64)
    hidden_layer(6144)  # as wide as in the first paper
    step_table()
    attack_time()
    similarity_table()
    for width in (200, 500):  # the chapter's, and that of the other chapters
        grid_table(width)
