"""What an adversary can say of its reconstructions without training images: a score each, higher for a likelier one."""

from utils.kernels.similarity import alike
from utils.networks import span, within


def of(released, start, found, again, shape):
    """Every score (n,) that there is for an Attack from `start` (n, d): {name: score}.

    `again` is an independent Attack on the same weights, or None; `shape` is that of an image.
    """
    x, basis = found.images, span(released.network)
    seen, begun = within(x, basis), within(start, basis)
    named = {
        "drift from the start": (seen - begun).norm(dim=1) / begun.norm(dim=1).clamp_min(1e-12),
        "share in the span": seen.norm(dim=1) / x.norm(dim=1).clamp_min(1e-12),
    }
    if again is not None:
        named["recurrence"] = alike(x, again.images, shape).amax(1)  # the best match in an independent attack
    if found.coefficients is not None:
        named |= {"coefficient": found.coefficients.abs(), "share of the residual": found.details.share}
    return named
