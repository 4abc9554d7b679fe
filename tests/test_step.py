"""A step asks its device nothing, and replayed gives the plain loop; where it runs changes nothing but its speed."""

import math
import resource
import subprocess
import sys
from functools import partial
from pathlib import Path
from unittest.mock import Mock

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._python_dispatch import TorchDispatchMode

from attacks import decoreco, starts
from conftest import refused, victim_of_twelve
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


def attacked(released, **settings):
    """What twenty steps of the stationarity attack make of noise."""
    return decoreco.attack(released, starts.normal(10, 3072, 0.0197, 0), iterations=20, **settings)


def prepared(released, rule, optimiser, space):
    """The objective, State, Plan of twelve steps and Settings of an attack in float64."""
    x = torch.stack([starts.normal(10, 3072, 0.0197, k) for k in range(2)])
    network, basis = released.network, networks.span(released.network) if space == "span" else None
    labels = decoreco.balanced_labels(10, max(len(network[-1].weight), 2))
    made = decoreco.make_rule(rule, labels, network, released.recipe)
    settings = decoreco.SETTINGS[optimiser]._replace(
        learning_rate=1e-7 if rule == "tied" else 1e-3
    )  # stay finite
    objective = decoreco.Objective(network, made, settings.softest, 0.3, 1.0, basis)
    x = x if basis is None else x @ basis
    state = decoreco.begin(x, decoreco.draw(made, x, 0), 12)
    return objective, state, settings.plan(optimiser, 12, x), settings


def by_torch(objective, x, coefficients, settings, optimiser, iterations):
    """x, λ and the losses of an attack whose steps are those of torch.optim."""
    moved, losses = [x.clone(), coefficients.clone()], []
    groups = [{"params": [part], "lr": rate} for part, rate in zip(moved, settings[:2])]
    steps = (
        torch.optim.SGD(groups, momentum=0.9)
        if optimiser == "sgd"
        else torch.optim.Adam(groups, eps=1e-12)
    )
    factor = (
        (lambda k: 1.0)
        if optimiser == "sgd"
        else (lambda k: (1 + math.cos(math.pi * k / iterations)) / 2)
    )
    rates = torch.optim.lr_scheduler.LambdaLR(steps, factor)
    for k in range(iterations):
        objective.stationarity.sharpness = torch.tensor(
            settings.alpha(k, iterations), dtype=torch.float64
        )
        parts, *gradients = objective(*moved)
        losses.append(parts.total)
        for part, gradient, group in zip(moved, gradients, steps.param_groups):
            part.grad = gradient
            group["eps"] = (
                1e-12 / (1 - 0.999 ** (k + 1)) ** 0.5
            )  # ours is added before the bias is corrected
        steps.step()
        rates.step()
    return *moved, torch.stack(losses)


@pytest.fixture
def taken(monkeypatch):
    """The step of a loop, its tensors and how often it is to be taken; the loop itself takes none."""
    found = []
    monkeypatch.setattr(decoreco, "run", lambda *given: found.append(given[:3]))
    return found


@pytest.mark.parametrize("case", CASES, ids="-".join)
def test_a_step_is_that_of_torch_asks_for_nothing_and_is_traced_but_once(released, case, taken):
    """Tracing keeps the operations of one step, as a GPU's graph does: no number of the processor can change later."""
    if case[0] == "multiclass":
        released = victim_of_twelve("multiclass", 20, 16, epochs=60).released
    objective, state, plan, settings = prepared(released, *case)
    wanted = by_torch(objective, state.x, state.coefficients, settings, case[1], 12)
    objective.stationarity.sharpness = torch.zeros((), dtype=torch.float64)
    decoreco.descend(objective, state, plan, case[1], 0.0, None, False)
    [(step, state, count)] = taken
    begun, count = [part.clone() for part in state], count - 1  # the last one moves nothing
    with Unasked():
        for _ in range(count):
            step()
    assert int(state.step) == count == 12 and state.x.isfinite().all()
    for ours, theirs in zip((state.x, state.coefficients, state.history[:12]), wanted):
        assert torch.allclose(ours, theirs, rtol=1e-9, atol=1e-12)
    plain, places = [part.clone() for part in state], [part.data_ptr() for part in state]
    restore(state, begun)
    traced = make_fx(lambda: step())()
    restore(state, begun)
    for _ in range(12):
        traced()
    assert all(map(torch.equal, state, plain)) and places == [part.data_ptr() for part in state]
    step()
    assert all(torch.equal(state[k], plain[k]) for k in (1, 2))
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
    assert (
        found.isfinite().all()
        and found.norm() < 1e-2
        and torch.equal(begun, torch.linspace(-2, 2, 5))
    )


class Replayed:
    """What stands for a CUDA graph of so many steps where there is no GPU."""

    def __init__(self, step, n, pool):
        for _ in range(3):
            step()
        self.replay = lambda: [step() for _ in range(n)]
        self.pool = lambda: None


def test_an_attack_in_graphs_is_the_plain_one(released, monkeypatch):
    """As a GPU takes its steps: strides and single ones, tried before they are captured."""
    plain = attacked(released, dtype=torch.float64, until=13)
    monkeypatch.setattr(step, "capture", Replayed)

    def run(made, state, *rest):
        step.run(made, [Mock(wraps=part, is_cuda=True) for part in state], *rest)

    monkeypatch.setattr(decoreco, "run", run)
    found = attacked(released, dtype=torch.float64, until=13)
    assert torch.equal(found.images, plain.images) and torch.equal(found.history, plain.history)


@pytest.mark.parametrize("stop, taken", [(0, 0), (3, 3), (9, 5)])
def test_steps_are_taken_one_by_one_until_all_has_ended(stop, taken):
    count, told = torch.zeros(1), []
    step.run(lambda: count.add_(1), [count], 5, lambda: bool(count >= stop), told.append)
    assert count == taken == sum(told)


def test_a_full_memory_is_met_once_with_smaller_slices(released, monkeypatch):
    start = torch.stack([starts.normal(10, 3072, 0.0197, k) for k in range(4)])
    run, evaluate = partial(decoreco.attack, released, start, iterations=5), Stationarity.evaluate
    plain = run()

    def two_fit(self, x, coefficients):
        if len(x) > 2:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return evaluate(self, x, coefficients)

    monkeypatch.setattr(Stationarity, "evaluate", two_fit)
    with pytest.warns(UserWarning, match="2 sets of candidates are moved at once") as said:
        found = run()
    assert len(said) == 1 and torch.allclose(found.images, plain.images, rtol=1e-4, atol=1e-6)


def test_small_steps_take_one_thread_and_the_others_come_back(released):
    before, network = torch.get_num_threads(), released.network
    few, many = (torch.zeros(n, 3072) for n in (1, int(step.SMALL / 12 / 3072)))
    torch.set_num_threads(2)
    try:
        with pytest.raises(KeyError), step.tuned(few, network):
            assert torch.get_num_threads() == 1
            raise KeyError
        assert torch.get_num_threads() == 2
        with step.tuned(many, network):
            assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def test_more_candidates_than_fit_into_the_memory_that_there_is_are_refused(released, monkeypatch):
    monkeypatch.setattr(step, "room", lambda device: 1e6)
    said = refused(attacked, released)
    most = int(said.split("at most ")[1].split()[0])
    assert said.startswith("10 candidates do not fit into the memory") and 0 < most < 10
    assert step.needed(released.network, most) <= 1e6
    monkeypatch.undo()
    assert 1e8 < step.room(torch.device("cpu")) < 1e14
    monkeypatch.setattr(Path, "read_text", lambda path: "1000000")
    assert step.room() == 1e6
    monkeypatch.setattr(Path, "read_text", lambda path: "max")
    assert step.room() > 1e8
    monkeypatch.setattr(resource, "getrlimit", lambda kind: (5e7, 5e7))
    assert step.room() == 5e7


def test_a_memory_too_small_for_torch_is_named():
    """As in a chapter's kernel, in which the import of utils comes first."""
    command = f'ulimit -v 1500000; exec "{sys.executable}" -m IPython --no-banner -c "from utils import images"'
    ended = subprocess.run(["sh", "-c", command], cwd=ROOT, capture_output=True, text=True)
    lines = (ended.stdout + ended.stderr).split("InputError: ")[1:]
    assert len(lines) == 1 and lines[0].startswith("There is too little memory to load PyTorch"), (
        ended.stderr
    )
    assert "Traceback" not in ended.stdout + ended.stderr


FULL = "^The memory is full: .* choose at most 5 CANDIDATES or IMAGES.$"


@pytest.mark.parametrize(
    "error, said",
    [
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB."), FULL),
        (
            RuntimeError(
                "[enforce fail at alloc_cpu.cpp:127] DefaultCPUAllocator: can't allocate memory"
            ),
            FULL,
        ),
        (MemoryError("Unable to allocate 7.45 GiB for an array"), FULL),
        (RuntimeError("the shapes cannot be multiplied"), "^the shapes cannot"),
    ],
)
def test_a_memory_that_fills_on_the_way_is_told_in_one_sentence(released, monkeypatch, error, said):
    monkeypatch.setattr(Stationarity, "evaluate", Mock(side_effect=error))
    with pytest.raises((InputError, RuntimeError), match=said):
        attacked(released)
