"""A step asks its device nothing, and replayed gives the plain loop; where it runs changes nothing but its speed."""

import math
import subprocess
import sys
from pathlib import Path
from unittest.mock import Mock

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._python_dispatch import TorchDispatchMode

from attacks import decoreco, starts
from conftest import victim_of_twelve
from training import stationary
from utils import networks
from utils.errors import InputError
from utils.kernels import coefficients, step
from utils.kernels.residual import Stationarity

ROOT = Path(__file__).parent.parent
QUESTIONS = {
    "_local_scalar_dense",
    "is_nonzero",
    "nonzero",
    "equal",
    "masked_select",
    "_unique2",
    "unique_consecutive",
}
CASES = [
    (rule, *way) for rule in coefficients.RULES for way in (("adam", "span"), ("sgd", "pixels"))
]


class Unasked(TorchDispatchMode):
    """Whatever a GPU would have to wait for is an error."""

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        name = operation.overloadpacket.__name__
        assert name not in QUESTIONS, f"{name} asks the device for a value"
        return operation(*args, **(kwargs or {}))


@pytest.fixture(scope="module")
def released():
    return victim_of_twelve("signed", 20, 16, epochs=60).released


def noise(sets):
    return torch.stack([starts.normal(10, 3072, 0.0197, k) for k in range(sets)])


def by_torch(problem, x, coefficients):
    """x, λ and the losses of an attack whose steps are those of torch.optim."""
    settings = problem.settings
    sgd, last = settings.optimiser == "sgd", settings.iterations
    moved, losses = [x.clone(), coefficients.clone()], []
    rates = settings.learning_rate, settings.coefficient_rate
    groups = [{"params": [part], "lr": rate} for part, rate in zip(moved, rates)]
    steps = torch.optim.SGD(groups, momentum=0.9) if sgd else torch.optim.Adam(groups)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        steps, lambda k: 1.0 if sgd else (1 + math.cos(math.pi * k / last)) / 2
    )
    for k in range(last):
        problem.objective.stationarity.sharpness.fill_(settings.alpha(k))
        parts, *gradients = problem.objective(*moved)
        losses.append(parts.total)
        for part, gradient, group in zip(moved, gradients, steps.param_groups):
            part.grad = gradient
            # ours is added before the bias is corrected
            group["eps"] = 1e-12 / (1 - 0.999 ** (k + 1)) ** 0.5
        steps.step()
        schedule.step()
    return *moved, torch.stack(losses)


@pytest.mark.parametrize("case", CASES, ids="-".join)
def test_a_step_is_that_of_torch_asks_for_nothing_and_is_traced_but_once(released, case):
    """Tracing keeps the operations of one step, as a GPU's graph does: no number of the processor can change later."""
    rule, optimiser, space = case
    if rule == "multiclass":
        released = victim_of_twelve("multiclass", 20, 16, epochs=60).released
    rate = 1e-7 if rule == "tied" else 1e-3  # stay finite
    settings = decoreco.SETTINGS[optimiser]._replace(
        rule=rule, learning_rate=rate, iterations=12, dtype=torch.float64
    )
    basis = networks.span(released.network) if space == "span" else None
    problem = decoreco.Problem(released, noise(2), settings, basis=basis)
    state = problem.begin(None, 0)
    begun = [part.clone() for part in state]
    wanted = by_torch(problem, state.x, state.coefficients)
    with Unasked():
        for _ in range(12):
            problem.step(state)
    assert int(state.step) == 12 and state.x.isfinite().all()
    for ours, theirs in zip((state.x, state.coefficients, state.history[:12]), wanted):
        assert torch.allclose(ours, theirs, rtol=1e-9, atol=1e-12)
    plain, places = [part.clone() for part in state], [part.data_ptr() for part in state]
    restore(state, begun)
    traced = make_fx(lambda: problem.step(state))()
    restore(state, begun)
    for _ in range(12):
        traced()
    assert all(map(torch.equal, state, plain)) and places == [part.data_ptr() for part in state]
    problem.step(state)  # which looks at the last candidates
    assert torch.equal(state.x, plain[1]) and torch.equal(state.coefficients, plain[2])
    for _ in range(5):  # before it captures, a GPU tries steps, and may go beyond the last one
        traced()


def restore(state, values):
    for part, old in zip(state, values):
        part.copy_(old)


def test_the_trainers_step_asks_for_nothing_and_a_trial_that_overflows_is_undone():
    recipe = networks.perceptron("signed", 5)._replace(epochs=400, learning_rate=1e3)
    begun = torch.linspace(-2, 2, 5)
    with Unasked():
        found = stationary.descend(lambda theta: (theta.cosh().sum(), theta.sinh()), begun, recipe)
    assert found.isfinite().all() and found.norm() < 1e-2
    assert torch.equal(begun, torch.linspace(-2, 2, 5))


class Replayed:
    """What stands for a CUDA graph of so many steps where there is no GPU."""

    def __init__(self, step, n, pool=None):
        for _ in range(3):
            step()
        self.replay = lambda: [step() for _ in range(n)]
        self.pool = lambda: None


@pytest.mark.parametrize("watch", [None, lambda step, result: None])
def test_an_attack_in_graphs_is_the_plain_one(released, monkeypatch, watch):
    """As a GPU takes its steps: strides and single ones, tried before they are captured."""
    settings = decoreco.ADAM._replace(dtype=torch.float64, iterations=12)
    plain = decoreco.attack(released, noise(1), settings)
    monkeypatch.setattr(step, "capture", Replayed)

    def run(made, state, *rest):
        step.run(made, [Mock(wraps=part, is_cuda=True) for part in state], *rest)

    monkeypatch.setattr(decoreco, "run", run)
    found = decoreco.attack(released, noise(1), settings, watch=watch)
    assert torch.equal(found.images, plain.images) and torch.equal(found.history, plain.history)


def test_a_full_memory_is_met_once_with_smaller_slices(released, monkeypatch):
    settings, evaluate = decoreco.ADAM._replace(iterations=5), Stationarity.evaluate
    plain = decoreco.attack(released, noise(4), settings)

    def two_fit(self, x, coefficients):
        if len(x) > 2:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return evaluate(self, x, coefficients)

    monkeypatch.setattr(Stationarity, "evaluate", two_fit)
    with pytest.warns(UserWarning, match="2 sets of candidates are moved at once") as said:
        found = decoreco.attack(released, noise(4), settings)
    assert len(said) == 1 and torch.allclose(found.images, plain.images, rtol=1e-4, atol=1e-6)


def test_a_memory_too_small_for_torch_is_named():
    """As in a chapter's kernel, in which the import of utils comes first."""
    command = f'ulimit -v 1500000; exec "{sys.executable}" -m IPython --no-banner -c "import utils"'
    ended = subprocess.run(["sh", "-c", command], cwd=ROOT, capture_output=True, text=True)
    said = ended.stdout + ended.stderr
    assert said.count("InputError: There is too little memory to load PyTorch") == 1, said
    assert "Traceback" not in said


ERRORS = [
    (MemoryError("Unable to allocate 7.45 GiB for an array"), "^The memory is full: .* at most 5 "),
    (RuntimeError("the shapes cannot be multiplied"), "^the shapes cannot"),
]


@pytest.mark.parametrize("error, said", ERRORS)
def test_a_memory_that_fills_on_the_way_is_told_in_one_sentence(released, monkeypatch, error, said):
    monkeypatch.setattr(Stationarity, "evaluate", Mock(side_effect=error))
    with pytest.raises((InputError, RuntimeError), match=said):
        decoreco.attack(released, noise(1))
