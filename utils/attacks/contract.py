"""What every attack is given, what it returns, and what anyone can say of that."""

import os
from collections import namedtuple
from contextlib import contextmanager
from typing import NamedTuple

import torch
from tqdm.auto import tqdm

from utils.errors import InputError
from utils.kernels import one_hidden, step
from utils.kernels.layers import forward
from utils.kernels.similarity import is_constant, match
from utils.networks import Recipe, span, within

# What one file of a training holds, of all layers or the first ones, tuples of Layers, () where it has
# none: θ(t), and the optimiser's moments, torch's `momentum_buffer` or `exp_avg`, and `exp_avg_sq`.
Checkpoint = namedtuple("Checkpoint", "network first second", defaults=[(), ()])


class Released(NamedTuple):
    """All that an attacker sees of a victim."""

    network: tuple | torch.nn.Module  # of Layers, θ*; the stationarity attack also takes a module, for rows (n, d)
    labels: torch.Tensor  # (m,), of the training images
    recipe: Recipe  # how it was trained: loss, weight decay μ, activation
    copies: tuple = ()  # of a `bilevel.condensed` network: how many equal neurons each hidden one stands for, by β/√n
    checkpoints: tuple = ()  # files of the same training, the earliest first: Checkpoints

    @property
    def sharpness(self):
        """β of the softplus; where hidden neurons stand for several equal ones, of each (h,)."""
        beta, new = self.recipe.sharpness, self.network[0].weight.new_tensor
        return new(beta) / new(self.copies).sqrt() if self.copies else beta  # a number over a tensor is rounded twice

    def forward(self, x):
        """The inputs and the outputs of every layer for images x (…, m, d), as `layers.forward`."""
        return forward(self.network, x, lambda z: one_hidden.activation(z, self.sharpness)[0])

    def outputs(self, x):
        """Φ(x; θ*) for images x (…, m, d): (…, m, K)."""
        return self.forward(x)[1][-1]


class Attack(NamedTuple):
    """The result of an attack, and how it went; (…) are independent attacks, in one batch."""

    images: torch.Tensor | None  # x (…, n, d), the iterate with the smallest loss; None if the attack refused
    coefficients: torch.Tensor | None  # λ (…, n), where the attack has them
    network: tuple | None  # θ(x), where the attack trains
    loss: torch.Tensor  # the attacker's, at x (…)
    history: torch.Tensor  # the loss of every iteration, the start first (K+1, …)
    stopped: str | list  # why: a word, or one for every attack of a batch
    details: NamedTuple  # what this kind of attack knows beside
    seconds: float
    refusals: tuple = ()  # why there are no images, or not all that was asked for, in sentences


def check_layers(network):
    """Raise InputError unless every layer takes what the one before it gives, and has one bias per output or none."""
    shapes = [tuple(part if part is None else tuple(part.shape) for part in layer) for layer in network]
    follow = all(after[0][-1] == before[0][-2] for before, after in zip(shapes, shapes[1:]))  # type: ignore[index]
    if not follow or any(bias not in (None, weight[:-1]) for weight, bias in shapes):  # type: ignore[index]
        raise InputError(f"W and b have the shapes {shapes}; they do not follow each other: take those of one network.")


def check_start(released, start, labels):
    """Raise InputError unless a start x (…, n, d) is finite and fits to labels (n,) and to the released network."""
    network, (n, d) = released.network, start.shape[-2:]
    module = isinstance(network, torch.nn.Module)
    if not module:
        check_layers(network)
    inputs = d if module else network[0].weight.shape[-1]
    if d != inputs or labels.shape != (n,):
        there = f"there are {tuple(labels.shape)} labels and {inputs} inputs"
        raise InputError(f"A start of {n} images of {d} values needs {n} labels and {d} inputs, but {there}.")
    if not start.numel() or not start.isfinite().all():
        raise InputError("The start is empty, or holds values that are NaN or infinite: draw it anew.")
    if not module and n > (most := step.most(network, start.device)):
        raise InputError(f"{n} candidates do not fit into the memory: choose at most {most} CANDIDATES.")


@contextmanager
def tuned(x, network):
    """Where an attack runs: `step.tuned`; InputError if the memory is full, whoever fills it."""
    layers = () if isinstance(network, torch.nn.Module) else network  # of a module it is not known what it needs
    try:
        with step.tuned(x, layers):
            yield
    except (RuntimeError, MemoryError) as error:
        if not step.full(error):
            raise
        fits = min([x.shape[-2] // 2, *([step.most(layers, x.device)] if layers else [])])
        what = f"choose at most {fits} CANDIDATES or IMAGES" if fits else "choose a smaller network"
        raise InputError(f"The memory is full: end what else runs, or {what}.") from error


def bar(iterations, name, progress):
    """A bar that counts the start and so many iterations; silent without `progress` or if the environment says so."""
    silent = not progress or "TQDM_DISABLE" in os.environ  # which tqdm's notebook bars do not heed themselves
    return tqdm(range(iterations + 1), desc=name, leave=False, disable=silent)


def scores(released, start, attack, again, shape):
    """What an adversary can say of an Attack from `start`: {name: score (n,)}, high if likely, and not constant."""
    x, basis = attack.images, span(released.network)
    seen, before = within(x, basis), within(start, basis)
    named = {
        "drift from the start": (seen - before).norm(dim=1) / before.norm(dim=1).clamp_min(1e-12),
        "share in the span": seen.norm(dim=1) / x.norm(dim=1).clamp_min(1e-12),
    }
    if again is not None:
        named["recurrence"] = match(x, again.images, shape).signed  # in an independent Attack on the same network
    if attack.coefficients is not None:
        named |= {"coefficient": attack.coefficients.abs(), "share of the residual": attack.details.share}
    return {name: score for name, score in named.items() if not is_constant(score, x.shape[-1])}
