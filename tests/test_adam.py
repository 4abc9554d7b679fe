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
def trained():
    """Photographs (6, 192) of 8 × 8 pixels, the means of 4 × 4, their shape and their Victim."""
    secret, shape = images.split(images.load("photos"), M, 40, 1).secret, (8, 8, 3)
    secret = secret._replace(images=secret.images.view(-1, 8, 4, 8, 4, 3).mean((2, 4)).flatten(1))
    return secret.images, shape, torch_trainer.train(secret, None, shape, "adam", (40, 20), 30)


def test_the_model_is_its_equation_and_its_slopes_are_those_of_differences():
    parts = [drawn(*size, seed=k).requires_grad_() for k, size in enumerate([(4, 5), *[(2, 3, 4)] * 3])]
    x, slices = parts[0], adam.Slices(*parts[1:])
    for j, p in ((0, 0), (1, 4), (2, 3)):
        v, total = adam.FLOOR, 0.0
        for b, c, l in zip(*slices):
            v = v + (c[j].exp() * x[:, p].square()).mean() + (l[j] @ x[:, p]) ** 2
            total = total + b[j] @ x[:, p] / v.sqrt()
        torch.testing.assert_close(adam.modelled(slices, x)[j, p], total)
    assert torch.autograd.gradcheck(lambda x, *parts: adam.modelled(parts, adam.seen(x, False)), parts)


def test_no_scale_of_a_pixel_matters_and_half_of_a_block_is_the_mirror_image_of_the_other():
    x, mirror = drawn(4, 2 * 6 * 3), adam.mirror_of((2, 6, 3))
    torch.testing.assert_close(adam.seen(x * (1 + torch.arange(36)), False), adam.seen(x, False))
    assert torch.equal(x[:, mirror], torch_trainer.mirrored(x, (2, 6, 3)))
    for block in adam.blocks_of(36, mirror, torch.Generator().manual_seed(0)):
        torch.testing.assert_close(adam.seen(x[:, block], True)[:, :-1], adam.whole(x, mirror)[:, block])
    turned = torch.cat([x, -2 * x[:, mirror]])[torch.randperm(8)]  # any size, sign and order
    best = adam.ncc(torch.cat([x, x[:, mirror]]), adam.halved(turned, mirror)).abs().max(0)
    assert best.values.min() > 0.999 and set((best.indices % 4).tolist()) == set(range(4))


def test_slices_explain_what_mixtures_of_true_images_do_not_and_show_one_that_is_missing(trained):
    x, _, victim = trained
    changed, _ = known_start.trained_part(victim.released, victim.start, 1.0)
    u, x = torch.cat([changed.network[0].weight, changed.network[0].bias[:, None]], 1), adam.unit(x - victim.mean)
    u, generator = adam.SIZE * u / u.square().mean().sqrt(), torch.Generator().manual_seed(0)
    slices, same, residual = adam.fit(u, x, adam.begin(u[:, :-1], x, generator), 90, adam.RATES[0], generator)
    linear = (u - u @ torch.linalg.pinv(adam.seen(x, False)) @ adam.seen(x, False)).square().sum() / u.square().sum()
    assert torch.equal(same, x) and residual < 0.4 * linear
    without = adam.Slices(*(part[:, :, 1:] for part in slices))
    shown, basis = adam.missing(u[:, :-1], without, x[1:], 1)[0], torch.linalg.qr(x[1:].mT)[0]
    assert torch.cosine_similarity(shown, x[0] - basis @ (basis.mT @ x[0]), dim=0).abs() > 0.7


def test_an_attack_tells_what_it_did_and_repeats_itself_or_refuses_in_a_sentence(trained, monkeypatch):
    monkeypatch.setattr(adam, "STEPS", (6, 6))
    _, shape, (released, *_, start, _) = trained
    one, two = (adam.attack(released, start, shape, M) for _ in range(2))
    assert one.images.shape == (M + 1, 192) and torch.equal(one.images, two.images)
    assert abs(one.details.alpha - 1) < 0.02 and len(one.details.residuals) == adam.ROUNDS
    both = adam.attack(released, start, shape, M, mirrored=True).details.fitted.view(2, M // 2, -1)
    torch.testing.assert_close(both[1], both[0][:, adam.mirror_of(shape)])
    for wrong, count, says in ((start[1:], M, "give its own"), (start, 30, "COUNT is 30"), (start, 5, "even COUNT")):
        with pytest.raises(InputError, match=says):
            adam.attack(released, wrong, shape, count, mirrored=count == 5)
    monkeypatch.setattr(adam, "modelled", lambda slices, x: slices.means[0] @ x * math.inf)
    with pytest.raises(InputError, match="diverged"):
        adam.attack(released, start, shape, M)
