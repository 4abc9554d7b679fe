"""attacks/planting: images behind which the weights of a network with one hidden layer are a minimum."""

import re

import pytest
import torch

from conftest import drawn, noisy_classes
from utils import images, networks
from utils.attacks import planting, starts
from utils.attacks.contract import Released
from utils.errors import InputError
from utils.kernels import minimum, one_hidden
from utils.training import stationary

MU = 0.1
RECIPE = networks.one_hidden(8, MU)


@pytest.fixture(scope="module")
def trained():
    """A Part, and the network trained on it."""
    secret = noisy_classes(0)
    return secret, stationary.train(secret, RECIPE).released


def merged_wish(secret, released):
    return planting.problem_of(released, secret.images)


def test_the_equations_are_the_gradient_of_the_energy(trained):
    wish = merged_wish(*trained)
    z = wish.seen + 0.1 * drawn(*wish.seen.shape, seed=1)
    theta, k = wish.theta, len(wish.axes.T)
    vector = one_hidden.pack(theta).requires_grad_()
    s = torch.cat([z, torch.ones(30, 1)], 1) @ vector[: k * (k + 1)].view(k, k + 1).T
    active = torch.nn.functional.softplus(theta.sharpness * s) / theta.sharpness
    logits = active @ vector[k * (k + 1) : -1] + vector[-1]
    loss = torch.nn.functional.binary_cross_entropy_with_logits(logits, wish.labels)
    energy = loss + wish.weight_decay / 2 * vector.square().sum()
    slope = one_hidden.unpack(torch.autograd.grad(energy, vector)[0], k)
    (found, _), w = minimum.conditions(z, wish, theta, 0.0), theta.second[:-1]
    expected = slope.first / (wish.weight_decay * w[:, None])
    assert torch.allclose(found[: k * (k + 1)], expected.flatten(), atol=1e-9)
    assert torch.allclose(found[k * (k + 2)], slope.second[-1] / wish.weight_decay, atol=1e-9)
    balance = w * slope.second[:-1] - (theta.first * slope.first).sum(1)  # zero where the logarithms agree
    assert torch.equal(balance.sign(), found[k * (k + 1) : k * (k + 2)].sign())


@pytest.mark.parametrize("change, margin", [(0, 0.0), (0.1, 3e-3), (0.5, 50.0)])
def test_the_slopes_of_the_conditions_are_their_derivatives(trained, change, margin):
    wish = merged_wish(*trained)
    z, terms = wish.seen + change * drawn(*wish.seen.shape, seed=1), (wish, wish.theta, 0.1, margin)
    _, slopes = minimum.conditions(z, *terms)
    again = torch.func.jacrev(lambda z: minimum.conditions(z, *terms)[0])(z)
    assert wish.copied.any() and (slopes - again).norm() <= 1e-9 * again.norm()


def test_the_secret_images_satisfy_the_equations_and_are_their_own_nearest(trained):
    secret, released = trained
    wish = merged_wish(secret, released)
    assert minimum.conditions(wish.seen, wish, wish.theta, 0.0)[0].abs().max() < 1e-5
    assert torch.allclose(planting.nearest(wish.seen, wish), secret.images, atol=1e-6)


def test_two_neurons_for_all_equal_ones_have_the_least_eigenvalue_of_the_whole_network(trained):
    secret, released = trained
    x, theta = secret.images[:, :30], one_hidden.weights(released.network, 10.0)
    theta = theta._replace(first=torch.cat([theta.first[:, :30], theta.first[:, -1:]], 1))
    part = released._replace(network=one_hidden.network(theta))
    halves = planting.halved(part)
    assert len(halves.network[0].weight) < 8

    def least(network, sharpness):
        v = one_hidden.pack(one_hidden.weights(network, sharpness))
        product, _ = one_hidden.hessian(v, x, released.labels, MU, sharpness)
        return torch.linalg.eigvalsh(product(torch.eye(len(v), dtype=v.dtype)))[0]

    assert torch.allclose(least(part.network, 10.0), least(halves.network, halves.recipe.sharpness), atol=1e-8)


@pytest.mark.parametrize("place", ["noise", "others"])
def test_other_images_train_to_the_same_weights(trained, place):
    _, released = trained
    start = starts.random(30, 100, 5) if place == "noise" else noisy_classes(5).images
    found = planting.attack(released, start)
    assert found.loss <= 1e-6 < found.history[0]
    assert (found.images - start).square().mean().sqrt() < 1.5  # of images that reach from 0 to 2
    seen = networks.span_of(found.images, released.network[0].weight)
    target = one_hidden.weights(networks.in_span(released.network, seen), 10.0)
    noise = 1e-3 * drawn(*target.first.shape, seed=2)
    beside = target._replace(first=target.first + noise)
    again = one_hidden.solve(found.images @ seen, released.labels, MU, beside)  # all eight neurons, not the merged ones
    apart = one_hidden.square_norm(one_hidden.difference(again, target)) / one_hidden.square_norm(target)
    assert apart <= 3e-6


def test_leverages_are_the_shares_that_the_first_layer_decides(trained):
    secret, released = trained
    theta, images = one_hidden.weights(released.network, 10.0), secret.images + 0.1 * starts.random(30, 100, 4)
    s = (images @ theta.first[:, :-1].T + theta.first[:, -1]).requires_grad_()
    logits = torch.nn.functional.softplus(10 * s) / 10 @ theta.second[:-1] + theta.second[-1]
    loss = torch.nn.functional.binary_cross_entropy_with_logits(logits, released.labels)
    signals = torch.autograd.grad(loss, s)[0]  # equal neurons have equal ones
    signals = signals / signals.norm(dim=0)
    shares = (signals @ torch.linalg.pinv(signals, rtol=1e-6)).diagonal()
    found = planting.leverages(released, images)
    assert torch.allclose(found, shares, atol=1e-5) and (found.sum() - len(merged_wish(*trained).axes.T)).abs() < 1e-9


def test_an_untrained_network_is_refused_with_a_bound(trained):
    secret, released = trained
    network = networks.initial(RECIPE, 100, 3)
    with pytest.raises(InputError, match="not a stationary point .* the relative distance cannot fall below"):
        planting.attack(Released(network, released.labels, RECIPE), secret.images)


def test_the_bound_is_below_what_is_reached(trained):
    """Weights that decay has not balanced: wherever their training leads, it is at least as far as the bound says."""
    secret, released = trained
    (first, bias), second = released.network
    skewed = released._replace(network=(networks.Layer(3 * first, bias), second))
    with pytest.raises(InputError) as refused:
        planting.check_stationary(skewed)
    bound = float(re.search(r"below ([\d.e-]+);", str(refused.value))[1])
    begun = one_hidden.weights(skewed.network, 10.0)
    solved = one_hidden.solve(secret.images, released.labels, MU, begun)
    reached = one_hidden.square_norm(one_hidden.difference(solved, begun)) / one_hidden.square_norm(begun)
    assert 1e-4 < bound <= reached


def test_planting_wants_the_whole_network_and_a_hidden_layer(trained):
    secret, released = trained
    affine = stationary.train(secret, networks.affine(MU)).released
    for given in affine, planting.bilevel.condensed(released):
        with pytest.raises(InputError, match="Planting needs a network with one hidden layer, not merged"):
            planting.attack(given, secret.images)


def test_two_images_behind_three_kinds_of_neurons_come_back():
    """The rank of the first layer is the number of images, below that of the kinds: nothing is free."""
    secret = images.Part(noisy_classes(2).images[[0, 29]], torch.tensor([0.0, 1.0]).double())
    released = stationary.train(secret, networks.one_hidden(8, 0.01)).released
    assert len(planting.bilevel.condensed(released).network[0].weight) == 3
    assert planting.problem_of(released, secret.images).axes.shape == (100, 2)
    found = planting.attack(released, starts.random(2, 100, 3), iterations=100)
    assert found.loss <= 1e-6 and (found.images - secret.images).abs().max() <= 1e-2
