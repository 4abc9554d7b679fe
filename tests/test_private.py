"""Private gradients: clipped and noisy as announced, and undone by who reads the generator."""

from functools import partial

import pytest
import torch
from torch.nn.functional import binary_cross_entropy_with_logits

from attacks import generator
from evaluation import measures
from experiments import private as experiment
from training import images, private

M, HIDDEN = 16, (64, 64)


@pytest.fixture(scope="module")
def data():
    return images.split(images.load("photos"), M, M, held_out=M)


def script_of(data, trainer="plain", epsilon=8.0, steps=6):
    plan = experiment.plan_of(trainer, epsilon, steps, 0.15 * data.secret.images.shape[1] ** -0.5, M)
    return partial(experiment.train, shape=data.shape, hidden=HIDDEN, fit=experiment.FITS[trainer], plan=plan)


def test_gradients_are_those_of_single_images_each_clipped(data):
    net = experiment.stack(data.secret.images.shape[1], (9, 7))
    x, y = data.secret.images.float() * torch.linspace(0.01, 3, M)[:, None], data.secret.labels.float()
    wanted, norms = [torch.zeros_like(p) for p in net.parameters()], []
    for k in range(M):
        loss = 1.5 * binary_cross_entropy_with_logits(net(x[k : k + 1])[:, 0], y[k : k + 1])
        one = torch.autograd.grad(loss, [*net.parameters()])
        norms.append(sum(p.square().sum() for p in one) ** 0.5)
        wanted = [p + q / max(1, norms[-1] / private.CLIP) for p, q in zip(wanted, one)]
    assert min(norms) < private.CLIP < max(norms)
    torch.testing.assert_close(private.clipped(net, x, y, 1.5), wanted)


def test_noise_is_what_an_epsilon_needs():
    """(1, 1e-5) is what one step with σ = 3.730632 gives (Balle and Wang, 2018)."""
    assert private.sigma_of(1.0, 1) == pytest.approx(3.730632, abs=1e-5)
    assert private.sigma_of(1.0, 4) == pytest.approx(2 * private.sigma_of(1.0, 1))


@pytest.mark.parametrize("trainer", ["plain", "opacus"])
def test_a_script_on_blank_images_draws_the_same_noise(data, trainer):
    if trainer == "opacus":
        pytest.importorskip("opacus")
    script, state, drawn = script_of(data, trainer), experiment.somewhere(5), []
    for part in (data.secret, data.held_out._replace(images=0 * data.held_out.images)):
        with generator.drawing_from(state):
            drawn.append((script(part, weight=float(part is data.secret)), torch.get_rng_state()))
    (true, end), (blank, its_end) = drawn
    assert torch.equal(end, its_end) and torch.equal(true.initial[1].weight, blank.initial[1].weight)
    x = true.subtract_mean(data.secret.images)  # all that the images wrote lies in their span
    assert experiment.outside(true.released.network, blank.released.network, x) < 1e-3


def test_images_come_back_unless_another_generator_drew(data, monkeypatch):
    monkeypatch.setattr(generator, "ATTEMPTS", generator.ATTEMPTS[:1])
    script = script_of(data)
    with generator.drawing_from(experiment.somewhere(1)):
        victim = script(data.secret)
    read = experiment.read(victim.released.network)
    assert experiment.equal(read, victim.initial)
    found = experiment.images_behind(victim.released, experiment.noise_behind(read, script, M), data.shape, M, 0)
    back = measures.back(found, measures.sides(data, victim.mean))["ncc_above_0.9"]
    assert back[0] >= M - 2 and back[1] == 0
    assert experiment.read(script(data.secret, **experiment.another_generator(1)).released.network) is None
