"""Adam's step undone: what Adam added to a known start is no mixture of images, but a simple function of mixtures.

Adam divides the mean of the gradients by the root of the mean of their squares, pixel by pixel, so that the change
U = W₁ − αW₁⁰ (h, d) has full rank. Let x_p (m,) be pixel p of all images. In a slice k of the training the gradients at
that pixel are combinations of x_p, and their squares sum up to a quadratic form of it, taken as diagonal and rank one:

    U_p = Σ_k b_k x_p / √v_k,    v_k = v_{k−1} + C_k x_p²/m + (l_k x_p)²,    v_0 = FLOOR.

This is of degree zero in x_p and linear in b, so that neither the pixels' scale nor the rate matters: every pixel gets
mean square one. A bias is one more pixel, which is 1 in every image. The first images come from unmixing the span of U.
Each of two rounds fits b, C, l and the images to U, and unmixes the span of the images. Faint images are not in that
span, but stand out in what the first fit leaves of U: so some directions of this are added. The second round models the
steps of the first epoch one by one. Which image was in which batch is learned, then in which order the batches came.
"""

import itertools
import math
import time
from typing import NamedTuple

import torch
from torch.nn.functional import normalize

from attacks import first_layer, unmixing
from attacks.contract import Attack
from utils.errors import InputError
from utils.kernels.layers import Network, Shape, joint
from utils.kernels.similarity import ncc
from utils.networks import Layer, Released

SIZE = 8.0  # root mean square that U is brought to, about that of a training at rate one
FLOOR = 1e-3  # v_0
SLICES = 3  # K
CROWD = 0.5  # share of the living neurons, or pixels, that images may be
SPARE = 10  # images for one more that is sought
BLOCKS = 3  # of pixels, that take turns: steps of a third of the work
STEPS = 90, 300  # with fixed images, then with free ones
FIXED = {"slice_rate": 0.05}
FREE = {"slice_rate": 0.03, "image_rate": 0.02, "batch_rate": 0.03}
BATCHES = 5  # of the first epoch, whose steps are modelled one by one
MOMENTUM = 0.9  # β₁
MOST = 100  # images for which batches are learned
WORTH = 0.9  # the share of the residual that is left at most
NEURONS = 150  # that batches are learned from
LEARN_STEPS = 240
LEARN = {"slice_rate": 0.05, "batch_rate": 0.15}
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

    def change(self, function):
        """Apply a function to every tensor."""
        return Slices(*(p if p is None else function(p) for p in self))


class Fit(NamedTuple):
    """What explains U."""

    slices: Slices
    images: torch.Tensor  # x (m, d), or (m/2, d) where the others mirror them
    residual: float  # Σ(U − fit)²/ΣU²


class Undone(NamedTuple):
    """What this attack knows beside its images."""

    alpha: float  # α, what weight decay left of the initial weights
    fits: tuple[Fit, Fit]  # of both rounds, before their images are unmixed, each pixel in units


def normalise_pixels(x):
    """Images (m, p) with a mean square of one at every pixel."""
    return x / x.square().mean(0).sqrt().clamp_min(1e-12)


def balanced_shares(scores):
    """Shares (T, …, m) of images in batches: positive, with sum one over T, and m/T over m."""
    for _ in range(10):
        scores = scores - scores.logsumexp(0, keepdim=True)
        scores = scores - scores.logsumexp(-1, keepdim=True)
        scores = scores + math.log(scores.shape[-1] / len(scores))
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


def begin(images, mirror):
    """What a fit begins with: images (m, d) in units, or with a `mirror` half of them (m/2, d)."""
    return normalise_pixels((images if mirror is None else merge_mirrored(images, mirror)).float())


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


def make_optimiser(moved, steps):
    """Adam of tensors, with the rates that they are `moved` at, (tensors, rate), and one cycle of these in `steps`."""
    groups = [
        {"params": [p.requires_grad_() for p in parts], "lr": rate}
        for parts, rate in moved
        if rate and parts[0] is not None
    ]
    tops = [group["lr"] for group in groups]
    optimiser = torch.optim.Adam(groups, betas=BETAS)
    return optimiser, torch.optim.lr_scheduler.OneCycleLR(
        optimiser, tops, steps, pct_start=0.1, cycle_momentum=False
    )


def fit(
    u: torch.Tensor,
    x: torch.Tensor,
    slices: Slices,
    steps: int,
    *,
    generator: torch.Generator,
    slice_rate: float,
    image_rate: float = 0.0,
    batch_rate: float = 0.0,
    mirror: torch.Tensor | None = None,
) -> Fit:
    """Fit Slices and images x (m, d) to U (h, d + 1) by Adam; what has no rate stays as it is.

    The last column of U is the change of the biases. With a `mirror` (d,), as `mirror_of` gives it, x (m/2, d) are half
    of the images, and their mirror images the others. What falls is mean log(1 + misfit²/s²), s being OUTLIER times the
    median misfit: so the places count little at which the model is far off, because a gradient changed its sign there.
    """
    blocks = [block.to(x.device) for block in blocks_of(x.shape[1], mirror, generator)]
    targets = [torch.cat([u[:, block], u[:, -1:]], 1) for block in blocks]
    parts = [x[:, block] for block in blocks]
    slices = slices.change(torch.clone)
    moved = (slices[:4], slice_rate), (parts, image_rate), (slices[4:], batch_rate)
    optimiser, schedule = make_optimiser(moved, steps)
    squares = []
    for k in range(steps):
        part, target = parts[k % BLOCKS], targets[k % BLOCKS]
        optimiser.zero_grad()
        misfit = model_change(slices, model_pixels(part, mirror is not None)) - target
        size = OUTLIER * misfit.detach().flatten()[::61].abs().median()
        (misfit / size).square().log1p().mean().backward()
        optimiser.step()
        schedule.step()
        squares.append(misfit.detach().square().sum() / target.square().sum())
    return Fit(
        slices=slices.change(torch.detach),
        images=x.index_copy(1, torch.cat(blocks), torch.cat(parts, 1).detach()),
        residual=torch.stack(squares[-BLOCKS:]).mean().item(),
    )


def residuals_by_order(u, x, slices, orders, steps, generator):
    """U (h, d + 1) less what Slices explain after a `fit` in each order (n, T) of their batches: (n, h·(d + 1))."""
    n = len(orders)  # orders are further neurons
    shares = balanced_shares(SHARP * slices.scores[orders.mT, 0])  # (T, n, m)
    scores = shares.clamp_min(1e-9).log().repeat_interleave(len(u), 1)
    tiled = [p[..., : len(u), :].repeat(*[1] * (p.ndim - 2), n, 1) for p in slices[:4]]
    u = u.repeat(n, 1)
    fitted = fit(u, x, Slices(*tiled)._replace(scores=scores), steps, generator=generator, **FIXED)
    return (u - model_change(fitted.slices, model_pixels(x, False))).view(n, -1)


def order_batches(u, x, slices, generator):
    """The scores of Slices in the order of batches that explains U (h, d + 1) best; all are tried on a few neurons."""
    orders = torch.tensor(list(itertools.permutations(range(BATCHES))))
    for neurons, steps, kept in SEARCH:
        pixels = torch.randperm(x.shape[1], generator=generator)[: x.shape[1] // 2].to(x.device)
        some = torch.cat([u[:neurons, pixels], u[:neurons, -1:]], 1)
        tried = (
            residuals_by_order(some, x[:, pixels], slices, part, steps, generator)
            for part in orders.split(TRIED)
        )
        residuals = torch.cat(list(tried))
        losses = (residuals / (OUTLIER * residuals.abs().median())).square().log1p().mean(1)
        orders = orders[losses.argsort()[:kept].cpu()]
    return slices.scores[orders[0]]


def learn_batches(u, x, generator):
    """Scores (T, 1, m) of images x (m, d) for the batches of the first epoch, in their order, from a few neurons."""
    u = u[:NEURONS]
    equal = torch.zeros(BATCHES, 1, len(x)).to(x)
    slices = initial_slices(u[:, :-1], x, generator, equal)
    slices = fit(u, x, slices, STEPS[0], generator=generator, **FIXED).slices
    scores = 0.1 * torch.randn(equal.shape, generator=generator).to(x)
    slices = slices._replace(scores=scores)
    learned = fit(u, x, slices, LEARN_STEPS, generator=generator, **LEARN).slices.scores
    return order_batches(u, x, slices._replace(scores=learned), generator)


def all_images(x, mirror):
    """All images (m, d) in units: x (m, d), or with a `mirror` x (m/2, d) and its mirror images."""
    return normalise_pixels(x if mirror is None else torch.cat([x, x[:, mirror]]))


def add_faint_directions(u, slices, x, spare):
    """Images x (m, d), and leading directions of what Slices leave of U (h, d), its outliers cut: (m + spare, d)."""
    residual = u - model_change(slices, x)
    bound = 3 * OUTLIER * residual.abs().median()
    residual = residual.clamp(-bound, bound)
    basis = torch.linalg.qr(x.mT)[0]
    residual = residual - residual @ basis @ basis.mT
    return torch.cat([x, torch.linalg.eigh(residual @ residual.mT)[1][:, -spare:].mT @ residual])


def unmix_span(changed, rows, shape, seed):
    """Unmix the span of rows (n, d) in a Released network, into n images: Attack."""
    basis = torch.linalg.qr(rows.double().mT)[0]
    weight, bias = changed.network[0]
    changed = changed._replace(network=(Layer(weight @ basis @ basis.mT, bias),))
    return unmixing.attack(changed, shape, count=len(rows), seed=seed, later=unmixing.SOON)


def explain(u, x, generator, mirror=None, scores=None):
    """Fit new Slices to U (h, d + 1) with images x as they are, and then both: Fit. InputError if it diverges."""
    slices = initial_slices(u[:, :-1], all_images(x, mirror), generator, scores)
    slices, *_ = fit(u, x, slices, STEPS[0], generator=generator, mirror=mirror, **FIXED)
    found = fit(u, x, slices, STEPS[1], generator=generator, mirror=mirror, **FREE)
    if not math.isfinite(found.residual):
        raise InputError(
            "The fit of Adam's step diverged: its residual is not finite. Try another SEED."
        )
    return found


def explain_epoch(u, x, generator, most):
    """As `explain`, with the batches of the first epoch, but without them if a residual above `most` is left: Fit."""
    state = generator.get_state()
    found = explain(u, x, generator, scores=learn_batches(u, x, generator))
    if found.residual <= most:
        return found
    generator.set_state(state)
    return explain(u, x, generator)


def normalise_change(layer):
    """U (h, d + 1) of size SIZE, as was added to a Layer, in single precision, its biases last; InputError if none."""
    if layer.bias is None:
        raise InputError(
            "The first layer has no biases, which say how large the images are: give one that has."
        )
    u = joint(layer).float()
    return SIZE * u / u.square().mean().sqrt()


def attack(
    released: Released,
    initial: Network,
    shape: Shape,
    count: int,
    seed: int = 0,
    *,
    alpha: float | None = None,
    mirrored: bool = False,
) -> Attack:
    """The images (n, d) behind a first layer that Adam trained from a known start: Attack.

    If `mirrored`, half of the images are mirror images of the others, and n is the count. Else n is a SPAREth larger:
    the spare ones are no training images, but nobody knows which these are. `alpha` is as in `first_layer.difference`.
    Of up to MOST images that are not mirrored, the batches of the first epoch are learned, too, and left out again if
    the fit gains little. InputError as `difference` and `unmixing.read` say, without biases, and if the fit diverges.
    """
    clock = time.perf_counter()
    if mirrored and (count % 2 or shape[1] % 2):
        raise InputError(f"Mirror images need an even COUNT and width, not {count} and {shape[1]}.")
    generator = torch.Generator().manual_seed(seed)
    mirror = mirror_of(shape) if mirrored else None
    added = first_layer.difference(released.network, initial, alpha)
    changed = first_layer.as_released(added, released)
    u = normalise_change(added.layer)

    found = unmixing.attack(changed, shape, count=count, seed=seed, later=unmixing.SOON, most=CROWD)
    first = explain(u, begin(found.images, mirror), generator, mirror)
    rows = all_images(first.images, mirror)
    if not mirrored:
        rows = add_faint_directions(u[:, :-1], first.slices, rows, math.ceil(count / SPARE))
    found = unmix_span(changed, rows, shape, seed)
    x = begin(found.images, mirror)
    if mirrored or count > MOST:
        last = explain(u, x, generator, mirror)
    else:
        last = explain_epoch(u, x, generator, WORTH * first.residual)
    found = unmix_span(changed, all_images(last.images, mirror), shape, seed)
    details = Undone(alpha=added.removed[0], fits=(first, last))
    return found._replace(details=details, seconds=time.perf_counter() - clock)
