"""The trainer's polish: a ReLU network is brought to a stationary point, with kinks that are rounded less and less.

Shapes as in `layers`; only the first layer has a bias.
"""

import torch

from utils.kernels.layers import back, combined, flatten, forward, unflatten
from utils.kernels.solvers import lbfgs


def rounded(network, x, slopes, rates):
    """Run the network with σ(z) = max_t tz − (t − s)²/2β over t in [0, 1], whose slope is clip(s + βz), for a ReLU.

    Returns inputs and outputs as `forward` does, and the slopes, for s (m, n_l) and β (n_l) of every hidden layer.
    """
    a, z, found = [x], [], []
    for layer, s, rate in zip(network, slopes, rates):
        z.append(a[-1] @ layer.weight.mT)
        found.append((s + rate * z[-1]).clamp(0, 1))
        a.append(found[-1] * z[-1] - (found[-1] - s).square() / (2 * rate))
    return a, [*z, a[-1] @ network[-1].weight.mT], found


def whitened(network, a, z, slopes, loss, weight_decay):
    """v ↦ (1 + JᵀJ/μ)^{−1/2}v, JᵀJ the Gauss–Newton matrix of a loss with one output, from its kernel JJᵀ (m, m)."""
    d, _ = back(network, (loss.bend(z[-1], torch.ones_like(z[-1])) / len(z[-1])).sqrt(), slopes)
    values, vectors = torch.linalg.eigh(sum((dl @ dl.mT) * (al @ al.mT) for dl, al in zip(d, a)))
    values = values.clamp_min(torch.finfo(values.dtype).eps * values[-1])
    factors = ((1 + values / weight_decay).rsqrt() - 1) / values

    def product(v):
        seen = sum((al @ l.weight.mT * dl).sum(1) for l, dl, al in zip(unflatten(v, network), d, a))  # Jv (m,)
        weights = (vectors @ (factors * (seen @ vectors)))[:, None]
        return v + combined(network, [weights * dl for dl in d], a)

    return product


def polish(network, x, labels, loss, weight_decay, stages):
    """Minimise E with rounded kinks, in each stage around the slopes just found and twice as sharply; the network.

    So a kink is met long before β = ∞ (method of multipliers). Loss and kinks are left out of balance, which is soon
    mended by descent; what that takes times of 1/μ for, such as the random start of W₂, is gone.
    """
    z = forward(network, x)[1]
    slopes = [(s > 0).to(s) for s in z[:-1]]
    for stage in range(stages):
        most = [s.abs().amax(0) for s in z[:-1]]
        rates = [10 * 2**stage / each.clamp_min(1e-4 * each.max()) for each in most]
        network = minimise(network, x, labels, loss, weight_decay, slopes, rates)
        _, z, slopes = rounded(network, x, slopes, rates)
    return network


def minimise(network, x, labels, loss, weight_decay, slopes, rates):
    """L-BFGS on E with rounded kinks, in coordinates in which the loss is as flat as the weight decay."""
    theta, root = flatten(network), whitened(network, *rounded(network, x, slopes, rates), loss, weight_decay)  # type: ignore[call-arg]

    def objective(moved):
        at = theta + root(moved)
        trial = unflatten(at, network)
        a, z, found = rounded(trial, x, slopes, rates)
        d, _ = back(trial, loss.slope(z[-1], labels) / len(x), found)
        value = loss.value(z[-1], labels).mean() + weight_decay / 2 * at @ at
        return value, root(combined(trial, d, a) + weight_decay * at)

    found = lbfgs(objective, torch.zeros_like(theta), iterations=50, memory=10)
    return unflatten(theta + root(found.x), network)
