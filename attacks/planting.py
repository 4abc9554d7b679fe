"""Planting: from any start to images behind which the weights of a network with one hidden layer are a minimum.

The attack on eq. (2) of an attacker who begins every inner problem at θ*. Far from every training set of θ* the inner
solution jumps between minima, so the start is prepared. The network sees Z = XU (m, K) alone, the coordinates of images
in the row space of W₁. With C_ij = ℓ'_i w_j σ'(s_ij)/m, the first layer is stationary if CᵀX̄ = −μW̄₁. The nearest such
images to a start T are X = ZUᵀ + (1 − P)T(1 − UUᵀ), P projecting onto the columns of C; K² + 2K + 1 equations are left.
Equations have the names of the chapter planting-behind-a-network, which proves them.
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
# Stages of the search: β over its own value, weight of `curving`, margin of `parting`, most evaluations.
SOFT = [(factor, 1, 3e-3, 40) for factor in (1 / 8, 0.18, 1 / 4, 0.35, 1 / 2, 0.7, 1)]
SHARP = [
    (1, 1, 3e-3, 300),
    (1, 0.1, 3e-3, 300),
    (1, 0.01, 2e-3, 300),
    (1, 0, 1e-3, 300),
    (1, 0, 3e-4, 1500),
]
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
    """What the conditions are made of, at Z (m, r): a one_hidden.State, and more."""

    x: torch.Tensor  # z̄ (m, r+1)
    first: torch.Tensor  # W̄₁ (K, r+1)
    w: torch.Tensor  # (K,), the weights of the second layer
    active: torch.Tensor  # σ (m, K)
    slope: torch.Tensor  # σ' (m, K)
    curvature: torch.Tensor  # σ'' (m, K)
    rise: torch.Tensor  # σ'w (m, K)
    logits: torch.Tensor  # (m,)
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
    theta = bilevel.lower_level(small).target
    rows = theta.first[:, :-1]
    axes, upper = torch.linalg.qr(rows.T)
    # Fewer than K axes if the rows are dependent.
    axes = axes[:, upper.diagonal().abs() > 1e-9 * upper.abs().max()]
    coordinates = start @ axes
    return Problem(
        theta=theta._replace(first=torch.cat([rows @ axes, theta.first[:, -1:]], 1)),
        labels=released.labels,
        weight_decay=released.recipe.weight_decay,
        coordinates=coordinates,
        others=start - coordinates @ axes.T,
        axes=axes,
        sizes=1 + start.square().sum(1),
        copied=torch.tensor(small.copies).to(rows) > 1,
    )


def decided(z, problem):
    """An orthonormal basis (m, K) of the columns of C, in which images with coordinates Z are bound outside of U."""
    at = evaluate(z, problem, problem.theta)
    return torch.linalg.qr(normalize(at.r * at.slope, dim=0))[0]  # β_j may make columns tiny


def nearest(z: torch.Tensor, problem: Problem) -> torch.Tensor:
    """The images nearest to the start with these coordinates, eq. (eq-nearest-images): (m, d)."""
    columns = decided(z, problem)
    return z @ problem.axes.T + problem.others - columns @ (columns.T @ problem.others)


def leverages(released: Released, images: torch.Tensor) -> torch.Tensor:
    """P_ii (m,): the share of every image (m, d) that W₁ decides, for P onto the columns of C; their sum is K."""
    problem = problem_of(released, images)
    return decided(problem.coordinates, problem).square().sum(1)


# ---- When are weights a minimum for images Z (m, r)? ----
# With z̄ = (z, 1), s_ij = z̄_i·w̄_j and the residuals r_i = ℓ'_i/m each condition rests on sums over images of functions
# f(r_i, s_ij), whose change with z_i is ∂f/∂r_i · ∂r_i/∂z_i + ∂f/∂s_ij · w_j. All is over μ, the weight decay. Each
# condition gives values (k,) and slopes (k, m, r).


def conditions(z, problem, theta, weight, margin):
    """Numbers (K² + 5K + 1,) that vanish where θ is a minimum of E at images with coordinates Z, and their slopes.

    θ are the problem's own weights, but perhaps with softer kinks.
    """
    at = evaluate(z, problem, theta)
    last_bias = at.r.sum()[None] / at.decay + theta.second[-1:], at.turns[None] / at.decay
    values, slopes = zip(
        stationary(at),  # the first part of eq. (eq-asked), for W̄₁
        kink_balance(at),  # its second part, for w₂, in the form of eq. (eq-kinks)
        last_bias,  # its last part, for b₂
        curving(at, weight),  # E does not curve down at a kink
        parting(at, problem, margin),  # the least eigenvalue of q_j, eq. (eq-parting)
    )
    return torch.cat(values), torch.cat(slopes)


def evaluate(z, problem, theta):
    """Evaluate at Z what the conditions are made of: At."""
    state = one_hidden.forward(one_hidden.pack(theta), z, theta.sharpness)
    rise = state.rise @ state.first[:, :-1]  # of the logits with z: (m, K) @ (K, r)
    return At(
        **state._asdict(),
        third=theta.sharpness * state.curvature * (1 - 2 * state.slope),
        s=state.x @ state.first.T,
        r=affine.residuals(state.logits, problem.labels)[:, None] / len(z),
        turns=curvatures(state.logits)[:, None] / len(z) * rise,
        decay=problem.weight_decay,
    )


def changes(at, of_r, of_s):
    """How sums Σ_i f_ij change with Z, given ∂f/∂r and ∂f/∂s (m, K): (K, m, r)."""
    return of_r.T[:, :, None] * at.turns + of_s.T[:, :, None] * at.first[:, None, :-1]


def stationary(at):
    """∇_θE of every neuron over μw_j: Σ_i r_i σ'(s_ij) z̄_i/μ + w̄_j/w_j, zero if the first layer is stationary."""
    signals = at.r * at.slope
    values = signals.T @ at.x / at.decay + at.first / at.w[:, None]  # (K, m) @ (m, r+1)
    falls = changes(at, at.slope, at.r * at.curvature)
    slopes = torch.einsum("jib,ia->jaib", falls, at.x)  # (K, r+1, m, r)
    one = torch.eye(falls.shape[2]).to(falls)  # the change of z̄_i with z_i
    slopes[:, :-1] += torch.einsum("ij,ab->jaib", signals, one)
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
    slopes = changes(at, weights * height, -weights * at.r * at.s * at.curvature)
    return (above.log() - below.log()) / 10, slopes / 10


def downward(at):
    """f = max(0, −r_i w_j) σ''(s_ij), of images near the kink of a neuron of their class, ∂f/∂r and ∂f/∂s (m, K)."""
    pull = (-at.r * at.w).clamp_min(0)
    return pull * at.curvature, -at.w * at.curvature * (pull > 0), pull * at.third


def curving(at, weight):
    """√Σ_i f_ij, f as in `downward`: E curves up unless images of its class lie near the kink of a neuron (K,)."""
    each, *of = downward(at)
    roots = (each.sum(0) + 1e-14).sqrt()
    return weight * roots, weight / 2 * changes(at, *of) / roots[:, None, None]


def lowest_of_copies(at):
    """The least eigenvalue of q_j − μ, eq. (eq-parting), in the coordinates Z alone: (K,), and its slopes (K, m, r)."""
    curved = torch.einsum("ia,ij,ib->jab", at.x, at.r * at.w * at.curvature, at.x)  # (K, r+1, r+1)
    mixed = (at.r * at.slope).T @ at.x
    q = torch.cat([torch.cat([curved, mixed[:, :, None]], 2), pad(mixed, (0, 1))[:, None]], 1)
    values, vectors = torch.linalg.eigh(q)
    a = vectors[:, :-1, 0]
    u = vectors[:, -1, 0]
    # The eigenvalue is Σ_i r_i (w_j σ'' t² + 2uσ' t)_ij for t = a·z̄, and a, u need no slopes.
    t = at.x @ a.T
    one = at.w * at.curvature * t
    two = u * at.slope
    of_s = at.r * t * (at.w * at.third * t + 2 * u * at.curvature)
    slopes = changes(at, (one + 2 * two) * t, of_s)
    return values[:, 0], slopes + 2 * (at.r * (one + two)).T[:, :, None] * a[:, None, :-1]


def parting(at, problem, margin):
    """What keeps equal neurons from parting: q_j has no eigenvalue below `margin`, and Σ_i ‖x̄_i‖² f_ij is at most 15.

    Both over μ, for every neuron j that stands for several equal ones. q_j, eq. (eq-parting), is the curvature of E as
    one of these moves against the others, in the coordinates Z alone. In all other directions of pixels the sum, f as
    in `downward`, bounds how far E curves down, for the ‖x̄_i‖² of the start's whole images. Values (2K,), zero where
    both hold.
    """
    lowest, falls = lowest_of_copies(at)
    each, *of = downward(at)
    sizes = problem.sizes
    short = 1 - (lowest / at.decay + 1) / margin
    values = torch.cat([short, sizes @ each / (15 * at.decay) - 1]).clamp_min(0)
    slopes = torch.cat([-falls / margin, sizes[:, None] * changes(at, *of) / 15]) / at.decay
    on = problem.copied.repeat(2)
    factors = on * values / (1 + values.square()) / 5
    return on * torch.log1p(values.square()) / 10, factors[:, None, None] * slopes


# ---- The search ----


def settle(z, problem):
    """Move Z to where the conditions hold, for kinks that become sharper; yields the Z behind each stage of SHARP.

    Far from its kink a softplus has no slope. So β grows to its own value from an eighth of it, or from 1.25 if that is
    more; only then do weight and margin fall, as SHARP says.
    """
    own = problem.theta.sharpness
    for factor, weight, margin, steps in SOFT + SHARP:
        theta = problem.theta._replace(sharpness=torch.maximum(factor * own, own.clamp_max(1.25)))
        z = least(z, problem, steps, theta, weight, margin)
        if steps >= 300:
            yield z


def least(z, problem, steps, *terms):
    """Move Z to least squares of the conditions with these `terms`, in a trust region, by so many evaluations."""
    unit = 0.02 * math.sqrt(len(z) * len(problem.axes))  # its radius, at first

    def moved(u):
        return z + unit * z.new_tensor(u).view_as(z)

    @functools.lru_cache(1)  # values and slopes are asked for one after the other
    def both(point):
        values, slopes = conditions(moved(np.frombuffer(point)), problem, *terms)
        return values.cpu().numpy(), unit * slopes.flatten(1).cpu().numpy()

    found = least_squares(
        lambda u: both(u.tobytes())[0],
        np.zeros(z.numel()),
        lambda u: both(u.tobytes())[1],
        max_nfev=steps,
        xtol=1e-12,
        ftol=1e-10,
        gtol=1e-14,
    )
    return moved(found.x)


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
    for k in range(TRIES):
        change = torch.randn(problem.coordinates.shape, dtype=torch.float64, generator=generator)
        change *= 0.5 * (1 + k % 3) if k + seed else 0
        for z in settle(problem.coordinates + change.to(start), problem):
            images = nearest(z, problem)
            far = distance(small, images)
            key = far > 3e-4 or lowest(halves, images) < LOWEST, far
            best = min(best, (key, images), key=lambda one: one[0])
        if not best[0][0]:
            break
    return best[1]


def split_copies(released: Released) -> Released:
    """The merged network, but with two neurons for all that are equal: their training shows whether they part."""
    small = bilevel.merge_neurons(released)
    theta = bilevel.lower_level(small).target
    copies = torch.tensor(small.copies)
    parts = 1 + (copies > 1).long()
    which = torch.arange(len(parts)).repeat_interleave(parts)
    roots = parts[which].to(theta.first).sqrt()
    halves = theta._replace(
        first=theta.first[which] / roots[:, None],
        second=torch.cat([theta.second[which] / roots, theta.second[-1:]]),
    )
    shares = (copies / parts)[which].tolist()
    return small._replace(network=one_hidden.network(halves), copies=tuple(shares))


def retrain(released, images):
    """The Solved that training on images (m, d) finds from θ*, the images and θ*, in the span of images and weights."""
    basis = networks.span_of(images, bilevel.merge_neurons(released).network[0].weight)
    _, target, labels, decay = bilevel.lower_level(released, basis)
    return one_hidden.solve(images @ basis, labels, decay, target), images @ basis, target


def distance(released: Released, images: torch.Tensor) -> float:
    """‖θ(x) − θ*‖²/‖θ*‖² for the minimum θ(x) that training on images (m, d) finds from θ*."""
    solved, _, target = retrain(released, images)
    far = one_hidden.square_norm(one_hidden.difference(solved, target))
    return (far / one_hidden.square_norm(target)).item() if solved.converged else math.inf


def lowest(released: Released, images: torch.Tensor) -> float:
    """The smallest eigenvalue of ∇²E over μ at θ(x): positive at a minimum."""
    (theta, *_), coordinates, _ = retrain(released, images)
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
    done = before <= tolerance  # nothing is to be prepared
    halves = split_copies(released)
    tried = []
    for seed in range(1 if done else 3):
        images = start if done else prepare(released, start, seed)
        result = bilevel.attack(
            released, images, iterations=iterations, tolerance=tolerance, progress=progress
        )
        tried.append((lowest(halves, result.images) < LOWEST, result.loss.item(), result))
        if tried[-1][:2] <= (False, ENOUGH):
            break
    best = min(tried, key=lambda one: one[:2])[2]
    begun = best.history.new_tensor([] if done else [before])
    return best._replace(
        history=torch.cat([begun, best.history]), seconds=time.perf_counter() - clock
    )


def check_stationary(released):
    """Raise InputError unless every neuron is balanced as at a stationary point of E for some images and labels.

    There 0 ≤ σ − sσ' ≤ log 2/β and Σ |r_i| ≤ 1 (see `kink_balance`): | ‖w̄_j‖² − w_j² | ≤ c|w_j|, c = log 2/(βμ).
    The distance to the nearest weights with that is a bound for every training set.
    """
    _, theta, _, decay = bilevel.lower_level(released)
    a = theta.first.norm(dim=1)[:, None]
    b = theta.second[:-1, None].abs()
    c = math.log(2) / decay / theta.sharpness
    at = torch.linspace(0, 1, 1001).to(a) * (a + b)  # trial values of |w_j| (h, 1001)
    low = (at.square() - c * at).clamp_min(0).sqrt()  # of ‖w̄_j‖
    high = (at.square() + c * at).sqrt()
    squares = (at - b).square() + (torch.clamp(a, low, high) - a).square()
    far = squares.amin(1).sum() / one_hidden.square_norm(theta)
    if far > 1e-4:
        raise InputError(
            f"These weights are not a stationary point of any images for WEIGHT_DECAY {decay:g}: the relative distance "
            f"cannot fall below {far:.2g}; give a network trained to the end, or its decay."
        )
