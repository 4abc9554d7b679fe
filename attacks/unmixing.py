"""The unmixing attack: the first layer counts and spans the training images, and mixtures of pictures show themselves.

At a stationary point W₁ = BX and b₁ = B1, with the training images as rows of X, without their mean if it was taken.
"""

import math
import time
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch.linalg import vector_norm

from attacks.contract import Attack, check_layers
from utils.errors import InputError
from utils.kernels import contrast
from utils.kernels.layers import Shape
from utils.kernels.products import rough, use_precision
from utils.networks import Released, gap

# images, up to which colours are taken together, and most signs come from `solve_factors`
FEW = 100
STAGES = (1.0, 3, 60), (0.1, 3, 300)  # for few images: ε, window, steps at most
LATER = (0.03, 9, 150), (0.003, 9, 150), (0.003, 5, 150), (0.003, 3, 150)  # for more
SOON = tuple((floor, window, 60) for floor, window, _ in LATER)  # where other evidence follows
Stages = Sequence[tuple[float, int, int]]
EVEN = 1.5  # spread of the logarithms of lengths, above which an image was found twice, and another lost
SURE = 1 / math.e  # of the median length: a longer image has the sign that the relation gives it
MOST = 0.9  # share of the living neurons, or pixels, that images may be
RESTARTS = 8  # at most, for few images
SPREAD = 0.22  # of an image's pixels


class Unmixed(NamedTuple):
    """What this attack knows beside its images; nothing where it refused."""

    count: int | None = None  # of images, as the layer tells it
    # (d, r), of the span; r is m, or m − 1 if the images sum to zero
    basis: torch.Tensor | None = None
    # M (m, r): the images are its rows in the basis, but for factors
    matrix: torch.Tensor | None = None
    # (m,), which images are exact, behind a known start: see `sparse`
    sure: torch.Tensor | None = None
    columns: torch.Tensor | None = None  # of B (h, m), there, but for the size of each


def read(
    released: Released, count: int | None = None, most: float = MOST
) -> tuple[int, torch.Tensor, torch.Tensor]:
    """How many images m the first layer saw, an orthonormal basis (d, r) of their span, and W₁ in it (n_1, r).

    A given `count` is believed. InputError without a gap, tenfold or more, in the singular values, or if it lies behind
    a share `most` of the living neurons or pixels; infinity takes any given count. The recipe says whether the images
    sum to zero, and then r = m − 1.
    """
    check_layers(released.network)
    weight = released.network[0].weight.double()
    centred = int(released.recipe.centred)
    parts = [p for layer in released.network for p in layer if p is not None]
    if not all(vector_norm(p, math.inf) < 1e100 for p in parts):  # squares are finite, too
        raise InputError(
            "The weights hold values that are NaN, infinite or huge: give a network that has converged."
        )
    wide = weight.shape[0] <= weight.shape[1]
    gram = weight @ weight.mT if wide else weight.mT @ weight
    # Faster than an SVD, and exact to 1e-8 of the largest.
    values, vectors = torch.linalg.eigh(gram)
    values = values.flip(0).clamp_min(0).sqrt()
    vectors = vectors.flip(1)
    r = gap(released.network, 10.0, values=values).count if count is None else count - centred
    if not r or r < 2:
        raise InputError("There is no gap in the singular values of W₁: the count cannot be read.")
    lengths = weight.norm(dim=1)
    living = min((lengths > 1e-6 * lengths.max()).sum().item(), weight.shape[1])
    if r > most * living:  # rows that vanish, pruned ones say, make a gap of their own
        raise InputError(
            f"W₁ has {living} living neurons or pixels, too few to tell {r} images or more apart: no gap."
        )
    basis = torch.linalg.qr(weight.mT @ vectors[:, :r] if wide else vectors[:, :r])[0]
    return r + centred, basis, weight @ basis


def orthogonal(count: int, r: int, seed: int) -> torch.Tensor:
    """Random rows (count, r) to begin with, nearly orthogonal: the first r columns of an orthogonal matrix."""
    generator = torch.Generator().manual_seed(seed)
    noise = torch.randn(count, count, dtype=torch.float64, generator=generator)
    return torch.linalg.qr(noise)[0][:, :r]


def whiten_features(
    basis: torch.Tensor, shape: Shape, few: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """The features of a basis (d, r), made uncorrelated in double precision, and the matrix (r, r) for it."""
    features, white = contrast.whiten(contrast.features(basis.mT, shape, 1.7 if few else 1.0, few))
    return features.float(), white


def unmix(basis, shape, count, seed=0, *, each=lambda matrix: None, later=LATER):
    """Rows M (count, r) for which a basis (d, r) becomes pictures, and the objective of every step.

    `each` sees whitened rows; `later` are the stages for many images. All but the last are of `products.precision`.
    """
    few = count <= FEW
    history = []
    features, white = whiten_features(basis, shape, few)
    rows = orthogonal(count, basis.shape[1], seed).to(basis)
    stages = STAGES if few else later
    precision = rough(basis.device, otherwise="exact")
    for k, (floor, window, steps) in enumerate(stages, 1):
        with use_precision("exact" if k == len(stages) else precision):
            rows, values = contrast.minimise(rows, features, floor, window, steps, each=each)
        history += values
    return rows @ white, torch.tensor(history)


def solve_factors(matrix, mixing, bias):
    """ω (m,), the factors that the rows M (m, r) lack: Σ ω_i m_i = 0 if images sum to zero, else from b₁ = B1."""
    if len(matrix) > matrix.shape[1]:
        return torch.linalg.svd(matrix.mT)[2][-1]
    if bias is None:
        return matrix.new_ones(len(matrix))
    return 1 / (matrix @ torch.linalg.lstsq(mixing, bias[:, None]).solution)[:, 0]


def read_signals(
    matrix: torch.Tensor, mixing: torch.Tensor, bias: torch.Tensor | None, centred: bool
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, bool]:
    """What W₁ says of images X with the coordinates M (m, r) in the basis: W₁X⁺ and W₁Xᵀ (n_1, m); and b₁ (n_1,)."""
    bias = mixing.new_zeros(len(mixing)) if bias is None else bias
    return mixing @ torch.linalg.pinv(matrix, rtol=1e-6), mixing @ matrix.mT, bias, centred


def agreement(
    signals: tuple[torch.Tensor, torch.Tensor, torch.Tensor, bool], signs: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """The share of ‖B‖² at neurons that the image activates, for every image s_i x_i and in all. Signs are (m,).

    The signals are what `read_signals` returns. B = W₁X⁺ + t1ᵀ, where b₁ = B1 gives t if images sum to zero, and t = 0
    otherwise.
    """
    backward, forward, bias, centred = signals
    offset = (bias - backward @ signs) / len(signs) * centred  # t (n_1,)
    squares = (signs * backward + offset[:, None]).square()
    active = squares * (signs * forward + bias[:, None] > 0)
    return active.sum(0) / squares.sum(0), active.sum() / squares.sum()


def flip_signs(signals, signs, unsure, clear=0.2):
    """Signs (m,) that agree better: an `unsure` image is turned if its own share rises by `clear`, and that of all."""
    for _ in range(5):
        before = signs
        for i in unsure:
            other = signs.clone()
            other[i] *= -1
            (own, total), (its, theirs) = agreement(signals, signs), agreement(signals, other)
            signs = other if its[i] > own[i] + clear and theirs > total else signs
        if signs is before:
            break
    return signs


def choose_signs(signals, factors):
    """Signs (m,) of images that agree best where b₁ = B1 leaves them open, given the `factors` (m,) of their rows."""
    sizes = factors.abs()
    signs = max((factors.sign(), -factors.sign()), key=lambda signs: agreement(signals, signs)[1])
    sure = sizes > (SURE * sizes.median() if len(sizes) <= FEW else math.inf)
    return flip_signs(signals, signs, [i for i in sizes.argsort() if not sure[i]])


def unmix_evenly(basis, mixing, bias, shape, count, seed, later):
    """Unmix until no image is found twice: (spread of lengths, objectives, M (m, r), factors (m,)) of the most even."""
    tried = []
    for k in range(RESTARTS if count <= FEW else 1):
        matrix, history = unmix(basis, shape, count, seed + k, later=later)
        factors = solve_factors(matrix, mixing, bias) * matrix.norm(dim=1)
        tried.append((factors.abs().log().std().item(), history, matrix, factors))
        if tried[-1][0] < EVEN:
            break
    return min(tried, key=lambda one: one[0])


def attack(
    released: Released,
    shape: Shape,
    *,
    count: int | None = None,
    seed: int = 0,
    later: Stages = LATER,
    most: float = MOST,
) -> Attack:
    """Unmix the training images (m, d), each with the same SPREAD, from the released first layer.

    `shape` is (H, W, C) of an image; a `count` m is read from the layer if it is not given. The attack begins anew
    while the relation between images is uneven, and returns the most even result. `later` are the stages of the search
    for more than FEW images. `most` and InputError as `read` says.
    """
    clock = time.perf_counter()
    first = released.network[0]
    bias = None if first.bias is None else first.bias.double()
    inputs = first.weight.shape[1]
    if inputs != math.prod(shape):
        raise InputError(
            f"W₁ takes {inputs} values, and an image of {shape} has {math.prod(shape)}."
        )
    m, basis, mixing = read(released, count, most)
    uneven, history, matrix, factors = unmix_evenly(basis, mixing, bias, shape, m, seed, later)
    matrix = matrix * SPREAD / (matrix @ basis.mT).std(dim=1, keepdim=True)
    signs = factors.sign()
    if bias is None or released.recipe.centred:
        signals = read_signals(matrix, mixing, bias, released.recipe.centred)
        signs = choose_signs(signals, factors)
    matrix = signs[:, None] * matrix
    return Attack(
        images=matrix @ basis.mT,
        loss=history[-1],
        history=history,
        stopped="even" if uneven < EVEN else "uneven",
        seconds=time.perf_counter() - clock,
        details=Unmixed(count=m if count is None else None, basis=basis, matrix=matrix),
    )


def attempt(
    released: Released, shape: Shape, count: int | None, seed: int = 0, later: Stages = LATER
) -> Attack:
    """Read the count from the layer, and unmix; with the given `count` if the layer tells none; or refuse: Attack."""
    refusals = ()
    for given in (None, count):
        try:
            return attack(released, shape, count=given, seed=seed, later=later)._replace(
                refusals=refusals
            )
        except InputError as error:
            refusals = tuple(dict.fromkeys((*refusals, str(error))))
    return refuse(*refusals)


def refuse(*sentences: str) -> Attack:
    """The Attack without images that says why."""
    nothing = torch.full((), math.nan)
    return Attack(
        images=None,
        loss=nothing,
        history=nothing[None],
        stopped="refused",
        seconds=0.0,
        details=Unmixed(),
        refusals=sentences,
    )
