"""What the machine can do at most: the product of two large matrices, and a copy of much memory."""

import pytest
import torch
from problems import DEVICE

KINDS = ["float32", "float64"] + ["bfloat16", "tf32"] * (DEVICE.type == "cuda")


@pytest.mark.parametrize("kind", KINDS)
def test_limits_product(kind, measure, monkeypatch):
    if DEVICE.type == "cuda":
        monkeypatch.setattr(torch.backends.cuda.matmul, "allow_tf32", kind == "tf32")
    n = 2048 if DEVICE.type == "cpu" else 8192  # a GPU is not busy with less
    a, b = torch.rand(2, n, n, device=DEVICE).to(getattr(torch, kind, torch.float32))
    measure(lambda: a @ b, "limits", kind, {"rows": n}, kind, flops=2 * n**3)


def test_limits_copy(measure):
    a = torch.rand(64 * 2**20, device=DEVICE)  # 256 MiB, more than a cache
    b = torch.empty_like(a).zero_()  # its pages are there: a clone would wait for new ones
    measure(lambda: b.copy_(a), "limits", "copy", {"megabytes": 256}, "float32", bytes=2 * a.nbytes)
