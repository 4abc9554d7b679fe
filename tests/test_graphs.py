"""A step that repeats: it asks its device nothing, is one graph, and replayed gives the plain loop to the last bit."""

import math
import warnings
from functools import partial

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._python_dispatch import TorchDispatchMode

from conftest import attacked, relu_released
from utils import networks, victims
from utils.attacks import decoreco, starts
from utils.errors import InputError
from utils.kernels import graphs, solvers
from utils.kernels.residual import Stationarity

QUESTIONS = {"_local_scalar_dense", "is_nonzero", "nonzero", "equal", "masked_select", "_unique2", "unique_consecutive"}
RULES = "signed", "margin", "tied", "multiclass"
CASES = [(rule, optimiser, space) for rule in RULES for optimiser in ("adam", "sgd") for space in ("pixels", "span")]


class Unasked(TorchDispatchMode):
    """Whatever a GPU would have to wait for is an error."""

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        name = operation.overloadpacket.__name__
        assert name not in QUESTIONS, f"{name} asks the device for a value"
        return operation(*args, **(kwargs or {}))


@pytest.fixture(scope="module")
def released():
    return relu_released()


def prepared(released, rule, optimiser, space, iterations=12, sets=2):
    """The objective, the State and the Plan of an attack in float64."""
    x = torch.stack([starts.normal(10, 3072, 0.0197, k) for k in range(sets)])
    network, basis = released.network, networks.span(released.network) if space == "span" else None
    labels = decoreco.balanced(10, max(len(network[-1].weight), 2))
    made = decoreco.make_rule(rule, labels, network, released.recipe)
    settings = decoreco.SETTINGS[optimiser]._replace(learning_rate=1e-7 if rule == "tied" else 1e-3)  # stay finite
    objective = decoreco.Objective(network, made, settings.softest, 0.3, 1.0, basis)
    x = x if basis is None else x @ basis
    state = decoreco.initial(x, decoreco.draw(made, x, 0), iterations)
    state = decoreco.State(*(part.clone() for part in state))
    plan = decoreco.planned(settings, optimiser, iterations, x)
    return objective, state, plan, solvers.STEPS[optimiser][0], settings


def by_torch(objective, x, coefficients, settings, optimiser, iterations):
    """x, λ and the losses of an attack whose steps are those of torch.optim."""
    moved, losses = [x.clone(), coefficients.clone()], []
    groups = [{"params": [part], "lr": rate} for part, rate in zip(moved, settings[:2])]
    steps = torch.optim.SGD(groups, momentum=0.9) if optimiser == "sgd" else torch.optim.Adam(groups, eps=1e-12)
    factor = (lambda k: 1.0) if optimiser == "sgd" else (lambda k: (1 + math.cos(math.pi * k / iterations)) / 2)
    rates = torch.optim.lr_scheduler.LambdaLR(steps, factor)
    for k in range(iterations):
        objective.stationarity.sharpness = torch.tensor(settings.alpha(k, iterations), dtype=torch.float64)
        parts, *gradients = objective(*moved)
        losses.append(parts.total)
        for part, gradient, group in zip(moved, gradients, steps.param_groups):
            part.grad = gradient
            group["eps"] = 1e-12 / (1 - 0.999 ** (k + 1)) ** 0.5  # ours is added before the bias is corrected
        steps.step()
        rates.step()
    return *moved, torch.stack(losses)


@pytest.mark.parametrize("case", CASES, ids="-".join)
def test_a_step_is_that_of_torch_asks_for_nothing_and_needs_to_be_traced_but_once(released, case):
    """Tracing keeps the operations of one step, as a GPU's graph does: no number of the processor can change later."""
    if case[0] == "multiclass":
        released = relu_released("multiclass")
    objective, state, plan, move, settings = prepared(released, *case)
    begun, wanted = [part.clone() for part in state], by_torch(objective, *state[1:3], settings, case[1], 12)
    objective.stationarity.sharpness = torch.zeros((), dtype=torch.float64)
    step = partial(decoreco.stepped, objective, state, plan, move, 0.0)
    with Unasked():
        for _ in range(12):
            step()
    assert int(state.step) == 12 and state.x.isfinite().all()
    for ours, theirs in zip((state.x, state.coefficients, state.history[:12]), wanted):
        assert torch.allclose(ours, theirs, rtol=1e-9, atol=1e-12)
    plain, places = [part.clone() for part in state], [part.data_ptr() for part in state]
    for part, old in zip(state, begun):
        part.copy_(old)
    traced = graphs.restored(lambda: make_fx(lambda: step())(), state)
    for _ in range(12):
        traced()
    graphs.restored(lambda: [traced() for _ in range(5)], state)  # trials of a way go beyond the last step
    assert all(map(torch.equal, state, plain)) and places == [part.data_ptr() for part in state]


def test_the_trainers_step_asks_for_nothing():
    hessian, begun = torch.linspace(0.1, 10, 6, dtype=torch.float64), torch.ones(6, dtype=torch.float64)
    recipe = networks.perceptron("signed", 5)._replace(epochs=200, learning_rate=1.0)
    with Unasked():
        found = victims.descend(lambda theta: ((hessian * theta**2).sum() / 2, hessian * theta), begun, recipe)
    assert found.norm() < 1e-2 and torch.equal(begun, torch.ones(6).double())


def test_a_trial_that_overflows_is_undone():
    recipe = networks.perceptron("signed", 5)._replace(epochs=400, learning_rate=1e3)

    def objective(theta):
        return theta.exp().sum(), theta.exp()

    found = victims.descend(objective, -torch.linspace(-2, 2, 5), recipe)
    assert found.isfinite().all() and objective(found)[0] < 1e-2


def test_a_compiled_attack_is_the_plain_one(released, monkeypatch):
    """The whole step is one graph, compiled once: a second graph would be one for every step."""
    plain = attacked(released, dtype=torch.float64)
    monkeypatch.setenv("KERNELS", "compiled")
    torch.compiler.reset()
    made, compile = [], torch.compile
    monkeypatch.setattr(torch, "compile", lambda f, **how: compile(f, backend=lambda g, x: made.append(g) or g, **how))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = attacked(released, dtype=torch.float64)
    assert len(made) == 1
    assert torch.allclose(found.images, plain.images, rtol=1e-9, atol=1e-12)
    assert torch.allclose(found.history, plain.history, rtol=1e-9)


def broken(function, **how):
    raise RuntimeError("no compiler")


def wrong(function, **how):
    """A compiler whose steps move twice as far."""
    return lambda: (function(), function())


@pytest.mark.parametrize("compile, reason", [(broken, "RuntimeError"), (wrong, "it gave other numbers")])
def test_what_cannot_be_compiled_runs_as_it_is_and_that_is_said_once(released, compile, reason, monkeypatch):
    plain = attacked(released)
    monkeypatch.setenv("KERNELS", "compiled")
    monkeypatch.setattr(torch, "compile", compile)
    with pytest.warns(UserWarning, match=rf"The step cannot be compiled here \({reason}") as said:
        found = attacked(released)
    assert len(said) == 1 and torch.equal(found.images, plain.images)


def test_a_cpu_compiles_only_if_it_is_told_to(released, monkeypatch):
    monkeypatch.setattr(torch, "compile", broken)
    for way in ("auto", "plain"):
        monkeypatch.setenv("KERNELS", way)
        attacked(released)
    for way, sentence in (("fast", "KERNELS is 'fast', but it must be one of"), ("graph", "only a GPU has graphs")):
        monkeypatch.setenv("KERNELS", way)
        with pytest.raises(InputError, match=sentence):
            attacked(released)


def replayed(broken=0):
    """What stands for graphs where there is no GPU; one of so many steps does one too many if that is `broken`."""

    class Replayed:
        def __init__(self, step, n, pool):
            self.replay = lambda: [step() for _ in range(n + (n == broken))]
            self.pool = lambda: None

    return Replayed


def test_a_graph_of_many_steps_and_one_of_a_single_step_make_any_number(monkeypatch):
    monkeypatch.setattr(graphs, "capture", replayed())
    count = torch.zeros(1)
    for stride in (1, 10):
        run = graphs.captured(lambda: count.add_(1), stride)
        for n in (0, 1, 7, 50, 123):
            count.zero_()
            run(n)
            assert count == n


@pytest.mark.parametrize("broken", [1, 10])
def test_a_graph_that_does_otherwise_is_noticed_whichever_it_is(broken, monkeypatch):
    monkeypatch.setattr(graphs, "capture", replayed(broken))
    count = torch.zeros(1)
    with pytest.warns(UserWarning, match=r"cannot be captured here \(it gave other numbers\)"):
        assert not graphs.agreeing("graph", graphs.captured, lambda: count.add_(1), [count], 10)
    assert count == 0


@pytest.mark.parametrize("ours", [[math.nan, 1.0], [0.0, math.inf], [0.0, 2.0]])
def test_numbers_that_are_not_finite_count_as_others(ours):
    plainly = torch.tensor([0.0, 1.0])
    assert graphs.close(plainly, plainly) and not graphs.close(torch.tensor(ours), plainly)
    assert not graphs.close(plainly, torch.tensor(ours))


def full(sets):
    """A residual that needs more memory than there is for so many sets of candidates at once."""
    evaluate = Stationarity.__call__

    def call(self, x, coefficients):
        if min(len(x), self.rows // x.shape[-2]) >= sets:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return evaluate(self, x, coefficients)

    return call


def test_a_full_memory_is_met_once_with_smaller_slices(released, monkeypatch):
    start = torch.stack([starts.normal(10, 3072, 0.0197, k) for k in range(4)])
    run = partial(decoreco.attack, released, start, iterations=5)
    plain = run()
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
    monkeypatch.setattr(Stationarity, "__call__", full(4))
    with pytest.warns(UserWarning, match="of 4 sets of candidates 2 are moved at once") as said:
        found = run()
    assert len(said) == 1 and torch.allclose(found.images, plain.images, rtol=1e-4, atol=1e-6)
    monkeypatch.setattr(Stationarity, "__call__", full(1))
    with (
        pytest.raises(InputError, match="The memory is full: .* choose at most 5 CANDIDATES"),
        pytest.warns(UserWarning),
    ):
        run()
