"""The trainers of the map: its coordinates are exact, its gradients clip and its released weights are what they say."""

import pytest
import torch

from experiments import variants
from experiments.variants import Settings
from utils import images
from utils.errors import InputError
from utils.kernels import coordinates
from utils.kernels.layers import Layer
from utils.training import torch_trainer

SETTINGS = Settings(layers=3, neurons=7, decay=1e-2, start=0.1, rate=0.05, steps=30)


def in_pixels(x, y, o, seed):
    """Plain gradient descent on all pixels, by torch alone."""
    net, basis, rest = variants.initialised(x[None], 1, o, seed)
    (first, bias), *upper = torch_trainer.layers_of(net)
    net = torch_trainer.module_of((Layer(coordinates.joined(first, basis, rest), bias), *upper))
    optimiser = torch.optim.SGD(net.parameters(), o.rate, o.momentum, weight_decay=o.decay)
    for _ in range(o.steps):
        optimiser.zero_grad()
        variants.LOSSES[o.loss](net(x.float()), y.float()).backward()
        optimiser.step()
    return torch_trainer.layers_of(net)


@pytest.mark.parametrize("changes", [{}, {"layers": 2}, {"loss": "logistic"}, {"momentum": 0.0}])
def test_training_in_coordinates_is_training_on_pixels(small, changes):
    x, y, _ = small
    o = SETTINGS._replace(**changes)
    ours = variants.train_in_coordinates(x[None], y, 1, o, 0)
    for one, other in zip(ours, in_pixels(x, y, o, 0), strict=True):
        torch.testing.assert_close(tuple(one), tuple(other), rtol=1e-3, atol=1e-5)


def test_a_frozen_first_layer_stays_and_biases_can_be_left_out(small):
    x, y, _ = small
    net, basis, rest = variants.initialised(x[None], 1, SETTINGS, 0)
    first, second, _ = torch_trainer.layers_of(net)
    kept = variants.train_in_coordinates(x[None], y, 1, SETTINGS._replace(frozen=True), 0)
    torch.testing.assert_close(kept[0].weight, coordinates.joined(first.weight, basis, rest), rtol=1e-5, atol=1e-6)
    assert not torch.allclose(kept[1].weight, second.weight, atol=1e-3)
    without = variants.train_in_coordinates(x[None], y, 1, SETTINGS._replace(biases=False), 0)
    assert without[0].bias.abs().max() == 0


def test_private_gradients_are_clipped_means(small):
    x, y, generator = small
    net, basis, _ = variants.initialised(x[None], 1, SETTINGS, 0)
    seen = (x @ basis).float()
    plain = variants.plain_gradients(net, seen, y.float(), SETTINGS, generator)
    loose = SETTINGS._replace(clip=1e6)
    private = variants.private_gradients(net, seen, y.float(), loose, generator)
    torch.testing.assert_close(list(private), list(plain), rtol=1e-4, atol=1e-6)
    for size in (1e-3, 1e-2):
        tight = variants.private_gradients(net, seen, y.float(), SETTINGS._replace(clip=size), generator)
        assert sum(part.square().sum() for part in tight).sqrt() <= 1.001 * size
    noisy = loose._replace(clip=1.0, private=5.0)
    drawn = variants.private_gradients(net, seen, y.float(), noisy, generator)
    assert 0.8 < drawn[2].std() * len(x) / 5.0 < 1.3


def test_privacy_costs_more_with_more_steps_and_less_noise():
    def epsilon(steps, private):
        return variants.epsilon(SETTINGS._replace(steps=steps, private=private))

    assert epsilon(300, 1.0) == pytest.approx(150 + (600 * 11.512925) ** 0.5)
    assert epsilon(100, 2.0) < epsilon(100, 1.0)
    assert epsilon(100, 0.0) == float("inf")


def test_released_weights_are_what_they_say():
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(60, 50, dtype=torch.float64, generator=generator)
    change = variants.changed
    torch.testing.assert_close(change(weight, SETTINGS, generator), weight, rtol=0, atol=0)
    assert len(change(weight, SETTINGS._replace(bits=4), generator).unique()) <= 15
    assert (change(weight, SETTINGS._replace(bits=16), generator) - weight).abs().max() < 1e-3 * weight.abs().max()
    pruned = change(weight, SETTINGS._replace(pruned=0.9), generator)
    assert (pruned != 0).sum() == 300 and pruned.abs().sum() > 300 * weight.abs().quantile(0.9)
    noisy = change(weight, SETTINGS._replace(noise=0.1), generator)
    assert (noisy - weight).square().mean().sqrt() / weight.square().mean().sqrt() == pytest.approx(0.1, rel=0.05)


def test_versions_of_an_image_keep_its_pixels():
    x = torch.rand(4, 8 * 8 * 3, generator=torch.Generator().manual_seed(0))
    for augment, number in (("none", 1), ("flips", 2), ("shifts", 9)):
        found = variants.versions(x, (8, 8, 3), augment)
        assert found.shape == (number, *x.shape)
        for version in found:
            torch.testing.assert_close(version.sort(1).values, x.sort(1).values)
    mirrored = variants.versions(x, (8, 8, 3), "flips")[1].view(4, 8, 8, 3)
    torch.testing.assert_close(mirrored, x.view(4, 8, 8, 3).flip(2))


def test_a_release_counts_every_picture_and_names_its_recipe():
    x = torch.rand(6, 192, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    part = images.Part(x, 1.0 * (torch.arange(6) > 2))
    o = SETTINGS._replace(layers=2, loss="logistic", augment="flips", steps=5)
    victim = variants.release(part, (8, 8, 3), o, 0)
    released, mean = victim.released, victim.mean
    assert victim.versions == 12 and [len(layer.weight) for layer in released.network] == [7, 1]
    torch.testing.assert_close(mean, variants.versions(part.images, (8, 8, 3), "flips").mean((0, 1)))
    assert (released.recipe.loss, released.recipe.weight_decay, released.recipe.centred) == ("logistic", 1e-2, True)
    assert variants.release(part, (8, 8, 3), o._replace(centred=False), 0).mean.abs().max() == 0
    with pytest.raises(InputError, match="diverged: make its rate smaller"):
        variants.release(part, (8, 8, 3), o._replace(rate=1e3, steps=100), 0)


def test_a_victim_has_the_settings_of_the_first_one_but_for_its_own():
    assert variants.settings("base", 30) == Settings(neurons=30)
    assert variants.settings("40 neurons", 30) == Settings(neurons=40)
    assert variants.settings("flips", 30) == Settings(neurons=30, augment="flips", rate=0.05)
    with pytest.raises(InputError, match="VICTIM is 'none', but it must be one of 'base'"):
        variants.settings("none", 30)
