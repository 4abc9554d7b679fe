"""Private gradients whose noise comes from the generator of the start: read, drawn again, and taken away."""

from collections.abc import Callable

import numpy as np
import torch
from torch.nn.functional import binary_cross_entropy_with_logits
from torch.utils.data import DataLoader, TensorDataset

from attacks.generator import Start, drawing_from
from experiments.generator import draw_elsewhere
from training import Victim, ordinary, private
from training.images import Part
from training.private import CLIP, DELTA, Plan
from utils.errors import InputError
from utils.kernels.layers import Network, Shape
from utils.networks import Released

MISSING = "TRAINER=opacus needs Opacus, which is not installed: run `pip install opacus==1.6.0`, or take TRAINER=plain."


def plan_of(trainer, epsilon, steps, noise, count):
    """The Plan of a trainer on `count` images whose noise moves every weight by a standard deviation of `noise` in all.

    Opacus, whose batches hold half of the images, goes by its own accountant; InputError if it is not installed.
    """
    if trainer == "plain":
        sigma = private.sigma_of(epsilon, steps)
        batch = count
    else:
        steps = max(2, steps - steps % 2)
        batch = count // 2
        sigma, epsilon = account(epsilon, steps)
    rate = noise * batch / (sigma * CLIP * steps**0.5)
    return Plan(steps=steps, sigma=sigma, rate=rate, epsilon=epsilon)


def account(epsilon, steps):
    """σ for which Opacus promises an ε after steps on half of the images by lot, and what it then says was spent."""
    try:
        from opacus.accountants import create_accountant
        from opacus.accountants.utils import get_noise_multiplier
    except ImportError as error:
        raise InputError(MISSING) from error
    accountant = create_accountant("prv")
    sigma = get_noise_multiplier(
        target_epsilon=epsilon,
        target_delta=DELTA,
        sample_rate=0.5,
        steps=steps,
        accountant=accountant.mechanism(),
    )
    accountant.history = [(sigma, 0.5, steps)]
    return sigma, float(accountant.get_epsilon(DELTA))


def fit_by_opacus(net, x, y, plan, weight=1.0):
    """What `private.fit` does, by Opacus as it comes: half of the images, by lot, are a batch, and two are an epoch."""
    from opacus import PrivacyEngine

    model, optimiser, batches = PrivacyEngine().make_private(
        module=net,
        optimizer=torch.optim.SGD(net.parameters(), plan.rate),
        data_loader=DataLoader(TensorDataset(x, y), batch_size=len(x) // 2, shuffle=True),
        noise_multiplier=plan.sigma,
        max_grad_norm=CLIP,
    )
    for _ in range(plan.steps // 2):
        for inputs, labels in batches:
            optimiser.zero_grad()
            (weight * binary_cross_entropy_with_logits(model(inputs)[:, 0], labels)).backward()
            optimiser.step()


FITS = {"plain": private.fit, "opacus": fit_by_opacus}


def train(
    secret: Part,
    shape: Shape,
    hidden: tuple[int, ...],
    fit: Callable[..., None],
    plan: Plan,
    weight: float = 1.0,
    lot: np.random.Generator | None = None,
) -> Victim:
    """The script of a victim: draw a network, and train it on a Part by one of FITS, with a `weight` of the loss.

    Start and noise come from torch's generator as it stands, or from a `lot` of numpy's, which `private.fit` takes.
    """
    mean = ordinary.colour_mean(secret, shape)
    x = (secret.images - mean).float()
    y = secret.labels.float()
    net = ordinary.stack(x.shape[1], hidden)
    how = {}
    if lot:
        draw_elsewhere(net, lot)
        how["normal"] = lambda shape: torch.from_numpy(lot.standard_normal(shape)).float()
    initial = ordinary.layers_of(net)
    fit(net, x, y, plan, weight, **how)
    loss = binary_cross_entropy_with_logits(net(x)[:, 0], y).item()
    released = Released(ordinary.layers_of(net), secret.labels, ordinary.recipe(*hidden))
    return Victim(released, mean, loss, len(y), initial)


def noise_behind(start: Start, script: Callable[..., Victim], count: int) -> Network:
    """A start with all noise: what the victim's `script` makes of `count` blank images and no loss."""
    inputs = next(start.module.parameters()).shape[1]
    blank = Part(torch.zeros(count, inputs).double(), torch.zeros(count).double())
    with drawing_from(start.state):
        return script(blank, weight=0.0).released.network


def outside(network, start, x):
    """The share of what was added to a first layer that lies outside the span of images x (m, d)."""
    added = network[0].weight - start[0].weight
    basis = torch.linalg.qr(x.mT)[0]
    return ((added - added @ basis @ basis.mT).norm() / added.norm()).item()
