"""Stationarity of a ReLU network: where a pre-activation vanishes, any slope in [0, 1] may stand for its derivative.

So ∇E with slopes 1[z > 0] need not be small at a stationary point: it is enough that *some* slopes make it small. The
set with free slopes in all layers contains Clarke's gradient. Shapes as in `layers`; only the first layer has a bias.
"""

from collections import namedtuple

import torch

from utils.kernels.layers import Layer, back, combined, flatten, forward, joint, unflatten
from utils.kernels.solvers import lbfgs

# ‖∇E_l‖/(μ‖θ_l‖) of every layer (L,), with slopes 1[z > 0] as printed and with those for which ‖∇E‖ is smallest, as far
# as they were found; the share of each hidden layer's pre-activations on a kink (L − 1,); the latter slopes (m, n_l).
Stationary = namedtuple("Stationary", "printed smallest on_kink slopes")


def relative_gradients(network, x, labels, loss, weight_decay, tolerance=1e-4, iterations=300):
    """Measure stationarity: a Stationary; |z| ≤ `tolerance` of the largest |z| of its neuron counts as a kink.

    The slopes there are (1 + sin t)/2. ‖∇E‖² is minimised over t by L-BFGS, in coordinates of all that W̄₁ and X̄ span.
    """
    first, bordered = joint(network[0]), torch.cat([x, torch.ones_like(x[:, :1])], 1)
    basis = torch.linalg.qr(torch.cat([bordered, first]).mT)[0]
    network = (Layer(first @ basis, None), *network[1:])
    a, z = forward(network, bordered @ basis)
    kinks = [s.abs() <= tolerance * s.abs().amax(0) for s in z[:-1]]
    printed, top = [(s > 0).to(s) for s in z[:-1]], loss.slope(z[-1], labels) / len(x)
    counts, theta = [int(kink.sum()) for kink in kinks], flatten(network)

    def slopes(angles):
        return [s.masked_scatter(k, (1 + t.sin()) / 2) for s, k, t in zip(printed, kinks, angles.split(counts))]

    def error(slope):
        d, u = back(network, top, slope)
        return u, unflatten(combined(network, d, a) / weight_decay + theta, network)

    def objective(angles):
        slope, up, found = slopes(angles), 0, []
        u, g = error(slope)
        for k, kink in enumerate(kinks):  # up: the derivative in the signals D_l, from the first layer to the last
            up = a[k] @ g[k].weight.mT + ((up * slope[k - 1]) @ network[k].weight.mT if k else 0)
            found.append((up * u[k])[kink])
        return flatten(g).square().sum() / 2, torch.cat(found) * angles.cos() / (2 * weight_decay)

    def relative(slope):
        return torch.stack([g.weight.norm() / l.weight.norm() for g, l in zip(error(slope)[1], network)])

    best = slopes(lbfgs(objective, x.new_zeros(sum(counts)), iterations=iterations).x)
    return Stationary(relative(printed), relative(best), torch.stack([k.double().mean() for k in kinks]), best)
