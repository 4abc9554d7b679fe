"""Products of matrices: the library follows the processor's flags, and fewer digits find the same images."""

import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
import torch

from attacks import decoreco, starts, unmixing
from conftest import refused, victim_of_twelve
from training import images
from utils import networks
from utils.kernels import products
from utils.kernels.layers import Layer
from utils.kernels.similarity import ncc
from utils.networks import Released

ROOT = Path(__file__).parents[1]
CPUINFO = "processor : 0\nvendor_id\t: {}\nflags\t\t: fpu {}\n\nprocessor : 1\nvendor_id\t: {}\nflags\t\t: fpu {}\n"
MACHINES = {
    ("AuthenticAMD", "avx2 avx512f avx512_bf16"): "onednn",
    ("AuthenticAMD", "avx2"): "mkl",
    ("AuthenticAMD", "avx512f amx_bf16"): "mkl",
    ("GenuineIntel", "avx512f"): "mkl",
    ("GenuineIntel", "avx512f amx_bf16"): "mkl",
}


@pytest.mark.parametrize("machine", MACHINES)
def test_the_library_follows_the_processors_flags(machine, tmp_path, monkeypatch):
    (tmp_path / "cpuinfo").write_text(CPUINFO.format(*machine, *machine))
    known = products.flags(tmp_path / "cpuinfo")
    assert (
        known == {*" ".join(machine).split(), "fpu"}
        and products.library_of(known) == MACHINES[machine]
    )
    assert products.library_of(known, "mkl") == "mkl"
    if "amx_bf16" in known:
        assert "rounds to bfloat16" in refused(products.library_of, known, "onednn")
    else:
        assert products.library_of(known, "onednn") == "onednn"
    monkeypatch.setattr(products, "setting", lambda: None)  # an older torch
    assert products.library_of(known) == products.multiply_by("onednn") == "mkl"
    assert products.flags(tmp_path / "none") == set() and products.library_of(set()) == "mkl"
    assert "PRODUCTS is 'blas', but it must be one of" in refused(
        products.library_of, set(), "blas"
    )
    assert "PRECISION is 'half'" in refused(products.possible, "half", "cpu")
    assert (
        products.possible("TF32", "cpu") == "exact" and products.possible("TF32", "cuda") == "TF32"
    )


EXACT = [*products.LIBRARIES][: 1 if "amx_bf16" in products.flags() else 2]


@pytest.mark.parametrize("library", EXACT)
def test_the_environment_forces_a_library_and_small_products_are_mkls(library):
    command = (
        "from utils.kernels import products; print(products.LIBRARY, products.multiply_by('mkl'))"
    )
    said = subprocess.run([sys.executable, "-c", command], env={"PRODUCTS": library, "PYTHONPATH": str(ROOT)},
                          capture_output=True, text=True, check=True)  # fmt: skip
    assert said.stdout.split() == [library, library]
    a, b = (starts.normal(n, 400, 1.0, n) for n in (300, 200))
    exact, before = a.double() @ b.double().T, products.multiply_by(library)
    try:
        assert (a.float() @ b.float().T - exact).norm() < 2e-6 * exact.norm()
        with products.by_mkl():
            assert products.multiply_by("mkl") == "mkl"
        assert products.multiply_by("mkl") == library
    finally:
        products.multiply_by(before)


PRODUCTS = {
    "a matrix": lambda a, b, c: a @ b,
    "matrices": lambda a, b, c: a.expand(3, -1, -1) @ b,
    "a sum": lambda a, b, c: torch.addmm(c, a, b, beta=0.5, alpha=2),
    "sums": lambda a, b, c: torch.baddbmm(c[None], a[None], b[None]),
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


@pytest.mark.parametrize("attack", ["stationarity", "unmixing"])
def test_fewer_digits_find_the_same_images(attack):
    m = 12 if attack == "stationarity" else 30
    secret = images.split(images.load("photos"), m, m, 0).secret.images
    secret = secret - secret.mean(0)
    if attack == "stationarity":
        released = victim_of_twelve("signed", 40, 30, epochs=2500).released
        start, basis = starts.normal(24, 3072, 0.0197, 0), networks.span(released.network)
        run = partial(decoreco.attack, released, start, basis=basis, iterations=300, seed=0)
    else:
        mixing, recipe = starts.normal(60, m, 0.01, 0), networks.perceptron("signed", 60)
        run = partial(
            unmixing.attack,
            Released((Layer(mixing @ secret, None),), torch.zeros(m), recipe),
            (32, 32, 3),
        )
    exact, rounded = run(precision="exact").images, run(precision="bfloat16").images
    ours, theirs = (ncc(secret, found).abs().amax(1) for found in (exact, rounded))
    assert not torch.equal(exact, rounded) and ours.max() > 0.95
    torch.testing.assert_close(theirs, ours, rtol=0, atol=0.005)
