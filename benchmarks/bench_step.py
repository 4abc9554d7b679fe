"""One evaluation of the residual of stationarity R and of its gradients, a step of an attack; and what bounds it."""

import os
from functools import cache, partial

import pytest
import torch
from problems import DEVICE, normal, regression, steps
from torch.utils._python_dispatch import TorchDispatchMode

from utils import networks
from utils.attacks import decoreco
from utils.kernels import step
from utils.kernels.cost import counted, least_bytes

PRODUCTS = "mm", "bmm", "addmm", "baddbmm"


class Recorded(TorchDispatchMode):
    """Notes the matrix products that are done meanwhile, with random matrices of the same shapes and order."""

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        if operation.overloadpacket.__name__.removesuffix("_") in PRODUCTS:
            self.products.append(partial(operation, *map(torch.rand_like, args)))
        return operation(*args, **(kwargs or {}))


def products(function):
    """A function that does the matrix products of a call, and nothing else."""
    with Recorded() as recorded:
        recorded.products = []
        function()
    return lambda: [product() for product in recorded.products]


@cache
def halfway(n, dtype):
    """A network 3072-1000-1000-1, n candidates on their way and their λ, and a basis of the row space of W₁."""
    victim, to = regression(1000, 1000, epochs=500), getattr(torch, dtype)
    basis = networks.span(victim.network, 0.0)
    found = decoreco.attack(victim, normal(n), basis=basis, iterations=30, range_weight=0.0)
    network = networks.change(victim.network, lambda p: p.to(to))
    return network, found.images.to(to), found.coefficients.to(to), basis.to(to)


def replayed(function):
    """The same as a GPU repeats it, captured at the first call, when it is known how products are rounded."""
    graph = cache(lambda: step.capture(function, 1))
    return lambda: graph().replay()


@pytest.mark.parametrize("dtype", ["float32", "float64"] + ["tf32"] * (DEVICE.type == "cuda"))
@pytest.mark.parametrize("version", ["pixels", "coordinates", "products", "plain"])
@pytest.mark.parametrize("n", [50, 200, 500, 1000])
def test_step(n, version, dtype, measure):
    network, x, coefficients, basis = halfway(n, dtype.replace("tf", "float"))
    spanned = version == "coordinates"
    ours, plain = steps(network, x, coefficients, basis if spanned else None)
    function = plain if version == "plain" else ours
    work = {"flops": counted(function), "bytes": least_bytes(n, (3072, 1000, 1000, 1), x.element_size())}
    note = f"{basis.shape[1]} coordinates of 3072 pixels" if spanned else ""
    if version == "products":
        function, note = products(function), "the matrix products of the step in pixels, alone"
    if DEVICE.type == "cuda":
        function = replayed(function)
    measure(function, "step", version, {"candidates": n}, dtype, apart=True, note=note, **work)


@pytest.mark.skipif(DEVICE.type == "cuda" or os.cpu_count() < 2, reason="needs a processor of two cores or more")
@pytest.mark.parametrize("number", [1, 2])
@pytest.mark.parametrize("width", [200, 1000])
@pytest.mark.parametrize("n", [20, 50, 100, 200])
def test_threads(n, width, number, measure, request):
    request.addfinalizer(partial(torch.set_num_threads, torch.get_num_threads()))
    recipe = networks.perceptron("signed", width, width)._replace(start=3072**-0.5)
    network = networks.change(networks.initial(recipe, 3072, 0, 1, DEVICE), torch.Tensor.float)
    function, _ = steps(network, normal(n).float(), torch.linspace(-1, 1, n, device=DEVICE))
    work = {"flops": counted(function), "bytes": least_bytes(n, (3072, width, width, 1)), "note": "a step in pixels"}
    torch.set_num_threads(number)
    name = f"{number} thread{'s' * (number > 1)}"
    measure(function, "threads", name, {"candidates": n, "width": width}, "float32", **work)


@pytest.mark.parametrize("kind", ["float32", "float64"] + ["bfloat16", "tf32"] * (DEVICE.type == "cuda"))
def test_limits_product(kind, measure):
    """What the machine can do at most: the product of two large matrices."""
    n = 2048 if DEVICE.type == "cpu" else 8192  # a GPU is not busy with less
    a, b = torch.rand(2, n, n, device=DEVICE).to(getattr(torch, kind, torch.float32))
    measure(lambda: a @ b, "limits", kind, {"rows": n}, kind, apart=True, flops=2 * n**3)


def test_limits_copy(measure):
    """And a copy of much memory."""
    a = torch.rand(64 * 2**20, device=DEVICE)  # 256 MiB, more than a cache
    b = torch.empty_like(a).zero_()  # its pages are there: a clone would wait for new ones
    measure(lambda: b.copy_(a), "limits", "copy", {"megabytes": 256}, "float32", bytes=2 * a.nbytes)
