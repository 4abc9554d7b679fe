"""How faint the details of unmixed images are: details F (r, G, K, H, W) of r basis images, and rows M (m, r)."""

import torch
from torch.nn.functional import avg_pool2d, conv2d

from utils.kernels.similarity import planes

OPPONENT = [[1, 1, 1], [1, -1, 0], [1, 1, -2]]  # rows: colours from RGB


def details(rows, shape, grey=1.0, together=False):
    """The eight 3×3 cosine details, every filter of mean square one, of images (r, d): F with a group for each colour.

    RGB becomes three opponent colours, and `grey` is the weight of the first one; `together` they are one group.
    """
    places = torch.arange(3, dtype=torch.float64)
    waves = torch.cos(torch.pi / 3 * torch.outer(places + 0.5, places))  # (place, frequency)
    filters = torch.einsum("au,bv->uvab", waves, waves).flatten(0, 1)[1:, None].to(rows)  # without the flat one
    colours = planes(rows, shape)
    if colours.shape[1] == 3:
        colours = torch.einsum("kc,rchw->rkhw", rows.new_tensor(OPPONENT), colours)
    found = conv2d(colours.flatten(0, 1)[:, None], filters).unflatten(0, colours.shape[:2])  # (r, G, 8, H−2, W−2)
    found = found / found.square().mean((0, 3, 4), keepdim=True).sqrt().clamp_min(1e-20)
    found[:, 0] *= grey if found.shape[1] == 3 else 1.0
    return found.flatten(1, 2)[:, None] if together else found


def whiten(found):
    """Details made uncorrelated and of mean square one between the r basis images, and the matrix (r, r) for it."""
    flat = found.flatten(1)
    values, vectors = torch.linalg.eigh(flat @ flat.T / flat.shape[1])
    matrix = vectors * values.clamp_min(1e-12 * values[-1]).rsqrt() @ vectors.T
    return (matrix @ flat).view_as(found), matrix


def faintness(seen, floor, window):
    """J = ½ mean_{G,p} log(`floor` + e_p) of images with details (m, G, K, H, W): (m,).

    e_p is the mean of squared details in a `window` around place p.
    """
    energy = seen.square().mean(2)  # (m, G, H, W)
    return (floor + avg_pool2d(energy, window, 1, window // 2)).log().mean((1, 2, 3)) / 2


def objective(matrix, found, floor, window):
    """f(M) = Σ J − ½ log det MᵀM for rows M of length one; the last part keeps images apart."""
    seen = (matrix @ found.flatten(1)).view(-1, *found.shape[1:])
    return faintness(seen, floor, window).sum() - torch.logdet(matrix.mT @ matrix) / 2


def score(pictures, known, shape, floor=0.1, window=3):
    """−J of each picture (n, d) by itself, eq. (eq-contrast-score): (n,), the higher, the more like a photograph.

    Details are in units of those of `known` photographs (k, d), and each picture's are scaled to mean square one.
    """
    found = details(torch.cat([known, pictures.to(known)]), shape).flatten(1, 2)  # (k + n, K, H, W)
    own, found = found[: len(known)], found[len(known) :]
    unit = own.square().mean((0, 2, 3), keepdim=True).sqrt().clamp_min(1e-12)
    energy = (found / unit).square().mean(1)  # (n, H, W)
    energy = energy / energy.mean((1, 2), keepdim=True).clamp_min(1e-12)
    near = avg_pool2d(energy[:, None], window, 1, window // 2)[:, 0]
    return -(floor + near).log().mean((1, 2)) / 2
