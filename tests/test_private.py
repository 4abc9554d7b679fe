"""Private gradients: clipped and noisy as announced, and undone by who reads the generator."""

from functools import partial

import numpy as np
import pytest
import torch
from torch.nn.functional import binary_cross_entropy_with_logits
from torch.nn.utils import parameters_to_vector

from attacks import generator, known_start
from evaluation import measures
from experiments import generator as hidden
from experiments import private as experiment
from training import ordinary, private

M, D, WIDTHS = 20, 3072, (64, 64)  # of the pictures `data` of conftest.py, and of networks


def script_of(data, trainer):
    plan = experiment.plan_of(trainer, 8.0, 6, 0.15 * D**-0.5, M)
    fit = experiment.FITS[trainer]
    return partial(experiment.train, shape=data.shape, hidden=WIDTHS, fit=fit, plan=plan)


def test_gradients_are_those_of_single_images_each_clipped(data):
    net, y = ordinary.stack(D, (9, 7)), data.secret.labels.float()
    x = data.secret.images.float() * torch.linspace(0.01, 3, M)[:, None]
    losses = 1.5 * binary_cross_entropy_with_logits(net(x)[:, 0], y, reduction="none")
    ones = [torch.autograd.grad(loss, [*net.parameters()], retain_graph=True) for loss in losses]
    each = torch.stack([parameters_to_vector(one) for one in ones])
    norms = each.norm(dim=1, keepdim=True)
    assert norms.min() < private.CLIP < norms.max()
    wanted = (each / (norms / private.CLIP).clamp_min(1)).sum(0)
    torch.testing.assert_close(parameters_to_vector(private.clipped(net, x, y, 1.5)), wanted)


def test_noise_is_what_an_epsilon_needs():
    published = 3.730632  # Balle and Wang (2018), for one step
    assert private.sigma_of(1.0, 4) == pytest.approx(2 * published, abs=1e-5)


@pytest.mark.parametrize("trainer", ["plain", "opacus"])
def test_a_script_on_blank_images_draws_the_same_noise_bit_for_bit(data, trainer):
    if trainer == "opacus":
        pytest.importorskip("opacus")
    script, ends = script_of(data, trainer), []
    blank = data.secret._replace(images=0 * data.secret.images)
    for part, weight in ((data.secret, 1.0), (blank, 0.0)):
        with generator.drawing_from(hidden.hide(5)):
            ends.append((script(part, weight=weight), torch.get_rng_state()))
    (victim, end), (noise, its_end) = ends
    assert torch.equal(end, its_end)
    x, network = victim.subtract_mean(data.secret.images), victim.released.network
    assert experiment.outside(network, victim.initial, x) > 0.9
    # what images write lies in their span
    assert experiment.outside(network, noise.released.network, x) < 1e-3


def test_images_come_back_unless_another_generator_drew(data, monkeypatch):
    monkeypatch.setattr(generator, "ATTEMPTS", generator.ATTEMPTS[:1])
    script, build = script_of(data, "plain"), hidden.builder("torch", D, WIDTHS)
    with generator.drawing_from(hidden.hide(1)):
        victim = script(data.secret)
    read, start, _ = hidden.read(victim.released, build)
    assert hidden.equal(start, victim.initial)
    noisy = experiment.noise_behind(read, script, M)
    attack, _ = known_start.attempt(victim.released, noisy, data.shape, M, alpha=1.0)
    counts = measures.back(attack.images, measures.sides(data, victim.mean))
    back, null = counts["ncc_above_0.9"]
    assert back >= M - 2 and null == 0
    monkeypatch.setattr(generator, "ALONE", 0)
    other = script(data.secret, lot=np.random.default_rng(1))
    assert not any(hidden.read(other.released, build)[:2])
