"""What is measured: victims, starts, and the plain versions of the kernels (autograd, or one call after the other)."""

from functools import cache

import torch
from torch.nn.functional import binary_cross_entropy_with_logits, softplus
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from utils import images, networks, victims
from utils.attacks import decoreco, starts
from utils.kernels import layers, solvers
from utils.kernels.coefficients import Signed
from utils.kernels.residual import Stationarity
from utils.kernels.surrogate import SmoothBackward

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
PHOTOS = images.load("photos")
WEIGHT_DECAY, SHARPNESS = 1e-2, 10.0  # of the victims of the bilevel attack
PUBLISHED = decoreco.SETTINGS["sgd"]
HALFWAY = {"iterations": 30, "range_weight": 0.0}  # a short attack, whose candidates are neither start nor end
DTYPES = {"float32": torch.float32, "float64": torch.float64}
TOLERANCES = {"float32": 1e-3, "float64": 1e-12}  # of gradients that are differences of large sums
ATEN = torch.ops.aten
PRODUCTS = {ATEN.mm, ATEN.bmm, ATEN.addmm, ATEN.baddbmm, ATEN.addmm_, ATEN.baddbmm_}


def agree(ours, theirs, tolerance):
    """Stop unless two tensors agree, relative to their norm."""
    error = ((ours - theirs).norm() / theirs.norm()).item()
    assert error < tolerance, f"the two versions differ by {error:.2g} of the norm, more than {tolerance:g}"


def counted(function):
    """How many floating-point operations the matrix products of a call take, as torch counts them."""
    with FlopCounterMode(display=False) as counter:
        function()
    return counter.get_total_flops()


class Recorded(TorchDispatchMode):
    """Notes the matrix products that are done meanwhile: (operation, arguments)."""

    def __init__(self):
        super().__init__()
        self.products = []

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        if operation.overloadpacket in PRODUCTS:
            self.products.append((operation, [alike(a) if isinstance(a, torch.Tensor) else a for a in args]))
        return operation(*args, **(kwargs or {}))


def alike(tensor):
    """A random tensor with the same shape, order in memory and precision."""
    return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=tensor.device).uniform_()


def products(function):
    """A function that does the matrix products of a call, with random matrices of the same shapes, and nothing else."""
    with Recorded() as recorded:
        function()
    return lambda: [operation(*args) for operation, args in recorded.products]


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


def plain_step(network, x, coefficients):
    """R's gradients in x and λ (signed rule), by differentiating twice, as published."""
    x, coefficients = x.clone().requires_grad_(), coefficients.clone().requires_grad_()
    network, a = networks.change(network, lambda p: p.clone().requires_grad_()), x
    for layer in network[:-1]:
        z = a @ layer.weight.T if layer.bias is None else torch.addmm(layer.bias, a, layer.weight.T)
        a = SmoothBackward.apply(z, PUBLISHED.sharpness)
    weighted = (coefficients / len(x)) @ (a @ network[-1].weight.T)
    theta = [p for layer in network for p in layer if p is not None]
    gradients = torch.autograd.grad(weighted.sum(), theta, create_graph=True)
    value = sum((p.detach() - g).square().sum() for p, g in zip(theta, gradients))
    return torch.autograd.grad(value, (x, coefficients))


def our_step(network, x, coefficients):
    """The same by the kernel: a function without arguments, whose Residual holds both gradients."""
    residual = Stationarity(network, Signed(), PUBLISHED.sharpness)
    return lambda: residual(x, coefficients)


def step_bytes(network, x):
    """The least traffic of a step: read all weights, x and λ once, write both gradients once."""
    weights = sum(p.numel() for layer in network for p in layer if p is not None)
    return (weights + 2 * x.numel() + 2 * x.numel() // x.shape[-1]) * x.element_size()


@cache
def problem(recipe):
    """What a victim released, and photographs to start from."""
    data = images.split(PHOTOS, 100, 100, 0, DEVICE)
    return victims.train(data.secret, recipe).released, starts.partition(data.known, 100)


@cache
def regression(width, **training):
    """What a network 3072-width-width-1 gives away, trained on fifty photographs."""
    recipe, data = networks.perceptron("signed", width, width), images.split(PHOTOS, 50, 50, 0, DEVICE)
    return victims.train(data.secret, recipe._replace(**training)).released


def normal(n, seed=0):
    """The published start."""
    return starts.normal(n, 3072, PUBLISHED.scale, seed, DEVICE)


@cache
def halfway(n):
    """A network 3072-1000-1000-1, a basis of the row space of W₁, and n candidates in it on their way, with their λ."""
    released = regression(1000, epochs=500)
    basis = networks.span(released.network, 0.0)
    found = decoreco.attack(released, normal(n), basis=basis, **HALFWAY)
    return released.network, basis, found.images, found.coefficients


def untrained(hidden, n, restarts=1, dtype=torch.float32):
    """A random network with these hidden layers, `restarts` sets of n candidates (without a dimension if 1), and λ."""
    recipe = networks.perceptron("signed", *hidden)._replace(start=3072**-0.5)
    network = networks.change(networks.initial(recipe, 3072, 0, 1, DEVICE), lambda p: p.to(dtype))
    x = torch.stack([normal(n, seed) for seed in range(restarts)]).to(dtype)
    coefficients = torch.randn(restarts, n, generator=torch.Generator().manual_seed(0)).to(x)
    return (network, x, coefficients) if restarts > 1 else (network, x[0], coefficients[0])
