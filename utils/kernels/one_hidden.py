"""The one-hidden-layer network of eq. (9): training, products with the Hessian, and the parts of eq. (7).

Shapes: images x (…, m, d), labels y (m,) in {0, 1}; W̄₁ (…, h, d+1) and w̄₂ (…, h+1), each with a bias last; x̄ is x with
a column of ones. θ as a vector (…, n) has n = h(d+1) + h + 1 numbers. The training energy is E = (1/m) Σ_i ℓ(z_i, y_i)
+ (μ/2)‖θ‖². Only inner products of images and weights appear: coordinates in their span (`networks.span_of`) suffice.
"""

import math
from typing import NamedTuple

import torch
from torch.nn.functional import binary_cross_entropy_with_logits, pad, softplus

from utils.kernels import solvers
from utils.kernels.affine import residuals, ridge, times
from utils.kernels.layers import in_span, joint, parted
from utils.kernels.losses import curvatures


class Weights(NamedTuple):
    """The weights of Φ(x; θ) = σ(xW₁ᵀ + b₁)w₂ + b₂, eq. (9), with σ(s) = softplus(βs)/β."""

    first: torch.Tensor  # W̄₁ = (W₁, b₁) (…, h, d+1)
    second: torch.Tensor  # (w₂, b₂) (…, h+1)
    sharpness: float | torch.Tensor | None  # β, or of each neuron (h,); ∞: ReLU; None: no matter


class Solved(NamedTuple):
    """A stationary point of E, and how it was found."""

    weights: Weights  # the stationary point
    gradient_norm: torch.Tensor  # ‖∇_θ E‖ (…)
    iterations: int  # steps of L-BFGS and products with the Hessian
    converged: torch.Tensor  # booleans (…): whether ‖∇_θ E‖ fell to the tolerance


class State(NamedTuple):
    """One forward pass, from which values, gradients and Hessian products follow."""

    x: torch.Tensor  # x̄ (…, m, d+1)
    first: torch.Tensor  # W̄₁ (…, h, d+1)
    w: torch.Tensor  # w₂ (…, h)
    active: torch.Tensor  # σ(s) (…, m, h)
    slope: torch.Tensor  # σ'(s) (…, m, h)
    curvature: torch.Tensor  # σ''(s) (…, m, h)
    rise: torch.Tensor  # ∂z/∂s = σ'(s)w₂ (…, m, h)
    logits: torch.Tensor  # z (…, m)


def activation(s, sharpness):
    """Return σ(s), σ'(s), σ''(s) for σ(s) = softplus(βs)/β; ReLU, with σ'' = 0, if β is infinite."""
    if isinstance(sharpness, float) and math.isinf(sharpness):
        return s.clamp_min(0), (s > 0).to(s), torch.zeros_like(s)
    slope = torch.sigmoid(sharpness * s)
    return softplus(sharpness * s, threshold=40) / sharpness, slope, sharpness * slope * (1 - slope)


def merge_neurons(theta, tolerance=1e-6):
    """One neuron for all that are equal: the same function, norm and training, exactly, as long as they stay equal.

    n neurons (w̄, v) add up to nvσ(w̄·x̄) = v'σ'(w̄'·x̄) with w̄' = √n w̄, v' = √n v and β' = β/√n, and n(‖w̄‖² + v²) is the
    square of the new one. Equal means nearer than `tolerance` of the longest, which comes first; their mean stays.
    """
    neurons = torch.cat([theta.first, theta.second[:-1, None]], 1)  # (h, d+2)
    left = neurons.norm(dim=1).argsort(descending=True)
    nearest = tolerance * neurons[left[0]].norm()
    kinds = []
    while len(left):
        same = (neurons[left] - neurons[left[0]]).norm(dim=1) <= nearest
        kinds.append(left[same])
        left = left[~same]
    roots = neurons.new_tensor([len(kind) for kind in kinds]).sqrt()
    means = roots[:, None] * torch.stack([neurons[kind].mean(0) for kind in kinds])
    every = torch.as_tensor(theta.sharpness).to(neurons).expand(len(neurons))
    own = torch.stack([every[kind[0]] for kind in kinds])
    return Weights(means[:, :-1], torch.cat([means[:, -1], theta.second[-1:]]), own / roots)


def weights(network, sharpness, basis=None):
    """The Weights of a network whose softplus has the sharpness β; for images in a basis (…, d, r), if there is one."""
    first, second = network if basis is None else in_span(network, basis)
    return Weights(joint(first), joint(second)[..., 0, :], sharpness)


def network(theta, basis=None):
    """The layers of Weights, for images themselves if these are for images in a basis (…, d, r)."""
    layers = parted(theta.first), parted(theta.second[..., None, :])
    return layers if basis is None else in_span(layers, basis.mT)


def pack(theta):
    """Weights as one vector (…, n), in the order of `layers.flatten`."""
    first, second = theta.first.flatten(-2), theta.second
    leading = torch.broadcast_shapes(first.shape[:-1], second.shape[:-1])
    return torch.cat([part.expand(*leading, -1) for part in (first, second)], -1)


def unpack(v, inputs, sharpness=None):
    """The Weights of a vector (…, n) for images of so many values."""
    h = (v.shape[-1] - 1) // (inputs + 2)
    first = v[..., : h * (inputs + 1)].unflatten(-1, (h, inputs + 1))
    return Weights(first, v[..., h * (inputs + 1) :], sharpness)


def append_ones(x):
    """x̄: the images with a column of ones (…, m, d+1)."""
    return torch.cat([x, torch.ones_like(x[..., :1])], -1)


def forward(v, x, sharpness):
    """Run the network on all images: pre-activations s = x̄W̄₁ᵀ, logits z = σ(s)w₂ + b₂, eq. (9)."""
    first, second, _ = unpack(v, x.shape[-1])
    w = second[..., :-1]
    x = append_ones(x)
    active, slope, curvature = activation(x @ first.mT, sharpness)  # (m, d+1) @ (d+1, h) -> (m, h)
    return State(
        x=x,
        first=first,
        w=w,
        active=active,
        slope=slope,
        curvature=curvature,
        rise=slope * w[..., None, :],
        logits=times(active, w) + second[..., -1:],
    )


def logits(x, theta):
    """z = Φ(x; θ) for every image: (…, m)."""
    return forward(pack(theta), x, theta.sharpness).logits


def apply_transpose(hidden, c, state):
    """Σ_i over images of the gradients in θ: `hidden` (…, m, h) on the pre-activations and c (…, m) on the logits."""
    rows = hidden.mT @ state.x  # (h, m) @ (m, d+1)
    return torch.cat([rows.flatten(-2), times(state.active.mT, c), c.sum(-1, keepdim=True)], -1)


def energy(v, x, y, weight_decay, sharpness):
    """Return E and ∇_θE as a vector: (…), (…, n)."""
    state = forward(v, x, sharpness)
    z = state.logits
    losses = binary_cross_entropy_with_logits(z, y.expand_as(z), reduction="none")
    r = residuals(z, y) / len(y)
    back = state.rise * r[..., None]  # (…, m, h)
    value = losses.mean(-1) + weight_decay / 2 * v.square().sum(-1)
    return value, apply_transpose(back, r, state) + weight_decay * v


def linearise(u, state):
    """How the pre-activations s (…, m, h), w₂ (…, h) and the logits z (…, m) change with θ, along u (…, n)."""
    rows, second, _ = unpack(u, state.x.shape[-1] - 1)
    ds = state.x @ rows.mT
    dw = second[..., :-1]
    return ds, dw, (state.rise * ds).sum(-1) + times(state.active, dw) + second[..., -1:]


def hessian(v, x, y, weight_decay, sharpness):
    """Return the product u -> ∇²E u and an approximate inverse of it, both (…, n) -> (…, n).

    With J the derivative of the logits, ∇²E = JᵀDJ + (1/m) Σ ℓ'_i ∇²z_i + μ·1, D = diag(ℓ'')/m. The approximate inverse
    leaves the middle term out; Woodbury's formula then needs JJᵀ only, the (m, m) neural tangent kernel.
    """
    state = forward(v, x, sharpness)
    r = residuals(state.logits, y) / len(y)
    curvature = curvatures(state.logits) / len(y)
    curved = state.curvature * state.w[..., None, :] * r[..., None]
    tangent = (state.rise @ state.rise.mT) * (state.x @ state.x.mT) + state.active @ state.active.mT
    factors = torch.linalg.lu_factor(ridge(tangent + 1, curvature, weight_decay))

    def product(u):
        ds, dw, dz = linearise(u, state)
        on_logits = curvature * dz
        back = state.rise * on_logits[..., None] + (state.slope * dw[..., None, :]) * r[..., None]
        also = times((state.slope * ds).mT, r)  # on w₂
        also = pad(also, (u.shape[-1] - also.shape[-1] - 1, 1))
        return apply_transpose(back + curved * ds, on_logits, state) + weight_decay * u + also

    def precondition(u):
        right = (curvature * linearise(u, state)[2])[..., None]
        c = torch.linalg.lu_solve(*factors, right)[..., 0]
        return (u - apply_transpose(state.rise * c[..., None], c, state)) / weight_decay

    return product, precondition


def solve(x, y, weight_decay, initial, tolerance=1e-9):
    """Minimise E from Weights θ⁰ until ‖∇E‖ ≤ `tolerance`: a stationary point, nearly always a minimum, as a Solved.

    The part of W̄₁⁰ outside of the row space of X̄ does not change the logits; its minimiser, 0, is taken first. Inside,
    a few steps of L-BFGS lead to where Newton's method with conjugate gradients takes over. μ, β must be positive.
    """
    rows = torch.linalg.qr(append_ones(x).mT)[0]
    v = pack(initial._replace(first=initial.first @ rows @ rows.mT))
    terms = (x, y, weight_decay, initial.sharpness)
    near = solvers.lbfgs(lambda v: energy(v, *terms), v, gradient_tolerance=1e-2, iterations=200)
    end = solvers.newton_cg(
        lambda v: energy(v, *terms),
        lambda v: hessian(v, *terms),
        near.x,
        gradient_tolerance=tolerance if x.dtype == torch.float64 else max(tolerance, 1e-6),
    )
    theta = unpack(end.x, x.shape[-1], initial.sharpness)
    return Solved(theta, end.gradient_norm, near.iterations + end.iterations, end.converged)


def inner(x, y, weight_decay, initial):
    """Solve the lower level as `affine.inner` does, with H⁻¹u by preconditioned conjugate gradients."""
    solved = solve(x, y, weight_decay, initial)
    product, precondition = hessian(pack(solved.weights), x, y, weight_decay, initial.sharpness)

    def inverse(u):
        tolerance = 1e-10 if x.dtype == torch.float64 else 1e-6
        solution = solvers.cg(product, u, tolerance, precondition=precondition)
        return solution.x, solved.converged & solution.converged

    return solved, inverse


def difference(solved, target):
    """θ(x) − θ* as a vector: (…, n)."""
    return pack(solved.weights) - pack(target)


def square_norm(u):
    """‖θ‖² of Weights, or ‖u‖² of a vector: (…)."""
    return (pack(u) if isinstance(u, Weights) else u).square().sum(-1)


def square_distance(theta, target):
    """‖θ − θ*‖² of Weights: (…)."""
    first = theta.first - target.first
    second = theta.second - target.second
    return first.square().sum((-2, -1)) + second.square().sum(-1)


def cross_gradient(x, y, solved, p):
    """∇_x⟨∇_θ E(x, y; θ), p⟩ with θ and the vector p held fixed: (…, m, d).

    With t = X̄P̄₁ᵀ the change of the pre-activations along p and ż = (σ'∘w₂)·t + σp₂ that of the logits, row i is
    (1/m) Σ_j (ℓ''_i ż_i w_j σ'_ij + ℓ'_i (p_j σ'_ij + w_j t_ij σ''_ij)) W₁_j + ℓ'_i w_j σ'_ij P₁_j.
    """
    state = forward(pack(solved.weights), x, solved.weights.sharpness)
    t, on_second, change = linearise(p, state)
    r = residuals(state.logits, y)[..., None] / len(y)
    curvature = curvatures(state.logits) / len(y)
    curved = state.slope * on_second[..., None, :] + state.curvature * state.w[..., None, :] * t
    on_first = state.rise * (curvature * change)[..., None] + curved * r
    rows = unpack(p, x.shape[-1]).first
    return (on_first @ state.first + state.rise * r @ rows)[..., :-1]  # (m, h) @ (h, d+1)
