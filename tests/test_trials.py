"""experiments/trials: one attack on one victim; every start, seed and first weight is where it belongs."""

import pytest
import torch

from experiments import trials
from experiments.trials import Name
from utils import images, networks
from utils.attacks import bilevel, decoreco, starts
from utils.training import stationary

AFFINE, LAYERS = networks.affine(0.1), networks.perceptron("signed", 12, 12)._replace(epochs=40, stages=0)


@pytest.fixture(scope="module")
def labelled(toy_npz):
    return images.load(str(toy_npz))


@pytest.fixture(scope="module")
def data(labelled):
    """Ten secret images, twenty known ones, ten held out."""
    return images.split(labelled, 10, 20, 3, held_out=10)


def test_a_start_has_a_mean_if_and_only_if_the_victim_had_one(data):
    plain, centred = (stationary.train(data.secret, recipe, 3) for recipe in (AFFINE, LAYERS))
    x = data.secret.images
    assert torch.equal(trials.begin("ground_truth", data, plain, 3, 10), x)
    assert torch.equal(trials.begin("ground_truth", data, centred, 3, 10), x - x.mean(0))
    known = starts.partition(data.known, 20)
    assert torch.equal(trials.begin("partition", data, plain, 3, 20), known)
    assert torch.equal(trials.begin("partition", data, centred, 3, 20), known - data.known.images.mean(0))
    assert torch.equal(trials.begin("random", data, plain, 3, 10), starts.random(10, x.shape[1], 3))
    for place, scale in {"random": 0.0197, "untuned": 1.0}.items():
        expected = starts.normal(20, x.shape[1], scale, 3)
        assert torch.equal(trials.begin(place, data, centred, 3, 20), expected)


def test_the_affine_trial_is_the_attack_on_what_was_released(data):
    trial = trials.bilevel_trial(data, AFFINE, "partition", 3)
    expected = bilevel.attack(stationary.train(data.secret, AFFINE).released, starts.partition(data.known, 10))
    assert trial.name == Name("bilevel", "affine", "partition") and trial.seed == 3
    assert torch.equal(trial.attack.images, expected.images)


@pytest.mark.parametrize("knowledge, draw", [("known_theta0", 6), ("unknown_theta0", 7)])
def test_who_knows_the_first_weights_begins_at_them(data, knowledge, draw):
    recipe = networks.one_hidden(4, 0.1)
    trial = trials.bilevel_trial(data, recipe, "random", 3, knowledge, iterations=2)
    victim, start = stationary.train(data.secret, recipe, 6), starts.random(*data.secret.images.shape, 3)
    theta0 = networks.initial(recipe, start.shape[1], draw)
    expected = bilevel.attack(victim.released, start, theta_start=theta0, iterations=2)
    assert trial.name == Name("bilevel", "one_hidden", "random", knowledge)
    assert torch.equal(trial.attack.history, expected.history)


def test_a_restart_has_noise_and_coefficients_of_its_own(data):
    victim = stationary.train(data.secret, LAYERS, 3)
    trial = trials.decoreco_trial(data, victim, "signed", "random", 3, "span", restart=1003, iterations=5)
    network = victim.released
    settings = {"basis": networks.span(network.network), "iterations": 5}
    for seed, found in ((3, trial.attack), (1003, trial.again)):
        start = starts.normal(20, data.secret.images.shape[1], 0.0197, seed)
        expected = decoreco.attack(network, start, seed=seed, **settings)
        assert torch.equal(found.images, expected.images)
    assert trials.decoreco_trial(data, victim, "signed", "ground_truth", 3, iterations=1).again is None


def test_images_that_are_tied_to_theirs_are_as_many(data):
    assert trials.candidates("tied", data) == 10 and trials.candidates("signed", data) == 20
