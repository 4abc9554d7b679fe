"""Gradient descent on the logistic loss down to a given loss, with a record of how long it took.

The sum of all rates is the *time* of a training: with a fixed rate η it is that of time/η epochs.
"""

import math
from typing import NamedTuple

from utils import networks
from utils.errors import InputError
from utils.kernels.layers import Layer, flatten, pullback, unflatten
from utils.kernels.losses import LOSSES

CALM = 60  # steps at a tenth of the rate behind the target, in which oscillations die out


class Trained(NamedTuple):
    """A network, and how it came there."""

    network: tuple
    times: list  # the time after every step
    losses: list  # and the loss


def descend(network, x, y, target, most=60_000):
    """Lower (1/m) Σ log(1 + exp(−y_iΦ(x_i))) until it is below `target`, for x (m, d) and labels y (m,): a Trained.

    A step that raises the loss is undone and the rate cut by a fifth; a step that is taken raises the rate by 5 %.
    InputError if `most` steps are not enough.
    """
    loss, theta, times, losses = LOSSES["logistic"], flatten(network), [0.0], [math.inf]

    def evaluated(theta):
        z, slope = pullback(unflatten(theta, network), x, lambda z: loss.slope(z, y) / len(x))
        return loss.value(z, y).mean().item(), slope

    (value, slope), rate, calm = evaluated(theta), 0.1, CALM
    while calm and len(times) < most:
        if value < target:
            rate, calm = rate * (0.1 if calm == CALM else 1.0), calm - 1
        trial = theta - rate * slope
        new, new_slope = evaluated(trial)
        if new <= value:
            theta, value, slope = trial, new, new_slope
            times, losses = [*times, times[-1] + rate], [*losses, value]
            rate *= 1.05 if calm == CALM else 1.0
        else:
            rate *= 0.8
    if calm:
        raise InputError(f"The loss is {value:.1e} after {most} steps: raise LOSS.")
    return Trained(unflatten(theta, network), times, losses)


def train(secret, start, target):
    """The same on a Part from the network `start`, in the span of the points: m coordinates in place of d.

    Gradients of the first layer are combinations of points, so that what it has outside of their span never changes.
    """
    (x, y), first = secret, start[0]
    basis = networks.span_of(x)  # (d, m)
    end = descend(networks.in_span(start, basis), x @ basis, y, target)
    outside = first.weight - first.weight @ basis @ basis.mT  # (h, d)
    weight = outside + end.network[0].weight @ basis.mT  # (h, m) @ (m, d)
    return end._replace(network=(Layer(weight, end.network[0].bias), end.network[1]))


def loss_at(end, time):
    """The first loss of a Trained after a time of training; the last one if there is none."""
    return next((v for t, v in zip(end.times, end.losses) if t >= time), end.losses[-1])
