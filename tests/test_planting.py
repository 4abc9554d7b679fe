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
RECIPE = networks.one_hidden(8, MU)


@pytest.fixture(scope="module")
def trained():
    """A Part, and what was released of the network trained on it."""
    secret = noisy_classes(0)
    return secret, stationary.train(secret, RECIPE).released


@pytest.mark.parametrize("change, margin", [(0, 0.0), (0.1, 3e-3), (0.5, 50.0)])
def test_the_slopes_of_the_conditions_are_their_derivatives(trained, change, margin):
    wish = planting.problem_of(trained[1], trained[0].images)
    z = wish.coordinates + change * drawn(*wish.coordinates.shape, seed=1)
    terms = (wish, wish.theta, 0.1, margin)
    _, slopes = planting.conditions(z, *terms)
    again = torch.func.jacrev(lambda z: planting.conditions(z, *terms)[0])(z)
    assert wish.copied.any() and (slopes - again).norm() <= 1e-9 * again.norm()


def test_the_secret_images_satisfy_the_equations_and_are_their_own_nearest(trained):
    secret, released = trained
    wish = planting.problem_of(released, secret.images)
    assert planting.conditions(wish.coordinates, wish, wish.theta, 0.0)[0].abs().max() < 1e-5
    assert torch.allclose(planting.nearest(wish.coordinates, wish), secret.images, atol=1e-6)


def test_two_neurons_for_all_equal_ones_have_the_least_eigenvalue_of_the_whole_network(trained):
    secret, released = trained
    x, theta = secret.images[:, :30], one_hidden.weights(released.network, 10.0)
    theta = theta._replace(first=torch.cat([theta.first[:, :30], theta.first[:, -1:]], 1))
    part = released._replace(network=one_hidden.network(theta))
    halves = planting.split_copies(part)
    assert len(halves.network[0].weight) < 8

    def least(network, sharpness):
        v = one_hidden.pack(one_hidden.weights(network, sharpness))
        product, _ = one_hidden.hessian(v, x, released.labels, MU, sharpness)
        return torch.linalg.eigvalsh(product(torch.eye(len(v), dtype=v.dtype)))[0]

    assert torch.allclose(
        least(part.network, 10.0), least(halves.network, halves.sharpness), atol=1e-8
    )


def test_other_images_train_to_the_same_weights(trained):
    _, released = trained
    start = starts.random(30, 100, 5)
    found = planting.attack(released, start)
    assert found.loss <= 1e-6 < found.history[0]
    assert (found.images - start).square().mean().sqrt() < 1.5  # of images that reach from 0 to 2
    seen = networks.span_of(found.images, released.network[0].weight)
    target = one_hidden.weights(networks.in_span(released.network, seen), 10.0)
    noise = 1e-3 * drawn(*target.first.shape, seed=2)
    beside = target._replace(first=target.first + noise)
    again = one_hidden.solve(
        found.images @ seen, released.labels, MU, beside
    )  # all eight neurons, not the merged ones
    apart = one_hidden.square_norm(one_hidden.difference(again, target)) / one_hidden.square_norm(
        target
    )
    assert apart <= 3e-6


def test_leverages_are_the_shares_that_the_first_layer_decides(trained):
    secret, released = trained
    theta = one_hidden.weights(released.network, 10.0)
    images = secret.images + 0.1 * starts.random(30, 100, 4)
    at = one_hidden.forward(one_hidden.pack(theta), images, 10.0)
    signals = (
        at.slope * at.w * affine.residuals(at.logits, released.labels)[:, None]
    )  # equal for equal neurons
    signals = signals / signals.norm(dim=0)
    shares = (signals @ torch.linalg.pinv(signals, rtol=1e-6)).diagonal()
    found = planting.leverages(released, images)
    kinds = len(planting.problem_of(released, images).axes.T)
    assert torch.allclose(found, shares, atol=1e-5) and (found.sum() - kinds).abs() < 1e-9


def test_a_network_without_a_hidden_layer_and_weights_that_no_training_ends_at_are_refused(trained):
    """Decay has not balanced the weights: training leads at least as far as the bound says."""
    secret, released = trained
    (first, bias), second = released.network
    skewed = released._replace(network=(networks.Layer(3 * first, bias), second))
    said = refused(planting.attack, skewed, secret.images)
    bound = float(re.search(r"not a stationary point .* cannot fall below ([\d.e-]+);", said)[1])
    begun = one_hidden.weights(skewed.network, 10.0)
    solved = one_hidden.solve(secret.images, released.labels, MU, begun)
    reached = one_hidden.square_norm(one_hidden.difference(solved, begun)) / one_hidden.square_norm(
        begun
    )
    assert 1e-4 < bound <= reached
    for given in (
        stationary.train(secret, networks.affine(MU)).released,
        bilevel.merge_neurons(released),
    ):
        said = refused(planting.attack, given, secret.images)
        assert "Planting needs a network with one hidden layer, not merged" in said


def test_two_images_behind_three_kinds_of_neurons_come_back():
    """The rank of the first layer is the number of images, not of the kinds: nothing is free."""
    secret = images.Part(noisy_classes(2).images[[0, 29]], torch.tensor([0.0, 1.0]).double())
    released = stationary.train(secret, networks.one_hidden(8, 0.01)).released
    assert len(bilevel.merge_neurons(released).network[0].weight) == 3
    assert planting.problem_of(released, secret.images).axes.shape == (100, 2)
    found = planting.attack(released, starts.random(2, 100, 3), iterations=100)
    assert found.loss <= 1e-6 and (found.images - secret.images).abs().max() <= 1e-2


# ---- Planted images are judged by training on them: from beside θ*, from θ⁰ and at 8 bits ----


def test_training_on_the_secret_images_returns_from_noise_and_from_the_start(trained):
    (x, _), released = trained
    other = starts.random(30, 100, 1)
    basis = networks.span_of(x, bilevel.merge_neurons(released).network[0].weight)
    assert (
        judged.from_perturbed(released, x, 1) < 1e-10 > judged.from_perturbed(released, x, 1, basis)
    )
    assert judged.from_perturbed(released, other, 1) > 1e-3
    assert (
        judged.from_start(released, x, 0) < 1e-15 and judged.from_start(released, other, 0) > 1e-3
    )


def test_the_secret_images_are_measured_as_planted(trained):
    (x, _), released = trained
    found = judged.numbers_of(released, x, x, (10, 10, 1), 0)
    assert found["relative_distance"] < 1e-10 < found["stored_distance"]  # some pixels are clipped
    assert found["moved"] == 0 and found["least_ssim"] == pytest.approx(1)
    rows = {row.name.split("/")[-1]: row for row in judged.rows_of("noise", found, 0)}
    assert (
        rows["fresh_distance"].baseline == found["fresh_untouched"]
        and rows["moved"].baseline is None
    )
    assert rows["relative_distance"].name == "plant_network/noise/relative_distance"
    x = torch.tensor([-0.1, 0.0, 0.3, 0.5, 1.2], dtype=torch.float64)
    assert (255 * judged.eight_bits(x)).tolist() == pytest.approx([0, 0, 76, 128, 255])


def test_the_affine_model_is_measured_by_training_anew(trained):
    secret, _ = trained
    released = stationary.train(secret, networks.affine(0.1)).released
    found = judged.numbers_of(released, secret.images, starts.random(30, 100, 1), (10, 10, 1), 0)
    assert (
        found["trained_distance"] is None
        and found["relative_distance"] < 1e-20 < found["untouched"]
    )


# ---- The affine model: the functions of its chapter and of its sequel ----

CHAPTER = chapter_functions("affine-model")


@pytest.mark.parametrize("what", ["noise", "photographs", "drawing", "the secret images"])
def test_planted_images_train_to_the_same_weights(photos, what):
    data, network = photos
    target = networks.flatten(network)
    wish = {
        "noise": starts.random(100, 3072, 3),
        "the secret images": data.secret.images,
        "photographs": starts.partition(data.known, 100),
        "drawing": CHAPTER["drawing"]("#..\n.#.\n..#", data.shape).expand(100, 3072),
    }[what]
    planted = CHAPTER["plant"](wish, data.secret.labels, target)
    again = affine.solve(planted.images, data.secret.labels, CHAPTER["WEIGHT_DECAY"]).weights
    assert (again - target).square().sum() <= 1e-12 * target.square().sum()
    assert planted.converged
    assert planted.images.min() >= -1e-12 and planted.images.max() <= 1 + 1e-12
    if what == "photographs":  # searching the logits brings the set nearer
        z = CHAPTER["feasible_logits"](affine.logits(wish, target), data.secret.labels, target)
        plain = CHAPTER["project_onto_solutions"](wish, z, data.secret.labels, target)
        assert planted.change < 0.9 * (plain - wish).square().mean().sqrt()
    assert planted.change < 1e-9 if what == "the secret images" else 0 < planted.change < 0.1


def test_a_projection_is_the_nearest_point_at_a_distance_in_closed_form(x, y):
    theta = affine.solve(x, y, CHAPTER["WEIGHT_DECAY"]).weights
    z, wish = affine.logits(x, theta), starts.random(12, 30, 1)
    nearest = CHAPTER["project_onto_solutions"](wish, z, y, theta)
    # x is another point of the affine set: the error of a projection is orthogonal to the set.
    assert abs(((wish - nearest) * (x - nearest)).sum()) < 1e-9
    found = CHAPTER["squared_distance"](z, wish @ wish.T, wish @ theta[:-1], y, theta)
    assert torch.allclose(found, (nearest - wish).square().sum(), rtol=1e-9)
    assert "No logits are feasible: check the labels" in refused(
        CHAPTER["plant"], x, y, 100 * theta
    )


def test_every_copy_of_a_drawing_shows_it_and_an_empty_one_is_refused():
    copies = starts.drawings("#.\n.#", (8, 8, 3), 4, 0).reshape(4, 8, 8, 3)
    assert torch.allclose((copies[:, 0, 0] - copies[:, 0, 7]).abs(), copies.new_tensor(0.5))
    assert torch.equal(copies[:, 0, 0], copies[:, 7, 7]) and copies.unique(dim=0).shape[0] == 4
    for draw, *more in ((CHAPTER["drawing"],), (starts.drawings, 4, 0)):
        assert "DRAWING is empty" in refused(draw, "\n\n", (8, 8, 3), *more)


def test_equal_neurons_are_merged():
    neurons = torch.tensor([[1.0, 2.0, 3.0]] * 4 + [[4.0, 5.0, 6.0]], dtype=torch.float64)
    kinds, few, copies = chapter_functions("planting-behind-a-network")["merge"](neurons)
    assert kinds == [[4], [0, 1, 2, 3]] and copies.tolist() == [1, 4]
    assert torch.equal(few, torch.stack([neurons[4], 2 * neurons[0]]))
