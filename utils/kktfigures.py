"""Pictures of KKT sets: the plane of two-dimensional points."""

import torch

from utils import kktsets, mlp
from utils.figures import BLACK, BLUE, GREY, ORANGE

SHADES = ["#FFFFFF", "#CFE2EF", "#F8E3B8", "#DDDDDD"]  # regions: no group is active, that of +1, that of −1, both


def plane(ax, kkt, limit=4.0, faded=None, title=""):
    """Draw points in the plane with the network's regions, hyperplanes (solid) and margins Φ = ±1 (dashed).

    Class +1 has blue circles, class −1 orange squares; a filled area is proportional to λ, an empty mark has λ = 0.
    `faded` is a KKTSet whose points are drawn as grey crosses.
    """
    line = torch.linspace(-limit, limit, 241, dtype=torch.float64)
    grid = torch.cartesian_prod(line, line)  # (241², 2)
    z, (_, outputs) = kktsets.before(kkt.network, grid), mlp.forward(kkt.network, grid)[1]
    positive = kkt.network[1].weight[0] > 0
    groups = [(z[:, chosen] > 0).any(1).double() for chosen in (positive, ~positive)]
    level = (groups[0] + 2 * groups[1]).reshape(241, 241).T
    ax.contourf(line, line, level, levels=[-0.5, 0.5, 1.5, 2.5, 3.5], colors=SHADES)
    for j in range(z.shape[1]):
        ax.contour(line, line, z[:, j].reshape(241, 241).T, levels=[0], colors=GREY, linewidths=0.8)
    outputs = outputs[:, 0].reshape(241, 241).T
    ax.contour(line, line, outputs, levels=[-1, 1], colors=BLACK, linewidths=1, linestyles="dashed")
    if faded is not None:
        ax.scatter(*faded.points.T, marker="x", color="#666666", s=40, linewidths=1.2, zorder=3)
    largest = kkt.multipliers.max()
    for sign, colour, marker in ((1, BLUE, "o"), (-1, ORANGE, "s")):
        own = kkt.signs == sign
        used = own & (kkt.multipliers > 1e-12)
        ax.scatter(*kkt.points[own & ~used].T, marker=marker, facecolors="white", edgecolors=colour, s=30, zorder=4)
        sizes = 160 * kkt.multipliers[used] / largest
        ax.scatter(*kkt.points[used].T, marker=marker, color=colour, edgecolors=BLACK, s=sizes, zorder=5)
    ax.set(xlim=(-limit, limit), ylim=(-limit, limit), aspect="equal", xlabel="$x_1$", ylabel="$x_2$", title=title)
    ax.grid(False)
