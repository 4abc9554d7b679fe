"""The affine model Φ(x; θ) = ⟨θ, (x, 1)⟩ of eq. (8), with every product in m dimensions instead of d.

Shapes: images x (…, m, d), labels y (m,) in {0, 1}, weights θ (…, d+1) with the bias last. Leading dimensions are
independent problems that are solved in one call. The training energy, eq. (4) with weight decay μ and the logistic loss
ℓ, is E(x, y; θ) = (1/m) Σ_i ℓ(z_i, y_i) + (μ/2)‖θ‖² with z = X̄θ: μ-strongly convex, so that θ(x) = argmin E is unique.
"""

from typing import NamedTuple

import torch
from torch.nn.functional import binary_cross_entropy_with_logits

from utils.kernels.layers import flatten, in_span, parted
from utils.kernels.losses import curvatures


class Solved(NamedTuple):
    """A stationary point of E, and how it was found."""

    weights: torch.Tensor  # the stationary point θ (…, d+1)
    logits: torch.Tensor  # z = X̄θ (…, m)
    gram: torch.Tensor  # X̄X̄ᵀ (…, m, m)
    gradient_norm: torch.Tensor  # ‖∇_θ E‖ (…)
    iterations: int  # Newton steps
    converged: torch.Tensor  # booleans (…): whether ‖∇_θ E‖ ≤ 10⁻⁹


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


def energy(x, y, theta, weight_decay):
    """The training energy E(x, y; θ), eq. (4) with weight decay: (…)."""
    z = logits(x, theta)
    losses = binary_cross_entropy_with_logits(z, y.expand_as(z), reduction="none")
    return losses.mean(-1) + weight_decay / 2 * square_norm(theta)


def energy_gradient(x, y, theta, weight_decay):
    """∇_θ E = X̄ᵀℓ'(X̄θ, y)/m + μθ, eq. (6) with weight decay: (…, d+1)."""
    r = residuals(logits(x, theta), y)
    return combine(x, r) / len(y) + weight_decay * theta


def majoriser(x, y, theta, weight_decay):
    """‖∇_θ E(x, y; θ)‖²/(2μ²), which bounds ½‖θ(x) − θ‖², since E is μ-strongly convex: (…)."""
    return square_norm(energy_gradient(x, y, theta, weight_decay)) / (2 * weight_decay**2)


def weights(network, sharpness=None, basis=None):
    """The weights of an affine network as θ (…, d+1), the bias last; in a basis (…, d, r) of images, (…, r+1)."""
    return flatten(network if basis is None else in_span(network, basis))


def network(theta, basis=None):
    """The affine network with weights θ (…, d+1), or (…, r+1) in a basis of images."""
    layers = (parted(theta[..., None, :]),)
    return layers if basis is None else in_span(layers, basis.mT)


def solve(x, y, weight_decay, initial=None):
    """Minimise E over θ by damped Newton steps on m numbers, until ‖∇_θ E‖ ≤ 10⁻¹² or rounding stops it.

    A full Newton step from any θ lands in the row space of X̄, θ = X̄ᵀα, where (ℓ''G/m + μ)α = (ℓ''z − ℓ')/m with
    G = X̄X̄ᵀ. So θ = X̄ᵀα + sθ⁰ holds for all iterates, and a step costs one m×m solve. `initial` is θ⁰ (…, d+1), zero if
    omitted; μ, `weight_decay`, must be positive.
    """
    m, d = x.shape[-2:]
    gram = x @ x.mT + 1  # X̄X̄ᵀ: (…, m, d) @ (…, d, m) -> (…, m, m)
    theta0 = (x.new_zeros(d + 1) if initial is None else initial).expand(*x.shape[:-2], d + 1)
    z0 = logits(x, theta0)
    square0 = square_norm(theta0)

    def state(alpha, s):
        """Logits and squared gradient norm at θ = X̄ᵀα + sθ⁰."""
        z = times(gram, alpha) + s[..., None] * z0
        g = residuals(z, y) / m + weight_decay * alpha  # ∇E = X̄ᵀg + tθ⁰
        t = weight_decay * s
        square = (g * times(gram, g)).sum(-1) + 2 * t * (g * z0).sum(-1) + t**2 * square0
        return z, square.clamp_min(0)

    alpha = torch.zeros_like(z0)
    s = torch.ones_like(square0)
    z, square = state(alpha, s)
    settled = torch.zeros_like(square, dtype=torch.bool)
    for iteration in range(200):  # noqa: B007 (it is used behind the loop)
        settled = settled | (square <= 1e-12**2)
        if settled.all():
            break
        h = curvatures(z)
        target = torch.linalg.solve(ridge(gram, h, m * weight_decay), h * z - residuals(z, y))
        step, settled = damped(state, alpha, s, target, square, settled)
        alpha = alpha + step[..., None] * (target - alpha)
        s = (1 - step) * s
        z, square = state(alpha, s)
    norm = square.sqrt()
    return Solved(combine(x, alpha) + s[..., None] * theta0, z, gram, norm, iteration, norm <= 1e-9)


def damped(state, alpha, s, target, square, settled):
    """Halve a Newton step until it shrinks the gradient: the steps (…), 0 where settled, and what is settled then."""
    step = torch.ones_like(s)
    for _ in range(40):
        trial = state(alpha + step[..., None] * (target - alpha), (1 - step) * s)
        shrunk = trial[1] <= (1 - step / 4) ** 2 * square
        if (shrunk | settled).all():
            break
        step = torch.where(shrunk, step, step / 2)
    # Where no step is short enough, rounding has the last word.
    return torch.where(shrunk & ~settled, step, 0), settled | ~shrunk


def ridge(gram, h, shift):
    """diag(h) G + shift·1, the m×m matrix of every Newton step and Woodbury solve here."""
    return h[..., None] * gram + shift * torch.eye(h.shape[-1], dtype=h.dtype, device=h.device)


def cross_gradient(x, y, solved, p):
    """∇_x⟨∇_θ E(x, y; θ), p⟩ with θ and p held fixed: the matrix (ℓ' pᵀ + (ℓ'' ∘ X̄p) θᵀ)/m, of rank two: (…, m, d)."""
    r = residuals(solved.logits, y)[..., None]
    s = (curvatures(solved.logits) * logits(x, p))[..., None]
    return (r * p[..., None, :-1] + s * solved.weights[..., None, :-1]) / len(y)


def inner(x, y, weight_decay, initial):
    """Solve the lower level, eq. (1), at images x: θ(x), and the product u -> H⁻¹u with its soundness.

    H⁻¹u = (u − X̄ᵀ(ℓ''G + mμ)⁻¹(ℓ'' ∘ X̄u))/μ exactly, by Woodbury: one m×m solve.
    """
    solved = solve(x, y, weight_decay, initial)
    h = curvatures(solved.logits)

    def inverse(u):
        q = torch.linalg.solve(ridge(solved.gram, h, len(y) * weight_decay), h * logits(x, u))
        return (u - combine(x, q)) / weight_decay, solved.converged

    return solved, inverse


def difference(solved, target):
    """θ(x) − θ*: (…, d+1)."""
    return solved.weights - target


def square_norm(theta):
    """‖θ‖²: (…)."""
    return theta.square().sum(-1)
