"""Membership tests of one image: their formulas, and that they tell members of trained networks alone."""

import pytest
import torch

from experiments import closed_world
from utils import images, measures, networks
from utils.attacks.contract import Released
from utils.kernels.layers import change, flatten, forward
from utils.kernels.losses import LOSSES
from utils.training import stationary


@pytest.fixture(scope="module")
def parts():
    """Twenty photographs and twenty held-out ones, less the mean of the first."""
    data = images.split(images.load("photos"), 20, 20, held_out=20)
    mean = data.secret.images.mean(0)
    return [part._replace(images=part.images - mean) for part in (data.secret, data.held_out)]


@pytest.fixture(scope="module", params=[("signed", 2), ("margin", 0)])
def victim(parts, request):
    """A network that was trained on the first twenty, by two of the published recipes."""
    rule, stages = request.param
    recipe = networks.perceptron(rule, 60)._replace(epochs=300, stages=stages)
    return stationary.train(parts[0], recipe, 0).released


def test_the_residual_of_one_image_is_that_of_its_gradient(parts, victim):
    (x, y), target = parts[0], flatten(victim.network)
    for image, label, score in zip(x[:3], y, closed_world.by_residual(victim, x[:3].clone(), y[:3])):
        leaves = change(victim.network, lambda part: part.clone().requires_grad_())
        loss = LOSSES[victim.recipe.loss].value(forward(leaves, image[None])[1][-1], label[None]).sum()
        loss.backward()
        slope = flatten(change(leaves, lambda part: part.grad))
        torch.testing.assert_close(score, -(slope @ target) / slope.norm() / target.norm())


def test_a_trained_network_tells_its_members_and_an_untrained_one_nobody(parts, victim):
    found = closed_world.areas(victim, *parts)
    assert found["span"].low > 0.5 and found["loss"].low > 0.5
    untrained = networks.initial(victim.recipe._replace(start="standard"), 3072, 1)
    told = closed_world.areas(Released(untrained, victim.labels, victim.recipe), *parts)
    assert all(area.low < 0.5 < area.high for area in told.values())


def test_twins_are_images_that_another_one_repeats():
    x = torch.randn(6, 50, generator=torch.Generator().manual_seed(0)).double()
    assert measures.twins(x) == 0 and measures.twins(torch.cat([x, 2 * x[:2] + 1])) == pytest.approx(4 / 8)
