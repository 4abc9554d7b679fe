"""Which library multiplies matrices of single precision on a processor, and with how many digits.

Torch asks MKL, which uses half of the vector width of an AMD processor with AVX-512; oneDNN, also in torch, uses all,
which halves a step's time. The processor's flags decide, or PRODUCTS=mkl in the environment, and never a timing: load
must not change digits.
"""

import os
from contextlib import contextmanager, nullcontext, suppress
from contextvars import ContextVar
from pathlib import Path

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from utils.errors import choose

# A CPU is up to six times slower with numbers below 1e-38; later threads inherit this.
torch.set_flush_denormal(True)

PRECISIONS = (
    "exact",
    "bfloat16",
    "TF32",
)  # of factors, and of results in bfloat16; sums have all digits
LIBRARIES = {
    "mkl": "ieee",
    "onednn": "bf16",
}  # how torch is told; without AMX, oneDNN rounds nothing
MATMUL = {"cpu": torch.backends.mkldnn.matmul, "cuda": torch.backends.cuda.matmul}
wanted: ContextVar[str | None] = ContextVar("wanted", default=None)


def library_of(cpuinfo):
    """MKL or oneDNN, by the maker and the flags of a processor, as Linux tells them in a text."""
    words = set(cpuinfo.split())
    fits = {"AuthenticAMD", "avx512f"} <= words and "amx_bf16" not in words
    return "onednn" if fits and torch.backends.mkldnn.is_available() else "mkl"


def read_cpuinfo():
    """What the system tells of this processor; nothing, where it is not Linux."""
    with suppress(OSError):
        return Path("/proc/cpuinfo").read_text()
    return ""


FASTEST = library_of(read_cpuinfo())
LIBRARY = choose("PRODUCTS", os.environ.get("PRODUCTS") or FASTEST, ("mkl", FASTEST))
MATMUL["cpu"].fp32_precision = LIBRARIES[LIBRARY]


@contextmanager
def multiply(device, way):
    """While it lasts, a device multiplies in this way: one of LIBRARIES' values, or on a GPU tf32."""
    before = MATMUL[device].fp32_precision
    MATMUL[device].fp32_precision = way
    try:
        yield
    finally:
        MATMUL[device].fp32_precision = before


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


@contextmanager
def precision(name):
    """While it lasts, attacks round the products of all but their last steps to a precision of PRECISIONS."""
    token = wanted.set(choose("PRECISION", name, PRECISIONS))
    try:
        yield
    finally:
        wanted.reset(token)


def rough(device, otherwise):
    """The precision of steps that need not be exact: the caller's, or `otherwise`; TF32 is a GPU's alone."""
    name = wanted.get() or otherwise
    return "exact" if name == "TF32" and torch.device(device).type != "cuda" else name


def use_precision(name):
    """A context in which factors have as many digits as a precision says."""
    contexts = {"bfloat16": Bfloat16, "TF32": lambda: multiply("cuda", "tf32")}
    return contexts.get(name, nullcontext)()
