"""Coordinates in which a network trains: the first layer is its part in the images' span, plus a rest.

A step of gradient descent adds combinations of the images to the rows of the first layer, and weight decay shrinks all
of them by one factor. So W = AQᵀ + cN at any time, for an orthonormal basis Q (d, r) of the images: A (h, r) is
trained, and no image ever touches N (h, d), of which only the factor c changes. Training moves A and c in place of W.
"""


def split(weight, basis):
    """A = WQ (h, r) and N = W − AQᵀ (h, d) of weights W (h, d) and an orthonormal basis Q (d, r)."""
    inside = weight @ basis
    return inside, weight - inside @ basis.mT


def joined(inside, basis, rest, factor=1.0):
    """W = AQᵀ + cN (h, d), the opposite of `split`, for A (h, r) and c after a training."""
    return inside @ basis.mT + factor * rest
