"""What every attack is given, what it returns, and what anyone can say of that."""

import os
from contextlib import contextmanager
from typing import Any, NamedTuple, Protocol

import torch
from tqdm.auto import tqdm

from utils.errors import InputError
from utils.kernels import step
from utils.kernels.layers import Network
from utils.networks import Released


class Attack(NamedTuple):
    """The result of an attack, and how it went; (…) are independent attacks, in one batch."""

    images: torch.Tensor | None  # x (…, n, d) with the smallest loss; None if the attack refused
    loss: torch.Tensor  # the attacker's, at x (…)
    history: torch.Tensor  # the loss of every iteration, the start first (K+1, …)
    stopped: str | list  # why: a word, or one for every attack of a batch
    seconds: float
    details: Any = None  # what this kind of attack knows beside, a NamedTuple
    coefficients: torch.Tensor | None = None  # λ (…, n), where the attack has them
    network: Network | None = None  # θ(x), where the attack trains
    refusals: tuple = ()  # why there are no images, or not all that was asked for, in sentences


class Photographs(Protocol):
    """Photographs that an attacker knows, such as a Part of a data set."""

    @property
    def images(self) -> torch.Tensor:
        """An image is a row (k, d)."""

    @property
    def labels(self) -> torch.Tensor:
        """Their classes (k,)."""


def check_layers(network: Network) -> None:
    """Raise InputError unless every layer takes what the one before it gives, and has one bias per output or none."""
    shapes = [
        tuple(part if part is None else tuple(part.shape) for part in layer) for layer in network
    ]
    follow = all(after[0][-1] == before[0][-2] for before, after in zip(shapes, shapes[1:]))  # type: ignore[index]
    if not follow or any(bias not in (None, weight[:-1]) for weight, bias in shapes):  # type: ignore[index]
        raise InputError(
            f"W and b have the shapes {shapes}; they do not follow each other: take those of one network."
        )


def check_start(released: Released, start: torch.Tensor, labels: torch.Tensor) -> None:
    """Raise InputError unless a start x (…, n, d) is finite and fits to labels (n,) and to the released network."""
    n, d = start.shape[-2:]
    inputs = d  # of a module it is not known
    if not isinstance(released.network, torch.nn.Module):
        check_layers(released.network)
        inputs = released.network[0].weight.shape[-1]
    if d != inputs or labels.shape != (n,):
        there = f"there are {tuple(labels.shape)} labels and {inputs} inputs"
        raise InputError(
            f"A start of {n} images of {d} values needs {n} labels and {d} inputs, but {there}."
        )
    if not start.numel() or not start.isfinite().all():
        raise InputError(
            "The start is empty, or holds values that are NaN or infinite: draw it anew."
        )


@contextmanager
def tuned(x, network):
    """Where an attack on images x (…, n, d) runs: `step.tuned`; InputError if the memory is full, whoever fills it."""
    layers = () if isinstance(network, torch.nn.Module) else network
    try:
        with step.tuned(x, layers):
            yield
    except (RuntimeError, MemoryError) as error:
        if not step.full(error):
            raise
        fewer = x.shape[-2] // 2
        what = f"at most {fewer} CANDIDATES or IMAGES" if fewer else "a smaller network"
        raise InputError(f"The memory is full: end what else runs, or choose {what}.") from error


def bar(iterations, name, progress):
    """A bar that counts the start and so many iterations; silent without `progress` or if the environment says so."""
    # which tqdm's notebook bars do not heed themselves
    silent = not progress or "TQDM_DISABLE" in os.environ
    return tqdm(range(iterations + 1), desc=name, leave=False, disable=silent)
