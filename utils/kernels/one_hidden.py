"""The one-hidden-layer network of eq. (9), with every inner product in the m-dimensional coordinates of the data.

Shapes: images x (…, m, d), labels y (m,) in {0, 1}; W̄₁ (…, h, d+1) and w̄₂ (…, h+1), each with its bias last. With
X̄ᵀ = QLᵀ (QR), pre-activations are X̄W̄₁ᵀ = LAᵀ for the coordinates A = W̄₁Q (…, h, m): the network sees L (m, m), not
X̄. Of the training energy E = (1/m) Σ_i ℓ(z_i, y_i) + (μ/2)‖θ‖² only weight decay acts outside the row space of X̄, where
E has the Hessian μ·1 and the minimiser 0. Inside, θ is the vector v = (A, w₂, b₂) of n = hm + h + 1 numbers.
"""

import math
from typing import NamedTuple

import torch
from torch.nn.functional import binary_cross_entropy_with_logits, softplus

from utils.kernels import solvers
from utils.kernels.affine import residuals, ridge, times
from utils.kernels.layers import joint, parted
from utils.kernels.losses import curvatures


class Weights(NamedTuple):
    """Φ(x; θ) = σ(xW₁ᵀ + b₁)w₂ + b₂, eq. (9), with σ(s) = softplus(βs)/β; β = ∞ is ReLU."""

    first: torch.Tensor  # W̄₁ = (W₁, b₁): (…, h, d+1)
    second: torch.Tensor  # (w₂, b₂): (…, h+1)
    sharpness: float  # β


class Coordinates(NamedTuple):
    """The images as the network sees them: X̄ᵀ = QLᵀ."""

    basis: torch.Tensor  # Q (…, d+1, m), orthonormal columns
    data: torch.Tensor  # L (…, m, m)


class Solved(NamedTuple):
    """A stationary point of E, and what is known about it."""

    inside: torch.Tensor  # v = (A, w₂, b₂) (…, n); outside the row space of X̄ the weights are zero
    coordinates: Coordinates
    sharpness: float
    gradient_norm: torch.Tensor  # ‖∇_θ E‖ (…)
    iterations: int  # steps of L-BFGS and products with the Hessian
    converged: torch.Tensor  # (…) booleans

    @property
    def weights(self):
        """θ: W̄₁ = AQᵀ."""
        a, w, b = unpack(self.inside, self.coordinates)
        return Weights(a @ self.coordinates.basis.mT, torch.cat([w, b], -1), self.sharpness)


class Direction(NamedTuple):
    """A vector in θ-space: `inside` the row space of X̄, and `factor`·(W̄₁* − A*Qᵀ) outside, never formed."""

    inside: torch.Tensor  # (…, n)
    factor: float
    target: Weights  # θ*
    projected: torch.Tensor  # v* = (A*, w₂*, b₂*) (…, n)


class State(NamedTuple):
    """One forward pass from which values, gradients and Hessian products follow; hidden layers are (…, m, h)."""

    w: torch.Tensor  # w₂ (…, h)
    active: torch.Tensor  # φ = σ(s)
    slope: torch.Tensor  # φ' = σ'(s)
    bend: torch.Tensor  # φ'' = σ''(s)
    logits: torch.Tensor  # z (…, m)


def activation(s, sharpness):
    """Return σ(s), σ'(s), σ''(s) for σ(s) = softplus(βs)/β; ReLU, with σ'' = 0, if β is infinite."""
    if math.isinf(sharpness):
        return s.clamp_min(0), (s > 0).to(s), torch.zeros_like(s)
    slope = torch.sigmoid(sharpness * s)
    return softplus(s, beta=sharpness, threshold=40), slope, sharpness * slope * (1 - slope)


def weights(network, sharpness):
    """The Weights of a network with one hidden layer, whose softplus has the sharpness β."""
    return Weights(joint(network[0]), joint(network[1])[..., 0, :], sharpness)


def network(theta):
    """The layers of Weights."""
    return parted(theta.first), parted(theta.second[..., None, :])


def coordinates(x):
    """QR of X̄ᵀ, X̄ being x with a column of ones: (…, m, d) -> Q (…, d+1, m), L (…, m, m)."""
    basis, upper = torch.linalg.qr(torch.cat([x, torch.ones_like(x[..., :1])], -1).mT)
    return Coordinates(basis, upper.mT)


def pack(a, w, b):
    """(…, h, m), (…, h), (…, 1) -> (…, n)."""
    return torch.cat([a.flatten(-2), w, b], -1)


def unpack(v, at):
    """(…, n) -> A (…, h, m), w₂ (…, h), b₂ (…, 1)."""
    m = at.data.shape[-1]
    h = (v.shape[-1] - 1) // (m + 1)
    return v[..., : h * m].unflatten(-1, (h, m)), v[..., h * m : -1], v[..., -1:]


def to_coordinates(theta, at):
    """The coordinates v (…, n) of Weights, or of a Solved in other coordinates, inside the row space of X̄."""
    if isinstance(theta, Solved):
        a, w, b = unpack(theta.inside, theta.coordinates)
        return pack(a @ (theta.coordinates.basis.mT @ at.basis), w, b)  # (h, m') @ (m', m)
    second = theta.second.expand(*at.data.shape[:-2], -1)
    return pack(theta.first @ at.basis, second[..., :-1], second[..., -1:])  # (h, d+1) @ (d+1, m)


def forward(v, at, sharpness):
    """Run the network on all images: pre-activations s = LAᵀ, logits z = σ(s)w₂ + b₂, eq. (9)."""
    a, w, b = unpack(v, at)
    active, slope, bend = activation(at.data @ a.mT, sharpness)  # (m, m) @ (m, h) -> (m, h)
    return State(w, active, slope, bend, times(active, w) + b)


def transposed(hidden, c, at, state):
    """Σ_i over images of the gradients in v: `hidden` (…, m, h) on the pre-activations and c (…, m) on the logits."""
    return pack(hidden.mT @ at.data, times(state.active.mT, c), c.sum(-1, keepdim=True))


def energy(v, at, y, weight_decay, sharpness):
    """Return E and ∇E in the coordinates v: (…), (…, n)."""
    state = forward(v, at, sharpness)
    losses = binary_cross_entropy_with_logits(state.logits, y.expand_as(state.logits), reduction="none")
    r = residuals(state.logits, y) / len(y)
    back = state.slope * state.w[..., None, :] * r[..., None]  # (…, m, h)
    return losses.mean(-1) + weight_decay / 2 * v.square().sum(-1), transposed(back, r, at, state) + weight_decay * v


def hessian(v, at, y, weight_decay, sharpness):
    """Return the product u -> ∇²E u and an approximate inverse of it, both (…, n) -> (…, n).

    With J the derivative of the logits, ∇²E = JᵀDJ + (1/m) Σ ℓ'_i ∇²z_i + μ·1, D = diag(ℓ'')/m. The approximate inverse
    leaves the middle term out; Woodbury's formula then needs JJᵀ only, the (m, m) neural tangent kernel.
    """
    state, m = forward(v, at, sharpness), len(y)
    r, curvature = residuals(state.logits, y) / m, curvatures(state.logits) / m
    slope = state.slope * state.w[..., None, :]  # ∂z/∂s
    bend = state.bend * state.w[..., None, :] * r[..., None]
    kernel = (slope @ slope.mT) * (at.data @ at.data.mT) + state.active @ state.active.mT + 1  # JJᵀ
    factors = torch.linalg.lu_factor(ridge(kernel, curvature, weight_decay))

    def jacobian(u):  # -> the change of s, and of z
        a, w, b = unpack(u, at)
        ds = at.data @ a.mT
        return ds, w, (slope * ds).sum(-1) + times(state.active, w) + b

    def product(u):
        ds, dw, dz = jacobian(u)
        back = slope * (curvature * dz)[..., None] + (state.slope * dw[..., None, :]) * r[..., None] + bend * ds
        on_w = times(state.active.mT, curvature * dz) + times((state.slope * ds).mT, r)
        return pack(back.mT @ at.data, on_w, (curvature * dz).sum(-1, keepdim=True)) + weight_decay * u

    def precondition(u):
        c = torch.linalg.lu_solve(*factors, (curvature * jacobian(u)[2])[..., None])[..., 0]
        return (u - transposed(slope * c[..., None], c, at, state)) / weight_decay

    return product, precondition


def solve(x, y, weight_decay, start, tolerance=1e-9):
    """Minimise E from `start`, the Weights θ⁰ or a Solved, until ‖∇E‖ ≤ `tolerance`: a local minimum of eq. (1).

    The part of θ⁰ outside the row space of X̄ does not change the logits; its minimiser, 0, is taken at once. Inside, a
    few steps of L-BFGS lead to where Newton's method with conjugate gradients takes over. μ, β must be positive.
    """
    at = coordinates(x)
    terms = (at, y, weight_decay, start.sharpness)
    v = to_coordinates(start, at)
    near = solvers.lbfgs(lambda v: energy(v, *terms), v, gradient_tolerance=1e-2, iterations=200)
    goal = {"gradient_tolerance": tolerance if x.dtype == torch.float64 else max(tolerance, 1e-6)}  # single precision's
    found = solvers.newton_cg(lambda v: energy(v, *terms), lambda v: hessian(v, *terms), near.x, **goal)
    steps = near.iterations + found.iterations
    return Solved(found.x, at, start.sharpness, found.gradient_norm, steps, found.converged)


def inner(x, y, weight_decay, start, pairs=()):
    """The same as `affine.inner`, with H⁻¹u by preconditioned conjugate gradients."""
    solved = solve(x, y, weight_decay, start)
    product, precondition = hessian(solved.inside, solved.coordinates, y, weight_decay, solved.sharpness)

    def inverse(u):
        solution = solvers.cg(product, u.inside, 1e-10 if x.dtype == torch.float64 else 1e-6, precondition=precondition)
        return u._replace(inside=solution.x, factor=u.factor / weight_decay), solved.converged & solution.converged

    return solved, inverse, ()


def difference(solved, target):
    """θ(x) − θ*: inside v − v*; outside, where θ(x) is zero, −θ*."""
    projected = to_coordinates(target, solved.coordinates)
    return Direction(solved.inside - projected, -1.0, target, projected)


def square_norm(u):
    """‖θ‖² of Weights, or ‖u‖² of a Direction: (…)."""
    if isinstance(u, Weights):
        return u.first.square().sum((-2, -1)) + u.second.square().sum(-1)
    outside = square_norm(u.target) - u.projected.square().sum(-1)
    return u.inside.square().sum(-1) + u.factor**2 * outside.clamp_min(0)


def cross_gradient(x, y, solved, p):
    """∇_x⟨∇_θ E(x, y; θ), p⟩ with θ and the Direction p held fixed: (…, m, d).

    With t = X̄P̄₁ᵀ the change of the pre-activations along p and ż = (σ'∘w₂)·t + σp₂ that of the logits, row i is
    (1/m) Σ_j (ℓ''_i ż_i w_j σ'_ij + ℓ'_i (p_j σ'_ij + w_j t_ij σ''_ij)) W₁_j + ℓ'_i w_j σ'_ij P₁_j.
    """
    at, s = solved.coordinates, forward(solved.inside, solved.coordinates, solved.sharpness)
    r, curvature = residuals(s.logits, y)[..., None] / len(y), curvatures(s.logits) / len(y)
    a, w, _ = unpack(solved.inside, at)
    pa, pw, pb = unpack(p.inside, at)
    t = at.data @ pa.mT  # (m, m) @ (m, h) -> (m, h)
    slope = s.slope * w[..., None, :]
    change = (slope * t).sum(-1) + times(s.active, pw) + pb
    on_w = slope * (curvature * change)[..., None] + (s.slope * pw[..., None, :] + s.bend * w[..., None, :] * t) * r
    on_p = slope * r
    span = on_w @ a + on_p @ (pa - p.factor * unpack(p.projected, at)[0])  # (m, h) @ (h, m) -> (m, m)
    return (span @ at.basis.mT + on_p @ (p.factor * p.target.first))[..., :-1]  # (m, h) @ (h, d+1)
