"""Kinks of a ReLU network: where a pre-activation vanishes, any slope in [0, 1] may stand for its derivative.

So ∇E with slopes 1[z > 0] need not be small at a stationary point: it is enough that *some* slopes make it small. The
trainer's *polish* brings a network to such a point, with kinks that are rounded less and less. Shapes as in `layers`;
only the first layer has a bias.
"""

from typing import NamedTuple

import torch

from utils.kernels.layers import Layer, back, combined, flatten, forward, joint, unflatten
from utils.kernels.one_hidden import append_ones
from utils.kernels.solvers import lbfgs


class Stationary(NamedTuple):
    """How far a network is from a stationary point: ‖∇E_l‖/(μ‖θ_l‖) of every layer, with two choices of slopes."""

    printed: torch.Tensor  # (L,), with slopes 1[z > 0], as printed
    # (L,), with the slopes for which ‖∇E‖ is smallest, as far as they were found
    smallest: torch.Tensor
    on_kink: torch.Tensor  # (L − 1,), the share of each hidden layer's pre-activations on a kink
    slopes: list  # those for which ‖∇E‖ is smallest, (m, n_l) of every hidden layer


def relative_gradients(network, x, labels, loss, weight_decay, tolerance=1e-4):
    """Measure stationarity: a Stationary; |z| ≤ `tolerance` of the largest |z| of its neuron counts as a kink.

    The slopes there are (1 + sin t)/2. ‖∇E‖² is minimised over t by L-BFGS, in coordinates of all that W̄₁ and X̄ span.
    """
    bordered = append_ones(x)
    first = joint(network[0])
    basis = torch.linalg.qr(torch.cat([bordered, first]).mT)[0]
    network = (Layer(first @ basis, None), *network[1:])
    a, z = forward(network, bordered @ basis)
    kinks = [s.abs() <= tolerance * s.abs().amax(0) for s in z[:-1]]
    printed = [(s > 0).to(s) for s in z[:-1]]
    top = loss.slope(z[-1], labels) / len(x)
    counts = [int(kink.sum()) for kink in kinks]
    theta = flatten(network)

    def slopes(angles):
        return [
            s.masked_scatter(k, (1 + t.sin()) / 2)
            for s, k, t in zip(printed, kinks, angles.split(counts))
        ]

    def error(slope):
        d, u = back(network, top, slope)
        return u, unflatten(combined(network, d, a) / weight_decay + theta, network)

    def objective(angles):
        slope = slopes(angles)
        u, g = error(slope)
        pieces = [part[kink] for part, kink in zip(differentiate(network, a, u, g, slope), kinks)]
        return flatten(g).square().sum() / 2, torch.cat(pieces) * angles.cos() / (2 * weight_decay)

    def relative(slope):
        return torch.stack(
            [g.weight.norm() / l.weight.norm() for g, l in zip(error(slope)[1], network)]
        )

    best = slopes(lbfgs(objective, x.new_zeros(sum(counts)), iterations=300).x)
    on_kink = torch.stack([kink.double().mean() for kink in kinks])
    return Stationary(relative(printed), relative(best), on_kink, best)


def differentiate(network, a, u, g, slopes):
    """The derivatives of ‖g‖²/2, for g = ∇E/μ, in the slopes (m, n_l) of every hidden layer, times μ.

    `a` are the inputs of layers, and u what signals arrive behind the slopes. They go from the first layer to the last.
    """
    up = 0  # the derivative in the signals D_l
    parts = []
    for k, _ in enumerate(slopes):
        lower = (up * slopes[k - 1]) @ network[k].weight.mT if k else 0
        up = a[k] @ g[k].weight.mT + lower
        parts.append(up * u[k])
    return parts


def forward_rounded(network, x, slopes, rates):
    """Run the network with σ(z) = max_t tz − (t − s)²/2β over t in [0, 1], whose slope is clip(s + βz), for a ReLU.

    Returns inputs and outputs as `forward` does, and the slopes, for s (m, n_l) and β (n_l) of every hidden layer.
    """
    a = [x]
    z = []
    clipped = []
    for layer, s, rate in zip(network, slopes, rates):
        z.append(a[-1] @ layer.weight.mT)
        clipped.append((s + rate * z[-1]).clamp(0, 1))
        a.append(clipped[-1] * z[-1] - (clipped[-1] - s).square() / (2 * rate))
    return a, [*z, a[-1] @ network[-1].weight.mT], clipped


def whitening(network, a, z, slopes, loss, weight_decay):
    """v ↦ (1 + JᵀJ/μ)^{−1/2}v, JᵀJ the Gauss–Newton matrix of a loss with one output, from its kernel JJᵀ (m, m)."""
    d, _ = back(
        network, (loss.curvature(z[-1], torch.ones_like(z[-1])) / len(z[-1])).sqrt(), slopes
    )
    values, vectors = torch.linalg.eigh(sum((dl @ dl.mT) * (al @ al.mT) for dl, al in zip(d, a)))
    values = values.clamp_min(torch.finfo(values.dtype).eps * values[-1])
    factors = ((1 + values / weight_decay).rsqrt() - 1) / values

    def product(v):
        parts = zip(unflatten(v, network), d, a)
        products = sum((al @ l.weight.mT * dl).sum(1) for l, dl, al in parts)  # Jv (m,)
        weights = (vectors @ (factors * (products @ vectors)))[:, None]
        return v + combined(network, [weights * dl for dl in d], a)

    return product


def polish(network, x, labels, loss, weight_decay, stages):
    """The network that minimises E with rounded kinks, in each stage around the slopes just found and twice as sharply.

    Since slopes are handed on, a pre-activation comes to lie on its kink long before β = ∞ (method of multipliers).
    Loss and kinks are left out of balance, which descent soon mends. What descent takes times of 1/μ for, such as
    forgetting the random start of W₂, is done by then.
    """
    z = forward(network, x)[1]
    slopes = [(s > 0).to(s) for s in z[:-1]]
    for stage in range(stages):
        most = [s.abs().amax(0) for s in z[:-1]]
        rates = [10 * 2**stage / each.clamp_min(1e-4 * each.max()) for each in most]
        network = minimise(network, x, labels, loss, weight_decay, slopes, rates)
        _, z, slopes = forward_rounded(network, x, slopes, rates)
    return network


def minimise(network, x, labels, loss, weight_decay, slopes, rates):
    """L-BFGS on E with rounded kinks, in coordinates in which the loss is as flat as the weight decay."""
    theta = flatten(network)
    rounded = forward_rounded(network, x, slopes, rates)
    root = whitening(network, *rounded, loss, weight_decay)  # type: ignore[call-arg]

    def objective(moved):
        at = theta + root(moved)
        trial = unflatten(at, network)
        a, z, clipped = forward_rounded(trial, x, slopes, rates)
        d, _ = back(trial, loss.slope(z[-1], labels) / len(x), clipped)
        value = loss.value(z[-1], labels).mean() + weight_decay / 2 * at @ at
        return value, root(combined(trial, d, a) + weight_decay * at)

    end = lbfgs(objective, torch.zeros_like(theta), iterations=50, memory=10)
    return unflatten(theta + root(end.x), network)
