"""One evaluation of the residual of stationarity R and of its gradients, which is a step of the second attack."""

import os
import warnings

import pytest
import torch
from problems import (
    DEVICE,
    DTYPES,
    PUBLISHED,
    TOLERANCES,
    agree,
    counted,
    halfway,
    our_step,
    plain_step,
    products,
    step_bytes,
    untrained,
)

from utils import networks
from utils.attacks import decoreco
from utils.kernels import devices
from utils.kernels.coefficients import Signed

LAYERS = {  # one variable at a time, the others 500 neurons, two hidden layers, one set: hidden layers, sets
    **{("width", width): ((width, width), 1) for width in (250, 500, 1000, 2000)},
    **{("depth", depth): ((500,) * depth, 1) for depth in (1, 2, 3)},
    **{("restarts", restarts): ((500, 500), restarts) for restarts in (1, 4, 16)},
}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("version", ["pixels", "coordinates", "products", "plain"])
@pytest.mark.parametrize("n", [50, 200, 500, 1000])
def test_step(n, version, dtype, measure):
    network, basis, x, coefficients = halfway(n)
    x, coefficients, basis = (part.to(DTYPES[dtype]) for part in (x, coefficients, basis))
    network, note = networks.change(network, lambda p: p.to(DTYPES[dtype])), ""
    if version == "coordinates":
        note = f"{basis.shape[1]} coordinates of 3072 pixels"
        function = our_step(networks.in_span(network, basis), x @ basis, coefficients)
    elif version == "plain":
        note = "as published" if dtype == "float64" else ""
        function = lambda: plain_step(network, x, coefficients)  # noqa: E731
    else:
        function = our_step(network, x, coefficients)
    flops = counted(function)
    if version == "products":
        function, note = products(function), "the matrix products of the step in pixels, alone"
    least = step_bytes(network, x)
    found = measure(function, "step", version, {"candidates": n}, dtype, flops=flops, bytes=least, note=note)
    if version in ("pixels", "coordinates"):
        theirs = plain_step(network, x, coefficients)
        agree(found.x_gradient, theirs[0] @ basis if version == "coordinates" else theirs[0], TOLERANCES[dtype])
        agree(found.coefficient_gradient, theirs[1], TOLERANCES[dtype])


@pytest.mark.parametrize("version", ["ours", "the residual alone", "compiled"])
@pytest.mark.parametrize("n", [50, 1000])
def test_objective(n, version, measure):
    """What an attack in the span evaluates at every step: the residual, and the penalty for pixels out of range."""
    network, basis, x, coefficients = halfway(n)
    x, coefficients, basis = (part.float() for part in (x @ basis, coefficients, basis))
    network = networks.change(network, torch.Tensor.float)
    weight = 0.0 if version == "the residual alone" else 1.0
    ours = function = decoreco.Objective(network, Signed(), PUBLISHED.sharpness, 0.3, weight, basis)
    if version == "compiled":
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            function = devices.checked(ours, (x, coefficients))
        if function is ours:
            pytest.skip("torch.compile does not work here")
    measure(lambda: function(x, coefficients), "objective", version, {"candidates": n}, "float32")


@pytest.mark.parametrize("version", ["pixels", "plain"])
@pytest.mark.parametrize("variable, number", LAYERS)
def test_scaling(variable, number, version, measure):
    hidden, restarts = LAYERS[variable, number]
    network, x, coefficients = untrained(hidden, 100, restarts)
    function = ours = our_step(network, x, coefficients)
    sets = [(x, coefficients)] if restarts == 1 else [*zip(x, coefficients)]
    if version == "plain":
        function = lambda: [plain_step(network, *one) for one in sets]  # noqa: E731
    note = f"100 candidates, hidden layers {', '.join(map(str, hidden))}, sets of candidates {restarts}"
    work = {"flops": counted(function), "bytes": step_bytes(network, x), "note": note}
    measure(function, "scaling", version, {variable: number}, "float32", **work)
    theirs = torch.stack([plain_step(network, *one)[0] for one in sets]).view_as(x)
    agree(ours().x_gradient, theirs, TOLERANCES["float32"])


@pytest.mark.skipif(DEVICE.type == "cuda" or os.cpu_count() < 2, reason="needs a processor of two cores or more")
@pytest.mark.parametrize("number", [1, 2])
@pytest.mark.parametrize("width", [200, 1000])
@pytest.mark.parametrize("n", [20, 50, 100, 200])
def test_threads(n, width, number, measure, threads):
    threads(number)
    network, x, coefficients = untrained((width, width), n)
    function, name = our_step(network, x, coefficients), f"{number} thread{'s' * (number > 1)}"
    work = {"flops": counted(function), "bytes": step_bytes(network, x), "note": "a step in pixels"}
    measure(function, "threads", name, {"candidates": n, "width": width}, "float32", **work)
