"""What a step costs, counted by hand and by torch; the rounding of factors, and the record of times."""

import json
import math

import pytest
import torch

from conftest import chapter_functions, drawn, refused
from lab import speed
from training import images
from utils import networks
from utils.kernels import naive
from utils.kernels.coefficients import Signed
from utils.kernels.residual import Stationarity, cheaper_share, direct_share, gram_share

ROW = {"kernel": "step", "version": "plain", "size": {"candidates": 2}, "dtype": "float32"}
STEP = {"extra_info": ROW | {"note": ""}, "stats": {"median": 0.5}}
LIMIT = {
    "extra_info": {"kernel": "limits", "version": "float32", "flops": 16e9, "bytes": None},
    "stats": {"min": 2.0},
}
ABOUT = {"device": "cpu", "processor": "any", "cores": 2, "threads": 2}
RECORD = {"machine_info": ABOUT, "benchmarks": [STEP, LIMIT]}


@pytest.fixture(scope="module")
def chapter():
    return chapter_functions("inside-the-solver")


@pytest.mark.parametrize("widths", [(3, 2, 1), (30, 20, 1), (30, 8, 9, 1), (12, 5, 6, 7, 1)])
def test_all_versions_of_a_step_agree_and_torch_counts_what_the_formula_counts(chapter, widths):
    network = networks.initial(networks.perceptron("signed", *widths[1:-1]), widths[0], 0)
    network, given = networks.change(network, torch.Tensor.double), (drawn(4, widths[0]), drawn(4))
    value, *gradients = naive.residual(naive.module_of(network), *given, 30.0)
    for share in (gram_share, direct_share, cheaper_share):
        step = Stationarity(network, Signed(), 30.0, share)
        torch.testing.assert_close([step(*given).value, *step(*given)[2:]], [value, *gradients])
    assert speed.counted(step, *given) == chapter["operations"](4, widths)
    assert chapter["least_bytes"](2, (3, 2, 1), 8) == 8 * (6 + 2 + 2 + 12 + 4)


@pytest.mark.parametrize("bits", [7, 10])
def test_factors_are_rounded_to_the_nearest_and_ties_to_the_even_one(chapter, bits):
    unit, rounded = 2.0**-bits, chapter["round_bits"]
    given = torch.tensor([1, 0.5, 1.5, 0.5 + 1e-4, 0.5 - 1e-4]) * unit + 1
    wanted = torch.tensor([1, 0, 2, 1, 0]) * unit + 1
    for scale in (1.0, -1.0, 2.0**20, -(2.0**-40), math.inf):
        assert torch.equal(rounded(scale * given, bits), scale * wanted)
    noise = torch.randn(1000, generator=torch.Generator().manual_seed(0))
    assert bits != 7 or torch.equal(rounded(noise, 7), noise.bfloat16().float())


def test_every_product_of_matrices_is_rounded_and_nothing_else(chapter):
    a, b, c = torch.randn(3, 2, 3, 3, generator=torch.Generator().manual_seed(0))
    mode = chapter["Rounded"](7)
    a7, b7 = (chapter["round_bits"](part, 7) for part in (a, b))
    with mode:
        found = [a @ b.mT, torch.baddbmm(c, a, b), torch.addmm(c[0], a[0], b[0]), a * b + c]
        double = a.double() @ b.double()  # is left alone
    wanted = [a7 @ b7.mT, c + a7 @ b7, c[0] + a7[0] @ b7[0], a * b + c]
    torch.testing.assert_close([*found, double], [*wanted, a.double() @ b.double()])
    assert mode.products == 4 and not torch.equal(found[0], a @ b.mT)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Where the chapter looks for records."""
    monkeypatch.setattr(images, "DATA", tmp_path)
    (tmp_path / "speed").mkdir()
    return tmp_path / "speed"


def test_a_record_is_read_by_kernel_version_size_and_precision(folder):
    (folder / "cpu.json").write_text(json.dumps(RECORD))
    cpu = speed.load("cpu")
    assert cpu.machine == ["any", 2, 2] and cpu.limits == {"float32": 8e9}
    assert cpu.row("step", "plain", candidates=2) == STEP["extra_info"] | {"seconds": 0.5}
    assert cpu.took("step", "plain", candidates=2) == 0.5
    said = refused(cpu.row, "step", "plain", "float64", candidates=2)
    assert "no ['step', 'plain', 'float64'" in said and "make bench RECORD=" in said


@pytest.mark.parametrize("content", ["{", {"machine_info": {}}, {"benchmarks": [ROW]}])
def test_a_damaged_record_is_said_in_one_sentence(folder, content):
    text = content if content == "{" else json.dumps(RECORD | content)
    (folder / "cpu.json").write_text(text)
    assert "cannot be read" in refused(speed.load, "cpu")
