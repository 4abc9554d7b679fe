"""How faint the details of unmixed images are: features F (r, G, K, H, W) of r basis images, and rows M (m, r).

The objective is lowered by L-BFGS over E, by which rows M become (1 + E)M. Where images are independent, its second
derivatives couple E_ij with E_ji alone; from the inverse of that, tens of steps do what takes hundreds over M (Picard;
Ablin, Cardoso and Gramfort, 2018).
"""

from typing import NamedTuple

import torch
from torch.linalg import vector_norm
from torch.nn.functional import avg_pool2d, conv2d, normalize

from utils.kernels.similarity import planes
from utils.kernels.solvers import quasi_newton_product, secant

FLAT = 1e-6  # of the largest mean square
OPPONENT = [[1, 1, 1], [1, -1, 0], [1, 1, -2]]  # rows: colours from RGB
LEAST = 0.1  # eigenvalue of a block that is believed
SETTLED = 5e-6  # decrease for each free row at which the search ends
MEMORY = 10  # steps
ENOUGH = 100  # pixels of a side; of larger images, every second place is enough, or fewer
AT_ONCE = 1 << 20  # places that are filtered, or whitened, together


class Relative(NamedTuple):
    """The objective for rows (1 + E)M, brought to length one, and its derivatives in E at zero."""

    value: torch.Tensor  # the objective
    slope: torch.Tensor  # (m, u): E has columns for the u free rows
    curvature: torch.Tensor  # (m, u), about the second derivatives of ΣJ, by a majorant of log


def features(rows, shape, grey=1.0, together=False):
    """The eight 3×3 cosine features, every filter of mean square one, of images (r, d): F with a group for each colour.

    RGB becomes three opponent colours, and `grey` is the weight of the first one; `together` they are one group.
    """
    places = torch.arange(3, dtype=torch.float64)
    waves = torch.cos(torch.pi / 3 * torch.outer(places + 0.5, places))  # (place, frequency)
    filters = torch.einsum("au,bv->uvab", waves, waves).flatten(0, 1)
    filters = filters[1:, None].to(rows)  # all but the flat one
    colours = planes(rows, shape)
    if colours.shape[1] == 3:
        colours = torch.einsum("kc,rchw->rkhw", rows.new_tensor(OPPONENT), colours)
    high, wide = colours.shape[2:]
    stride = max(1, min(high, wide) // ENOUGH)
    sizes = ((size - 3) // stride + 1 for size in (high, wide))
    filtered = rows.new_empty(*colours.shape[:2], len(filters), *sizes)
    few = max(1, AT_ONCE // (high * wide))
    for some, made in zip(*(part.flatten(0, 1).split(few) for part in (colours, filtered))):
        made.copy_(conv2d(some[:, None], filters, stride=stride))
    norms = vector_norm(filtered, dim=(0, 3, 4), keepdim=True)
    filtered *= (filtered[:, 0, 0].numel() ** 0.5 / norms).clamp_max(1e20)
    filtered[:, 0] *= grey if filtered.shape[1] == 3 else 1.0
    return filtered.flatten(1, 2)[:, None] if together else filtered


def whiten(features):
    """Features, made in place uncorrelated and of mean square one between the r images, and the matrix (r, r) for it.

    What is nearly flat, such as a piece of sky, stays so: made as strong as the rest it would spoil all other images.
    """
    flat = features.flatten(1)
    values, vectors = torch.linalg.eigh(flat @ flat.T / flat.shape[1])
    matrix = vectors * values.clamp_min(FLAT * values[-1]).rsqrt() @ vectors.T
    for some in flat.split(AT_ONCE, dim=1):
        some.copy_(matrix @ some)
    return features, matrix


def window_mean(energy, window):
    """The mean of an energy (m, G, H, W) in a `window` around each place, with zeros outside; its own transpose."""
    up, across = (band(size, window).to(energy) for size in energy.shape[2:])
    return up @ energy @ across


def band(size, window):
    """The symmetric matrix (size, size) that takes the mean of a `window` around each place of a line."""
    places = torch.arange(size)
    return ((places[:, None] - places).abs() <= window // 2).double() / window


def energies(mixed):
    """The mean over K of squared features (m, G, K, H, W): (m, G, H, W)."""
    first, *rest = mixed.unbind(2)
    total = first.square()
    for part in rest:  # faster than a mean over that dimension
        total.addcmul_(part, part)
    return total / mixed.shape[2]


def objective(matrix, features, floor, window):
    """f(M) = Σ J − ½ log det MᵀM for rows M of length one; the last part keeps images apart.

    J = ½ mean_{G,p} log(`floor` + e_p) of an image, e_p being the mean of squared features in a `window` around p.
    """
    faint = (floor + window_mean(energies(mix(matrix, features)), window)).log().mean((1, 2, 3)) / 2
    return faint.sum() - torch.logdet(matrix.mT @ matrix) / 2


def mix(matrix, features):
    """The features of the images that rows M (m, r) mix."""
    return (matrix.to(features) @ features.flatten(1)).view(-1, *features.shape[1:])


def relative_derivatives(matrix, mixed, floor, window, free=slice(None)):
    """The `objective` and its derivatives as rows M (m, r) of length one become (1 + E)M: Relative.

    `mixed` are the features of their images. E has columns for the u `free` rows; no row is added to itself.
    """
    energy = energies(mixed)
    level = floor + window_mean(energy, window)
    weights = window_mean(1 / level, window)  # 2 ∂J/∂e, but for the number of places
    places = energy[0].numel()
    own = (weights * energy).mean((1, 2, 3), dtype=matrix.dtype)
    pull = sum((weights * part).flatten(1) @ part[free].flatten(1).mT for part in mixed.unbind(2))
    pull = pull / (places * mixed.shape[2])
    gram = matrix.mT @ matrix
    dual = torch.linalg.solve(gram, matrix.mT).mT  # (m, r)
    # The slope along a row itself, which lengths of one take away.
    own = (matrix * dual).sum(1) - own
    slope = pull.to(matrix) + own[:, None] * (matrix @ matrix[free].mT) - matrix @ dual[free].mT
    rows = torch.arange(len(matrix), device=matrix.device)[free]
    slope[rows, torch.arange(len(rows), device=matrix.device)] = 0
    apart = torch.linalg.slogdet(gram).logabsdet / 2
    value = level.log().sum(dtype=matrix.dtype) / (2 * places) - apart
    curvature = weights.flatten(1) @ energy[free].flatten(1).mT / places
    return Relative(value, slope, curvature.to(matrix))


def precondition(slope, curvature, free=slice(None)):
    """Solve [[h_ij, 1], [1, h_ji]] (E_ij, E_ji) = (g_ij, g_ji) for slopes g and curvatures h (m, u): E (m, u).

    Blocks are lifted to eigenvalues of at least LEAST. Rows that are not `free` have no partner: E_ij = g_ij / h_ij.
    """
    step = slope / curvature.clamp_min(LEAST)
    ours = curvature[free]
    theirs = curvature[free].mT
    lowest = (ours + theirs) / 2 - ((ours - theirs).square() / 4 + 1).sqrt()
    lift = (LEAST - lowest).clamp_min(0)
    ours = ours + lift
    theirs = theirs + lift
    step[free] = (theirs * slope[free] - slope[free].mT) / (ours * theirs - 1)
    return step


def minimise(matrix, features, floor, window, steps, free=slice(None), each=lambda matrix: None):
    """Rows M (m, r) of length one that lower the contrast of features (r, G, K, H, W), and the value of every step."""
    matrix = normalize(matrix, dim=1)
    mixed = mix(matrix, features)
    now = relative_derivatives(matrix, mixed, floor, window, free)
    pairs = []
    history = [now.value.item()]
    while len(history) <= steps:

        def inverse(v, now=now):
            return precondition(v.view_as(now.slope), now.curvature, free).flatten()

        move = -quasi_newton_product(pairs, now.slope.flatten(), inverse).view_as(now.slope)
        lower = shorten(matrix, mixed, now, move, (floor, window, free))
        if lower is None:
            if not pairs:
                break
            pairs = []  # and once more, from the preconditioner alone
            continue
        before = now
        matrix, mixed, taken, now = lower
        pair = secant(taken.flatten(), (now.slope - before.slope).flatten())
        pairs = [*pairs, pair][-MEMORY:]
        history.append(now.value.item())
        each(matrix)
        if history[-2] - history[-1] <= SETTLED * now.slope.shape[1]:
            break
    return matrix, history


def shorten(matrix, mixed, now, move, where):
    """A move E (m, u), or a third of it until it lowers the value: rows, features, E, Relative; or None."""
    free = where[-1]
    for k in range(10):
        step = move / 3**k
        moved = matrix + step @ matrix[free]
        lengths = moved.norm(dim=1, keepdim=True)
        flat = torch.addmm(mixed.flatten(1), step.to(mixed), mixed[free].flatten(1))
        flat = flat.div_(lengths.to(mixed)).view_as(mixed)
        trial = relative_derivatives(moved / lengths, flat, *where)
        if trial.value <= now.value + 1e-4 * (step * now.slope).sum():
            return moved / lengths, flat, step, trial
    return None


def score(pictures, known, shape):
    """−J of each picture (n, d) by itself, eq. (eq-contrast-score): (n,), the higher, the more like a photograph.

    Features are in units of those of `known` photographs (k, d), and each picture's are scaled to mean square one.
    """
    filtered = features(torch.cat([known, pictures.to(known)]), shape).flatten(1, 2)
    own, filtered = filtered.split([len(known), len(pictures)])  # (k, K, H, W), (n, K, H, W)
    unit = own.square().mean((0, 2, 3), keepdim=True).sqrt().clamp_min(1e-12)
    energy = (filtered / unit).square_().mean(1)  # (n, H, W)
    energy = energy / energy.mean((1, 2), keepdim=True).clamp_min(1e-12)
    near = avg_pool2d(energy[:, None], 3, 1, 1)[:, 0]
    return -(0.1 + near).log().mean((1, 2)) / 2
