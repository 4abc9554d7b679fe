"""Other images for the same weights: behind the affine model, and behind one hidden layer."""

import re

import pytest
import torch

from attacks import bilevel, planting, starts
from conftest import chapter_functions, drawn, noisy_classes, refused
from experiments import planted as judged
from training import images, stationary
from utils import networks
from utils.kernels import affine, one_hidden

MU = 0.1


@pytest.fixture(scope="module")
def trained():
    """A Part, and what was released of the network trained on it."""
    secret = noisy_classes(0)
    return secret, stationary.train(secret, networks.one_hidden(8, MU)).released


def far(theta, target):
    """The relative squared distance of Weights."""
    return one_hidden.square_distance(theta, target) / one_hidden.square_norm(target)


@pytest.mark.parametrize("change, margin", [(0, 1e-3), (0.1, 3e-3), (0.5, 50.0)])
def test_the_slopes_of_the_conditions_are_their_derivatives(trained, change, margin):
    wish = planting.problem_of(trained[1], trained[0].images)
    z = wish.coordinates + change * drawn(*wish.coordinates.shape, seed=1)
    terms = wish, wish.theta, 0.1, margin
    slopes = planting.conditions(z, *terms)[1]
    again = torch.func.jacrev(lambda z: planting.conditions(z, *terms)[0])(z)
    assert wish.copied.any() and (slopes - again).norm() <= 1e-9 * again.norm()


def test_the_secret_images_satisfy_the_equations_and_are_their_own_nearest(trained):
    secret, released = trained
    wish = planting.problem_of(released, secret.images)
    assert planting.conditions(wish.coordinates, wish, wish.theta, 0.0, 1e-9)[0].abs().max() < 1e-5
    torch.testing.assert_close(
        planting.nearest(wish.coordinates, wish), secret.images, atol=1e-6, rtol=0
    )


def test_two_neurons_for_all_equal_ones_have_the_least_eigenvalue_of_the_whole_network(trained):
    secret, released = trained
    x = secret.images[:, :30]
    (first, bias), second = released.network
    few = released._replace(network=(networks.Layer(first[:, :30], bias), second))
    halves = planting.split_copies(few)
    assert len(halves.network[0].weight) < 8

    def least(released):
        v = one_hidden.pack(one_hidden.weights(released.network, released.sharpness))
        product, _ = one_hidden.hessian(v, x, released.labels, MU, released.sharpness)
        return torch.linalg.eigvalsh(product(torch.eye(len(v)).to(v)))[0]

    assert abs(least(few) - least(halves)) < 1e-8


def test_other_images_train_to_the_same_weights(trained):
    """All eight neurons, from beside the weights, and not the merged ones alone."""
    _, released = trained
    start = starts.random(30, 100, 5)
    found = planting.attack(released, start)
    assert found.loss <= 1e-6 < found.history[0]
    assert (found.images - start).square().mean().sqrt() < 1.5  # of images that reach from 0 to 2
    seen = networks.span_of(found.images, released.network[0].weight)
    target = one_hidden.weights(networks.in_span(released.network, seen), 10.0)
    beside = target._replace(first=target.first + 1e-3 * drawn(*target.first.shape, seed=2))
    again = one_hidden.solve(found.images @ seen, released.labels, MU, beside)
    assert far(again.weights, target) <= 3e-6


def test_leverages_are_the_shares_that_the_first_layer_decides(trained):
    secret, released = trained
    theta = one_hidden.weights(released.network, 10.0)
    x = secret.images + 0.1 * starts.random(30, 100, 4)
    at = one_hidden.forward(one_hidden.pack(theta), x, 10.0)
    signals = at.slope * at.w * affine.residuals(at.logits, released.labels)[:, None]
    signals = signals / signals.norm(dim=0)  # equal for equal neurons
    shares = (signals @ torch.linalg.pinv(signals, rtol=1e-6)).diagonal()
    torch.testing.assert_close(planting.leverages(released, x), shares, atol=1e-5, rtol=0)


def test_what_cannot_be_planted_behind_is_refused(trained):
    """Where decay has not balanced the weights, training leads at least as far as the bound says."""
    secret, released = trained
    (first, bias), second = released.network
    skewed = released._replace(network=(networks.Layer(3 * first, bias), second))
    said = refused(planting.attack, skewed, secret.images)
    bound = float(re.search(r"not a stationary point .* cannot fall below ([\d.e-]+);", said)[1])
    begun = one_hidden.weights(skewed.network, 10.0)
    ended = one_hidden.solve(secret.images, released.labels, MU, begun).weights
    assert 1e-4 < bound <= far(ended, begun)
    flat = stationary.train(secret, networks.affine(MU)).released
    assert "one hidden layer, not merged" in refused(planting.attack, flat, secret.images)


def test_two_images_behind_three_kinds_of_neurons_come_back():
    """The rank of the first layer is the number of images, not of the kinds: nothing is free."""
    secret = images.Part(noisy_classes(2).images[[0, 29]], torch.tensor([0.0, 1.0]).double())
    released = stationary.train(secret, networks.one_hidden(8, 0.01)).released
    assert len(bilevel.merge_neurons(released).network[0].weight) == 3
    found = planting.attack(released, starts.random(2, 100, 3), iterations=100)
    assert found.loss <= 1e-6 and (found.images - secret.images).abs().max() <= 1e-2


def test_planted_images_are_judged_by_training_on_them(trained):
    """From beside θ*, from θ⁰ and at 8 bits."""
    secret, released = trained
    x, other = secret.images, starts.random(30, 100, 1)
    assert judged.from_perturbed(released, x, 1) < 1e-9
    assert judged.from_perturbed(released, other, 1) > 1e-3 < judged.from_start(released, other, 0)
    found = judged.numbers_of(released, x, x, (10, 10, 1), 0)
    assert found["relative_distance"] < 1e-10 < found["stored_distance"]  # some pixels are clipped
    assert found["moved"] == 0 and found["least_ssim"] == pytest.approx(1)


# ---- The affine model: the functions of its chapter and of its sequel ----

CHAPTER = chapter_functions("affine-model")


def test_a_projection_is_the_nearest_point_at_a_distance_in_closed_form(x, y):
    theta = affine.solve(x, y, CHAPTER["WEIGHT_DECAY"]).weights
    z, wish = affine.logits(x, theta), starts.random(12, 30, 1)
    nearest = CHAPTER["project_onto_solutions"](wish, z, y, theta)
    # x is another point of the affine set: the error of a projection is orthogonal to the set.
    assert abs(((wish - nearest) * (x - nearest)).sum()) < 1e-9
    found = CHAPTER["squared_distance"](z, wish @ wish.T, wish @ theta[:-1], y, theta)
    torch.testing.assert_close(found, (nearest - wish).square().sum(), rtol=1e-9, atol=0)
    assert "No logits are feasible" in refused(CHAPTER["plant"], x, y, 100 * theta)
