"""A step of an attack: the residual of stationarity R and its gradients, or a hypergradient; and what bounds it."""

import os
from functools import cache, partial

import pytest
import torch
from problems import DEVICE, PUBLISHED, normal, regression, released
from torch.utils._python_dispatch import TorchDispatchMode

from attacks import bilevel, starts
from lab.speed import counted
from utils import networks
from utils.kernels import contrast, layers, naive, step
from utils.kernels.coefficients import Signed
from utils.kernels.products import LIBRARIES, LIBRARY, multiply
from utils.kernels.residual import Stationarity

PRODUCTS = "mm", "bmm", "addmm", "baddbmm"
# images and neurons of the first paper; its victim's
M = 100
WIDTH = 6144
WEIGHT_DECAY = 1e-2
SHARPNESS = 10.0


class Recorded(TorchDispatchMode):
    """Notes the matrix products that are done meanwhile, with random matrices of the same shapes and order."""

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        if operation.overloadpacket.__name__.removesuffix("_") in PRODUCTS:
            like = [
                torch.empty_strided(a.shape, a.stride(), dtype=a.dtype, device=a.device).uniform_()
                for a in args
            ]
            self.products.append(partial(operation, *like))
        return operation(*args, **(kwargs or {}))


def products(function):
    """A function that does the matrix products of a call, and nothing else."""
    with Recorded() as recorded:
        recorded.products = []
        function()
    return lambda: [product() for product in recorded.products]


def evaluation(version, n, width, dtype):
    """A step of n candidates in one version, at a network 3072-width-width-1 behind fifty photographs; and a note."""
    victim = regression(width, epochs=500)
    dtype = torch.float64 if dtype == "float64" else torch.float32
    network = networks.change(victim.network, lambda p: p.to(dtype))
    x, coefficients = normal(n).to(dtype), torch.linspace(-1, 1, n, dtype=dtype, device=DEVICE)
    if version == "plain":
        return partial(
            naive.residual, naive.module_of(network), x, coefficients, PUBLISHED.sharpness
        ), ""
    note = ""
    if version == "coordinates":
        basis = networks.span(victim.network, 0.0).to(dtype)  # of the row space of W₁
        network = networks.in_span(network, basis)
        x = x @ basis
        note = f"{basis.shape[1]} coordinates of 3072 pixels"
    return partial(Stationarity(network, Signed(), PUBLISHED.sharpness), x, coefficients), note


def replayed(function):
    """The same as a GPU repeats it, captured at the first call, when it is known how products are rounded."""
    graph = cache(partial(step.capture, function, 1))
    return lambda: graph().replay()


@pytest.mark.parametrize(
    "dtype", ["float32", "float64", "bfloat16"] + ["tf32"] * (DEVICE.type == "cuda")
)
@pytest.mark.parametrize("version", ["pixels", "coordinates", "products", "plain"])
@pytest.mark.parametrize("n", [50, 200, 500, 1000])
def test_step(n, version, dtype, measure, rounding):
    function, note = evaluation(version, n, 1000, dtype)
    flops = counted(function)
    if version == "products":
        function = products(function)
    if DEVICE.type == "cuda":
        function = replayed(function)
    rounding(dtype)
    measure(function, "step", version, {"candidates": n}, dtype, apart=True, note=note, flops=flops)


@pytest.mark.skipif(
    DEVICE.type == "cuda" or os.cpu_count() < 2, reason="needs a processor of two cores or more"
)
@pytest.mark.parametrize("version", ["1 thread", "2 threads"])
@pytest.mark.parametrize("width", [200, 1000])
@pytest.mark.parametrize("n", [20, 50, 100, 200])
def test_threads(n, width, version, measure, request):
    request.addfinalizer(partial(torch.set_num_threads, torch.get_num_threads()))
    function, _ = evaluation("pixels", n, width, "float32")
    torch.set_num_threads(int(version[0]))
    measure(function, "threads", version, {"candidates": n, "width": width}, "float32")


def plain_product(victim, x):
    """A product with the Hessian of the energy E, as a function of one vector θ, at θ*."""
    theta = networks.flatten(victim.network).requires_grad_()
    energy = naive.energy(
        x, victim.labels, layers.unflatten(theta, victim.network), WEIGHT_DECAY, SHARPNESS
    )
    (gradient,) = torch.autograd.grad(energy, theta, create_graph=True)
    return partial(torch.autograd.grad, gradient, theta, gradient.detach(), retain_graph=True)


@pytest.mark.parametrize("version", ["ours", "plain autograd, at least"])
def test_hypergradient(version, measure):
    """Near the secret images, in the span of both; the plain version takes at least as many products as ours steps."""
    victim, secret = released(networks.one_hidden(WIDTH, WEIGHT_DECAY, SHARPNESS), M)
    x = secret + 0.01 * (starts.random(*secret.shape, 0, DEVICE) - 0.5)
    small = bilevel.merge_neurons(victim)
    basis = networks.span_of(x, small.network[0].weight)
    few = small._replace(network=networks.in_span(small.network, basis))
    ours = partial(bilevel.hypergradient, few, x @ basis, initial=few.network)
    steps = ours().solved.iterations
    about = {"size": {"images": M, "hidden": WIDTH}, "dtype": "float64"}
    if version == "ours":
        measure(
            ours, "hypergradient", version, note=f"with training from θ*, {steps} steps", **about
        )
    else:
        note = f"extrapolated: {steps} products with the Hessian, as many as ours takes steps"
        measure(plain_product(victim, x), "hypergradient", version, scale=steps, note=note, **about)


@pytest.mark.skipif(
    DEVICE.type == "cuda" or LIBRARY == "mkl", reason="needs a processor for oneDNN"
)
@pytest.mark.parametrize("version", ["mkl", "onednn", "bfloat16"])
@pytest.mark.parametrize("kernel", ["step in pixels", "step in the span", "search of unmixing"])
def test_products(kernel, version, measure, rounding):
    """The same step, or three of unmixing, with products by either library, and with rounded factors."""
    rounding(version)
    if kernel == "search of unmixing":
        rows = torch.eye(500, dtype=torch.float64)
        features = contrast.features(normal(500).float(), (32, 32, 3))
        function, size = partial(contrast.minimise, rows, features, 0.1, 3, 3), {"images": 500}
    else:
        space = {"step in pixels": "pixels", "step in the span": "coordinates"}[kernel]
        size = {"candidates": 1000}
        function, _ = evaluation(space, 1000, 1000, "float32")
    with multiply("cpu", LIBRARIES["mkl" if version == "mkl" else "onednn"]):
        measure(function, kernel, version, size, "float32")


TENSORS = ["float32", "float64", "bfloat16"]
KINDS = TENSORS if DEVICE.type == "cpu" else [*TENSORS, "tf32"]
LIMITS = [(kind, "torch") for kind in KINDS] + [(kind, "numpy") for kind in KINDS[:2]] * (
    DEVICE.type == "cpu"
)


@pytest.mark.parametrize("kind, library", LIMITS, ids="-".join)
def test_limits_product(kind, library, measure, rounding):
    """What the machine can do at most: the product of two large matrices, by any library that is at hand."""
    rounding("tf32" if kind == "tf32" else "exact")
    n = 2048 if DEVICE.type == "cpu" else 8192  # a GPU is not busy with less
    factors = torch.rand(2, n, n, device=DEVICE).to(getattr(torch, kind, torch.float32))
    a, b = factors.numpy() if library == "numpy" else factors
    about = {"apart": True, "flops": 2 * n**3}
    measure(lambda: a @ b, "limits", f"{kind} by {library}", {"rows": n}, kind, **about)


def test_limits_copy(measure):
    """And a copy of much memory."""
    a = torch.rand(64 * 2**20, device=DEVICE)  # 256 MiB, more than a cache
    b = torch.empty_like(a).zero_()  # its pages are there: a clone would wait for new ones
    measure(lambda: b.copy_(a), "limits", "copy", {"megabytes": 256}, "float32", bytes=2 * a.nbytes)
