"""An attacker who believes that a trainer added a constant s to every pixel of centred images.

It reads s from the first layer, attacks around the constant image that it believes in, and unmixes what is left when
the shift is subtracted. W̄₁ = (W₁, b₁) has the rows (h, d+1), and x̄_i = (x_i, 1).
"""

from typing import NamedTuple

import torch
from torch.nn.functional import normalize

from attacks import decoreco, unmixing
from attacks.contract import Attack
from utils.kernels.layers import Layer
from utils.networks import Released, within


class Shift(NamedTuple):
    """Two estimates of s from one layer. They are equal where nothing blurs its row space."""

    diluted: float  # the least squares of sp + q = 0, which noise draws towards zero
    reverse: float  # the regression of p on q, never smaller in size


def mean_pair_gain(candidates, x):
    """By how much the best cosine grows from images (m, d) to the means of two of them; mean over candidates (n, d)."""
    candidates, x = (rows - rows.mean(1, keepdim=True) for rows in (candidates, x))
    first, second = torch.triu_indices(len(x), len(x), 1)
    some = slice(
        None, None, max(1, len(first) // 20_000)
    )  # of the pairs, if there are 40,000 or more
    table = normalize(candidates, dim=1) @ x.T  # (n, m), ⟨candidate, image⟩
    lengths = (x[first[some]] + x[second[some]]).norm(dim=1)
    pairs = (table[:, first[some]] + table[:, second[some]]) / lengths
    return (pairs.amax(1) - (table / x.norm(dim=1)).amax(1)).mean().item()


def estimate(rows):
    """The s for which (s·1, 1) is nearest to the row space of W̄₁, `rows` (h, d+1): a Shift, zeros where none is seen.

    Q projects onto what the rows do not see; p = Q(1, 0), q = Q(0, 1), and sp + q = 0 for centred images plus s.
    """
    _, values, vectors = torch.linalg.svd(rows, full_matrices=False)
    directions = vectors[values > 1e-13 * values[0]]  # (r, d+1)
    units = torch.zeros(2, rows.shape[1]).to(rows)
    units[0, :-1], units[1, -1] = 1, 1
    shift, one = units - units @ directions.T @ directions  # Q(1, 0) and Q(0, 1), (d+1,)
    visible, offset, cross = (v.item() for v in (shift @ shift, one @ one, shift @ one))
    if visible <= 1e-20 * len(shift):  # the row space is everything
        return Shift(0.0, 0.0)
    if offset <= 1e-20 or not cross:  # (0, 1) is in the row space, or tells nothing
        return Shift(-cross / visible, 0.0)
    return Shift(-cross / visible, -offset / cross)


def trusted(shift):
    """Whether the diluted estimate of a Shift is at least a tenth of the reverse one."""
    return shift.diluted * shift.reverse >= 0.1 * shift.reverse**2


def attack(
    released: Released, noise: torch.Tensor, belief: float, basis: torch.Tensor, coefficients: torch.Tensor,
    iterations: int,
) -> tuple[Attack, Attack]:  # fmt: skip
    """The stationarity attack from `noise` (n, d) around the constant image `belief`, within a basis (d, r).

    Images k times as long explain the same with λ/k: every length k is tried for half of the `iterations`, the best for
    all of them: both Attacks, without the constant.
    """
    constant = torch.full((1, len(basis)), belief).to(basis)

    def scaled(k, steps):
        settings = decoreco.ADAM._replace(
            rule="margin",
            lambda_min=0.0,
            range_weight=0.0,
            learning_rate=0.03 * k,
            coefficient_rate=0.1 / k,
            softest=100.0,
            iterations=steps,
        )
        result = decoreco.attack(
            released, noise + constant, settings, basis=basis, coefficients=coefficients / k
        )
        return result._replace(images=result.images - within(constant, basis))

    tried = {k: scaled(k, max(1, iterations // 2)) for k in (1, 10, 100)}
    k = min(tried, key=lambda k: tried[k].loss)
    return tried[k], scaled(k, iterations)


def subtracted(released, shift):
    """The released network for centred images: W₁ − s·b₁1ᵀ in place of W₁, as W̄₁ = AX̄."""
    weight, bias = released.network[0]
    first = Layer(weight - shift * bias[:, None], bias)
    recipe = released.recipe._replace(centred=True)
    return released._replace(network=(first, *released.network[1:]), recipe=recipe)


def unmixed(released, belief, shape, count, seed):
    """Pictures (2·count, d) by unmixing, the shift subtracted, and their negatives, since the sign remains open."""
    result = unmixing.attack(subtracted(released, belief), shape, count=count, seed=seed)
    return torch.cat([result.images, -result.images])  # type: ignore[operator]
