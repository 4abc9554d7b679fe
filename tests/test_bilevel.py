import pytest
import torch

from conftest import chapter_functions
from utils import networks
from utils.attacks import bilevel, starts
from utils.attacks.contract import Released
from utils.errors import InputError
from utils.images import Part
from utils.kernels import solvers
from utils.training import stationary

MU = 1e-2
CHAPTER = chapter_functions("inside-the-solver")
INVERSES = {"exact": None, "cg": CHAPTER["cg"], "quasi-Newton": CHAPTER["quasi_newton"]}


@pytest.fixture
def problem(small):
    x, y, generator = small
    released = stationary.train(Part(x, y), networks.affine(MU)).released
    return torch.rand(12, 30, dtype=torch.float64, generator=generator), released, generator


@pytest.mark.parametrize("inverse", ["exact", "cg"])
def test_hypergradient_is_the_derivative(problem, inverse):
    x, released, generator = problem
    h = bilevel.hypergradient(released, x, INVERSES[inverse])
    for _ in range(5):
        direction = torch.randn(x.shape, dtype=torch.float64, generator=generator)

        def loss(step, direction=direction):
            return bilevel.hypergradient(released, x + step * direction).loss

        slope = (loss(1e-5) - loss(-1e-5)) / 2e-5
        assert abs((h.gradient * direction).sum() - slope) <= 1e-6 * h.gradient.norm()


def test_quasi_newton_gradient_descends(problem):
    x, released, _ = problem
    true = bilevel.hypergradient(released, x).gradient
    theta0 = networks.initial(networks.affine(MU, "uniform"), 30, 0)
    approximate = bilevel.hypergradient(released, x, INVERSES["quasi-Newton"], theta0).gradient
    assert (true * approximate).sum() > 0


@pytest.mark.parametrize("name", ["random", "partition"])
@pytest.mark.parametrize("inner_start", ["warm", "cold"])
def test_attack_reaches_the_weights(photos, name, inner_start):
    data, network = photos
    released = Released(network, data.secret.labels, networks.affine(MU))
    start = starts.random(100, 3072, 5) if name == "random" else starts.partition(data.known, 100)
    found = bilevel.attack(released, start, inner_start=inner_start)
    assert found.stopped == "converged"
    retrained = stationary.train(Part(found.images, released.labels), released.recipe).released.network
    assert networks.distance(retrained, network) <= 1e-12
    assert networks.distance(found.network, network) <= 1e-12


def test_the_truth_needs_no_step(photos):
    data, network = photos
    released = Released(network, data.secret.labels, networks.affine(MU))
    found = bilevel.attack(released, data.secret.images)
    assert len(found.history) == 1 and torch.equal(found.images, data.secret.images)


def test_the_truth_and_the_trainers_start_repeat_the_training_to_the_last_bit(photos):
    secret, recipe = photos[0].secret, networks.one_hidden(16, 1e-2, start="uniform")
    theta0 = networks.initial(recipe, 3072, 0)
    released = stationary.train(secret, recipe, start=theta0).released
    found = bilevel.attack(released, secret.images, theta_start=theta0)
    assert found.history[0] <= 1e-25 and len(found.history) == 1


def test_several_starts_in_one_call(problem):
    x, released, generator = problem
    batch = torch.stack([x, torch.rand(12, 30, dtype=torch.float64, generator=generator)])
    together = bilevel.attack(released, batch)
    assert (together.history[-1] <= 1e-13).all() and together.stopped == ["converged"] * 2
    for k in range(2):
        alone = bilevel.attack(released, batch[k])
        assert torch.allclose(together.images[k], alone.images, atol=1e-3)


@pytest.mark.parametrize(
    "change, settings, sentence",
    [
        ({"network": (networks.Layer(torch.zeros(1, 29), torch.zeros(1)),)}, {}, "needs 12 labels and 30 inputs"),
        ({"labels": torch.zeros(11)}, {}, r"there are \(11,\) labels"),
        ({}, {"inner_start": "hot"}, "INNER_START is 'hot'"),
        ({}, {"inner_budget": 0}, "give at least 0 iterations and 1 inner step"),
        ({}, {"iterations": -1}, "give at least 0 iterations and 1 inner step"),
        ({}, {"theta_start": networks.initial(networks.affine(MU), 31, 0)}, "theta_start has other shapes"),
        ({"recipe": networks.affine(0.0)}, {}, "trained on the logistic loss with weight decay"),
        ({"recipe": networks.perceptron("signed", 5, 5)}, {}, "the square loss"),
        ({}, {"start": torch.full((12, 30), torch.inf)}, "NaN or infinite"),
    ],
)
def test_bad_input_is_told_in_a_sentence(problem, change, settings, sentence):
    x, released, _ = problem
    with pytest.raises(InputError, match=sentence):
        bilevel.attack(released._replace(**change), **{"start": x, **settings})


def test_the_attack_in_the_span_is_the_attack_on_pixels(problem):
    x, released, _ = problem

    def objective(flat):
        h = bilevel.hypergradient(released, flat.view(x.shape))
        return h.loss, h.gradient.flatten()

    watched, plain = [], solvers.lbfgs(objective, x.flatten(), iterations=10)
    found = bilevel.attack(released, x, iterations=10, watch=lambda x, loss: watched.append((x, loss)))
    assert (plain.x.view(x.shape) - found.images).norm() <= 1e-9 * plain.x.norm()
    scale = networks.flatten(released.network).square().sum() / 2
    assert found.loss * scale == pytest.approx(plain.value.item(), rel=1e-6)
    assert torch.allclose(torch.stack([loss for _, loss in watched]), found.history * scale)
    assert torch.allclose(watched[0][0], x) and torch.allclose(watched[-1][0], found.images)
