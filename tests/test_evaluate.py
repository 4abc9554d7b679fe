"""What an evaluator says of attacks whose outcome is known."""

import math

import pytest
import torch
from skimage.metrics import structural_similarity

from attacks import starts
from attacks.bilevel import Inner
from attacks.contract import Attack
from attacks.decoreco import Parts
from evaluation import evaluate
from evaluation.trials import Name, Trial
from lab import registry
from training import Victim
from training.images import Part, Split
from utils import networks
from utils.kernels import similarity
from utils.networks import Released

SHAPE = (8, 8, 3)


@pytest.mark.parametrize("shape, window", [((32, 32, 3), 7), ((20, 16, 1), 3)])
def test_ssim_is_that_of_scikit_image(shape, window):
    x, y = (starts.random(k, math.prod(shape), k) for k in (3, 4))
    y[0] = x[0] + 0.05 * y[0]
    x[1] = y[1] = 0.5  # flat, and equal
    y[2] /= 1000
    table = similarity.ssim(x, y, shape, window)
    for i in range(3):
        for j in range(4):
            a, b = x[i].reshape(shape).numpy(), y[j].reshape(shape).numpy()
            expected = structural_similarity(a, b, win_size=window, data_range=1.0, channel_axis=2)
            assert abs(table[i, j] - expected) < 1e-5
            assert (
                abs(
                    similarity.pairwise_ssim(x[i : i + 1], y[j : j + 1], shape, window)[0]
                    - expected
                )
                < 1e-10
            )


def test_the_distance_knows_its_baseline_and_the_order_of_the_neurons():
    target, other = (networks.initial(networks.one_hidden(5, 1e-2), 12, seed) for seed in (0, 1))
    assert networks.distance(networks.change(target, torch.zeros_like), target) == 1
    order = torch.tensor([3, 0, 4, 1, 2])
    first, second = target
    shuffled = (
        networks.Layer(*(part[order] for part in first)),
        second._replace(weight=second.weight[:, order]),
    )
    assert networks.distance(shuffled, target) > 0.1
    assert evaluate.matched_distance(shuffled, target) <= 1e-28
    assert evaluate.matched_distance(other, target) <= networks.distance(other, target)


def pictures(n, seed, low=0.0):
    """Pictures whose darkest value is `low` and whose brightest is 1."""
    return low + (1 - low) * similarity.stretch(starts.random(n, 192, seed))


def make_trial(name, centred=True):
    """A trial of an attack that gave the training images back; the known ones are much brighter."""
    secret = Part(pictures(6, 0) ** 6, torch.tensor([0.0] * 3 + [1.0] * 3))
    known = Part(pictures(10, 1, low=0.8), torch.tensor([0.0] * 5 + [1.0] * 5))
    held_out = Part(pictures(6, 5) ** 6, secret.labels)
    recipe = networks.perceptron("signed", 4)._replace(centred=centred)
    network = networks.initial(recipe, 192, 0)
    mean = secret.images.mean(0) * centred
    victim = Victim(Released(network, secret.labels, recipe), mean, 0.0, len(secret.labels))
    details = Inner(torch.ones(2, dtype=torch.bool), torch.tensor(1e-9), 3)
    if name.attack == "decoreco":
        details = Parts(torch.ones(2), torch.ones(()), torch.zeros(()), torch.arange(6.0))
    x = secret.images - mean
    history, weights = torch.tensor([1.0, 0.5]), network if name.attack == "bilevel" else None
    attack = Attack(
        images=x,
        loss=history[-1],
        history=history,
        stopped="converged",
        seconds=1.5,
        details=details,
        coefficients=torch.ones(len(x)),
        network=weights,
    )
    start = starts.random(len(x), 192, 2) - 0.5
    again = attack._replace(images=torch.cat([x[:3], start])) if name.attack == "decoreco" else None
    return Trial(
        name, 0, Split(secret, known, held_out, SHAPE, ""), victim, start, attack, again=again
    )


@pytest.fixture
def trial():
    return make_trial(Name("decoreco", "signed", "random"))


def test_as_published_the_truth_is_found_and_every_image_finds_its_own(trial):
    matches = evaluate.published(trial)
    assert torch.allclose(matches.pictures, trial.data.secret.images)
    assert evaluate.good(matches) == 6 and abs(matches.ssim.mean().item() - 1) < 1e-12
    assert torch.equal(
        evaluate.published(trial, evaluate.secret(trial).flip(0)).pictures, matches.pictures
    )
    # with the training mean a picture of an adversary would be the image itself; here it is white
    x, known = trial.attack.images, trial.data.known.images.mean(0)
    assert (known - trial.victim.mean).abs().mean() > 0.5
    matches = evaluate.adversary(trial)
    assert torch.equal(matches.pictures, (x + known).clamp(0, 1))
    assert evaluate.good(matches) == 0
    assert torch.equal(
        evaluate.BASELINES["strangers"](trial), (trial.data.known.images - known)[:6]
    )
    trial = make_trial(Name("bilevel", "affine", "random"), centred=False)  # nothing is added
    assert torch.equal(evaluate.adversary(trial).pictures, trial.data.secret.images)
    assert torch.equal(evaluate.BASELINES["strangers"](trial), trial.data.known.images[:6])
    assert evaluate.good(evaluate.published(trial)) == 6


def test_baselines_know_nothing_of_the_weights_and_the_span_alone_does(trial):
    basis = networks.span(trial.victim.released.network)
    for baseline in evaluate.BASELINES.values():
        assert torch.equal(baseline(trial), baseline(trial._replace(basis=basis)))
    assert torch.allclose(
        networks.within(evaluate.span_alone(trial), basis), evaluate.span_alone(trial), atol=1e-12
    )
    assert evaluate.best_baseline(trial, evaluate.published, evaluate.good) < 6
    assert (
        evaluate.best_baseline(
            trial._replace(start=trial.attack.images), evaluate.published, evaluate.good
        )
        == 6
    )


def test_the_best_reconstruction_is_the_most_alike(trial):
    x = evaluate.secret(trial)
    trial = trial._replace(
        attack=trial.attack._replace(images=torch.cat([starts.random(3, 192, 3), x[[4]]]))
    )
    likeness = evaluate.likeness(trial)  # (4, 6)
    best = likeness.amax(1).argsort(descending=True)[:1]
    assert best == 3 and likeness[3].argmax() == 4
    assert likeness.amax(1).lt(0.5).tolist() == [True] * 3 + [False]
    assert torch.allclose(evaluate.pictures(trial, best), trial.data.secret.images[[4]])
    x, order = pictures(20, 0), torch.randperm(20)
    assert torch.equal(order[evaluate.nearest(x, x[order], SHAPE)], torch.arange(20))


def test_what_gives_the_training_images_back_leaks_and_the_start_does_not(trial):
    found, start = evaluate.leak(trial), evaluate.leak(trial, trial.start)
    assert found.auc.value > 0.9 and found.alike == found.above == 6
    assert found.p < 0.05 < start.p and start.alike == 0
    data = trial.data  # exchange the sides, and the area turns: neither has a mean of its own
    other = trial._replace(data=data._replace(secret=data.held_out, held_out=data.secret))
    one, two = (evaluate.leak(each, data.secret.images).auc.value for each in (trial, other))
    assert one + two == pytest.approx(1)


LEAKS = {"leak_auc", "leak_auc_low", "above", "alike"}
PICTURES = {
    "good_reconstructions",
    "good_as_adversary",
    "mean_ssim",
    "attack_loss",
    "seconds",
    "detector_auc",
}
WEIGHTS = {"relative_distance", "mean_square_distance", "nearest_training_l2", "nearest_start_l2"}
CONVERGENCE = {"inner_gradient_norm", "outer_converged"}
NAMES = [
    Name("decoreco", "signed", "partition"),
    Name("bilevel", "affine", "ground_truth"),
    Name("bilevel", "one_hidden", "random", "unknown_theta0"),
]


@pytest.mark.parametrize("name", NAMES, ids=str)
def test_a_trial_gives_every_row_of_its_name(name):
    trial = make_trial(name, centred=name.attack == "decoreco")
    if trial.again:  # something has to be found that shows no training image
        found = torch.cat([trial.attack.images[:5], trial.start[5:]])
        trial = trial._replace(attack=trial.attack._replace(images=found))
    listed = evaluate.rows(trial)
    expected = (
        LEAKS
        | (PICTURES if name.attack == "decoreco" else WEIGHTS)
        | (CONVERGENCE if name.knowledge else set())
    )
    assert {row.name for row in listed} == {f"{name.prefix}/{quantity}" for quantity in expected}
    for row in listed:
        registry.check(row.name, row.value, row.baseline, {"IMAGES": len(trial.data.secret.images)})
    assert all(isinstance(row.value, float) and row.seed == 0 for row in listed)
    value = {row.name.removeprefix(name.prefix + "/"): row.value for row in listed}
    if name.attack == "bilevel":
        assert value["relative_distance"] == 0 and value["nearest_training_l2"] == 0
    else:
        assert (value["good_reconstructions"], value["attack_loss"], value["seconds"]) == (
            5,
            0.5,
            1.5,
        )
