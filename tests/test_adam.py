"""Adam's step undone: the model, its slopes, the mirror images, and what fits the change that torch's Adam makes."""

import math

import pytest
import torch

from conftest import drawn
from utils import images
from utils.attacks import adam, known_start
from utils.errors import InputError
from utils.training import torch_trainer

M = 6


@pytest.fixture(scope="module")
def data():
    """Photographs of 8 × 8 pixels, the means of 4 × 4."""
    split = images.split(images.load("photos"), M, 40, 1)
    small = split.secret.images.view(-1, 8, 4, 8, 4, 3).mean((2, 4)).flatten(1)
    return split._replace(secret=split.secret._replace(images=small), shape=(8, 8, 3))


@pytest.fixture(scope="module")
def victim(data):
    return torch_trainer.train(data.secret, None, data.shape, "adam", (40, 20), 30)


def test_the_model_is_its_equation_at_every_neuron_and_pixel():
    slices, x = adam.Slices(*(drawn(2, 3, 4, seed=k) for k in range(3))), drawn(4, 5, seed=3)
    for j in range(3):
        for p in range(5):
            v, total = adam.FLOOR, 0.0
            for b, c, l in zip(*slices):
                v = v + (c[j].exp() * x[:, p].square()).mean() + (l[j] @ x[:, p]) ** 2
                total = total + b[j] @ x[:, p] / v.sqrt()
            torch.testing.assert_close(adam.modelled(slices, x)[j, p], total)


def test_the_slopes_of_the_fit_are_those_of_differences():
    u, parts = drawn(3, 7, seed=4), [drawn(2, 3, 4, seed=k).requires_grad_() for k in range(3)]
    x = drawn(4, 6, seed=3).requires_grad_()
    assert torch.autograd.gradcheck(
        lambda x, *parts: (adam.modelled(parts, adam.seen(x, False)) - u).square().sum(), (x, *parts)
    )


def test_neither_the_rate_nor_the_scale_of_a_pixel_matters_and_halves_of_blocks_are_mirror_images():
    x, mirror = drawn(4, 2 * 6 * 3), adam.mirror_of((2, 6, 3))
    torch.testing.assert_close(adam.seen(x * (1 + torch.arange(36)), False), adam.seen(x, False))
    torch.testing.assert_close(x[:, mirror], torch_trainer.mirrored(x, (2, 6, 3)))
    for block in adam.blocks_of(36, mirror, torch.Generator().manual_seed(0)):
        both = torch.cat([x, x[:, mirror]])[:, block]
        torch.testing.assert_close(adam.seen(x[:, block], True)[:, :-1], adam.unit(both))
    turned = torch.cat([x, -2 * x[:, mirror]])[torch.randperm(8)]  # any size, sign and order
    table = adam.ncc(torch.cat([x, x[:, mirror]]), adam.halved(turned, mirror)).abs()
    assert table.amax(0).min() > 0.999 and len(set((table.argmax(0) % 4).tolist())) == 4


def test_slices_explain_what_mixtures_of_the_true_images_do_not(data, victim):
    changed, _ = known_start.trained_part(victim.released, victim.start, 1.0)
    u, x = torch.cat([changed.network[0].weight, changed.network[0].bias[:, None]], 1), data.secret.images - victim.mean
    u, x = adam.SIZE * u / u.square().mean().sqrt(), adam.unit(x)
    seen = adam.seen(x, False)
    linear = (u - u @ torch.linalg.pinv(seen) @ seen).square().sum() / u.square().sum()
    generator = torch.Generator().manual_seed(0)
    _, same, residual = adam.fit(u, x, adam.begin(u[:, :-1], x, generator), 90, adam.RATES[0], generator)
    assert torch.equal(same, x) and residual < 0.4 * linear


def test_an_attack_tells_what_it_did_and_repeats_itself(data, victim, monkeypatch):
    monkeypatch.setattr(adam, "STEPS", (6, 6))
    one, two = (adam.attack(victim.released, victim.start, data.shape, M) for _ in range(2))
    assert one.images.shape == (M, 192) and torch.equal(one.images, two.images)
    assert abs(one.details.alpha - 1) < 0.02 and len(one.details.residuals) == adam.ROUNDS
    both = adam.attack(victim.released, victim.start, data.shape, M, mirrored=True).details.fitted
    torch.testing.assert_close(both[M // 2 :], both[: M // 2, adam.mirror_of(data.shape)])
    monkeypatch.setattr(adam, "modelled", lambda slices, x: slices.means[0] @ x * math.inf)
    with pytest.raises(InputError, match="diverged"):
        adam.attack(victim.released, victim.start, data.shape, M)


def test_bad_input_is_refused_in_a_sentence(data, victim):
    released, start = victim.released, victim.start
    for wrong, count, flips, says in (
        (start[1:], M, False, "give its own"),
        (released.network, M, False, "nothing was trained"),
        (start, 30, False, "COUNT is 30"),
        (start, 5, True, "even COUNT"),
    ):
        with pytest.raises(InputError, match=says):
            adam.attack(released, wrong, data.shape, count, mirrored=flips)
