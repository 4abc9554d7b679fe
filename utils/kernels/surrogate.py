"""The surrogate of the stationarity attack for autograd: what the closed form of `residual` is compared with."""

import math

import torch


class SmoothBackward(torch.autograd.Function):
    """A ReLU, max(z, 0), that passes gradients back with the slope σ(αz) in place of 1[z > 0]; α = ∞ is the ReLU's."""

    @staticmethod
    def forward(ctx, z, sharpness):
        """Return max(z, 0), of the shape of z."""
        ctx.save_for_backward(z)
        ctx.sharpness = sharpness
        return z.clamp_min(0)

    @staticmethod
    def backward(ctx, upstream):
        """Multiply with σ(αz); α itself has no gradient."""
        (z,) = ctx.saved_tensors
        slope = (z > 0).to(z) if math.isinf(ctx.sharpness) else torch.sigmoid(ctx.sharpness * z)
        return upstream * slope, None
