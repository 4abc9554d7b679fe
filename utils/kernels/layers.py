"""Networks as tuples of layers, Φ(x; θ) = W_L σ(… σ(W₁x + b₁) …) + b_L with σ a ReLU; one layer is an affine model.

Shapes: images x (…, m, d); layer l maps n_{l−1} inputs to n_l outputs; outputs z_L (…, m, K), K = 1 for two classes.
"""

from collections import namedtuple

import torch

from utils.kernels import products  # noqa: F401  (how a processor multiplies)

# s = Wa + b with W (…, n_l, n_{l−1}) and b (…, n_l), or None.
Layer = namedtuple("Layer", "weight bias")


def joint(layer):
    """[W b], the bias as a last column, if there is one: (…, n_l, n_{l−1} + 1) or (…, n_l, n_{l−1})."""
    return layer.weight if layer.bias is None else torch.cat([layer.weight, layer.bias[..., None]], -1)


def parted(rows):
    """The layer of [W b]: the opposite of `joint`."""
    return Layer(rows[..., :-1], rows[..., -1])


def change(network, function):
    """Apply a function to every tensor of a network."""
    return tuple(Layer(*(None if p is None else function(p) for p in layer)) for layer in network)


def flatten(network):
    """θ: the rows [W b] of one layer after the other, as one vector (…, n). All vectors of weights have this order."""
    return torch.cat([joint(layer).flatten(-2) for layer in network], -1)


def unflatten(theta, like):
    """The network with the shapes of `like` whose weights are the entries of θ (…, n), as views."""
    rows = [layer.weight.shape[-1] + (layer.bias is not None) for layer in like]
    outputs = [layer.weight.shape[-2] for layer in like]
    parts = theta.split([r * n for r, n in zip(rows, outputs)], -1)
    joints = [part.unflatten(-1, (n, r)) for part, n, r in zip(parts, outputs, rows)]
    return tuple(Layer(part, None) if layer.bias is None else parted(part) for part, layer in zip(joints, like))


def square_norm(network):
    """‖θ‖²."""
    return flatten(network).square().sum()


def relu(z):
    """max(z, 0)."""
    return z.clamp_min(0)


def forward(network, x, activation=relu):
    """Run the network: every layer's inputs a_0 = x, …, a_{L−1}, and every layer's outputs z_1, …, z_L."""
    a, z = [x], []
    for layer in network:
        s = a[-1] @ layer.weight.mT  # (…, m, n_{l−1}) @ (n_{l−1}, n_l) -> (…, m, n_l)
        z.append(s if layer.bias is None else s + layer.bias[..., None, :])
        a.append(activation(z[-1]))
    return a[:-1], z


def back(network, top, slopes):
    """Propagate signals D_L = `top` (…, m, K) back: U_l = D_{l+1}W_{l+1} and D_l = U_l ∘ `slopes`_l for every layer."""
    d, u = [top], []
    for layer, slope in zip(network[:0:-1], slopes[::-1]):
        u.append(d[-1] @ layer.weight)  # (…, m, n_{l+1}) @ (n_{l+1}, n_l) -> (…, m, n_l)
        d.append(u[-1] * slope)
    return d[::-1], u[::-1]


def combined(network, signals, inputs):
    """Σ_i ∇_θ of the outputs as one vector, for signals D_l (m, n_l) and inputs A_{l−1} (m, n_{l−1}) of every layer."""
    return flatten(Layer(d.mT @ a, None if l.bias is None else d.sum(0)) for l, d, a in zip(network, signals, inputs))


def pullback(network, x, signals):
    """The outputs z_L, and Σ_i ∇_θ⟨s_i, Φ(x_i; θ)⟩ as one vector, for s = `signals`(z_L) (m, K) that are held fixed."""
    a, z = forward(network, x)
    d, _ = back(network, signals(z[-1]), [(s > 0).to(s) for s in z[:-1]])
    return z[-1], combined(network, d, a)
