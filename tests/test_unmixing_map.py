"""The trainer of the map: its coordinates are exact, its gradients clip and its released weights are what they say."""

import nbformat
import pytest
import torch

from conftest import BOOK, chapter_functions

CHAPTER = chapter_functions("unmixing-map")
CELLS = nbformat.read(BOOK / "unmixing-map.ipynb", as_version=4).cells
exec(next(cell.source for cell in CELLS if cell.source.startswith("LOSSES")), CHAPTER)  # a dict of lambdas
SETTINGS = {
    "layers": 3, "neurons": 7, "loss": "square", "decay": 1e-2, "start": 0.1, "optimiser": "SGD", "rate": 0.05,
    "momentum": 0.9, "steps": 30, "batch": 0, "augment": "none", "centred": True, "biases": True, "clip": 0.0,
    "private": 0.0, "frozen": False, "noise": 0.0, "bits": 0, "pruned": 0.0,
}  # fmt: skip


def in_pixels(x, y, o, seed):
    """Plain gradient descent on all pixels, by torch alone."""
    parameters, basis, outside = CHAPTER["begin"](x[None], 1, o, seed)
    parameters[0] = (parameters[0].double() @ basis.T + outside).float()
    parameters = [part.requires_grad_() for part in parameters]
    optimiser = torch.optim.SGD(parameters, o["rate"], o["momentum"], weight_decay=o["decay"])
    for _ in range(o["steps"]):
        optimiser.zero_grad()
        CHAPTER["LOSSES"][o["loss"]](CHAPTER["logits"](parameters, x.float()), y.float()).backward()
        optimiser.step()
    return [part.detach().double() for part in parameters]


@pytest.mark.parametrize("changes", [{}, {"layers": 2}, {"loss": "logistic"}, {"momentum": 0.0}])
def test_training_in_coordinates_is_training_on_pixels(small, changes):
    x, y, _ = small
    o = {**SETTINGS, **changes}
    ours = CHAPTER["trained"](x[None], y, 1, o, 0)
    for one, other in zip(ours, in_pixels(x, y, o, 0), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-5)


def test_a_frozen_first_layer_stays_and_biases_can_be_left_out(small):
    x, y, _ = small
    begun = CHAPTER["begin"](x[None], 1, SETTINGS, 0)
    first = begun[0][0].double() @ begun[1].T + begun[2]
    kept = CHAPTER["trained"](x[None], y, 1, {**SETTINGS, "frozen": True}, 0)
    torch.testing.assert_close(kept[0], first, rtol=1e-5, atol=1e-6)
    assert not torch.allclose(kept[2], begun[0][2].double(), atol=1e-3)
    assert CHAPTER["trained"](x[None], y, 1, {**SETTINGS, "biases": False}, 0)[1].abs().max() == 0


def test_private_gradients_are_clipped_means(small):
    x, y, generator = small
    parameters = [part.detach().requires_grad_() for part in CHAPTER["begin"](x[None], 1, SETTINGS, 0)[0]]
    seen = (x @ CHAPTER["begin"](x[None], 1, SETTINGS, 0)[1]).float()
    plain = CHAPTER["plain_gradients"](parameters, seen, y.float(), SETTINGS, generator)
    loose = {**SETTINGS, "clip": 1e6}
    private = CHAPTER["private_gradients"](parameters, seen, y.float(), loose, generator)
    torch.testing.assert_close(list(private), list(plain), rtol=1e-4, atol=1e-6)
    for size in (1e-3, 1e-2):
        tight = CHAPTER["private_gradients"](parameters, seen, y.float(), {**SETTINGS, "clip": size}, generator)
        assert sum(part.square().sum() for part in tight).sqrt() <= 1.001 * size
    noisy = {**loose, "clip": 1.0, "private": 5.0}
    drawn = CHAPTER["private_gradients"](parameters, seen, y.float(), noisy, generator)
    assert 0.8 < drawn[2].std() * len(x) / 5.0 < 1.3


def test_privacy_costs_more_with_more_steps_and_less_noise():
    epsilon = CHAPTER["epsilon"]
    assert epsilon({"steps": 300, "private": 1.0}) == pytest.approx(150 + (600 * 11.512925) ** 0.5)
    assert epsilon({"steps": 100, "private": 2.0}) < epsilon({"steps": 100, "private": 1.0})
    assert epsilon({"steps": 100, "private": 0.0}) == float("inf")


def test_released_weights_are_what_they_say():
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(60, 50, dtype=torch.float64, generator=generator)
    change = CHAPTER["released_weights"]
    torch.testing.assert_close(change(weight, SETTINGS, generator), weight, rtol=0, atol=0)
    assert len(change(weight, {**SETTINGS, "bits": 4}, generator).unique()) <= 15
    assert (change(weight, {**SETTINGS, "bits": 16}, generator) - weight).abs().max() < 1e-3 * weight.abs().max()
    pruned = change(weight, {**SETTINGS, "pruned": 0.9}, generator)
    assert (pruned != 0).sum() == 300 and pruned.abs().sum() > 300 * weight.abs().quantile(0.9)
    noisy = change(weight, {**SETTINGS, "noise": 0.1}, generator)
    assert (noisy - weight).square().mean().sqrt() / weight.square().mean().sqrt() == pytest.approx(0.1, rel=0.05)


def test_versions_of_an_image_keep_its_pixels():
    x = torch.rand(4, 8 * 8 * 3, generator=torch.Generator().manual_seed(0))
    for augment, number in (("none", 1), ("flips", 2), ("shifts", 9)):
        found = CHAPTER["versions"](x, (8, 8, 3), augment)
        assert found.shape == (number, *x.shape)
        for version in found:
            torch.testing.assert_close(version.sort(1).values, x.sort(1).values)
    mirrored = CHAPTER["versions"](x, (8, 8, 3), "flips")[1].view(4, 8, 8, 3)
    torch.testing.assert_close(mirrored, x.view(4, 8, 8, 3).flip(2))
