"""Adam's step undone: what Adam added to a known start is no mixture of images, but a simple function of mixtures.

Adam divides the mean of the gradients by the root of the mean of their squares, pixel by pixel, so that the change
U = W₁ − αW₁⁰ (h, d) has full rank. Let x_p (m,) be pixel p of all images. In a slice k of the training the gradients at
that pixel are combinations of x_p, and their squares sum up to a quadratic form of it, taken as diagonal and rank one:

    U_p = Σ_k b_k x_p / √v_k,    v_k = v_{k−1} + C_k x_p²/m + (l_k x_p)²,    v_0 = FLOOR.

This is of degree zero in x_p and linear in b, so that neither the pixels' scale nor the rate matters: every pixel gets
mean square one. A bias is one more pixel, which is 1 in every image. Each round fits b, C, l and the images to U, and
unmixes the span of the images; the first images come from unmixing the span of U. Faint images are not in that span,
but stand out in what the first fit leaves of U: so some directions of this are added. The later round models the steps
of the first epoch one by one. Which image was in which batch is learned, and then in which order the batches came.
"""

import itertools
import math
import time
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch.nn.functional import normalize

from attacks import first_layer, unmixing
from attacks.contract import Attack
from utils.errors import InputError
from utils.kernels.layers import Network, Shape
from utils.kernels.similarity import ncc
from utils.networks import Layer, Released

SIZE = 8.0  # root mean square that U is brought to, about that of a training at rate one
FLOOR = 1e-3  # v_0
SLICES = 3  # K
ROUNDS = 2  # fits, each of which is unmixed
SPARE = 10  # images for one more that is sought
BLOCKS = 3  # of pixels, that take turns: steps of a third of the work
STEPS = 90, 300  # with fixed images, then with free ones
RATES = (
    (0.05, 0.0, 0.0),
    (0.03, 0.02, 0.03),
)  # of the slices, of the images and of the scores, in either case
BATCHES = 5  # of the first epoch, whose steps are modelled one by one
MOMENTUM = 0.9  # β₁
MOST = 100  # images for which batches are learned
WORTH = 0.9  # the share of the residual that is left at most
NEURONS = 150  # that batches are learned from
LEARN = (240, (0.05, 0.0, 0.15))  # steps and rates
SEARCH = ((40, 30, 12), (80, 90, 1))  # neurons, steps, orders kept
TRIED = 12  # at once
SHARP = 8.0  # scores times this
BETAS = (0.9, 0.99)  # of our own Adam
OUTLIER = 1.5  # median misfits from which the loss grows but slowly


class Slices(NamedTuple):
    """What the slopes of h neurons for m images were in K slices of the training."""

    means: torch.Tensor  # b (K, h, m)
    spreads: torch.Tensor  # log C (K, h, m)
    commons: torch.Tensor  # l (K, h, m)
    slopes: torch.Tensor  # (h, m), in the first epoch, where it is modelled by itself
    # (T, 1 or h, m), of images for its T batches, see `balanced_shares`; else None
    scores: torch.Tensor | None = None


class Undone(NamedTuple):
    """What this attack knows beside its images; nothing where it refused."""

    alpha: float | None = None  # α, what weight decay left of the initial weights
    residuals: tuple = ()  # Σ(U − fit)²/ΣU² after each round
    slices: Slices | None = None  # of the last round
    # the last round's images (m, d) before unmixing, each pixel in units
    fitted: torch.Tensor | None = None
    unmixed: unmixing.Unmixed = unmixing.Unmixed()  # what the unmixing of the last round knows


def normalise_pixels(x):
    """Images (m, p) with a mean square of one at every pixel."""
    return x / x.square().mean(0).sqrt().clamp_min(1e-12)


def balanced_shares(scores):
    """Shares (T, …, m) of images in batches: positive, with sum one over T, and m/T over m."""
    for _ in range(10):
        scores = scores - scores.logsumexp(0, keepdim=True)
        scores = (
            scores - scores.logsumexp(-1, keepdim=True) + math.log(scores.shape[-1] / len(scores))
        )
    return scores.softmax(0)


def epoch(slopes, shares, x):
    """What Adam's first T steps add to pixels x (m, p), and the sum of their squared gradients: (h, p) each.

    Shares (T, …, m) say how likely an image is in the batch of a step. A gradient is taken for its mean over such
    draws, and its square for that of the mean plus the variance of the draw.
    """
    mean = 0.0
    total = 0.0
    v = FLOOR
    for k, share in enumerate(shares, 1):
        g = (slopes * share) @ x
        mean = MOMENTUM * mean + (1 - MOMENTUM) * g
        v = torch.addmm(g.square(), slopes.square() * (share * (1 - share)), x.square()) + v
        total = total + mean * v.rsqrt() * (k**0.5 / (1 - MOMENTUM**k))
    return total, v


def model_change(slices, x):
    """The change U (h, p) that Slices make of pixels x (m, p): the equation above, with scores after the `epoch`."""
    total = 0.0
    v = FLOOR
    squares = x.square() / len(x)
    if slices.scores is not None:
        total, v = epoch(slices.slopes, balanced_shares(slices.scores), x)
    for b, c, l in zip(*slices[:3]):
        v = torch.addmm((l @ x).square(), c.exp(), squares) + v
        total = total + (b @ x) * v.rsqrt()
    return total


def initial_slices(u, x, generator, scores=None):
    """The Slices to begin with: the regression of U (h, d) on images x (m, d), shared among them, and noise."""
    b = torch.linalg.lstsq(x.mT, u.mT).solution.mT
    noise = torch.randn(3, SLICES, *b.shape, generator=generator).to(b)
    means = b / SLICES + 0.01 * noise[0]
    commons = 0.05 * b + 0.02 * noise[2]
    slopes = 0.1 * b + 0.02 * noise[0, 0]
    return Slices(means, 0.3 * noise[1] - 1, commons, slopes, scores)


def mirror_of(shape):
    """Where each pixel of an image (H, W, C), flattened, goes as left and right are exchanged: (d,)."""
    return torch.arange(math.prod(shape)).view(shape).flip(1).flatten()


def merge_mirrored(images, mirror):
    """Half as many images (m/2, d): greedily, of two that mirror each other best, one plus the other one mirrored."""
    images = normalize(images, dim=1)
    others = images[:, mirror]
    kept = []
    table = ncc(images, others).fill_diagonal_(0)
    for _ in range(len(images) // 2):
        i, j = divmod(table.abs().argmax().item(), len(images))
        kept.append(images[i] + table[i, j].sign() * others[j])
        table[[i, j]], table[:, [i, j]] = 0.0, 0.0
    return torch.stack(kept)


def blocks_of(pixels, mirror, generator):
    """Pixels in random BLOCKS, each (p,); with a `mirror` (d,), half of a block holds the places of the other half."""
    if mirror is None:
        return torch.randperm(pixels, generator=generator).chunk(BLOCKS)
    left = (mirror > torch.arange(pixels)).nonzero()[:, 0]
    left = left[torch.randperm(len(left), generator=generator)]
    return [torch.cat([some, mirror[some]]) for some in left.chunk(BLOCKS)]


def model_pixels(part, mirrored):
    """Pixels (m, p + 1) as the model takes them: a block (m, p), or (m/2, p) if `mirrored`, in units; and the bias."""
    part = torch.cat([part, part.roll(part.shape[1] // 2, 1)]) if mirrored else part
    return torch.cat([normalise_pixels(part), torch.ones_like(part[:, :1])], 1)


def fit(
    u: torch.Tensor, x: torch.Tensor, slices: Slices, steps: int, rates: Sequence[float], generator: torch.Generator,
    mirror: torch.Tensor | None = None,
) -> tuple[Slices, torch.Tensor, float]:  # fmt: skip
    """Fit Slices and images x (m, d) to U (h, d + 1) by Adam: the Slices and images that fit, and Σ misfit²/ΣU².

    Slices say how the gradients depended on the images; the last column of U is the change of the biases. With a
    `mirror` (d,), as `mirror_of` gives it, x (m/2, d) are half of the images, and their mirror images the others.
    `rates` are those of the slices, of the images and of the scores; a part without a rate stays as it is. What falls
    is mean log(1 + misfit²/s²), s being OUTLIER times the median misfit: so the places count little at which the model
    is far off, because a gradient changed its sign there.
    """
    blocks = [block.to(x.device) for block in blocks_of(x.shape[1], mirror, generator)]
    targets = [torch.cat([u[:, block], u[:, -1:]], 1) for block in blocks]
    slices = Slices(*(p if p is None else p.clone() for p in slices))
    parts = [x[:, block] for block in blocks]
    free = slices[:4], parts, slices[4:]
    groups = [
        {"params": [p.requires_grad_() for p in some], "lr": rate}
        for some, rate in zip(free, rates)
        if rate
    ]
    optimiser = torch.optim.Adam(groups, betas=BETAS)
    tops = [group["lr"] for group in groups]
    cycle = torch.optim.lr_scheduler.OneCycleLR(
        optimiser, tops, steps, pct_start=0.1, cycle_momentum=False
    )
    squares = []
    for k in range(steps):
        optimiser.zero_grad()
        misfit = (
            model_change(slices, model_pixels(parts[k % BLOCKS], mirror is not None))
            - targets[k % BLOCKS]
        )
        size = OUTLIER * misfit.detach().flatten()[::61].abs().median()
        (misfit / size).square().log1p().mean().backward()
        optimiser.step()
        cycle.step()
        squares.append(misfit.detach().square().sum() / targets[k % BLOCKS].square().sum())
    slices = Slices(*(p if p is None else p.detach() for p in slices))
    x = x.index_copy(1, torch.cat(blocks), torch.cat(parts, 1).detach())
    return slices, x, torch.stack(squares[-BLOCKS:]).mean().item()


def residuals_by_order(u, x, slices, orders, steps, generator):
    """U (h, d + 1) less what Slices explain after a `fit` in each of n orders of their batches: (n, h·(d + 1))."""
    scores = (
        balanced_shares(SHARP * slices.scores[torch.tensor(orders).mT, 0]).clamp_min(1e-9).log()
    )  # (T, n, m)
    tiled = (p[..., : len(u), :].repeat(*[1] * (p.ndim - 2), len(orders), 1) for p in slices[:4])
    slices = Slices(*tiled)._replace(
        scores=scores.repeat_interleave(len(u), 1)
    )  # orders are further neurons
    u = u.repeat(len(orders), 1)
    fitted = fit(u, x, slices, steps, RATES[0][:1], generator)[0]
    return (u - model_change(fitted, model_pixels(x, False))).view(len(orders), -1)


def order_batches(u, x, slices, generator):
    """The scores of Slices in the order of batches that explains U (h, d + 1) best; all are tried on a few neurons."""
    orders = list(itertools.permutations(range(BATCHES)))
    for neurons, steps, kept in SEARCH:
        pixels = torch.randperm(x.shape[1], generator=generator)[: x.shape[1] // 2].to(x.device)
        part = torch.cat([u[:neurons, pixels], u[:neurons, -1:]], 1), x[:, pixels], slices
        groups = (orders[k : k + TRIED] for k in range(0, len(orders), TRIED))
        residuals = torch.cat(
            [residuals_by_order(*part, group, steps, generator) for group in groups]
        )
        losses = (residuals / (OUTLIER * residuals.abs().median())).square().log1p().mean(1)
        orders = [orders[k] for k in losses.argsort()[:kept].tolist()]
    return slices.scores[list(orders[0])]


def learn_batches(u, x, generator):
    """Scores (T, 1, m) of images x (m, d) for the batches of the first epoch, in their order, from a few neurons."""
    u = u[:NEURONS]
    equal = torch.zeros(BATCHES, 1, len(x)).to(x)
    slices, *_ = fit(
        u, x, initial_slices(u[:, :-1], x, generator, equal), STEPS[0], RATES[0], generator
    )
    scores = 0.1 * torch.randn(equal.shape, generator=generator).to(x)
    scores = fit(u, x, slices._replace(scores=scores), *LEARN, generator)[0].scores
    return order_batches(u, x, slices._replace(scores=scores), generator)


def all_images(x, mirror):
    """All images (m, d) in units: x (m, d), or with a `mirror` x (m/2, d) and its mirror images."""
    return normalise_pixels(x if mirror is None else torch.cat([x, x[:, mirror]]))


def faint_directions(u, slices, x, spare):
    """What images x (m, d) lack: leading directions (spare, d) of what Slices leave of U (h, d), its outliers cut."""
    residual = u - model_change(slices, x)
    bound = 3 * OUTLIER * residual.abs().median()
    residual = residual.clamp(-bound, bound)
    basis = torch.linalg.qr(x.mT)[0]
    residual = residual - residual @ basis @ basis.mT
    return torch.linalg.eigh(residual @ residual.mT)[1][:, -spare:].mT @ residual


def unmix_span(changed, rows, shape, seed):
    """Unmix the span of rows (n, d) in a Released network, into n images: Attack."""
    basis = torch.linalg.qr(rows.double().mT)[0]
    weight, bias = changed.network[0]
    changed = changed._replace(
        network=(Layer(weight @ basis @ basis.mT, bias), *changed.network[1:])
    )
    return unmixing.attack(changed, shape, count=len(rows), seed=seed, later=unmixing.SOON)


def check(changed, shape, count, mirrored):
    """Raise InputError unless a count and a shape can be those of images behind the changed first layer."""
    weight, bias = changed.network[0]
    if bias is None:
        raise InputError(
            "The first layer has no biases, which say how large the images are: give one that has."
        )
    if count < 2 or count > (most := int(0.5 * min(weight.shape))):
        raise InputError(
            f"COUNT is {count}; behind {weight.shape[0]} neurons it must be from 2 to {most}."
        )
    if mirrored and (count % 2 or shape[1] % 2):
        raise InputError(f"Mirror images need an even COUNT and width, not {count} and {shape[1]}.")


def attack(
    released: Released, initial: Network, shape: Shape, count: int, seed: int = 0, alpha: float | None = None,
    mirrored: bool = False, rounds: int = ROUNDS, batches: bool = True,
) -> Attack:  # fmt: skip
    """The images (n, d) behind a first layer that Adam trained from a known start: Attack.

    If `mirrored`, half of the images are mirror images of the others, and n is the count. Else n is a SPAREth larger:
    the spare ones are no training images, but nobody knows which these are. `alpha`, what weight decay left of the
    initial weights, is 1 without decay, and estimated unless given. With `batches`, and up to MOST images that are not
    mirrored, those of the first epoch are learned, too, and left out again if the fit gains little. InputError as
    `first_layer.check`, `check` and `unmixing.read` say, and if the fit diverges.
    """
    clock = time.perf_counter()
    generator = torch.Generator().manual_seed(seed)
    added = first_layer.difference(released.network, initial, alpha)
    changed, (alpha,) = first_layer.as_released(added, released), added.removed
    check(changed, shape, count, mirrored)
    u = torch.cat([changed.network[0].weight, changed.network[0].bias[:, None]], 1).float()
    u = SIZE * u / u.square().mean().sqrt()
    mirror = mirror_of(shape) if mirrored else None
    residuals = []
    slices = None
    fitted = None
    found = unmixing.attack(changed, shape, count=count, seed=seed, later=unmixing.SOON)
    batches = batches and mirror is None and count <= MOST
    for k in range(rounds):
        pixels = found.images if mirror is None else merge_mirrored(found.images, mirror)
        x = normalise_pixels(pixels.float())  # type: ignore[union-attr]
        scores = learn_batches(u, x, generator) if k and batches else None
        slices = initial_slices(u[:, :-1], all_images(x, mirror), generator, scores)
        for steps, rates in zip(STEPS, RATES):
            slices, x, residual = fit(
                u, x, slices, steps, rates[: 2 if scores is None else 3], generator, mirror
            )
        if not math.isfinite(residual):
            raise InputError(
                "The fit of Adam's step diverged: its residual is not finite. Try another SEED."
            )
        if scores is not None and residual > WORTH * residuals[0]:
            return attack(
                released, initial, shape, count, seed, alpha, mirrored, rounds, batches=False
            )
        residuals.append(residual)
        fitted = rows = all_images(x, mirror)
        if k == 0 and mirror is None:
            rows = torch.cat(
                [rows, faint_directions(u[:, :-1], slices, rows, math.ceil(count / SPARE))]
            )
        found = unmix_span(changed, rows, shape, seed)
    details = Undone(alpha, tuple(residuals), slices, fitted, found.details)
    return found._replace(details=details, seconds=time.perf_counter() - clock)
