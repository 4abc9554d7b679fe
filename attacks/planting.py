"""Planting: from any start to images behind which the weights of a network with one hidden layer are a minimum.

The attack on eq. (2) of an attacker who begins every inner problem at θ*. Far from every training set of θ* the inner
solution jumps between minima, so the start is prepared. The network sees Z = XU (m, K) alone, the coordinates of images
in the row space of W₁. With C_ij = ℓ'_i w_j σ'(s_ij)/m, the first layer is stationary if CᵀX̄ = −μW̄₁. The nearest such
images to a start T are X = ZUᵀ + (1 − P)T(1 − UUᵀ), P projecting onto the columns of C; K² + 2K + 1 equations are left.
"""

import functools
import math
import time
from typing import NamedTuple

import numpy as np
import torch
from scipy.optimize import least_squares
from torch.nn.functional import normalize, pad

from attacks import bilevel
from attacks.contract import Attack, check_start
from utils import networks
from utils.errors import InputError
from utils.kernels import affine, one_hidden
from utils.kernels.losses import curvatures
from utils.networks import Released

TRIES = 8  # of a preparation, at most
ENOUGH = 1e-6  # relative squared distance at which no other preparation is tried
# Weights and margins once the kinks are sharp, and how often the conditions are computed at most.
SHARP = (1, 3e-3, 300), (0.1, 3e-3, 300), (0.01, 2e-3, 300), (0, 1e-3, 300), (0, 3e-4, 1500)
LOWEST = 1e-4  # over μ, the least eigenvalue of ∇²E at which a stationary point counts as a minimum


class Problem(NamedTuple):
    """A start T in the coordinates of the merged network: m images, K neurons that differ, r directions."""

    theta: one_hidden.Weights  # with W̄₁U (K, r+1), the bias last
    labels: torch.Tensor  # (m,)
    weight_decay: float  # μ
    coordinates: torch.Tensor  # TU (m, r), what the network sees of the start
    others: torch.Tensor  # T(1 − UUᵀ) (m, d), what it does not see
    axes: torch.Tensor  # U (d, r), a basis of the rows of W₁; r = K unless these are dependent
    sizes: torch.Tensor  # ‖x̄‖² (m,)
    copied: torch.Tensor  # booleans (K,): which neurons stand for several that are equal


class At(NamedTuple):
    """What the conditions are made of, at Z (m, r)."""

    rows: torch.Tensor  # z̄ (m, r+1)
    first: torch.Tensor  # W̄₁ (K, r+1)
    w: torch.Tensor  # (K,), the weights of the second layer
    active: torch.Tensor  # σ (m, K)
    slope: torch.Tensor  # σ' (m, K)
    curvature: torch.Tensor  # σ'' (m, K)
    third: torch.Tensor  # σ''' (m, K)
    s: torch.Tensor  # (m, K), the pre-activations
    r: torch.Tensor  # (m, 1), the residuals ℓ'/m
    turns: torch.Tensor  # ∂r/∂z (m, r)
    decay: float  # μ


def problem_of(released: Released, start: torch.Tensor) -> Problem:
    """The Problem for images T (m, d) behind a whole network with one hidden layer."""
    if bilevel.model_of(released) is not one_hidden or released.copies:
        raise InputError(
            "Planting needs a network with one hidden layer, not merged: for others, see bilevel.attack."
        )
    small = bilevel.merge_neurons(released)
    first, *rest = bilevel.lower_level(small).target
    axes, upper = torch.linalg.qr(first[:, :-1].T)
    axes = axes[
        :, upper.diagonal().abs() > 1e-9 * upper.abs().max()
    ]  # fewer than K if the rows are dependent
    theta = one_hidden.Weights(torch.cat([first[:, :-1] @ axes, first[:, -1:]], 1), *rest)
    coordinates = start @ axes
    copied = torch.tensor(small.copies).to(first) > 1
    others = start - coordinates @ axes.T
    sizes = 1 + start.square().sum(1)
    return Problem(
        theta,
        released.labels,
        released.recipe.weight_decay,
        coordinates,
        others,
        axes,
        sizes,
        copied,
    )


def nearest(z: torch.Tensor, problem: Problem) -> torch.Tensor:
    """The images nearest to the start with these coordinates: (m, d)."""
    state, r = evaluate(z, problem.labels, problem.theta)
    columns = torch.linalg.qr(normalize(r[:, None] * state.slope, dim=0))[0]  # of C
    return z @ problem.axes.T + problem.others - columns @ (columns.T @ problem.others)


# ---- When are weights a minimum for images Z (m, r)? ----
# With z̄ = (z, 1), s_ij = z̄_i·w̄_j and the residuals r_i = ℓ'_i/m each condition rests on sums over images of functions
# f(r_i, s_ij), whose change with z_i is ∂f/∂r_i · ∂r_i/∂z_i + ∂f/∂s_ij · w_j. All is over μ, the weight decay. Each
# function gives values (k,) and slopes (k, m, r).


def evaluate(z, labels, theta):
    """A one_hidden.State at Z, and the residuals ℓ'/m (m,)."""
    state = one_hidden.forward(one_hidden.pack(theta), z, theta.sharpness)
    return state, affine.residuals(state.logits, labels) / len(z)


def terms(z, labels, theta, decay):
    """Evaluate at Z what the conditions are made of: At."""
    (rows, first, w, active, slope, curvature, logits), r = evaluate(z, labels, theta)
    third = theta.sharpness * curvature * (1 - 2 * slope)
    turns = curvatures(logits)[:, None] / len(z) * ((slope * w) @ first[:, :-1])  # (m, K) @ (K, r)
    return At(
        rows, first, w, active, slope, curvature, third, rows @ first.T, r[:, None], turns, decay
    )


def changes(at, of_r, of_s):
    """How sums Σ_i f_ij change with Z, given ∂f/∂r and ∂f/∂s (m, K): (K, m, r)."""
    return of_r.T[:, :, None] * at.turns + of_s.T[:, :, None] * at.first[:, None, :-1]


def stationary(at):
    """∇_θE of every neuron over μw_j: Σ_i r_i σ'(s_ij) z̄_i/μ + w̄_j/w_j, zero if the first layer is stationary."""
    values = (at.r * at.slope).T @ at.rows / at.decay + at.first / at.w[
        :, None
    ]  # (K, m) @ (m, r+1)
    slopes = (
        changes(at, at.slope, at.r * at.curvature)[:, None] * at.rows.T[:, :, None]
    )  # (K, r+1, m, r)
    slopes[:, :-1] += (at.r * at.slope).T[:, None, :, None] * torch.eye(slopes.shape[-1]).to(
        slopes
    )[:, None]
    return values.flatten(), slopes.flatten(0, 1) / at.decay


def kink_balance(at):
    """∂E/∂w_j less w̄_j·∂E/∂w̄_j/w_j, zero if Σ_i r_i (σ − sσ')_ij = μ(‖w̄_j‖² − w_j²)/w_j: (K,), and its slopes.

    Only images near a kink add to the sum, those of one class with one sign. The two sides are compared by a tenth of
    their logarithms' difference, whose slope says where to go even if all images are far from the kink.
    """
    sign = at.w.sign() / at.decay
    height = at.active - at.slope * at.s
    balance = (at.first.square().sum(1) / at.w - at.w) * at.w.sign()
    parts = at.r * sign * height  # (m, K)
    above = parts.clamp_min(0).sum(0) + (-balance).clamp_min(0) + 1e-30
    below = (-parts).clamp_min(0).sum(0) + balance.clamp_min(0) + 1e-30
    weights = sign / torch.where(parts > 0, above, below)
    return (above.log() - below.log()) / 10, changes(
        at, weights * height, -weights * at.r * at.s * at.curvature
    ) / 10


def downward(at):
    """f = max(0, −r_i w_j) σ''(s_ij), of images near the kink of a neuron of their class, ∂f/∂r and ∂f/∂s (m, K)."""
    pull = (-at.r * at.w).clamp_min(0)
    return pull * at.curvature, -at.w * at.curvature * (pull > 0), pull * at.third


def parting(at, copied, sizes, margin):
    """What keeps equal neurons from parting: q_j has no eigenvalue below `margin`, and Σ_i ‖x̄_i‖² f_ij is at most 15.

    Both over μ, for every neuron j that stands for several equal ones, `copied` (K,). q_j, eq. (eq-parting), is the
    curvature of E as one of these moves against the others, in the coordinates Z alone. In all other directions of
    pixels the sum, f as in `downward`, bounds how far E curves down: `sizes` are ‖x̄‖² (m,) of whole images, those of
    the start. Values (2K,), zero where both hold, and their slopes.
    """
    if not margin > 0 or not copied.any():
        return at.w.new_zeros(2 * len(copied)), at.w.new_zeros(2 * len(copied), *at.turns.shape)
    curved = torch.einsum(
        "ia,ij,ib->jab", at.rows, at.r * at.w * at.curvature, at.rows
    )  # (K, r+1, r+1)
    sums = (at.r * at.slope).T @ at.rows
    q = torch.cat([torch.cat([curved, sums[:, :, None]], 2), pad(sums, (0, 1))[:, None]], 1)
    lowest, vectors = torch.linalg.eigh(q)
    p = vectors[:, :-1, 0]
    last = vectors[:, -1, 0]
    t = at.rows @ p.T  # the eigenvalue is Σ_i r_i (w_j σ'' t² + 2 last σ' t)_ij
    one = at.w * at.curvature * t
    two = last * at.slope
    falls = changes(
        at, (one + 2 * two) * t, at.r * t * (at.w * at.third * t + 2 * last * at.curvature)
    )
    falls = falls + 2 * (at.r * (one + two)).T[:, :, None] * p[:, None, :-1]
    each, *of = downward(at)
    values = torch.cat(
        [1 - (lowest[:, 0] / at.decay + 1) / margin, sizes @ each / (15 * at.decay) - 1]
    ).clamp_min(0)
    slopes = torch.cat([-falls / margin, sizes[:, None] * changes(at, *of) / 15]) / at.decay
    on = copied.repeat(2)
    return on * torch.log1p(values.square()) / 10, (on * values / (1 + values.square()) / 5)[
        :, None, None
    ] * slopes


def conditions(z, problem, theta, weight, margin=0.0):
    """Numbers (K² + 5K + 1,) that vanish where θ is a minimum of E at images with coordinates Z, and their slopes.

    θ are the problem's own weights, but perhaps with softer kinks. `weight` is that of the condition that E curves up,
    and `margin` that of `parting`.
    """
    here = terms(z, problem.labels, theta, problem.weight_decay)
    bias = here.r.sum()[None] / here.decay + theta.second[-1:], here.turns[None] / here.decay
    each, *of = downward(
        here
    )  # E curves up unless images of its class lie near the kink of a neuron
    roots = (each.sum(0) + 1e-14).sqrt()
    curving = weight * roots, weight / 2 * changes(here, *of) / roots[:, None, None]
    parts = parting(here, problem.copied, problem.sizes, margin)
    values, slopes = zip(stationary(here), kink_balance(here), bias, curving, parts)
    return torch.cat(values), torch.cat(slopes)


# ---- The search ----


def settle(z, problem):
    """Move Z to where the conditions hold, for kinks that become sharper; yields the Z behind each stage of SHARP.

    Far from its kink a softplus has no slope. So β grows to its own value from an eighth of it, or from 1.25 if that is
    more; only then do weight and margin fall, as SHARP says.
    """
    own = problem.theta.sharpness
    softer = (1 / 8, 0.18, 1 / 4, 0.35, 1 / 2, 0.7, 1)
    for factor, *pair, steps in [
        *((factor, 1, 3e-3, 40) for factor in softer),
        *((1, *pair) for pair in SHARP),
    ]:
        theta = problem.theta._replace(sharpness=torch.maximum(factor * own, own.clamp_max(1.25)))
        z = least(z, problem, theta, pair, steps)
        if steps >= 300:
            yield z


def least(z, problem, theta, pair, steps):
    """Move Z to least squares of the conditions, in a trust region; the `pair` is a weight and a margin."""
    unit = 0.02 * math.sqrt(len(z) * len(problem.axes))  # its radius, at first

    def moved(u):
        return z + unit * torch.from_numpy(u).to(z).view_as(z)

    @functools.lru_cache(1)
    def both(point):  # values and slopes, which are asked for one after the other
        values, slopes = conditions(moved(np.frombuffer(point).copy()), problem, theta, *pair)
        return values.cpu().numpy(), unit * slopes.flatten(1).cpu().numpy()

    settings = {"max_nfev": steps, "xtol": 1e-12, "ftol": 1e-10, "gtol": 1e-14}
    values, slopes = (lambda u, k=k: both(u.tobytes())[k] for k in (0, 1))
    return moved(least_squares(values, np.zeros(z.numel()), slopes, **settings).x)


def prepare(released: Released, start: torch.Tensor, seed: int = 0) -> torch.Tensor:
    """Images near a start (m, d) for which θ* is nearly a minimum: the nearest of some tries.

    Chance says on which side of a kink images end: all tries but the first of seed 0 begin at a random change of Z. The
    last is the first that trains to a minimum of the whole network, at a relative squared distance up to 3·10⁻⁴.
    """
    problem = problem_of(released, start)
    halves = split_copies(released)
    small = bilevel.merge_neurons(released)
    best = ((True, math.inf), start)
    generator = torch.Generator().manual_seed(seed)
    initial = problem.coordinates
    for k in range(TRIES):
        change = torch.randn(initial.shape, dtype=torch.float64, generator=generator).to(initial)
        for z in settle(initial + (0.5 * (1 + k % 3) if k + seed else 0) * change, problem):
            images = nearest(z, problem)
            far = distance(small, images)
            key = far > 3e-4 or lowest(halves, images) < LOWEST, far
            best = (key, images) if key < best[0] else best
        if not best[0][0]:
            break
    return best[1]


def split_copies(released: Released) -> Released:
    """The merged network, but with two neurons for all that are equal: their training shows whether they part."""
    small = bilevel.merge_neurons(released)
    theta = bilevel.lower_level(small).target
    copies = torch.tensor(small.copies).to(theta.first)
    which = torch.cat([torch.arange(len(copies)).to(copies.device), (copies > 1).nonzero()[:, 0]])
    parts = (1.0 + (copies > 1))[which]  # 1 or 2
    second = torch.cat([theta.second[which] / parts.sqrt(), theta.second[-1:]])
    network = one_hidden.network(
        theta._replace(first=theta.first[which] / parts.sqrt()[:, None], second=second)
    )
    return small._replace(network=network, copies=tuple((copies[which] / parts).tolist()))


def train(
    released: Released, images: torch.Tensor
) -> tuple[one_hidden.Solved, torch.Tensor, one_hidden.Weights]:
    """The Solved that training on images (m, d) finds from θ*, the images and θ*, in the span of images and weights."""
    basis = networks.span_of(images, bilevel.merge_neurons(released).network[0].weight)
    _, target, labels, decay = bilevel.lower_level(released, basis)
    return one_hidden.solve(images @ basis, labels, decay, target), images @ basis, target


def distance(released: Released, images: torch.Tensor) -> float:
    """‖θ(x) − θ*‖²/‖θ*‖² for the minimum θ(x) that training on images (m, d) finds from θ*."""
    solved, _, target = train(released, images)
    far = one_hidden.square_norm(one_hidden.difference(solved, target)) / one_hidden.square_norm(
        target
    )
    return far.item() if solved.converged else math.inf


def leverages(released: Released, images: torch.Tensor) -> torch.Tensor:
    """P_ii (m,): the share of every image (m, d) that W₁ decides, for P onto the columns of C; their sum is K."""
    problem = problem_of(released, images)
    state, r = evaluate(images @ problem.axes, problem.labels, problem.theta)
    columns = normalize(r[:, None] * state.slope, dim=0)  # β_j may make them tiny
    return torch.linalg.svd(columns, full_matrices=False)[0].square().sum(1)


def lowest(released: Released, images: torch.Tensor) -> float:
    """The smallest eigenvalue of ∇²E over μ at θ(x): positive at a minimum."""
    (theta, *_), coordinates, _ = train(released, images)
    v = one_hidden.pack(theta)
    decay = released.recipe.weight_decay
    product = one_hidden.hessian(v, coordinates, released.labels, decay, theta.sharpness)[0]
    return torch.linalg.eigvalsh(product(torch.eye(len(v)).to(v)))[0].item() / decay


def attack(
    released: Released,
    start: torch.Tensor,
    iterations: int = 1000,
    tolerance: float = 1e-8,
    progress: bool = False,
) -> Attack:
    """Prepare a start (m, d), where the history begins, and attack it. InputError if θ* is stationary for no images."""
    clock = time.perf_counter()
    check_start(released, start, released.labels)
    problem_of(released, start)  # says so if it cannot be done
    check_stationary(released)
    before = distance(bilevel.merge_neurons(released), start)
    tried = []
    settings: dict = {"iterations": iterations, "tolerance": tolerance, "progress": progress}
    for seed in range(3):
        images = start if before <= tolerance else prepare(released, start, seed=seed)
        result = bilevel.attack(released, images, **settings)
        tried.append(
            (lowest(split_copies(released), result.images) < LOWEST, result.loss.item(), result)
        )
        if tried[-1][:2] <= (False, ENOUGH) or before <= tolerance:
            break
    best = min(tried, key=lambda one: one[:2])[2]
    history = (
        best.history
        if before <= tolerance
        else torch.cat([best.history.new_tensor([before]), best.history])
    )
    return best._replace(history=history, seconds=time.perf_counter() - clock)


def check_stationary(released):
    """Raise InputError unless every neuron is balanced as at a stationary point of E for some images and labels.

    There 0 ≤ σ − sσ' ≤ log 2/β and Σ |r_i| ≤ 1 (see `kink_balance`): | ‖w̄_j‖² − w_j² | ≤ c|w_j|, c = log 2/(βμ).
    The distance to the nearest weights with that is a bound for every training set.
    """
    _, theta, _, decay = bilevel.lower_level(released)
    a = theta.first.norm(dim=1)[:, None]
    b = theta.second[:-1, None].abs()
    # (h, 1001)
    at = torch.linspace(0, 1, 1001).to(a) * (a + b)
    c = math.log(2) / decay / theta.sharpness
    ends = (at.square() - c * at).clamp_min(0).sqrt(), (at.square() + c * at).sqrt()
    far = ((at - b).square() + (torch.clamp(a, *ends) - a).square()).amin(
        1
    ).sum() / one_hidden.square_norm(theta)
    if far > 1e-4:
        least = f"the relative distance cannot fall below {far:.2g}; give a network trained to the end, or its decay"
        raise InputError(
            f"These weights are not a stationary point of any images for WEIGHT_DECAY {decay:g}: {least}."
        )
