import pytest
import torch

from utils import affine, bilevel, evaluate, starts
from utils.errors import InputError

MU = 1e-2


@pytest.fixture
def problem(small):
    x, y, generator = small
    target = affine.train(x, y, MU).weights
    return torch.rand(12, 30, dtype=torch.float64, generator=generator), y, target, generator


@pytest.mark.parametrize("inverse", ["exact", "cg"])
def test_hypergradient_is_the_derivative(problem, inverse):
    x, y, target, generator = problem
    h = bilevel.hypergradient(x, y, target, MU, inverse)
    for _ in range(5):
        direction = torch.randn(x.shape, dtype=torch.float64, generator=generator)

        def loss(step):
            return bilevel.hypergradient(x + step * direction, y, target, MU).loss

        slope = (loss(1e-5) - loss(-1e-5)) / 2e-5
        assert abs((h.gradient * direction).sum() - slope) <= 1e-6 * h.gradient.norm()


def test_hypergradient_equals_differentiating_through_training(problem):
    x, y, target, _ = problem
    x = x.clone().requires_grad_()
    theta = torch.zeros(31, dtype=torch.float64)
    gram_norm = torch.linalg.eigvalsh(x.detach() @ x.detach().T + 1)[-1] / (4 * 12) + MU
    for _ in range(20_000):  # plain gradient descent; every step stays in the graph
        z = x @ theta[:-1] + theta[-1]
        r = torch.sigmoid(z) - y
        theta = theta - (torch.cat([x.T @ r, r.sum()[None]]) / 12 + MU * theta) / gram_norm
    (through,) = torch.autograd.grad(((theta - target) ** 2).sum() / 2, x)
    implicit = bilevel.hypergradient(x.detach(), y, target, MU).gradient
    assert (through - implicit).norm() <= 1e-6 * implicit.norm()


def test_quasi_newton_gradient_descends(problem):
    x, y, target, _ = problem
    true = bilevel.hypergradient(x, y, target, MU).gradient
    theta0 = affine.initial_weights(30, 0, "uniform")
    approximate = bilevel.hypergradient(x, y, target, MU, "lbfgs", theta0).gradient
    assert (true * approximate).sum() > 0


@pytest.mark.parametrize("name", ["random", "partition"])
@pytest.mark.parametrize("inner_start", ["warm", "cold"])
def test_attack_reaches_the_weights(photos, name, inner_start):
    data, target = photos
    start = starts.random(100, 3072, 5) if name == "random" else starts.partition(data.known, 100)
    found = bilevel.attack(target, data.secret.labels, start, weight_decay=MU, inner_start=inner_start)
    assert found.stopped == "converged"
    retrained = affine.train(found.images, data.secret.labels, MU).weights
    assert evaluate.relative_distance(retrained, target) <= 1e-12
    assert evaluate.relative_distance(found.weights, target) <= 1e-12


@pytest.mark.parametrize("inverse", ["exact", "cg", "lbfgs"])
def test_fixed_steps_shrink_the_distance(problem, inverse):
    x, y, target, _ = problem
    found = bilevel.attack(
        target, y, x, weight_decay=MU, inverse=inverse, optimiser="gradient", learning_rate=0.3, iterations=300
    )
    assert found.history.min() < 0.1 * found.history[0]


def test_the_truth_needs_no_step(photos):
    data, target = photos
    found = bilevel.attack(target, data.secret.labels, data.secret.images, weight_decay=MU)
    assert len(found.history) == 1 and torch.equal(found.images, data.secret.images)


def test_several_starts_in_one_call(problem):
    x, y, target, generator = problem
    batch = torch.stack([x, torch.rand(12, 30, dtype=torch.float64, generator=generator)])
    together = bilevel.attack(target, y, batch, weight_decay=MU)
    assert (together.history[-1] <= 1e-13).all()
    for k in range(2):
        alone = bilevel.attack(target, y, batch[k], weight_decay=MU)
        assert torch.allclose(together.images[k], alone.images, atol=1e-3)


def test_gradient_norm_majorises_the_distance(problem):
    x, y, target, _ = problem
    pairs = []

    def watch(x, loss):
        pairs.append((loss, affine.energy_gradient(x, y, target, MU).square().sum() / (2 * MU**2)))

    bilevel.attack(target, y, x, weight_decay=MU, watch=watch)
    assert len(pairs) > 5 and all(loss <= bound * (1 + 1e-9) for loss, bound in pairs)


def test_too_large_a_learning_rate_is_refused(problem):
    x, y, target, _ = problem
    with pytest.raises(InputError, match=r"LEARNING_RATE 1e\+08 is too large; try 1e\+07"):
        bilevel.attack(target, y, x, weight_decay=MU, optimiser="gradient", learning_rate=1e8)


def test_shapes_and_words_are_checked(problem):
    x, y, target, _ = problem
    with pytest.raises(InputError, match="needs 12 labels and 31 weights"):
        bilevel.attack(target[:-1], y, x, weight_decay=MU)
    with pytest.raises(InputError, match="INVERSE is 'newton', but it must be one of 'exact', 'cg', 'lbfgs'"):
        bilevel.attack(target, y, x, weight_decay=MU, inverse="newton")
