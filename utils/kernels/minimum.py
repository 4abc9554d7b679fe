"""When are the weights of a network with one hidden layer a minimum for images? The conditions, with their derivatives.

Z (m, r) are images in an orthonormal basis of the rows of W₁, r ≤ K; z̄ has a one attached, s_ij = z̄_i·w̄_j. With the
residuals r_i = ℓ'_i/m each condition rests on sums over images of functions f(r_i, s_ij), whose change with z_i is
∂f/∂r_i · ∂r_i/∂z_i + ∂f/∂s_ij · w_j. All is over μ, the weight decay. `conditions` stacks what the functions give,
pairs of values (k,) and slopes (k, m, r).
"""

from collections import namedtuple

import torch
from torch.nn.functional import pad

from utils.kernels import affine, one_hidden
from utils.kernels.losses import curvatures

# At Z: z̄ (m, r+1), W̄₁ (K, r+1), w (K,), σ, σ', σ'', σ''' and s (m, K), r (m, 1), ∂r/∂z (m, r); μ.
At = namedtuple("At", "rows first w active slope bend third s r turns decay")


def forward(z, labels, theta):
    """A one_hidden.State, and the residuals ℓ'/m (m,)."""
    state = one_hidden.forward(one_hidden.pack(theta), z, theta.sharpness)
    return state, affine.residuals(state.logits, labels) / len(z)


def terms(z, labels, theta, decay):
    """All that the conditions at Z are made of."""
    (rows, first, w, active, slope, bend, logits), r = forward(z, labels, theta)
    third = theta.sharpness * bend * (1 - 2 * slope)
    turns = curvatures(logits)[:, None] / len(z) * ((slope * w) @ first[:, :-1])  # (m, K) @ (K, r)
    return At(rows, first, w, active, slope, bend, third, rows @ first.T, r[:, None], turns, decay)


def changes(at, of_r, of_s):
    """How sums Σ_i f_ij change with Z, given ∂f/∂r and ∂f/∂s (m, K): (K, m, r)."""
    return of_r.T[:, :, None] * at.turns + of_s.T[:, :, None] * at.first[:, None, :-1]


def stationary(at):
    """∇_θE of every neuron over μw_j: Σ_i r_i σ'(s_ij) z̄_i/μ + w̄_j/w_j, zero if the first layer is stationary."""
    values = (at.r * at.slope).T @ at.rows / at.decay + at.first / at.w[:, None]  # (K, m) @ (m, r+1)
    slopes = changes(at, at.slope, at.r * at.bend)[:, None] * at.rows.T[:, :, None]  # (K, r+1, m, r)
    slopes[:, :-1] += (at.r * at.slope).T[:, None, :, None] * torch.eye(slopes.shape[-1]).to(slopes)[:, None]
    return values.flatten(), slopes.flatten(0, 1) / at.decay


def bias(at, last):
    """The same of the last bias, Σ_i r_i/μ + b₂."""
    return at.r.sum()[None] / at.decay + last, at.turns[None] / at.decay


def kinks(at):
    """The row of w_j less w̄_j times that of w̄_j: Σ_i r_i (σ − sσ')_ij = μ(‖w̄_j‖² − w_j²)/w_j; a tenth, in logarithms.

    Only images near a kink add to it, those of one class with one sign; in logarithms it says where to go even if all
    of them are far away.
    """
    sign, height = at.w.sign() / at.decay, at.active - at.slope * at.s
    balance = (at.first.square().sum(1) / at.w - at.w) * at.w.sign()
    parts = at.r * sign * height  # (m, K)
    above = parts.clamp_min(0).sum(0) + (-balance).clamp_min(0) + 1e-30
    below = (-parts).clamp_min(0).sum(0) + balance.clamp_min(0) + 1e-30
    weights = sign / torch.where(parts > 0, above, below)
    return (above.log() - below.log()) / 10, changes(at, weights * height, -weights * at.r * at.s * at.bend) / 10


def downward(at):
    """f = max(0, −r_i w_j) σ''(s_ij), of images near the kink of a neuron of their class, ∂f/∂r and ∂f/∂s (m, K)."""
    pull = (-at.r * at.w).clamp_min(0)
    return pull * at.bend, -at.w * at.bend * (pull > 0), pull * at.third


def curving(at, weight):
    """E curves up unless images of its class lie near the kink of a neuron: `weight` times the root of `downward`."""
    each, *of = downward(at)
    roots = (each.sum(0) + 1e-14).sqrt()
    return weight * roots, weight / 2 * changes(at, *of) / roots[:, None, None]


def parting(at, copied, sizes, margin):
    """Where equal neurons may part: that q_j has no eigenvalue below `margin`, and Σ_i ‖x̄_i‖² f_ij is at most 15.

    Both over μ; q_j is the curvature of E in the weights of one of `copied` (K,) against the others, in coordinates Z;
    `sizes` are ‖x̄‖² (m,) of the start.
    """
    if not margin > 0 or not copied.any():
        return at.w.new_zeros(2 * len(copied)), at.w.new_zeros(2 * len(copied), *at.turns.shape)
    curved = torch.einsum("ia,ij,ib->jab", at.rows, at.r * at.w * at.bend, at.rows)  # (K, r+1, r+1)
    sums = (at.r * at.slope).T @ at.rows
    q = torch.cat([torch.cat([curved, sums[:, :, None]], 2), pad(sums, (0, 1))[:, None]], 1)
    lowest, vectors = torch.linalg.eigh(q)
    p, last = vectors[:, :-1, 0], vectors[:, -1, 0]
    t = at.rows @ p.T  # the eigenvalue is Σ_i r_i (w_j σ'' t² + 2 last σ' t)_ij
    one, two = at.w * at.bend * t, last * at.slope
    falls = changes(at, (one + 2 * two) * t, at.r * t * (at.w * at.third * t + 2 * last * at.bend))
    falls = falls + 2 * (at.r * (one + two)).T[:, :, None] * p[:, None, :-1]
    each, *of = downward(at)
    values = torch.cat([1 - (lowest[:, 0] / at.decay + 1) / margin, sizes @ each / (15 * at.decay) - 1]).clamp_min(0)
    slopes = torch.cat([-falls / margin, sizes[:, None] * changes(at, *of) / 15]) / at.decay
    on = copied.repeat(2)
    return on * torch.log1p(values.square()) / 10, (on * values / (1 + values.square()) / 5)[:, None, None] * slopes


def conditions(z, problem, theta, weight, margin=0.0):
    """Numbers (K² + 5K + 1,) that vanish where θ is a minimum of E behind images with coordinates Z, and their slopes.

    The `problem` (planting.Problem) has labels, μ, sizes and which neurons stand for several; θ may have softer kinks.
    """
    here = terms(z, problem.labels, theta, problem.weight_decay)
    found = stationary(here), kinks(here), bias(here, theta.second[-1:]), curving(here, weight)
    values, slopes = zip(*found, parting(here, problem.copied, problem.sizes, margin))
    return torch.cat(values), torch.cat(slopes)
