"""Which library multiplies matrices of single precision on a processor, and with how many digits.

Torch asks MKL, which uses half of the vector width of an AMD processor with AVX-512; oneDNN, also in torch, uses all.
The processor's flags decide, or the environment variable PRODUCTS, and never a timing: load must not change digits.
"""

import os
import re
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from utils.errors import InputError, choose

torch.set_flush_denormal(
    True
)  # a CPU is up to six times slower with numbers below 1e-38; later threads inherit this

LIBRARIES = "mkl", "onednn"
PRECISIONS = (
    "exact",
    "bfloat16",
    "TF32",
)  # of factors, and of results in bfloat16; sums have all digits


def flags(path=Path("/proc/cpuinfo")):
    """The maker and the abilities of this processor, as a set of words; none where the system does not tell."""
    with suppress(OSError):
        return {
            *" ".join(
                re.findall(r"^(?:vendor_id|flags)\s*:(.*)", path.read_text(), re.MULTILINE)
            ).split()
        }
    return set()


def library_of(abilities, wanted=""):
    """MKL or oneDNN, by the processor's flags or as `wanted`; InputError where oneDNN would round (by AMX)."""
    if wanted and choose("PRODUCTS", wanted, LIBRARIES) == "onednn" and "amx_bf16" in abilities:
        raise InputError(
            "PRODUCTS is 'onednn', which rounds to bfloat16 on this processor: leave it away."
        )
    fits = {"AuthenticAMD", "avx512f"} <= abilities and "amx_bf16" not in abilities
    able = torch.backends.mkldnn.is_available() and setting() is not None
    return (wanted or ("onednn" if fits else "mkl")) if able else "mkl"


def setting():
    """What torch lets us set of products by oneDNN; None in a torch that has no such setting."""
    matmul = getattr(torch.backends.mkldnn, "matmul", None)
    return matmul if hasattr(matmul, "fp32_precision") else None


def multiply_by(library):
    """From now on products of single precision are made by this library; the name of the one before."""
    if (matmul := setting()) is None:
        return "mkl"
    before = "onednn" if matmul.fp32_precision == "bf16" else "mkl"
    matmul.fp32_precision = "bf16" if library == "onednn" else "ieee"
    return before


LIBRARY = library_of(flags(), os.environ.get("PRODUCTS", ""))
multiply_by(LIBRARY)


@contextmanager
def by_mkl():
    """For small products: oneDNN needs some 10 µs for any."""
    before = multiply_by("mkl")
    try:
        yield
    finally:
        multiply_by(before)


class Bfloat16(TorchDispatchMode):
    """While it lasts, products of single-precision matrices have factors and results of eight bits, and exact sums."""

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        product = {"mm": torch.mm, "bmm": torch.bmm, "addmm": torch.mm, "baddbmm": torch.bmm}.get(
            operation.overloadpacket.__name__
        )
        if product is None or args[-1].dtype != torch.float32:
            return operation(*args, **(kwargs or {}))
        values = product(*(factor.bfloat16() for factor in args[-2:])).float()
        if len(args) == 2:
            return values
        factors = {"beta": 1, "alpha": 1} | (kwargs or {})
        return values.mul_(factors["alpha"]).add_(args[0], alpha=factors["beta"])


def possible(precision, device):
    """The precision on a device: TF32 is a GPU's, and elsewhere products are exact."""
    gpu = torch.device(device).type == "cuda"
    return choose("PRECISION", precision, PRECISIONS) if gpu or precision != "TF32" else "exact"


def use_precision(precision):
    """A context in which factors have as many digits as a precision says."""
    return (
        Bfloat16() if precision == "bfloat16" else tf32() if precision == "TF32" else nullcontext()
    )


@contextmanager
def tf32():
    """A GPU rounds the factors of single-precision products to TF32."""
    matmul = torch.backends.cuda.matmul
    before, matmul.fp32_precision = matmul.fp32_precision, "tf32"
    try:
        yield
    finally:
        matmul.fp32_precision = before
