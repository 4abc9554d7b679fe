"""The affine model Φ(x; θ) = ⟨θ, (x, 1)⟩ of eq. (8), with every product in m dimensions instead of d.

Shapes: images x (…, m, d), labels y (m,) in {0, 1}, weights θ (…, d+1) with the bias last. Leading dimensions are
independent problems that are solved in one call. The training energy, eq. (4) with weight decay μ, is

    E(x, y; θ) = (1/m) Σ_i ℓ(z_i, y_i) + (μ/2)‖θ‖²,    z = X̄θ,    ℓ the logistic loss,

which is μ-strongly convex, so that θ(x) = argmin E is unique.
"""

from typing import NamedTuple

import torch
from torch.nn.functional import binary_cross_entropy_with_logits

from utils import solvers
from utils.errors import InputError, choose


class Trained(NamedTuple):
    """A stationary point θ of E, and what is known about it."""

    weights: torch.Tensor  # θ (…, d+1)
    logits: torch.Tensor  # z = X̄θ (…, m)
    gram: torch.Tensor  # X̄X̄ᵀ (…, m, m)
    gradient_norm: torch.Tensor  # ‖∇_θ E‖ (…)
    iterations: int  # Newton steps
    converged: torch.Tensor  # (…) booleans


def dot(a, b):
    """Inner product over the last dimension: (…, n), (…, n) -> (…)."""
    return (a * b).sum(-1)


def times(matrix, vector):
    """Matrix times vector, for every leading dimension: (…, m, n), (…, n) -> (…, m)."""
    return (matrix @ vector[..., None])[..., 0]


def logits(x, theta):
    """X̄θ, that is Φ(x; θ) for every image, eq. (8); X̄ is x with a column of ones, eq. (5): (…, m)."""
    return times(x, theta[..., :-1]) + theta[..., -1:]


def combine(x, c):
    """X̄ᵀc, the combination of the images (each with its 1) with coefficients c (…, m): (…, d+1)."""
    return torch.cat([times(x.mT, c), c.sum(-1, keepdim=True)], dim=-1)


def residuals(z, y):
    """ℓ'(z, y) = σ(z) − y, the derivative of the logistic loss: (…, m)."""
    return torch.sigmoid(z) - y


def curvatures(z):
    """ℓ''(z) = σ(z)(1 − σ(z)), without cancellation for large |z|: (…, m)."""
    return torch.sigmoid(z) * torch.sigmoid(-z)


def energy(x, y, theta, weight_decay):
    """The training energy E(x, y; θ), eq. (4) with weight decay: (…)."""
    z = logits(x, theta)
    losses = binary_cross_entropy_with_logits(z, y.expand_as(z), reduction="none")
    return losses.mean(-1) + weight_decay / 2 * dot(theta, theta)


def energy_gradient(x, y, theta, weight_decay):
    """∇_θ E = X̄ᵀℓ'(X̄θ, y)/m + μθ, eq. (6) with weight decay: (…, d+1)."""
    r = residuals(logits(x, theta), y)
    return combine(x, r) / len(y) + weight_decay * theta


def hessian_product(x, theta, v, weight_decay):
    """∇²_θ E v = X̄ᵀ(ℓ'' ∘ X̄v)/m + μv, two products with X̄ and no matrix: (…, d+1)."""
    h = curvatures(logits(x, theta))
    return combine(x, h * logits(x, v)) / x.shape[-2] + weight_decay * v


def initial_weights(d, seed, kind="uniform", device="cpu"):
    """Draw θ⁰ (d+1,): `uniform` is U(0, 1) as in the paper, `standard` is U(−1/√d, 1/√d), torch's own default."""
    choose("THETA_START", kind, ("uniform", "standard"))
    draw = torch.rand(d + 1, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)).to(device)
    return draw if kind == "uniform" else (2 * draw - 1) / d**0.5


def train(x, y, weight_decay, start=None, tolerance=1e-12, iterations=200):
    """Minimise E over θ by damped Newton steps on m numbers, until ‖∇_θ E‖ ≤ `tolerance` or rounding stops it.

    A full Newton step from any θ lands in the row space of X̄, θ = X̄ᵀα, where (ℓ''G/m + μ)α = (ℓ''z − ℓ')/m with
    G = X̄X̄ᵀ. So θ = X̄ᵀα + sθ⁰ holds for all iterates, and a step costs one m×m solve. Each step is halved until it
    shrinks the gradient. `start` is θ⁰ (…, d+1), zero if omitted.
    """
    if not weight_decay > 0:
        raise InputError(f"WEIGHT_DECAY is {weight_decay}; without a positive one the minimiser is not unique.")
    m, d = x.shape[-2:]
    gram = x @ x.mT + 1  # X̄X̄ᵀ: (…, m, d) @ (…, d, m) -> (…, m, m)
    theta0 = x.new_zeros(d + 1) if start is None else start
    theta0 = theta0.expand(*x.shape[:-2], d + 1)
    z0, square0 = logits(x, theta0), dot(theta0, theta0)

    def state(alpha, s):
        """Logits and squared gradient norm at θ = X̄ᵀα + sθ⁰."""
        z = times(gram, alpha) + s[..., None] * z0
        g, t = residuals(z, y) / m + weight_decay * alpha, weight_decay * s  # ∇E = X̄ᵀg + tθ⁰
        return z, (dot(g, times(gram, g)) + 2 * t * dot(g, z0) + t**2 * square0).clamp_min(0)

    alpha, s = torch.zeros_like(z0), torch.ones_like(square0)
    z, square = state(alpha, s)
    settled = torch.zeros_like(square, dtype=torch.bool)
    for iteration in range(iterations):
        settled = settled | (square <= tolerance**2)
        if settled.all():
            break
        target = newton_target(gram, z, y, weight_decay)
        step = torch.ones_like(s)
        for _ in range(40):
            trial = state(alpha + step[..., None] * (target - alpha), (1 - step) * s)
            shrunk = trial[1] <= (1 - step / 4) ** 2 * square
            if (shrunk | settled).all():
                break
            step = torch.where(shrunk, step, step / 2)
        step = torch.where(shrunk & ~settled, step, 0)
        settled = settled | ~shrunk  # no step is short enough: rounding
        alpha, s = alpha + step[..., None] * (target - alpha), (1 - step) * s
        z, square = state(alpha, s)
    theta = combine(x, alpha) + s[..., None] * theta0
    norm = square.sqrt()
    return Trained(theta, z, gram, norm, iteration, norm <= 1e-9)


def newton_target(gram, z, y, weight_decay):
    """The α of a full Newton step from logits z: (ℓ''G/m + μ)α = (ℓ''z − ℓ')/m."""
    h, m = curvatures(z), len(y)
    return torch.linalg.solve(ridge(gram, h, m * weight_decay), h * z - residuals(z, y))


def ridge(gram, h, shift):
    """diag(h) G + shift·1, the m×m matrix of every Newton step and Woodbury solve here."""
    return h[..., None] * gram + shift * torch.eye(h.shape[-1], dtype=h.dtype, device=h.device)


def inverse_hessian_product(x, trained, u, weight_decay):
    """p = (∇²_θ E)⁻¹u exactly, by Woodbury: p = (u − X̄ᵀ(ℓ''G + mμ)⁻¹(ℓ'' ∘ X̄u))/μ, one m×m solve."""
    h = curvatures(trained.logits)
    q = torch.linalg.solve(ridge(trained.gram, h, x.shape[-2] * weight_decay), h * logits(x, u))
    return (u - combine(x, q)) / weight_decay


def cross_gradient(x, y, trained, p):
    """∇_x⟨∇_θ E(x, y; θ), p⟩ with θ and p held fixed: the matrix (ℓ' pᵀ + (ℓ'' ∘ X̄p) θᵀ)/m, of rank two: (…, m, d)."""
    r, h = residuals(trained.logits, y), curvatures(trained.logits)
    s = h * logits(x, p)
    return (r[..., None] * p[..., None, :-1] + s[..., None] * trained.weights[..., None, :-1]) / len(y)


def exact(x, y, weight_decay, start, pairs):
    """Inner solve by Newton steps; the inverse Hessian through the m×m system."""
    trained = train(x, y, weight_decay, start)
    return trained, lambda u: (inverse_hessian_product(x, trained, u, weight_decay), trained.converged), []


def cg(x, y, weight_decay, start, pairs, tolerance=1e-10):
    """Inner solve by Newton steps; the inverse Hessian by conjugate gradients on Hessian-vector products."""
    trained = train(x, y, weight_decay, start)

    def inverse(u):
        solution = solvers.cg(lambda v: hessian_product(x, trained.weights, v, weight_decay), u, tolerance)
        return solution.x, trained.converged & solution.converged

    return trained, inverse, []


def lbfgs(x, y, weight_decay, start, pairs, tolerance=1e-8, memory=200):
    """Inner solve by L-BFGS, whose memory then stands for the inverse Hessian: the paper's quasi-Newton H."""

    def objective(theta):
        return energy(x, y, theta, weight_decay), energy_gradient(x, y, theta, weight_decay)

    theta = start.expand(*x.shape[:-2], x.shape[-1] + 1)
    found = solvers.lbfgs(objective, theta, gradient_tolerance=tolerance, memory=memory, pairs=pairs)
    z = logits(x, found.x)
    trained = Trained(found.x, z, None, found.gradient_norm, found.iterations, found.converged)
    return trained, lambda u: (solvers.quasi_newton_product(found.pairs, u), found.converged), found.pairs


INVERSES = {"exact": exact, "cg": cg, "lbfgs": lbfgs}


def in_span(theta, basis):
    """θ for images given by their coordinates in an orthonormal `basis` (…, d, r): (…, d+1) -> (…, r+1)."""
    inside = (theta[..., None, :-1] @ basis)[..., 0, :]
    return torch.cat([inside, theta[..., -1:].expand(*inside.shape[:-1], 1)], -1)


def difference(trained, target):
    """θ(x) − θ*: (…, d+1)."""
    return trained.weights - target


def square_norm(weights):
    """‖θ‖²: (…)."""
    return dot(weights, weights)


square = square_norm
