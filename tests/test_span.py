"""The span test: what a step adds to a layer holds the layer's inputs, and those of no other image."""

import pytest
import torch
from torch import nn

from conftest import drawn, refused
from utils.attacks import span
from utils.training import deep


def network():
    """A convolution that sees four places of an image of 8 × 8, and a layer of 60 neurons, in double precision."""

    def made():
        body = nn.Conv2d(3, 60, 3, stride=3, padding=1, dilation=2), nn.ReLU(), nn.Flatten()
        return nn.Sequential(*body, nn.Linear(240, 60), nn.ReLU(), nn.Linear(60, 2))

    return deep.drawn(made, 1).double()


def stepped(trainer, steps, frozen=False):
    """Five images, three strangers, the network before and after training on the former, and the optimiser."""
    x = drawn(8, 3, 8, 8, seed=0)
    before, after = network(), network()
    _, optimiser = deep.train(
        after, x[:5], torch.arange(5) % 2, trainer, 0.1, steps, frozen=after[:1] if frozen else ()
    )
    return x[:5], x[5:], before, after, optimiser


@pytest.mark.parametrize("layer", [0, 3])
def test_the_inputs_of_a_step_lie_in_the_span_of_what_it_adds(layer):
    x, strangers, before, after, _ = stepped("plain", steps=1)
    seen = span.inputs(before, before[layer], x)
    assert seen.shape == {0: (5, 4, 27), 3: (5, 1, 240)}[layer]
    by_hand = seen @ before[layer].weight.flatten(1).mT + before[layer].bias
    made = before[: layer + 1](x)  # the layer computes from its inputs what it does
    assert torch.allclose(by_hand.mT.reshape(made.shape), made)
    basis = span.basis(after[layer].weight, before[layer].weight, alpha=1.0)
    assert basis.shape[1] == {0: 20, 3: 5}[layer]
    near, far = (span.distances(span.inputs(before, before[layer], z), basis) for z in (x, strangers))
    assert near.max() < 1e-6 and far.min() > 0.01


@pytest.mark.parametrize("trainer", ["sgd", "sgd_decay", "adam"])
def test_a_moment_tells_the_inputs_without_the_start(trainer):
    x, strangers, _, after, optimiser = stepped(trainer, steps=8, frozen=True)
    basis = span.basis(deep.moment(optimiser, after[3].weight), after[3].weight)
    near, far = (span.distances(span.inputs(after, after[3], z), basis) for z in (x, strangers))
    assert near.max() < 1e-5 < 0.01 < far.min()


def test_what_cannot_be_read_is_said():
    x, _, before, after, _ = stepped("adam", steps=3)
    assert "full rank" in refused(span.basis, after[0].weight, before[0].weight)
    assert "a ReLU" in refused(span.inputs, after, after[1], x)
    grouped = nn.Conv2d(3, 3, 3, groups=3)
    assert "has groups" in refused(span.inputs, nn.Sequential(grouped), grouped, x)
