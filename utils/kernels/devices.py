"""Where and how the arithmetic runs: threads, memory and compiled steps, chosen by size and device.

KERNELS in the environment forces a way: `plain` is torch as it stands, in full precision; `compiled` compiles on a CPU,
too; `auto` compiles on a GPU, and lets it round the factors of single-precision products to TF32.
"""

import os
import warnings
from contextlib import contextmanager, suppress
from pathlib import Path

import torch

WAYS = "auto", "plain", "compiled"
LOOK = {"cpu": 1, "cuda": 50}  # steps between two looks at whether to stop: a GPU would wait at each
SMALL = 3e7  # operations, of some 0.3 ms, below which a second thread saves little, and waits if others use its core


def way():
    """What KERNELS asks for."""
    return os.environ.get("KERNELS", "auto")


@contextmanager
def tuned(x, network, rounded=False):
    """For steps over images x (…, n, d): one thread if they are small, and if `rounded` TF32 on a GPU; undone after."""
    threads, precision = torch.get_num_threads(), torch.get_float32_matmul_precision()
    operations = 12 * x[..., 0].numel() * sum(layer.weight.shape[-2:].numel() for layer in network)
    if x.device.type == "cpu" and operations < SMALL:
        torch.set_num_threads(1)
    if rounded and x.device.type == "cuda" and way() != "plain":
        torch.set_float32_matmul_precision("high")
    try:
        yield
    finally:
        torch.set_num_threads(threads)
        torch.set_float32_matmul_precision(precision)


def compiled(function):
    """The function of tensors as one graph where `way` asks for it, if its first results are those of the function."""
    chosen = []

    def call(*tensors):
        if not chosen:
            wanted = way() == "compiled" or (way() == "auto" and tensors[0].is_cuda)
            chosen.append(checked(function, tensors) if wanted else function)
        return chosen[0](*tensors)

    return call


def checked(function, tensors, tolerance=1e-2):
    """The compiled function; or, said once, the function itself if that fails or gives other numbers."""
    try:
        torch._dynamo.config.recompile_limit = 64  # a graph for each rule and shape
        fast = torch.compile(function, fullgraph=True, dynamic=False)
        ours, plain = (torch.cat([part.flatten() for part in made(*tensors)[1:]]) for made in (fast, function))
        if (ours - plain).norm() <= tolerance * plain.norm():
            return fast
        reason = "it gave other numbers"
    except Exception as error:  # no compiler, no Triton, an old GPU or driver: each has an error of its own
        reason = type(error).__name__
    warnings.warn(f"The step cannot be compiled here ({reason}): plain torch is used, which is slower.", stacklevel=4)
    return function


def room(device="cpu"):
    """The free memory of a GPU, or the whole memory of this machine, or of what it lends us, in bytes."""
    if torch.device(device).type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    own = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    with suppress(OSError, ValueError):  # no container, or one without a limit
        own = min(own, int(Path("/sys/fs/cgroup/memory.max").read_text()))
    with suppress(ImportError):  # no ulimit on Windows
        import resource

        limits = [resource.getrlimit(kind)[0] for kind in (resource.RLIMIT_AS, resource.RLIMIT_DATA)]
        own = min([own, *(limit for limit in limits if limit != resource.RLIM_INFINITY)])
    return own


def needed(network, n):
    """About how many bytes a step needs for n candidates: ten tensors like a layer's inputs and outputs, two Grams."""
    sizes = network[0].weight.shape[-1] + sum(layer.weight.shape[-2] for layer in network)
    return network[0].weight.element_size() * (10 * n * sizes + 2 * n * n)
