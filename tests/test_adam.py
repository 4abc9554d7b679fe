"""Adam's step undone: the model, its slopes, the mirror images, and what fits the change that torch's Adam makes."""

import math

import pytest
import torch

from attacks import adam, first_layer
from conftest import drawn, refused
from training import images, ordinary
from utils.kernels.similarity import ncc

M = 6


@pytest.fixture(scope="module")
def trained():
    """Photographs (6, 192) of 8 × 8 pixels, the means of 4 × 4, their shape and their Victim."""
    secret, shape = images.split(images.load("photos"), M, 40, 1).secret, (8, 8, 3)
    secret = secret._replace(images=secret.images.view(-1, 8, 4, 8, 4, 3).mean((2, 4)).flatten(1))
    return secret.images, shape, ordinary.train(secret, None, shape, "adam", (40, 20), 30)


def test_the_model_is_its_equation():
    x, *slices = (drawn(*size, seed=k) for k, size in enumerate([(4, 5), *[(2, 3, 4)] * 3]))
    v, total = adam.FLOOR, 0.0
    for b, c, l in zip(*slices):
        v = v + (c[1].exp() * x[:, 4].square()).mean() + (l[1] @ x[:, 4]) ** 2
        total = total + b[1] @ x[:, 4] / v.sqrt()
    assert torch.isclose(adam.model_change(adam.Slices(*slices, None), x)[1, 4], total)


def test_the_first_epoch_is_torchs_adam_and_the_order_of_its_batches_is_read_from_it(monkeypatch):
    x, slopes = adam.normalise_pixels(drawn(10, 90)), drawn(60, 10, seed=2)
    batches = torch.eye(5).repeat(1, 2).double()[:, None]  # (5, 1, 10), two images each
    generator, wrong = torch.Generator().manual_seed(0), torch.tensor([2, 0, 4, 1, 3])
    u = adam.epoch(slopes, batches, adam.model_pixels(x, False))[0].float()
    initial = adam.initial_slices(u[:, :-1], x.float(), generator, 9 * batches[wrong].float())
    assert torch.equal(adam.order_batches(u, x.float(), initial, generator), 9 * batches.float())
    monkeypatch.setattr(adam, "FLOOR", 0.0)
    weight = torch.zeros(60, 90).double().requires_grad_()
    optimiser = torch.optim.Adam([weight], lr=1.0, eps=0)
    for batch in batches:
        weight.grad = -(slopes * batch) @ x
        optimiser.step()
    assert (adam.epoch(slopes, batches, x)[0] - weight.detach()).abs().max() < 0.01


def test_half_of_a_block_and_of_the_images_mirrors_the_other_and_no_scale_of_a_pixel_matters():
    x, mirror = drawn(4, 2 * 6 * 3), adam.mirror_of((2, 6, 3))
    assert torch.equal(x[:, mirror], ordinary.mirror(x, (2, 6, 3)))
    for block in adam.blocks_of(36, mirror, torch.Generator().manual_seed(0)):
        ours = adam.model_pixels(x[:, block] * (1 + block % 3), True)[:, :-1]
        torch.testing.assert_close(ours, adam.all_images(x, mirror)[:, block])
    turned = torch.cat([x, -2 * x[:, mirror]])[torch.randperm(8)]  # any size, sign and order
    best = ncc(torch.cat([x, x[:, mirror]]), adam.merge_mirrored(turned, mirror)).abs().max(0)
    assert best.values.min() > 0.999 and set((best.indices % 4).tolist()) == set(range(4))


def test_slices_explain_what_mixtures_of_true_images_do_not_and_show_one_that_is_missing(trained):
    x, _, victim = trained
    added = first_layer.difference(victim.released.network, victim.initial, 1.0).layer
    u, x = adam.normalise_change(added).double(), adam.normalise_pixels(x - victim.mean)
    generator = torch.Generator().manual_seed(0)
    slices = adam.initial_slices(u[:, :-1], x, generator)
    slices, same, residual = adam.fit(u, x, slices, 90, generator=generator, **adam.FIXED)
    pixels = adam.model_pixels(x, False)
    linear = (u - u @ torch.linalg.pinv(pixels) @ pixels).square().sum() / u.square().sum()
    assert torch.equal(same, x) and residual < 0.4 * linear
    without = adam.Slices(*(part[..., 1:] for part in slices[:4]))
    shown = adam.add_faint_directions(u[:, :-1], without, x[1:], 1)[-1]
    basis = torch.linalg.qr(x[1:].mT)[0]
    assert torch.cosine_similarity(shown, x[0] - basis @ (basis.mT @ x[0]), dim=0).abs() > 0.7


def test_an_attack_repeats_itself_or_refuses(trained, monkeypatch):
    short = {"STEPS": (6, 6), "SEARCH": ((8, 3, 1),), "LEARN_STEPS": 6, "WORTH": math.inf}
    for name, value in short.items():
        monkeypatch.setattr(adam, name, value)
    _, shape, victim = trained
    start = victim.released, victim.initial, shape
    one, two = (adam.attack(*start, M) for _ in range(2))
    assert one.images.shape == (M + 1, 192) and torch.equal(one.images, two.images)
    assert abs(one.details.alpha - 1) < 0.02
    fitted = adam.attack(*start, M, mirrored=True).details.fits[1].images
    assert fitted.shape == (M // 2, 192)
    assert "too few" in refused(adam.attack, *start, 30)
