"""How steps run: threads, precision and memory, by size and device; one step many times, on a GPU as one CUDA graph.

A step is a function without arguments that reads and writes the same tensors each time; its number is one of them. It
asks for no value on the way, so that a GPU never waits for the processor.
"""

import os
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path

import torch

from utils.kernels.products import by_mkl

SMALL = 3e7  # operations, of some 0.3 ms, below which a second thread saves little, and waits if others use its core
LOOK = {"cpu": 1, "cuda": 50}  # steps between two looks at whether to stop: a GPU waits at each
STRIDE = 10  # steps in a graph: each start of one costs some 10 µs


def run(step, tensors, count, ended=lambda: False, each=lambda n: None, graph=True):
    """Take a step `count` times, or until `ended()`, for one that changes these tensors; `each(n)` after n more steps.

    A GPU repeats the `graph` that it captured of the step, and is asked less often whether to stop.
    """

    def take(n):
        return step()

    most = 1
    if graph and tensors[0].is_cuda:
        take = replayed(step, tensors)
        most = LOOK["cuda"]
    while count > 0 and not ended():
        take(n := min(most, count))
        each(n)
        count -= n


def replayed(step, tensors):
    """A function that takes n steps as a GPU captured them, in strides, the rest singly; tensors stay as they were."""
    before = [part.clone() for part in tensors]
    graphs = {}
    for size in (
        STRIDE,
        1,
    ):  # both graphs share the memory for what is between, since they never run at once
        graphs[size] = capture(step, size, next((graph.pool() for graph in graphs.values()), None))
    for part, value in zip(tensors, before):
        part.copy_(value)

    def take(n):
        for size, graph in graphs.items():
            for _ in range(n // size):
                graph.replay()
            n %= size

    return take


def capture(step, n, pool=None):
    """A CUDA graph of n steps, in the memory of a `pool`, or one of its own; it does not keep the step's tensors."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):  # libraries take their memory
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, pool=pool):
        for _ in range(n):
            step()
    return graph


@contextmanager
def tuned(x, network):
    """For steps over images x (…, n, d): one thread, and products by MKL, if they are known to be small."""
    threads = torch.get_num_threads()
    operations = 12 * x[..., 0].numel() * sum(layer.weight.shape[-2:].numel() for layer in network)
    small = x.device.type == "cpu" and 0 < operations < SMALL
    with by_mkl() if small else nullcontext():
        torch.set_num_threads(1 if small else threads)
        try:
            yield
        finally:
            torch.set_num_threads(threads)


def room(device="cpu"):
    """The free memory of a GPU, or the whole memory of this machine, or of what it lends us, in bytes."""
    if torch.device(device).type == "cuda":
        kept = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(
            device
        )  # for torch's next tensors
        return torch.cuda.mem_get_info(device)[0] + kept
    own = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    with suppress(OSError, ValueError):  # no container, or one without a limit
        own = min(own, int(Path("/sys/fs/cgroup/memory.max").read_text()))
    with suppress(ImportError):  # no ulimit on Windows
        import resource

        limits = [
            resource.getrlimit(kind)[0] for kind in (resource.RLIMIT_AS, resource.RLIMIT_DATA)
        ]
        own = min([own, *(limit for limit in limits if limit != resource.RLIM_INFINITY)])
    return own


def full(error):
    """Whether an error says that something does not fit into the memory, of a GPU or of this machine."""
    words = "can't allocate memory", "Storage size calculation overflowed"  # of torch, on a CPU
    return isinstance(error, torch.OutOfMemoryError | MemoryError) or any(
        word in str(error) for word in words
    )


def needed(network, n):
    """About how many bytes a step needs for n candidates: ten tensors like a layer's inputs and outputs, two Grams."""
    sizes = network[0].weight.shape[-1] + sum(layer.weight.shape[-2] for layer in network)
    return network[0].weight.element_size() * (10 * n * sizes + 2 * n * n)


def most(network, device):
    """The largest number of candidates for which a step fits into what is free: `needed` is a parabola in n."""
    # a·n² + b·n numbers
    a = 2
    b = needed(network, 1) / network[0].weight.element_size() - 2
    there = room(device) / network[0].weight.element_size()
    return int(((b**2 + 4 * a * there) ** 0.5 - b) / (2 * a))
