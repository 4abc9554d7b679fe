"""Where the arithmetic runs: threads, precision and memory, chosen by size and device. How steps run, `graphs` says."""

import os
from contextlib import contextmanager, suppress
from pathlib import Path

import torch

from utils.kernels import graphs

SMALL = 3e7  # operations, of some 0.3 ms, below which a second thread saves little, and waits if others use its core


@contextmanager
def tuned(x, network, rounded=False):
    """For steps over images x (…, n, d): one thread if they are small, and if `rounded` TF32 on a GPU; undone after."""
    threads, precision = torch.get_num_threads(), torch.get_float32_matmul_precision()
    operations = 12 * x[..., 0].numel() * sum(layer.weight.shape[-2:].numel() for layer in network)
    if x.device.type == "cpu" and operations < SMALL:
        torch.set_num_threads(1)
    if rounded and x.device.type == "cuda" and graphs.way() != "plain":
        torch.set_float32_matmul_precision("high")
    try:
        yield
    finally:
        torch.set_num_threads(threads)
        torch.set_float32_matmul_precision(precision)


def room(device="cpu"):
    """The free memory of a GPU, or the whole memory of this machine, or of what it lends us, in bytes."""
    if torch.device(device).type == "cuda":
        kept = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(
            device
        )  # by torch, for its next tensors
        return torch.cuda.mem_get_info(device)[0] + kept
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


def most(network, device):
    """The largest number of candidates for which a step fits into what is free: `needed` is a parabola in n."""
    a, b = 2, needed(network, 1) / network[0].weight.element_size() - 2  # a·n² + b·n numbers
    there = room(device) / network[0].weight.element_size()
    return int(((b**2 + 4 * a * there) ** 0.5 - b) / (2 * a))
