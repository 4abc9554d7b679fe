"""Trials, readings, ranks and variants: all is where it belongs, and what is told is so."""

import pytest
import torch

from attacks import bilevel, decoreco, starts
from conftest import drawn, refused
from evaluation import trials
from experiments import published_training, variants
from experiments.variants import Settings
from training import images, ordinary, stationary
from utils import networks
from utils.kernels import layers, naive
from utils.kernels.layers import Layer

AFFINE = networks.affine(0.1)
LAYERS = networks.perceptron("signed", 12, 12)._replace(epochs=40, stages=0)


def test_a_start_has_a_mean_if_and_only_if_the_victim_had_one(toy):
    x, known, mean = toy.secret.images, starts.partition(toy.known, 20), toy.known.images.mean(0)
    expected = {
        AFFINE: {"ground_truth": x, "partition": known, "random": starts.random(10, 192, 3)},
        LAYERS: {
            "ground_truth": x - x.mean(0),
            "partition": known - mean,
            "random": starts.normal(20, 192, 0.0197, 3),
        },
    }
    for recipe, places in expected.items():
        victim = stationary.train(toy.secret, recipe, 3)
        for place, start in places.items():
            assert torch.equal(trials.begin(place, toy, victim, 3, len(start)), start)


@pytest.mark.parametrize("knowledge, draw", [("known_theta0", 6), ("unknown_theta0", 7)])
def test_a_trial_is_the_attack_on_what_was_released(toy, knowledge, draw):
    recipe = networks.one_hidden(4, 0.1)
    trial = trials.bilevel_trial(toy, recipe, "random", 3, knowledge, iterations=2)
    released = stationary.train(toy.secret, recipe, 6).released
    initial = networks.initial(recipe, 192, draw)
    expected = bilevel.attack(released, starts.random(10, 192, 3), initial=initial, iterations=2)
    assert torch.equal(trial.attack.history, expected.history)


def test_a_restart_has_noise_and_coefficients_of_its_own(toy):
    victim = stationary.train(toy.secret, LAYERS, 3)
    settings = decoreco.ADAM._replace(iterations=5)
    trial = trials.decoreco_trial(toy, victim, settings, "random", 3, "span", restart=1003)
    basis = networks.span(victim.released.network)
    for seed, found in ((3, trial.attack), (1003, trial.again)):
        start = starts.normal(20, 192, 0.0197, seed)
        expected = decoreco.attack(victim.released, start, settings, basis=basis, seed=seed)
        assert torch.equal(found.images, expected.images)


# ---- Variants of one training: exact coordinates, clipped gradients, changed weights ----

SETTINGS = Settings(layers=3, neurons=7, decay=1e-2, initial=0.1, rate=0.05, steps=30)


@pytest.mark.parametrize("changes", [{}, {"layers": 2}, {"loss": "logistic"}, {"momentum": 0.0}])
def test_training_in_coordinates_is_training_on_all_pixels_by_torch_alone(x, y, changes):
    o = SETTINGS._replace(**changes)
    net, basis, rest = variants.initialise(x[None], 1, o, 0)
    (first, bias), *upper = ordinary.layers_of(net)
    net = naive.module_of((Layer(layers.join(first, basis, rest), bias), *upper)).float()
    optimiser = torch.optim.SGD(net.parameters(), o.rate, o.momentum, weight_decay=o.decay)
    for _ in range(o.steps):
        optimiser.zero_grad()
        variants.LOSSES[o.loss](net(x.float()), y.float()).backward()
        optimiser.step()
    ours = variants.train_in_coordinates(x[None], y, 1, o, 0)
    for one, other in zip(ours, ordinary.layers_of(net), strict=True):
        torch.testing.assert_close(tuple(one), tuple(other), rtol=1e-3, atol=1e-5)


def test_a_frozen_first_layer_stays_and_biases_can_be_left_out(x, y):
    net, basis, rest = variants.initialise(x[None], 1, SETTINGS, 0)
    first, second, _ = ordinary.layers_of(net)
    kept = variants.train_in_coordinates(x[None], y, 1, SETTINGS._replace(frozen=True), 0)
    whole = layers.join(first.weight, basis, rest)
    torch.testing.assert_close(kept[0].weight, whole, rtol=1e-5, atol=1e-6)
    assert not torch.allclose(kept[1].weight, second.weight, atol=1e-3)
    without = variants.train_in_coordinates(x[None], y, 1, SETTINGS._replace(biases=False), 0)
    assert not without[0].bias.any()


def test_private_gradients_are_clipped_means_with_noise(x, y):
    net, basis, _ = variants.initialise(x[None], 1, SETTINGS, 0)
    seen, labels = (x @ basis).float(), y.float()
    loss = variants.LOSSES["square"](net(seen), labels)
    plain = torch.autograd.grad(loss, [*net.parameters()])

    def private(**settings):
        chance = torch.Generator().manual_seed(0)
        return variants.private_gradients(net, seen, labels, SETTINGS._replace(**settings), chance)

    torch.testing.assert_close(private(clip=1e6), list(plain), rtol=1e-4, atol=1e-6)
    assert sum(part.square().sum() for part in private(clip=1e-3)).sqrt() <= 1.001e-3
    assert 0.8 < private(clip=1.0, private=5.0)[2].std() * len(x) / 5.0 < 1.3


def test_released_weights_are_what_they_say():
    generator, weight = torch.Generator().manual_seed(0), drawn(60, 50)

    def changed(**how):
        return variants.alter(weight, SETTINGS._replace(**how), generator)

    assert torch.equal(changed(), weight) and len(changed(bits=4).unique()) <= 15
    pruned = changed(pruned=0.9)
    assert (pruned != 0).sum() == 300 and pruned.abs().sum() > 300 * weight.abs().quantile(0.9)
    noise = (changed(noise=0.1) - weight).norm() / weight.norm()
    assert noise == pytest.approx(0.1, rel=0.05)


def test_versions_of_an_image_keep_its_pixels():
    x = starts.random(4, 192, 0)
    for augment, number in (("flips", 2), ("shifts", 9)):
        found = variants.versions(x, (8, 8, 3), augment).sort(2).values
        torch.testing.assert_close(found, x.sort(1).values.expand(number, -1, -1))


def test_a_release_counts_every_picture_and_names_its_recipe():
    part = images.Part(starts.random(6, 192, 0), 1.0 * (torch.arange(6) > 2))
    o = SETTINGS._replace(layers=2, loss="logistic", augment="flips", steps=5)
    victim = variants.release(part, (8, 8, 3), o, 0)
    recipe = victim.released.recipe
    assert victim.versions == 12 and (recipe.loss, recipe.weight_decay) == ("logistic", 1e-2)
    mean = variants.versions(part.images, (8, 8, 3), "flips").mean((0, 1))
    torch.testing.assert_close(victim.mean, mean)
    fast = o._replace(rate=1e3, steps=100)
    assert "make its rate smaller" in refused(variants.release, part, (8, 8, 3), fast, 0)


def test_training_as_published_is_descent_with_one_rate(toy):
    recipe = networks.perceptron("signed", 12, 12)._replace(
        learning_rate=0.01, momentum=0.0, growth=1.0, stages=0, dtype=torch.float64
    )
    both = published_training.train(toy.secret, "signed", 12, (30, 200), 3)
    for victim, n in zip(both, (30, 200)):
        expected = stationary.train(toy.secret, recipe._replace(epochs=n), 3)
        ours, theirs = (networks.flatten(each.released.network) for each in (victim, expected))
        assert torch.allclose(ours, theirs, rtol=1e-9, atol=1e-12)
