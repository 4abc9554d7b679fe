"""A step that is taken many times: plainly, compiled, or captured once by a GPU, which then repeats it by itself.

A step is a function without arguments that reads and writes the same tensors each time; its number is one of them. It
asks for no value on the way, so that a GPU never waits for the processor. KERNELS in the environment forces a way:
`plain` is torch as it stands, in full precision; `graph` a CUDA graph of it; `compiled` compiles the step, and on a GPU
captures that; `auto` is `plain` on a CPU, and on a GPU what was faster, if the step is taken often.
"""

import os
import time
import warnings
from functools import partial

import torch

WAYS = "auto", "plain", "graph", "compiled"
LOOK = {"cpu": 1, "cuda": 50}  # steps between two looks at whether to stop: a GPU would wait at each
STRIDE = 10  # steps in a graph: each start of one costs some 10 µs
OFTEN = 10_000  # steps, from which the minute is well spent that compiling takes
SAME = 0.05  # of a tensor's norm: how far another way may be off after a step


def way():
    """What KERNELS asks for."""
    return os.environ.get("KERNELS", "auto")


def repeated(step, tensors, often=0, compiles=True, stride=STRIDE):
    """A function of n that takes a step n times, for one that changes these tensors; `often` says how many in all.

    Other ways than the plain one are taken if they leave the tensors as the step does, and else a warning says why not.
    What cannot be compiled (`compiles`), such as a step that differentiates by itself, is captured as it is. The
    function's `way` is the name of what was taken.
    """
    cuda, asked = tensors[0].is_cuda, way()
    if asked == "plain" or (asked == "auto" and not cuda):
        return plain(step)
    wanted = ["graph"] * (cuda and (asked != "compiled" or not compiles))
    wanted += ["compiled"] * (compiles and (asked == "compiled" or (asked == "auto" and often >= OFTEN)))
    makes = {"graph": partial(captured, stride=stride), "compiled": captured_compiled if cuda else compiled}
    ways = [run for name in wanted if (run := agreeing(name, makes[name], step, tensors, stride if cuda else 1))]
    return min(ways, key=lambda run: seconds(run, tensors)) if len(ways) > 1 else [*ways, plain(step)][0]


def plain(step):
    """Take the step as it stands."""

    def run(n):
        for _ in range(n):
            step()

    run.way = "plain"  # type: ignore[attr-defined]
    return run


def compiled(step):
    """Take the step as torch compiles it, as one graph without a break."""
    torch._dynamo.config.recompile_limit = 64  # a graph for each rule and shape
    return plain(torch.compile(step, fullgraph=True, dynamic=False))


def captured(step, stride=STRIDE):
    """Take the step as a GPU captured it: so many steps at a time, and the rest one by one.

    Both graphs share the memory for what is between, since they never run at once.
    """
    graphs: dict = {}
    for n in sorted({stride, 1}, reverse=True):
        graphs[n] = capture(step, n, next((graph.pool() for graph in graphs.values()), None))

    def run(n, kept=step):  # a graph reads and writes the step's tensors, and does not keep them itself
        for size, graph in graphs.items():
            for _ in range(n // size):
                graph.replay()
            n %= size

    return run


def captured_compiled(step):
    """Both."""
    torch._dynamo.config.recompile_limit = 64
    return captured(torch.compile(step, fullgraph=True, dynamic=False))


def capture(step, n, pool=None):
    """A CUDA graph of n steps, in the memory of a `pool`, or one of its own."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):  # libraries take their memory, the compiler its minute
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, pool=pool):
        for _ in range(n):
            step()
    return graph


def restored(function, tensors):
    """Call a function, then give these tensors back the values that they had before."""
    before = [part.clone() for part in tensors]
    try:
        return function()
    finally:
        for part, value in zip(tensors, before):
            part.copy_(value)


def after(run, tensors, n):
    """The values of the tensors after n steps, which are then undone."""

    def call():
        run(n)
        return [part.clone() for part in tensors]

    return restored(call, tensors)


def agreeing(name, make, step, tensors, stride):
    """What `make` makes of a step, if it leaves the tensors as the step does; else None, and a warning says why.

    Compared after a single step, and after `stride` of them and one more, so that every graph is replayed.
    """
    try:
        run = restored(lambda: make(step), tensors)
        if all(same(run, step, tensors, n) for n in {1, stride + (stride > 1)}):
            run.way = name
            return run
        reason = "it gave other numbers"
    except Exception as error:  # no compiler, no Triton, an old GPU or driver, no room: each has an error of its own
        reason = f"{type(error).__name__}: {error}".splitlines()[0][:200]
    made = {"graph": "captured", "compiled": "compiled"}[name]
    warnings.warn(f"The step cannot be {made} here ({reason}): a slower way is taken.", stacklevel=4)
    return None


def same(run, step, tensors, n):
    """Whether another way leaves the tensors as n plain steps do."""
    return all(map(close, after(run, tensors, n), after(plain(step), tensors, n)))


def close(ours, plainly):
    """Whether two tensors are the same but for rounding, and not finite at the same places."""
    finite = plainly.isfinite()
    if not torch.equal(finite, ours.isfinite()):
        return False
    ours, plainly = (torch.where(finite, part.double(), 0) for part in (ours, plainly))
    return bool((ours - plainly).norm() <= SAME * plainly.norm())


def seconds(run, tensors, n=5 * STRIDE):
    """How long n steps take, which are then undone; a step before them warms up."""

    def call():
        run(1)
        torch.cuda.synchronize()
        begun = time.perf_counter()
        run(n)
        torch.cuda.synchronize()
        return time.perf_counter() - begun

    return restored(call, tensors)
