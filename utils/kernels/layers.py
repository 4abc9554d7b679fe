"""Networks as tuples of layers, Φ(x; θ) = W_L σ(… σ(W₁x + b₁) …) + b_L with σ a ReLU; one layer is an affine model.

Shapes: images x (…, m, d); layer l maps n_{l−1} inputs to n_l outputs; outputs z_L (…, m, K), K = 1 for two classes.

Gradient descent adds combinations of images to the rows of the first layer, and weight decay shrinks all by one factor:
W = AQᵀ + cN for an orthonormal basis Q (d, r) of the images. Training may move A (h, r) and c in place of W.
"""

from typing import NamedTuple

import torch

from utils.kernels import products  # noqa: F401  (how a processor multiplies)

Network = tuple["Layer", ...]  # all of them, or the first ones
Shape = tuple[int, int, int]  # (H, W, C) of an image


class Layer(NamedTuple):
    """A layer takes inputs a to s = Wa + b."""

    weight: torch.Tensor  # W (…, n_l, n_{l−1})
    bias: torch.Tensor | None  # b (…, n_l), or None


def joint(layer):
    """[W b], the bias as a last column, if there is one: (…, n_l, n_{l−1} + 1) or (…, n_l, n_{l−1})."""
    if layer.bias is None:
        return layer.weight
    return torch.cat([layer.weight, layer.bias[..., None]], -1)


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
    sizes = [(w.shape[-2], w.shape[-1] + (bias is not None)) for w, bias in like]
    parts = theta.split([n * r for n, r in sizes], -1)
    rows = [part.unflatten(-1, size) for part, size in zip(parts, sizes)]
    return tuple(
        Layer(one, None) if layer.bias is None else parted(one) for one, layer in zip(rows, like)
    )


def square_norm(network):
    """‖θ‖²."""
    return flatten(network).square().sum()


def relu(z):
    """max(z, 0)."""
    return z.clamp_min(0)


def forward(network, x, activation=relu):
    """Run the network: every layer's inputs a_0 = x, …, a_{L−1}, and every layer's outputs z_1, …, z_L."""
    a = [x]
    z = []
    for layer in network:
        s = a[-1] @ layer.weight.mT  # (…, m, n_{l−1}) @ (n_{l−1}, n_l) -> (…, m, n_l)
        z.append(s if layer.bias is None else s + layer.bias[..., None, :])
        a.append(activation(z[-1]))
    return a[:-1], z


def back(network, top, slopes):
    """Propagate signals D_L = `top` (…, m, K) back: U_l = D_{l+1}W_{l+1} and D_l = U_l ∘ `slopes`_l for every layer."""
    d = [top]
    u = []
    for layer, slope in zip(network[:0:-1], slopes[::-1]):
        u.append(d[-1] @ layer.weight)  # (…, m, n_{l+1}) @ (n_{l+1}, n_l) -> (…, m, n_l)
        d.append(u[-1] * slope)
    return d[::-1], u[::-1]


def combined(network, signals, inputs):
    """Σ_i ∇_θ of the outputs as one vector, for signals D_l (m, n_l) and inputs A_{l−1} (m, n_{l−1}) of every layer."""
    return flatten(
        Layer(d.mT @ a, None if l.bias is None else d.sum(0))
        for l, d, a in zip(network, signals, inputs)
    )


def pullback(network, x, signals):
    """The outputs z_L, and Σ_i ∇_θ⟨s_i, Φ(x_i; θ)⟩ as one vector, for s = `signals`(z_L) (m, K) that are held fixed."""
    a, z = forward(network, x)
    d, _ = back(network, signals(z[-1]), [(s > 0).to(s) for s in z[:-1]])
    return z[-1], combined(network, d, a)


# ---- Coordinates in the span of the images ----


def span_of(*rows):
    """An orthonormal basis (…, d, r) of the span of all these images and weights, each (…, n, d).

    L-BFGS loses nothing in it; Adam, which scales each coordinate by itself, is another optimiser there.
    """
    most = torch.broadcast_shapes(*(part.shape[:-2] for part in rows))
    return torch.linalg.qr(torch.cat([part.expand(*most, -1, -1) for part in rows], -2).mT)[0]


def in_span(network, basis):
    """The network for images given by their coordinates in a basis (…, d, r): W₁ becomes W₁Q (…, n_1, r)."""
    first, *rest = network
    weight = first.weight @ basis
    bias = None if first.bias is None else first.bias.expand(*weight.shape[:-1])
    return (Layer(weight, bias), *rest)


def within(x, basis):
    """Project images (…, n, d) onto the span of a basis; None is all there is."""
    return x if basis is None else x @ basis @ basis.mT


def split(weight: torch.Tensor, basis: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """A = WQ (h, r) and N = W − AQᵀ (h, d) of weights W (h, d) and an orthonormal basis Q (d, r)."""
    inside = weight @ basis
    return inside, weight - inside @ basis.mT


def join(inside, basis, orthogonal, factor=1.0):
    """W = AQᵀ + cN (h, d), the opposite of `split`, for A (h, r) and c after a training."""
    return inside @ basis.mT + factor * orthogonal
