"""Products of matrices: the library follows the processor's flags, and fewer digits find the same images."""

import pytest
import torch

from attacks import decoreco, starts
from conftest import refused, victim_of_twelve
from training import images
from utils import networks
from utils.kernels import products
from utils.kernels.similarity import ncc

MACHINES = {
    ("AuthenticAMD", "avx2 avx512f avx512_bf16"): "onednn",
    ("AuthenticAMD", "avx2"): "mkl",
    ("AuthenticAMD", "avx512f amx_bf16"): "mkl",
    ("GenuineIntel", "avx512f"): "mkl",
}


@pytest.mark.parametrize("machine, library", MACHINES.items())
def test_the_library_follows_the_processors_flags(machine, library):
    cpuinfo = "vendor_id\t: {}\nflags\t\t: fpu {}\n".format(*machine)
    assert products.library_of(2 * cpuinfo) == library and products.library_of("") == "mkl"


@pytest.mark.parametrize("library", sorted({"mkl", products.LIBRARY}))
def test_a_library_multiplies_exactly_and_the_one_before_comes_back(library):
    a, b = (starts.normal(n, 400, 1.0, n) for n in (300, 200))
    exact, before = a @ b.T, products.MATMUL["cpu"].fp32_precision
    with products.multiply("cpu", products.LIBRARIES[library]):
        assert (a.float() @ b.float().T - exact).norm() < 2e-6 * exact.norm()
    assert products.MATMUL["cpu"].fp32_precision == before


def test_a_precision_is_that_of_the_context_and_tf32_a_gpus():
    assert products.rough("cpu", "TF32") == "exact" and products.rough("cuda", "TF32") == "TF32"
    with products.precision("bfloat16"):
        assert products.rough("cpu", "exact") == products.rough("cuda", "TF32") == "bfloat16"
    assert products.rough("cuda", "exact") == "exact"
    assert "PRECISION is 'half'" in refused(products.precision("half").__enter__)


PRODUCTS = {
    "matrices": lambda a, b, c: a.expand(3, -1, -1) @ b,
    "a sum": lambda a, b, c: torch.addmm(c, a, b, beta=0.5, alpha=2),
    "a gradient": torch.func.grad(lambda a, b, c: (a @ b).square().sum()),
}


@pytest.mark.parametrize("function", PRODUCTS.values(), ids=PRODUCTS)
def test_rounded_factors_give_the_product_to_three_digits_and_doubles_stay(function):
    given = [starts.normal(n, m, 1.0, n) for n, m in ((30, 40), (40, 50), (30, 50))]
    exact = function(*given)
    with products.use_precision("bfloat16"):
        single, double = function(*(part.float() for part in given)), function(*given)
    off = (single - exact).norm() / exact.norm()
    assert single.dtype == torch.float32 and 1e-4 < off < 1e-2 and torch.equal(double, exact)


def test_fewer_digits_find_the_same_images():
    victim = victim_of_twelve("signed", 40, 30, epochs=2500)
    start, basis = starts.normal(24, 3072, 0.0197, 0), networks.span(victim.released.network)
    settings = decoreco.ADAM._replace(iterations=200)
    found = {}
    for precision in ("exact", "bfloat16"):
        with products.precision(precision):
            found[precision] = decoreco.attack(victim.released, start, settings, basis=basis).images
    secret = images.split(images.load("photos"), 12, 12, 0).secret.images - victim.mean
    ours, theirs = (ncc(secret, x).abs().amax(1) for x in found.values())
    assert not torch.equal(*found.values()) and ours.max() > 0.95
    torch.testing.assert_close(theirs, ours, rtol=0, atol=0.005)
