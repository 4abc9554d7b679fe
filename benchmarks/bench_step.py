"""One evaluation of the residual of stationarity R and of its gradients, a step of an attack; and what bounds it."""

import os
from functools import cache, partial

import pytest
import torch
from problems import DEVICE, PUBLISHED, agree, normal, regression
from torch.utils._python_dispatch import TorchDispatchMode

from lab.speed import counted, least_bytes
from utils import networks
from utils.attacks import decoreco
from utils.kernels import naive, step
from utils.kernels.coefficients import Signed
from utils.kernels.residual import Stationarity

TOLERANCES = {torch.float32: 1e-3, torch.float64: 1e-12}  # of gradients that are differences of large sums
PRODUCTS = "mm", "bmm", "addmm", "baddbmm"


class Recorded(TorchDispatchMode):
    """Notes the matrix products that are done meanwhile, with random matrices of the same shapes and order."""

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        if operation.overloadpacket.__name__.removesuffix("_") in PRODUCTS:
            like = [torch.empty_strided(a.shape, a.stride(), dtype=a.dtype, device=a.device).uniform_() for a in args]
            self.products.append(partial(operation, *like))
        return operation(*args, **(kwargs or {}))


def products(function):
    """A function that does the matrix products of a call, and nothing else."""
    with Recorded() as recorded:
        recorded.products = []
        function()
    return lambda: [product() for product in recorded.products]


def compare(network, x, coefficients, basis=None):
    """Our step, in coordinates of a basis if there is one, and the plain one, which agree."""
    small = (network, x) if basis is None else (networks.in_span(network, basis), x @ basis)
    ours = partial(Stationarity(small[0], Signed(), PUBLISHED.sharpness), small[1], coefficients)
    plain = partial(naive.residual, naive.module_of(network), x, coefficients, PUBLISHED.sharpness)
    (_, _, *mine), (_, down, other) = ours(), plain()
    for pair in zip(mine, (down if basis is None else down @ basis, other)):
        agree(*pair, TOLERANCES[x.dtype])
    return ours, plain


@cache
def halfway(n, dtype):
    """A network 3072-1000-1000-1, n candidates on their way and their λ, and a basis of the row space of W₁."""
    victim, to = regression(1000, epochs=500), getattr(torch, dtype)
    basis = networks.span(victim.network, 0.0)
    found = decoreco.attack(victim, normal(n), basis=basis, iterations=30, range_weight=0.0)
    network = networks.change(victim.network, lambda p: p.to(to))
    return network, found.images.to(to), found.coefficients.to(to), basis.to(to)


def replayed(function):
    """The same as a GPU repeats it, captured at the first call, when it is known how products are rounded."""
    graph = cache(partial(step.capture, function, 1))
    return lambda: graph().replay()


@pytest.mark.parametrize("dtype", ["float32", "float64"] + ["tf32"] * (DEVICE.type == "cuda"))
@pytest.mark.parametrize("version", ["pixels", "coordinates", "products", "plain"])
@pytest.mark.parametrize("n", [50, 200, 500, 1000])
def test_step(n, version, dtype, measure, rounding):
    network, x, coefficients, basis = halfway(n, dtype.replace("tf", "float"))
    spanned = version == "coordinates"
    ours, plain = compare(network, x, coefficients, basis if spanned else None)
    function, note = plain if version == "plain" else ours, f"{basis.shape[1]} coordinates of 3072 pixels" * spanned
    work = {"flops": counted(function), "bytes": least_bytes(n, (3072, 1000, 1000, 1), x.element_size())}
    if version == "products":
        function, note = products(function), "the matrix products of the step in pixels, alone"
    if DEVICE.type == "cuda":
        function = replayed(function)
    rounding(dtype)
    measure(function, "step", version, {"candidates": n}, dtype, apart=True, note=note, **work)


@pytest.mark.skipif(DEVICE.type == "cuda" or os.cpu_count() < 2, reason="needs a processor of two cores or more")
@pytest.mark.parametrize("number", [1, 2])
@pytest.mark.parametrize("width", [200, 1000])
@pytest.mark.parametrize("n", [20, 50, 100, 200])
def test_threads(n, width, number, measure, request):
    request.addfinalizer(partial(torch.set_num_threads, torch.get_num_threads()))
    recipe = networks.perceptron("signed", width, width)._replace(start=3072**-0.5)
    network = networks.change(networks.initial(recipe, 3072, 0, 1, DEVICE), torch.Tensor.float)
    function, _ = compare(network, normal(n).float(), torch.linspace(-1, 1, n, device=DEVICE))
    work = {"flops": counted(function), "bytes": least_bytes(n, (3072, width, width, 1)), "note": "a step in pixels"}
    torch.set_num_threads(number)
    name = f"{number} thread{'s' * (number > 1)}"
    measure(function, "threads", name, {"candidates": n, "width": width}, "float32", **work)


@pytest.mark.parametrize("kind", ["float32", "float64"] + ["bfloat16", "tf32"] * (DEVICE.type == "cuda"))
def test_limits_product(kind, measure, rounding):
    """What the machine can do at most: the product of two large matrices."""
    rounding(kind)
    n = 2048 if DEVICE.type == "cpu" else 8192  # a GPU is not busy with less
    a, b = torch.rand(2, n, n, device=DEVICE).to(getattr(torch, kind, torch.float32))
    measure(lambda: a @ b, "limits", kind, {"rows": n}, kind, apart=True, flops=2 * n**3)


def test_limits_copy(measure):
    """And a copy of much memory."""
    a = torch.rand(64 * 2**20, device=DEVICE)  # 256 MiB, more than a cache
    b = torch.empty_like(a).zero_()  # its pages are there: a clone would wait for new ones
    measure(lambda: b.copy_(a), "limits", "copy", {"megabytes": 256}, "float32", bytes=2 * a.nbytes)
