"""Private gradients: clipped and noisy as announced, and undone by who reads the generator."""

from functools import partial

import pytest
import torch
from torch.nn.functional import binary_cross_entropy_with_logits
from torch.nn.utils import parameters_to_vector

from attacks import generator
from evaluation import measures
from experiments import private as experiment
from training import ordinary, private

M, D = 20, 3072  # of the pictures `data` of conftest.py


def script_of(data, trainer):
    plan = experiment.plan_of(trainer, 8.0, 6, 0.15 * D**-0.5, M)
    return partial(
        experiment.train, shape=data.shape, hidden=(64, 64), fit=experiment.FITS[trainer], plan=plan
    )


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
    assert private.sigma_of(1.0, 4) == pytest.approx(
        2 * 3.730632, abs=1e-5
    )  # Balle and Wang (2018), for one step


@pytest.mark.parametrize("trainer", ["plain", "opacus"])
def test_a_script_on_blank_images_draws_the_same_noise_bit_for_bit(data, trainer):
    if trainer == "opacus":
        pytest.importorskip("opacus")
    script, state, ends = script_of(data, trainer), experiment.somewhere(5), []
    for part, weight in (
        (data.secret, 1.0),
        (data.secret._replace(images=0 * data.secret.images), 0.0),
    ):
        with generator.drawing_from(state):
            ends.append((script(part, weight=weight), torch.get_rng_state()))
    (victim, end), (blank, its_end) = ends
    x, network = victim.subtract_mean(data.secret.images), victim.released.network
    assert torch.equal(end, its_end) and experiment.outside(network, victim.initial, x) > 0.9
    assert (
        experiment.outside(network, blank.released.network, x) < 1e-3
    )  # what images write lies in their span


def test_images_come_back_unless_another_generator_drew(data, monkeypatch):
    monkeypatch.setattr(generator, "ATTEMPTS", generator.ATTEMPTS[:1])
    script = script_of(data, "plain")
    with generator.drawing_from(experiment.somewhere(1)):
        victim = script(data.secret)
    read = experiment.read(victim.released.network)
    assert experiment.equal(read, victim.initial)
    found = experiment.images_behind(
        victim.released, experiment.noise_behind(read, script, M), data.shape, M, 0
    )
    back, null = measures.back(found, measures.sides(data, victim.mean))["ncc_above_0.9"]
    assert back >= M - 2 and null == 0
    assert (
        experiment.read(script(data.secret, **experiment.another_generator(1)).released.network)
        is None
    )
