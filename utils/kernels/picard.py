"""Preconditioned independent component analysis: L-BFGS over E, by which rows M become (1 + E)M.

In E the second derivatives of the objective of `contrast` are nearly known: where images are independent, E_ij concerns
E_ji alone, and the determinant couples the two. L-BFGS begins from the inverse of that, and tens of steps do what takes
hundreds over M (Picard; Ablin, Cardoso and Gramfort, 2018).
"""

import torch
from torch.nn.functional import normalize

from utils.kernels import contrast
from utils.kernels.solvers import dot, quasi_newton_product

LEAST = 0.1  # eigenvalue of a block that is believed
SETTLED = 5e-6  # decrease for each free row at which the search ends
MEMORY = 10  # steps


def precondition(slope, curvature, free=slice(None)):
    """Solve [[h_ij, 1], [1, h_ji]] (E_ij, E_ji) = (g_ij, g_ji) for slopes g and curvatures h (m, u): E (m, u).

    Blocks are lifted to eigenvalues of at least LEAST. Rows that are not `free` have no partner: E_ij = g_ij / h_ij.
    """
    found = slope / curvature.clamp_min(LEAST)
    ours, theirs = curvature[free], curvature[free].mT
    lowest = (ours + theirs) / 2 - ((ours - theirs).square() / 4 + 1).sqrt()
    lift = (LEAST - lowest).clamp_min(0)
    ours, theirs = ours + lift, theirs + lift
    found[free] = (theirs * slope[free] - slope[free].mT) / (ours * theirs - 1)
    return found


def minimise(matrix, details, floor, window, steps, free=slice(None), each=lambda matrix: None):
    """Rows M (m, r) of length one that lower the contrast of `details` (r, G, K, H, W), and the value of every step.

    `floor` and `window` are those of the objective, of which at most so many `steps` are taken; `free` are the rows
    that may be added to others. `each` is called with the rows of every step.
    """
    matrix = normalize(matrix, dim=1)
    seen = contrast.mixed(matrix, details)
    now, pairs = contrast.relative(matrix, seen, floor, window, free), []
    history = [now.value.item()]
    while len(history) <= steps:

        def inverse(v, now=now):
            return precondition(v.view_as(now.slope), now.curvature, free).flatten()

        move = -quasi_newton_product(pairs, now.slope.flatten(), inverse).view_as(now.slope)
        lower = shortened(matrix, seen, now, move, (floor, window, free))
        if lower is None:
            if not pairs:
                break
            pairs = []  # and once more, from the preconditioner alone
            continue
        before = now
        matrix, seen, taken, now = lower
        s, y = taken.flatten(), (now.slope - before.slope).flatten()
        safe = dot(s, y) > 1e-14 * dot(y, y)
        pairs = [*pairs, (s, y, torch.where(safe, 1 / dot(s, y), 0))][-MEMORY:]
        history.append(now.value.item())
        each(matrix)
        if history[-2] - history[-1] <= SETTLED * now.slope.shape[1]:
            break
    return matrix, history


def shortened(matrix, seen, now, move, where):
    """Take a move E (m, u), or a third of it as often as it takes to lower the value: rows, details, E, Relative.

    None if nothing lowers it.
    """
    free = where[-1]
    for k in range(10):
        step = move / 3**k
        moved = matrix + step @ matrix[free]
        lengths = moved.norm(dim=1, keepdim=True)
        flat = torch.addmm(seen.flatten(1), step.to(seen), seen[free].flatten(1)).div_(lengths.to(seen))
        found = contrast.relative(moved / lengths, flat.view_as(seen), *where)
        if found.value <= now.value + 1e-4 * (step * now.slope).sum():
            return moved / lengths, flat.view_as(seen), step, found
    return None
