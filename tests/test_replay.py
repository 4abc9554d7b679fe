"""A script that draws from torch's generator: from its state it is repeated, and tells the right images from others."""

import pytest
import torch

from attacks import generator
from experiments import generator as hidden
from training import ordinary, script
from training.images import Part

SHAPE, BUILD = (6, 6, 3), hidden.builder("torch", 108, (30, 20))


def run(trainer, pictures, seed=5):
    """The script on pictures (20, 108) from a hidden state: its layers, what it drew, and the state behind it."""
    part = Part(pictures, torch.arange(20) % 2)
    with generator.drawing_from(hidden.hide(seed)):
        net, drawn = script.train(part, SHAPE, BUILD, trainer, epochs=4)
        return ordinary.layers_of(net), drawn, torch.get_rng_state()


def same(network, other):
    return all(torch.equal(p, q) for pair in zip(network, other) for p, q in zip(*pair))


@pytest.fixture(scope="module")
def pictures():
    return torch.rand(20, 108, generator=torch.Generator().manual_seed(0), dtype=torch.double)


@pytest.mark.parametrize("trainer", script.TRAINERS)
def test_on_blank_images_the_script_draws_what_the_true_run_drew(pictures, trainer):
    _, drawn, state = run(trainer, pictures)
    _, again, after = run(trainer, torch.zeros(20, 108))
    assert again[:2] == drawn[:2] and torch.equal(state, after)
    assert all(torch.equal(p, q) for p, q in zip(drawn.masks, again.masks, strict=True))
    assert all(
        sorted(epoch) == [*range(20)] for epoch in torch.tensor(drawn.order).view(4, 20).tolist()
    )
    _, mirrors, drops = script.TRAINERS[trainer]
    assert any(drawn.flips) == mirrors and bool(drawn.masks) == drops
    assert not drops or 0.8 < torch.stack(drawn.masks).double().mean() < 0.97
    assert run(trainer, pictures, seed=6)[1].order != drawn.order


@pytest.mark.parametrize("trainer", script.TRAINERS)
def test_only_the_right_images_meet_the_final_weights_to_the_last_bit(pictures, trainer):
    network, _, _ = run(trainer, pictures)
    assert same(run(trainer, pictures)[0], network)
    changed = pictures.clone()
    changed[7, 50] += 1 / 255
    assert not same(run(trainer, changed)[0], network)
