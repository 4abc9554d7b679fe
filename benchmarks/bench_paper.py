"""Whole trainings and attacks at the paper's size, each of them once; without a GPU, a rehearsal at toy size."""

from functools import cache, partial
from typing import NamedTuple

import pytest
import torch
from problems import DEVICE, PHOTOS, normal

from utils import images, networks, victims
from utils.attacks import decoreco, unmixing


class Size(NamedTuple):
    """How large everything is."""

    images: int  # m, of the large victim
    width: int  # of its two hidden layers
    candidates: int
    published: int  # steps
    ours: int  # steps
    epochs: int  # of the trainer, before and after its polish
    few: int  # images and neurons of the small victim
    neurons: int


SIZE = (
    Size(500, 1000, 1000, 50_000, 1000, 5000, 50, 500) if DEVICE.type == "cuda" else Size(12, 20, 16, 20, 20, 60, 8, 40)
)


@cache
def part(m):
    """A Part of m photographs, of two labels in turn; those behind the last one are mirror images."""
    rows = torch.as_tensor(PHOTOS.images) / 255.0
    rows = torch.cat([rows, rows.flip(2)])[:m].flatten(1)  # (m, d)
    return images.Part(rows.double().to(DEVICE), (torch.arange(len(rows), device=DEVICE) % 2).double())


def trained(m, *widths):
    """A victim of m photographs."""
    recipe = networks.perceptron("signed", *widths)._replace(epochs=SIZE.epochs)
    return victims.train(part(m), recipe)


large = cache(partial(trained, SIZE.images, SIZE.width, SIZE.width))
small = cache(partial(trained, SIZE.few, SIZE.neurons))


def test_victim(measure):
    size = {"images": SIZE.images, "width": SIZE.width}
    found = measure(
        partial(trained, SIZE.images, SIZE.width, SIZE.width), "paper", "victim", size, "float32", once=True
    )
    assert found.accuracy > 0.5


def test_published(measure):
    """The published optimiser for all of its steps."""
    attack = partial(decoreco.attack, large().released, normal(SIZE.candidates), optimiser="sgd")
    size = {"images": SIZE.images, "candidates": SIZE.candidates, "steps": SIZE.published}
    found = measure(partial(attack, iterations=SIZE.published), "paper", "published", size, "float32", once=True)
    assert found.loss < found.history[0]


@pytest.mark.parametrize("seed", range(5))
def test_ours(seed, measure):
    """Adam in the span of the first layer."""
    victim = large().released
    attack = partial(decoreco.attack, victim, normal(SIZE.candidates, seed), basis=networks.span(victim.network))
    size = {"images": SIZE.images, "candidates": SIZE.candidates, "steps": SIZE.ours, "seed": seed}
    found = measure(partial(attack, iterations=SIZE.ours), "paper", "ours", size, "float32", once=True)
    assert found.loss < found.history[0]


@pytest.mark.parametrize("victim, m", [(small, SIZE.few), (large, SIZE.images)], ids=["few", "many"])
def test_unmixing(victim, m, measure):
    attack = partial(unmixing.attack, victim().released, PHOTOS.images.shape[1:], count=m)
    found = measure(attack, "paper", "unmixing", {"images": m}, "float32", once=True)
    assert found.images.shape[0] == m
