"""What an evaluator says of attacks whose outcome is known."""

import math

import pytest
import torch
from skimage.metrics import structural_similarity

from attacks import starts
from attacks.contract import Attack
from evaluation import evaluate, measures
from evaluation.trials import Name, Trial
from training import Victim
from training.images import Part, Split
from utils import networks
from utils.kernels import similarity
from utils.networks import Released

SHAPE = (8, 8, 3)


@pytest.mark.parametrize("shape, window", [((32, 32, 3), 7), ((20, 16, 1), 3)])
def test_ssim_is_that_of_scikit_image(shape, window):
    x, y = (starts.random(3, math.prod(shape), k) for k in (3, 4))
    y[0] = x[0] + 0.05 * y[0]
    x[1] = y[1] = 0.5  # flat, and equal
    y[2] /= 1000
    table, pairs = (f(x, y, shape, window) for f in (similarity.ssim, similarity.pairwise_ssim))
    for k, pair in enumerate(zip(x, y)):
        expected = structural_similarity(
            *(one.reshape(shape).numpy() for one in pair),
            win_size=window,
            data_range=1.0,
            channel_axis=2,
        )
        assert abs(table[k, k] - expected) < 1e-5 and abs(pairs[k] - expected) < 1e-10


def test_the_distance_knows_its_baseline_and_the_order_of_the_neurons():
    target = networks.initial(networks.one_hidden(5, 1e-2), 12, 0)
    assert networks.distance(networks.change(target, torch.zeros_like), target) == 1
    order = torch.tensor([3, 0, 4, 1, 2])
    first, second = target
    shuffled = (
        networks.Layer(*(part[order] for part in first)),
        second._replace(weight=second.weight[:, order]),
    )
    assert networks.distance(shuffled, target) > 0.1
    assert evaluate.matched_distance(shuffled, target) <= 1e-28


def pictures(n, seed, low=0.0):
    """Pictures whose darkest value is `low` and whose brightest is 1."""
    return low + (1 - low) * similarity.stretch(starts.random(n, 192, seed))


def make_trial(centred=True):
    """A trial of an attack that gave the training images back; the known ones are much brighter."""
    y = (torch.arange(6) > 2).double()
    secret, held_out = (Part(pictures(6, seed) ** 6, y) for seed in (0, 5))
    known = Part(pictures(10, 1, low=0.8), (torch.arange(10) > 4).double())
    recipe = networks.perceptron("signed", 4)._replace(centred=centred)
    mean = secret.images.mean(0) * centred
    victim = Victim(Released(networks.initial(recipe, 192, 0), y, recipe), mean, 0.0, 6)
    attack = Attack(secret.images - mean, *[None] * 4)
    data = Split(secret, known, held_out, SHAPE, "")
    start = starts.random(6, 192, 2) - 0.5
    return Trial(Name("decoreco", "signed", "random"), 0, data, victim, start, attack)


@pytest.fixture
def trial():
    return make_trial()


def test_as_published_the_truth_is_found_and_every_image_finds_its_own(trial):
    matches = evaluate.published(trial)
    assert torch.allclose(matches.pictures, trial.data.secret.images)
    assert evaluate.good(matches) == 6 and abs(matches.ssim.mean().item() - 1) < 1e-12
    # With the training mean a picture of an adversary would be the image itself; here it is white.
    known = trial.data.known.images
    matches = evaluate.adversary(trial)
    assert torch.equal(matches.pictures, (trial.attack.images + known.mean(0)).clamp(0, 1))
    assert evaluate.good(matches) == 0
    assert torch.equal(evaluate.BASELINES["strangers"](trial), (known - known.mean(0))[:6])
    trial = make_trial(centred=False)  # nothing is added
    assert torch.equal(evaluate.adversary(trial).pictures, trial.data.secret.images)
    assert torch.equal(evaluate.BASELINES["strangers"](trial), known[:6])


def test_the_best_reconstruction_is_the_most_alike(trial):
    found = torch.cat([starts.random(3, 192, 3), evaluate.secret(trial)[[4]]])
    trial = trial._replace(attack=trial.attack._replace(images=found))
    likeness = evaluate.likeness(trial)  # (4, 6)
    assert likeness[3].argmax() == 4 and likeness[3].max() > 0.5 > likeness[:3].max()
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


def test_held_out_images_count_as_training_images_do_and_lose_the_same_mean(views):
    secret, held_out = (part.images for part in (views.secret, views.held_out))
    mean = views.known.images.mean(0)
    found = held_out[:3] - mean
    counts = measures.back(found, measures.sides(views, mean))["ncc_above_0.9"]
    assert counts[0] == 0 and counts[1] >= 3
    leak = measures.leak_of(found, views, mean)
    other = measures.leak(found, secret - mean, held_out - mean, views.shape)
    assert torch.equal(leak.training, other.training)
    assert torch.equal(leak.held_out, other.held_out) and leak.auc.value < 0.5
