"""Coordinates in which a network trains and is attacked: those of the images' span, in which few numbers are enough.

Gradient descent adds combinations of the images to the rows of the first layer, and weight decay shrinks all by one
factor: W = AQᵀ + cN for an orthonormal basis Q (d, r) of the images. Training moves A (h, r) and c in place of W.
"""

import torch

from utils.kernels.layers import Layer


def span_of(*rows):
    """An orthonormal basis (…, d, r) of the span of all these images and weights, each (…, n, d).

    L-BFGS loses nothing in it; Adam, which scales each coordinate by itself, is another optimiser there.
    """
    most = torch.broadcast_shapes(*(part.shape[:-2] for part in rows))
    return torch.linalg.qr(torch.cat([part.expand(*most, -1, -1) for part in rows], -2).mT)[0]


def in_span(network, basis):
    """The network for images given by their coordinates in a basis (…, d, r): W₁ becomes W₁Q (…, n_1, r)."""
    weight, bias = network[0].weight @ basis, network[0].bias
    bias = bias.expand(*weight.shape[:-1]) if bias is not None else None
    return (Layer(weight, bias), *network[1:])


def within(x, basis):
    """Project images (…, n, d) onto the span of a basis; None is all there is."""
    return x if basis is None else x @ basis @ basis.mT


def split(weight, basis):
    """A = WQ (h, r) and N = W − AQᵀ (h, d) of weights W (h, d) and an orthonormal basis Q (d, r)."""
    inside = weight @ basis
    return inside, weight - inside @ basis.mT


def joined(inside, basis, rest, factor=1.0):
    """W = AQᵀ + cN (h, d), the opposite of `split`, for A (h, r) and c after a training."""
    return inside @ basis.mT + factor * rest
