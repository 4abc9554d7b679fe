"""Planting: from any start to images behind which the weights of a network with one hidden layer are a minimum.

The attack on eq. (2) of an attacker who begins every inner problem at θ*. Far from every training set of θ* the inner
solution jumps between minima, so the start is prepared. The network sees Z = XU (m, K) alone, the coordinates of images
in the row space of W₁. With C_ij = ℓ'_i w_j σ'(s_ij)/m, the first layer is stationary if CᵀX̄ = −μW̄₁. The nearest such
images to a start T are X = ZUᵀ + (1 − P)T(1 − UUᵀ), P projecting onto the columns of C; K² + 2K + 1 equations are left.
"""

import functools
import math
import time
from collections import namedtuple

import numpy as np
import torch
from scipy.optimize import least_squares

from utils import networks
from utils.attacks import bilevel
from utils.attacks.contract import check_start
from utils.errors import InputError
from utils.kernels import minimum, one_hidden

ENOUGH = 1e-6  # relative squared distance at which no other preparation is tried
# Weights and margins once the kinks are sharp, and how often the conditions are computed at most.
SHARP = (1, 3e-3, 300), (0.1, 3e-3, 300), (0.01, 2e-3, 300), (0, 1e-3, 300), (0, 3e-4, 1500)
LOWEST = 1e-4  # over μ, the least eigenvalue of ∇²E at which a stationary point counts as a minimum
# A start in the coordinates of the merged network, m images, K neurons that differ, r directions: Weights with W̄₁U (K,
# r+1), the bias last; labels (m,) and μ; TU (m, r) and T(1 − UUᵀ) (m, d); U (d, r), a basis of the rows of W₁, r = K
# unless these are dependent; ‖x̄‖² (m,); and which neurons stand for several that are equal (K,).
Problem = namedtuple("Problem", "theta labels weight_decay seen others axes sizes copied")


def problem_of(released, start):
    """The Problem for images T (m, d) behind a whole network with one hidden layer."""
    if bilevel.model_of(released) is not one_hidden or isinstance(released.recipe.sharpness, torch.Tensor):
        raise InputError("Planting needs a network with one hidden layer, not merged: for others, see bilevel.attack.")
    first, *rest = one_hidden.merged(one_hidden.weights(released.network, released.recipe.sharpness))
    axes, upper = torch.linalg.qr(first[:, :-1].T)
    axes = axes[:, upper.diagonal().abs() > 1e-9 * upper.abs().max()]  # fewer than K if the rows are dependent
    theta = one_hidden.Weights(torch.cat([first[:, :-1] @ axes, first[:, -1:]], 1), *rest)
    seen, copied = start @ axes, theta.sharpness < 0.9 * released.recipe.sharpness
    others, sizes = start - seen @ axes.T, 1 + start.square().sum(1)
    return Problem(theta, released.labels, released.recipe.weight_decay, seen, others, axes, sizes, copied)


def nearest(z, problem):
    """The images nearest to the start with these coordinates: (m, d)."""
    state, r = minimum.forward(z, problem.labels, problem.theta)
    columns = torch.linalg.qr(torch.nn.functional.normalize(r[:, None] * state.slope, dim=0))[0]  # of C
    return z @ problem.axes.T + problem.others - columns @ (columns.T @ problem.others)


def settle(z, problem):
    """Move Z to where the conditions hold, for kinks that become sharper.

    Far from its kink a softplus has no slope: β grows from an eighth (or 1.25); then weight and margin fall. A Z each.
    """
    own, softer = problem.theta.sharpness, (1 / 8, 0.18, 1 / 4, 0.35, 1 / 2, 0.7, 1)
    for factor, *terms, steps in [*((factor, 1, 3e-3, 40) for factor in softer), *((1, *terms) for terms in SHARP)]:
        theta = problem.theta._replace(sharpness=torch.maximum(factor * own, own.clamp_max(1.25)))
        z = least(z, problem, theta, terms, steps)
        if steps >= 300:
            yield z


def least(z, problem, theta, terms, steps):
    """Move Z to least squares of the conditions, in a trust region."""
    unit = 0.02 * math.sqrt(len(z) * len(problem.axes))  # its radius, at first

    def given(u):
        return z + unit * torch.from_numpy(u).to(z).view_as(z)

    @functools.lru_cache(1)
    def conditions(point):  # values and slopes, which are asked for one after the other
        values, slopes = minimum.conditions(given(np.frombuffer(point).copy()), problem, theta, *terms)
        return values.cpu().numpy(), unit * slopes.flatten(1).cpu().numpy()

    def values(u):
        return conditions(u.tobytes())[0]

    def slopes(u):
        return conditions(u.tobytes())[1]

    settings = {"max_nfev": steps, "xtol": 1e-12, "ftol": 1e-10, "gtol": 1e-14}
    return given(least_squares(values, np.zeros(z.numel()), slopes, **settings).x)


def prepare(released, start, tries=8, seed=0) -> torch.Tensor:
    """Images near a start (m, d) for which θ* is nearly a minimum.

    Chance says which images end on which side of a kink: all tries but the first of seed 0 begin at a random change of
    Z. The last is the first whose images train from θ* to a minimum of the whole network, 3·10⁻⁴ or less from it
    (relative squared distance); the nearest of these are returned, or of all.
    """
    problem, halves, small = problem_of(released, start), halved(released), bilevel.condensed(released)
    best, generator = ((True, math.inf), start), torch.Generator().manual_seed(seed)
    for k in range(tries):
        change = torch.randn(problem.seen.shape, dtype=torch.float64, generator=generator).to(problem.seen)
        for z in settle(problem.seen + (0.5 * (1 + k % 3) if k + seed else 0) * change, problem):
            images = nearest(z, problem)
            far = distance(small, images)
            key = far > 3e-4 or lowest(halves, images) < LOWEST, far
            best = (key, images) if key < best[0] else best
        if not best[0][0]:
            break
    return best[1]


def halved(released):
    """The merged network, but with two neurons for all that are equal: their training shows whether they part."""
    small = bilevel.condensed(released)
    theta = one_hidden.weights(small.network, small.recipe.sharpness)
    copied = theta.sharpness < 0.9 * released.recipe.sharpness
    which = torch.cat([torch.arange(len(copied)).to(copied.device), copied.nonzero()[:, 0]])
    roots = (1.0 + copied.to(theta.first)).sqrt()[which]
    second = torch.cat([theta.second[which] / roots, theta.second[-1:]])
    theta = one_hidden.Weights(theta.first[which] / roots[:, None], second, theta.sharpness[which] * roots)
    return small._replace(network=one_hidden.network(theta), recipe=small.recipe._replace(sharpness=theta.sharpness))


def trained(released, images):
    """The Solved that training on images (m, d) finds from θ*, the images and θ*, in the span of images and weights."""
    seen, sharpness = networks.span_of(images, bilevel.condensed(released).network[0].weight), released.recipe.sharpness
    target = one_hidden.weights(networks.in_span(released.network, seen), sharpness)
    return one_hidden.solve(images @ seen, released.labels, released.recipe.weight_decay, target), images @ seen, target


def distance(released, images):
    """‖θ(x) − θ*‖²/‖θ*‖² for the minimum θ(x) that training on images (m, d) finds from θ*."""
    solved, _, target = trained(released, images)
    far = one_hidden.square_norm(one_hidden.difference(solved, target)) / one_hidden.square_norm(target)
    return far.item() if solved.converged else math.inf


def leverages(released, images):
    """P_ii (m,): the share of every image (m, d) that W₁ decides, for P onto the columns of C; their sum is K."""
    problem = problem_of(released, images)
    state, r = minimum.forward(images @ problem.axes, problem.labels, problem.theta)
    columns = torch.nn.functional.normalize(r[:, None] * state.slope, dim=0)  # β_j may make them tiny
    return torch.linalg.svd(columns, full_matrices=False)[0].square().sum(1)


def lowest(released, images):
    """The smallest eigenvalue of ∇²E over μ at θ(x): positive at a minimum."""
    (theta, *_), seen, _ = trained(released, images)
    v, decay = one_hidden.pack(theta), released.recipe.weight_decay
    product = one_hidden.hessian(v, seen, released.labels, decay, theta.sharpness)[0]
    return torch.linalg.eigvalsh(product(torch.eye(len(v)).to(v)))[0].item() / decay


def attack(released, start, iterations=1000, tolerance=1e-8, progress=False):
    """Prepare a start (m, d), where the history begins, and attack it. InputError if θ* is stationary for no images."""
    clock = time.perf_counter()
    check_start(released, start, released.labels)
    problem_of(released, start)  # says so if it cannot be done
    check_stationary(released)
    before, tried = distance(bilevel.condensed(released), start), []
    settings = {"iterations": iterations, "tolerance": tolerance, "progress": progress}
    for seed in range(3):
        images = start if before <= tolerance else prepare(released, start, seed=seed)
        found = bilevel.attack(released, images, **settings)
        tried.append((lowest(halved(released), found.images) < LOWEST, found.loss.item(), found))
        if tried[-1][:2] <= (False, ENOUGH) or before <= tolerance:
            break
    best = min(tried, key=lambda one: one[:2])[2]
    history = best.history if before <= tolerance else torch.cat([best.history.new_tensor([before]), best.history])
    return best._replace(history=history, seconds=time.perf_counter() - clock)


def check_stationary(released):
    """Raise InputError unless every neuron is balanced as at a stationary point of E for some images and labels.

    There 0 ≤ σ − sσ' ≤ log 2/β and Σ |r_i| ≤ 1 (see `minimum`), so that | ‖w̄_j‖² − w_j² | ≤ c|w_j|, c = log 2/(βμ).
    The distance to the nearest weights with that is a bound for every training set.
    """
    theta, decay = one_hidden.weights(released.network, released.recipe.sharpness), released.recipe.weight_decay
    a, b = theta.first.norm(dim=1)[:, None], theta.second[:-1, None].abs()
    at, c = torch.linspace(0, 1, 1001).to(a) * (a + b), math.log(2) / decay / theta.sharpness  # (h, 1001)
    ends = (at.square() - c * at).clamp_min(0).sqrt(), (at.square() + c * at).sqrt()
    far = ((at - b).square() + (torch.clamp(a, *ends) - a).square()).amin(1).sum() / one_hidden.square_norm(theta)
    if far > 1e-4:
        least = f"the relative distance cannot fall below {far:.2g}; give a network trained to the end, or its decay"
        raise InputError(f"These weights are not a stationary point of any images for WEIGHT_DECAY {decay:g}: {least}.")
