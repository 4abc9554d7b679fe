"""How steps run: threads, precision and memory, by size and device; one step many times, on a GPU as one CUDA graph.

A step is a function without arguments that reads and writes the same tensors each time; its number is one of them. It
asks for no value on the way, so that a GPU never waits for the processor.
"""

from contextlib import contextmanager, nullcontext

import torch

from utils.kernels.products import LIBRARIES, multiply

SMALL = 3e7  # operations, of some 0.3 ms, below which a second thread saves little, and waits if others use its core
LOOK = {"cpu": 1, "cuda": 50}  # steps between two looks at whether to stop: a GPU waits at each
STRIDE = 10  # steps in a graph: each start of one costs some 10 µs


def run(
    step, tensors, count, ended=lambda: False, each=lambda n: None, graph=True, at_once=LOOK["cuda"]
):
    """Take a step `count` times, or until `ended()`, for one that changes these tensors; `each(n)` after n more steps.

    A GPU repeats the `graph` that it captured of the step, so many times `at_once`.
    """
    most = 1

    def take(n):
        step()

    if graph and count and tensors[0].is_cuda:
        take = replayed(step, tensors)
        most = at_once
    while count > 0 and not ended():
        n = min(most, count)
        take(n)
        each(n)
        count -= n


def replayed(step, tensors):
    """A function that takes n steps as a GPU captured them, in strides, the rest singly; tensors stay as they were.

    The two graphs never run at once, and so share the memory for what is between.
    """
    before = [part.clone() for part in tensors]
    strides = capture(step, STRIDE)
    graphs = {STRIDE: strides, 1: capture(step, 1, strides.pool())}
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
    """For steps over images x (…, n, d): one thread, and products by MKL, if they are known to be small.

    oneDNN needs some 10 µs for any product.
    """
    threads = torch.get_num_threads()
    operations = 12 * x[..., 0].numel() * sum(layer.weight.shape[-2:].numel() for layer in network)
    small = x.device.type == "cpu" and 0 < operations < SMALL
    with multiply("cpu", LIBRARIES["mkl"]) if small else nullcontext():
        torch.set_num_threads(1 if small else threads)
        try:
            yield
        finally:
            torch.set_num_threads(threads)


def full(error):
    """Whether an error says that something does not fit into the memory, of a GPU or of this machine."""
    words = "can't allocate memory", "Storage size calculation overflowed"  # of torch, on a CPU
    return isinstance(error, torch.OutOfMemoryError | MemoryError) or any(
        word in str(error) for word in words
    )
