"""All training sets of an affine model in closed form, and the one nearest to any images one wishes for.

With z = Xw + b and r = σ(z) − y, stationarity of E, eq. (6) with weight decay μ, says Xᵀr = −mμw and 1ᵀr = −mμb. So the
images that give θ = (w, b) are exactly {X : Xw = z − b, Xᵀr = −mμw}, where the logits z satisfy two scalar equations,

    1ᵀr(z) = −mμb,    zᵀr(z) = −mμ(‖w‖² + b²).                                                       (feasible)

For fixed z the set is affine in X, and the projection of a wished-for T onto it changes T by a matrix of rank two.
"""

from typing import NamedTuple

import torch
from scipy.optimize import minimize
from torch.nn.functional import interpolate

from utils.affine import dot, logits, residuals
from utils.errors import InputError


class Planted(NamedTuple):
    """An exact training set and how far it lies from the wish."""

    images: torch.Tensor  # X (m, d)
    logits: torch.Tensor  # z (m,)
    change: float  # root mean square of X − T per pixel value
    converged: bool  # the search for the logits reached its tolerance, and all pixels lie in [0, 1]


def project(wish, z, y, theta, weight_decay):
    """Return the nearest X (m, d) to `wish` T (m, d) with Xw = z − b and Xᵀr = −mμw, for feasible logits z.

    X = T + c wᵀ/‖w‖² + r eᵀ/‖r‖² − r (rᵀc) wᵀ/(‖r‖²‖w‖²),  c = z − b − Tw,  e = −mμw − Tᵀr.
    """
    w, b, r = theta[:-1], theta[-1], residuals(z, y)
    c = z - b - wish @ w  # (m,)
    e = -len(y) * weight_decay * w - wish.mT @ r  # (d,)
    ww, rr = dot(w, w), dot(r, r)
    return wish + torch.outer(c - r * dot(r, c) / rr, w) / ww + torch.outer(r, e) / rr


def infeasibility(z, y, theta, weight_decay):
    """The two equations (feasible) divided by m, as a tensor (2,) that is zero for feasible logits."""
    r = residuals(z, y)
    return torch.stack([r.mean() + weight_decay * theta[-1], (z * r).mean() + weight_decay * dot(theta, theta)])


def plant(wish, y, theta, weight_decay, search=True):
    """Return the exact training set of θ (d+1,) nearest to the images `wish` (m, d) with labels y (m,), within [0, 1].

    For given logits the nearest set is `project`; the logits are searched for (a local minimum), or with
    `search=False` moved only as far as the two equations ask. Pixels that leave [0, 1] are brought back by
    alternating projections. Needs θ, the labels and μ alone.
    """
    z = feasible_logits(logits(wish, theta), y, theta, weight_decay)
    converged = True
    if search:
        z, converged = nearest_logits(wish, z, y, theta, weight_decay)
        z = feasible_logits(z, y, theta, weight_decay)
    images, inside = into_range(project(wish, z, y, theta, weight_decay), z, y, theta, weight_decay)
    return Planted(images, z, (images - wish).square().mean().sqrt().item(), converged and inside)


def into_range(images, z, y, theta, weight_decay, tolerance=1e-12, iterations=2000):
    """Alternate between clipping to [0, 1] and `project`; both sets are convex, so this finds a common point.

    Returns the images and whether no pixel is further than `tolerance` outside.
    """
    for _ in range(iterations):
        clipped = images.clamp(0, 1)
        if (images - clipped).abs().max() <= tolerance:
            return images, True
        images = project(clipped, z, y, theta, weight_decay)
    return images, False


def feasible_logits(z, y, theta, weight_decay, iterations=100):
    """Move logits z (m,) onto the two equations by Gauss-Newton steps of least length."""
    z = z.detach()
    for _ in range(iterations):
        gap = infeasibility(z, y, theta, weight_decay)
        if gap.abs().max() < 1e-15:
            break
        jacobian = torch.func.jacrev(infeasibility)(z, y, theta, weight_decay)  # (2, m)
        step = torch.linalg.lstsq(jacobian, gap).solution
        z = z - step / max(1.0, step.abs().max().item() / 2)  # at most 2 per logit, to stay where σ is not flat
    if gap.abs().max() > 1e-12:
        raise InputError(
            "No logits satisfy the two conditions for these weights and labels: check the labels and WEIGHT_DECAY."
        )
    return z


def squared_distance(z, wish_gram, wish_w, y, theta, weight_decay):
    """‖X − T‖² of `project` as a function of the logits z, from TTᵀ (m, m) and Tw (m,): no sum over the d pixels.

    ‖X − T‖² = ‖c‖²/‖w‖² + ‖e‖²/‖r‖² − (rᵀc)²/(‖r‖²‖w‖²), with c, e and r as in `project`.
    """
    ww, shrink = dot(theta[:-1], theta[:-1]), len(y) * weight_decay
    r = residuals(z, y)
    c = z - theta[-1] - wish_w
    ee = shrink**2 * ww + 2 * shrink * dot(r, wish_w) + dot(r, wish_gram @ r)
    return dot(c, c) / ww + (ee - dot(r, c) ** 2 / ww) / dot(r, r)


def nearest_logits(wish, z, y, theta, weight_decay):
    """Minimise `squared_distance` over feasible logits from feasible z (m,), by sequential quadratic programming."""
    terms = [tensor.cpu() for tensor in (wish @ wish.mT, wish @ theta[:-1], y, theta)]

    def numbers(function, *arguments):
        """Turn a function of a tensor z into one of a NumPy array, as SciPy asks."""
        return lambda values: function(torch.from_numpy(values), *arguments, weight_decay).numpy()

    constraint = {
        "type": "eq",
        "fun": numbers(infeasibility, *terms[2:]),
        "jac": numbers(torch.func.jacrev(infeasibility), *terms[2:]),
    }
    found = minimize(
        numbers(squared_distance, *terms),
        z.cpu().numpy(),
        jac=numbers(torch.func.grad(squared_distance), *terms),
        method="SLSQP",
        constraints=constraint,
        options={"maxiter": 200, "ftol": 1e-6 * len(z)},
    )
    return torch.from_numpy(found.x).to(y), bool(found.success)


def drawing(text, shape):
    """Turn lines of text into one image (d,) of `shape` (H, W, C): every # is dark, everything else light."""
    lines = text.strip("\n").split("\n")
    width = max(map(len, lines))
    if width == 0:
        raise InputError("DRAWING is empty: give it at least one line of text, with # for dark.")
    ink = torch.tensor([[character == "#" for character in line.ljust(width)] for line in lines])
    small = torch.where(ink, 0.1, 0.9)[None, None].double()  # (1, 1, lines, width)
    large = interpolate(small, size=shape[:2], mode="area" if width > shape[1] else "nearest")[0, 0]
    return large[..., None].expand(shape).reshape(-1)
