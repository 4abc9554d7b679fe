"""Adam's step undone: what Adam added to a known start is no mixture of images, but a simple function of mixtures.

Adam divides the mean of the gradients by the root of the mean of their squares, pixel by pixel, so that the change
U = W₁ − αW₁⁰ (h, d) has full rank. Let x_p (m,) be pixel p of all images. In a slice k of the training the gradients at
that pixel are combinations of x_p, and their squares sum up to a quadratic form of it, taken as diagonal and rank one:

    U_p = Σ_k b_k x_p / √v_k,    v_k = v_{k−1} + C_k x_p²/m + (l_k x_p)²,    v_0 = FLOOR.

This is of degree zero in x_p and linear in b, so that neither the rate nor the pixels' scale matters; every pixel gets
mean square one. A bias is one more pixel, which is 1 in every image. Each round fits b, C, l and the images to U, and
unmixes the span of the images; unmixing the span of U itself gives the first ones. Faint images are not in that span,
but stand out in what the first fit leaves of U, so that some directions of this are added.
"""

import math
import time
from typing import NamedTuple

import torch
from torch.nn.functional import normalize

from utils.attacks import known_start, unmixing
from utils.errors import InputError
from utils.kernels.similarity import ncc
from utils.networks import Layer

SIZE, FLOOR = 8.0, 1e-3  # root mean square that U is brought to, about that of a training at rate one; v_0
SLICES, ROUNDS, SPARE = 3, 2, 10  # K; fits, each of which is unmixed; images for one more that is sought
BLOCKS = 3  # of pixels, that take turns: steps of a third of the work
STEPS = 90, 300  # with fixed images, then with free ones
RATES = (0.05, 0.0), (0.03, 0.02)  # of b, C and l, and of the images, in either case
BETAS = 0.9, 0.99  # of our own Adam
OUTLIER = 1.5  # median misfits from which the loss grows but slowly


class Slices(NamedTuple):
    """What the slopes of h neurons for m images were in K slices of the training; each (K, h, m)."""

    means: torch.Tensor  # b
    spreads: torch.Tensor  # log C
    commons: torch.Tensor  # l


class Undone(NamedTuple):
    """What this attack knows beside its images; nothing where it refused."""

    alpha: float | None = None  # what weight decay left of the start
    residuals: tuple = ()  # Σ(U − fit)²/ΣU², after each round
    slices: Slices | None = None  # of the last round
    fitted: torch.Tensor | None = None  # the images (m, d) that belong to them, before unmixing, each pixel in units
    unmixed: unmixing.Unmixed = unmixing.Unmixed()  # of the images returned


def unit(x):
    """Images (m, p) with a mean square of one at every pixel."""
    return x / x.square().mean(0).sqrt().clamp_min(1e-12)


def modelled(slices, x):
    """The change U (h, p) that Slices make of pixels x (m, p), the equation above."""
    total, v, squares = 0.0, FLOOR, x.square() / len(x)
    for b, c, l in zip(*slices):
        v = torch.addmm((l @ x).square(), c.exp(), squares) + v
        total = total + (b @ x) * v.rsqrt()
    return total


def robust(misfit):
    """mean log(1 + misfit²/s²), with OUTLIER medians for s: where a gradient changed its sign, the model is far off."""
    size = OUTLIER * misfit.detach().flatten()[::61].abs().median()
    return (misfit / size).square().log1p().mean()


def begin(u, x, generator):
    """The Slices to begin with: the regression of U (h, d) on images x (m, d), shared among them, and noise."""
    b = torch.linalg.lstsq(x.mT, u.mT).solution.mT
    noise = torch.randn(3, SLICES, *b.shape, generator=generator).to(b)
    return Slices(b / SLICES + 0.01 * noise[0], 0.3 * noise[1] - 1, 0.05 * b + 0.02 * noise[2])


def mirror_of(shape):
    """Where each pixel of an image (H, W, C), flattened, goes as left and right are exchanged: (d,)."""
    return torch.arange(math.prod(shape)).view(shape).flip(1).flatten()


def blocks_of(pixels, mirror, generator):
    """Pixels in random BLOCKS, each (p,); with a `mirror` (d,), half of a block holds the places of the other half."""
    if mirror is None:
        return torch.randperm(pixels, generator=generator).chunk(BLOCKS)
    left = (mirror > torch.arange(pixels)).nonzero()[:, 0]
    left = left[torch.randperm(len(left), generator=generator)]
    return [torch.cat([some, mirror[some]]) for some in left.chunk(BLOCKS)]


def seen(part, mirrored):
    """Pixels (m, p + 1) as the model takes them: a block (m, p), or (m/2, p) if `mirrored`, in units; and the bias."""
    part = torch.cat([part, part.roll(part.shape[1] // 2, 1)]) if mirrored else part
    return torch.cat([unit(part), torch.ones_like(part[:, :1])], 1)


def fit(u, x, slices, steps, rates, generator, mirror=None):
    """Lower `robust` in Slices and images x (m, d) by Adam, whose rates rise and fall once: Slices, images, residual.

    U (h, d + 1) has the biases last. With a `mirror`, x (m/2, d) are half of the images, and mirror images the others.
    """
    blocks = [block.to(x.device) for block in blocks_of(x.shape[1], mirror, generator)]
    targets = [torch.cat([u[:, block], u[:, -1:]], 1) for block in blocks]
    slices = Slices(*(part.clone().requires_grad_() for part in slices))
    parts = [x[:, block].clone().requires_grad_(rates[1] > 0) for block in blocks]
    groups = [{"params": group, "lr": rate} for group, rate in zip((list(slices), parts), rates) if rate]
    optimiser = torch.optim.Adam(groups, betas=BETAS)
    cycle = torch.optim.lr_scheduler.OneCycleLR(
        optimiser, rates[: len(groups)], steps, pct_start=0.1, cycle_momentum=False
    )
    squares = []
    for k in range(steps):
        optimiser.zero_grad()
        misfit = modelled(slices, seen(parts[k % BLOCKS], mirror is not None)) - targets[k % BLOCKS]
        robust(misfit).backward()
        optimiser.step()
        cycle.step()
        squares.append(misfit.detach().square().sum() / targets[k % BLOCKS].square().sum())
    with torch.no_grad():
        x = x.index_copy(1, torch.cat(blocks), torch.cat(parts, 1))
    return Slices(*(part.detach() for part in slices)), x, torch.stack(squares[-BLOCKS:]).mean().item()


def halved(images, mirror):
    """Half of the images (m, d), so that they and their mirror images are nearest to all: (m/2, d).

    Greedily: of all pairs the likest are taken, and one image is averaged with the other one's mirror image.
    """
    images = normalize(images, dim=1)
    others, kept = images[:, mirror], []
    table = ncc(images, others).fill_diagonal_(0)
    for _ in range(len(images) // 2):
        i, j = divmod(table.abs().argmax().item(), len(images))
        kept.append(images[i] + table[i, j].sign() * others[j])
        table[[i, j]], table[:, [i, j]] = 0.0, 0.0
    return torch.stack(kept)


def whole(x, mirror):
    """All images (m, d) in units: x (m, d), or with a `mirror` x (m/2, d) and its mirror images."""
    return unit(x if mirror is None else torch.cat([x, x[:, mirror]]))


def missing(u, slices, x, spare):
    """What images x (m, d) lack: the leading directions (spare, d) of what Slices leave of U (h, d), its outliers cut.

    The model explains what mixtures of images do not, so that faint images stand out in what is left.
    """
    rest = u - modelled(slices, x)
    bound = 3 * OUTLIER * rest.abs().median()
    rest, basis = rest.clamp(-bound, bound), torch.linalg.qr(x.mT)[0]
    rest = rest - rest @ basis @ basis.mT
    return torch.linalg.eigh(rest @ rest.mT)[1][:, -spare:].mT @ rest


def unmixed(changed, rows, shape, seed):
    """Unmix the span of rows (n, d) in a Released network, into n images: Attack."""
    basis = torch.linalg.qr(rows.double().mT)[0]
    weight, bias = changed.network[0]
    changed = changed._replace(network=(Layer(weight @ basis @ basis.mT, bias), *changed.network[1:]))
    return unmixing.attack(changed, shape, count=len(rows), seed=seed, later=unmixing.SOON)


def check(changed, shape, count, mirrored):
    """Raise InputError unless a count and a shape can be those of images behind the changed first layer."""
    weight, bias = changed.network[0]
    if bias is None:
        raise InputError("The first layer has no biases, which say how large the images are: give one that has.")
    if count < 2 or count > (most := int(0.5 * min(weight.shape))):
        raise InputError(f"COUNT is {count}; behind {weight.shape[0]} neurons it must be from 2 to {most}.")
    if mirrored and (count % 2 or shape[1] % 2):
        raise InputError(f"Mirror images need an even COUNT and width, not {count} and {shape[1]}.")


def attack(released, start, shape, count, seed=0, alpha=None, mirrored=False, rounds=ROUNDS):
    """The images (n, d) behind a first layer that Adam trained from a known start: Attack.

    `mirrored`: half of the images are mirror images of the others, and n is the count. Else n is a SPAREth larger,
    since nobody knows which pictures are none. `alpha` is 1 without weight decay, and estimated unless given. Images
    have the sign and size that `unmixing` gives. InputError as `known_start.check`, `check` and `unmixing.read` say,
    and if the fit diverges.
    """
    clock, generator = time.perf_counter(), torch.Generator().manual_seed(seed)
    changed, alpha = known_start.trained_part(released, start, alpha)
    check(changed, shape, count, mirrored)
    u = torch.cat([changed.network[0].weight, changed.network[0].bias[:, None]], 1).float()
    u = SIZE * u / u.square().mean().sqrt()
    mirror, residuals, slices, fitted = mirror_of(shape) if mirrored else None, [], None, None
    found = unmixing.attack(changed, shape, count=count, seed=seed, later=unmixing.SOON)
    for k in range(rounds):
        x = unit((found.images if mirror is None else halved(found.images, mirror)).float())
        slices = begin(u[:, :-1], whole(x, mirror), generator)
        for steps, rates in zip(STEPS, RATES):
            slices, x, residual = fit(u, x, slices, steps, rates, generator, mirror)
        if not math.isfinite(residual):
            raise InputError("The fit of Adam's step diverged: its residual is not finite. Try another SEED.")
        residuals.append(residual)
        fitted = rows = whole(x, mirror)
        if k == 0 and mirror is None:
            rows = torch.cat([rows, missing(u[:, :-1], slices, rows, math.ceil(count / SPARE))])
        found = unmixed(changed, rows, shape, seed)
    details = Undone(alpha, tuple(residuals), slices, fitted, found.details)
    return found._replace(details=details, seconds=time.perf_counter() - clock)
