"""A script that draws from torch's generator: from its state it is repeated, and tells the right images from others."""

import pytest
import torch

from attacks import generator
from experiments import generator as hidden
from training import ordinary, script
from training.images import Part

BUILD = hidden.builder("torch", 108, (30, 20))


def run(trainer, pictures, seed=5):
    """The script on pictures (20, 108) from a hidden state: its layers, what it drew, and the state behind it."""
    part = Part(pictures, torch.arange(20) % 2)
    with generator.drawing_from(hidden.hide(seed)):
        net, drawn = script.train(part, (6, 6, 3), BUILD, trainer, epochs=4)
        return ordinary.layers_of(net), drawn, torch.get_rng_state()


@pytest.mark.parametrize("trainer", script.TRAINERS)
def test_a_run_is_repeated_and_the_right_images_alone_meet_its_last_bits(trainer):
    pictures = torch.rand(20, 108, dtype=torch.double)
    network, drawn, state = run(trainer, pictures)
    _, again, after = run(trainer, torch.zeros(20, 108))
    assert again[:2] == drawn[:2] and torch.equal(state, after)
    assert all(torch.equal(p, q) for p, q in zip(drawn.masks, again.masks, strict=True))
    epochs = torch.tensor(drawn.order).view(4, 20)
    assert torch.equal(epochs.sort(1).values, torch.arange(20).expand(4, 20))
    _, mirrors, drops = script.TRAINERS[trainer]
    assert any(drawn.flips) == mirrors and bool(drawn.masks) == drops
    assert not drops or 0.8 < torch.stack(drawn.masks).double().mean() < 0.97
    assert run(trainer, pictures, seed=6)[1].order != drawn.order
    assert hidden.equal(run(trainer, pictures)[0], network)
    pictures[7, 50] += 1 / 255
    assert not hidden.equal(run(trainer, pictures)[0], network)
