"""An adversary who judges its own reconstructions: attacks made twice, scores of them, and a combination of scores.

Equations are those of the chapter *Can the adversary tell?*. `known` is a Part of the adversary's own photographs.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import NamedTuple

import torch
from sklearn.linear_model import LogisticRegression

from attacks import decoreco, starts, unmixing
from attacks.contract import Attack, Photographs
from utils.kernels import contrast
from utils.kernels.layers import Shape, forward
from utils.kernels.similarity import is_constant, match
from utils.networks import Released, span, within

COMBINED = ("agreement", "recurrence", "contrast")  # the scores that `fit` combines
NEAR = 0.02  # the width of a kink, in units of the usual pre-activation
SPREAD = 0.22  # of the pixels of an unmixed image, as in `unmixing.attack`


class Adversary(NamedTuple):
    """All that an adversary has."""

    released: Released  # what was released
    known: torch.Tensor  # photographs (k, d) without their mean
    shape: Shape  # of an image
    start: torch.Tensor  # (n, d), where the first attack by stationarity began
    attack: Attack  # by stationarity from this start
    again: Attack  # by stationarity from noise
    unmixed: torch.Tensor  # unmixed images (m, d)
    surplus: torch.Tensor  # (m + m/5, d), more unmixed images than there are training images
    surplus_again: torch.Tensor  # (m + m/5, d), the same from another seed


def photographs(known: Photographs, n: int, shape: Shape) -> torch.Tensor:
    """n known photographs or fewer, of every class alike, less their mean; mirrored ones where these are too few."""
    some = known.images
    labels = known.labels
    if n > len(some):
        mirrored = some.view(-1, *shape).flip(2).flatten(1)
        some = torch.cat([some, mirrored])
        labels = torch.cat([labels, labels])
    kinds = labels.unique()
    some = torch.cat([some[labels == kind][: -(-n // len(kinds))] for kind in kinds])
    return (some - known.images.mean(0))[:n]


def draw_start(known: Photographs, n: int, shape: Shape, seed: int, place: str) -> torch.Tensor:
    """The start (n, d) of the stationarity attack: known photographs if `place` is partition, and noise otherwise."""
    if place == "partition":
        return photographs(known, n, shape)
    scale = decoreco.ADAM.scale
    return starts.normal(n, known.images.shape[1], scale, seed, known.images.device)


def unmix_surplus(released: Released, shape: Shape, seed: int) -> torch.Tensor:
    """Unmixed images (m + m/5, d) by an adversary who takes the count m for larger: the surplus must be inventions."""
    count = unmixing.read(released)[0] * 6 // 5
    basis = unmixing.read(released, count)[1]
    images = unmixing.unmix(basis, shape, count, seed)[0] @ basis.mT  # (m + m/5, d)
    return SPREAD * images / images.std(dim=1, keepdim=True)


def make_attacks(
    released: Released, known: Photographs, shape: Shape, seed: int, place: str, steps: int
) -> Adversary:
    """Attack a released network by stationarity, so many steps from `place`, and by unmixing, each twice: Adversary."""
    n = 2 * len(released.labels)
    basis = span(released.network)
    start = draw_start(known, n, shape, seed, place)
    other = draw_start(known, n, shape, seed + 1000, "random")
    settings = decoreco.ADAM._replace(iterations=steps)
    attack = partial(decoreco.attack, released, settings=settings, basis=basis)
    first = attack(start, seed=seed)
    again = attack(other, seed=seed + 1000)
    unmixed = unmixing.attack(released, shape, seed=seed).images
    more = [unmix_surplus(released, shape, s) for s in (seed, seed + 1000)]
    own = known.images - known.images.mean(0)
    return Adversary(released, own, shape, start, first, again, unmixed, *more)


def kink_share(x, network, known):
    """Eq. (eq-kink-score), the share of first neurons that bend near x (n, d): (n,).

    A neuron is near its bend if its pre-activation is small beside its root mean square over `known` images (k, d).
    """
    reached, usual = (forward(network[:1], images)[1][0] for images in (x.to(known), known))
    return (reached.abs() < NEAR * usual.square().mean(0).sqrt()).double().mean(1)


def scores(released, start, attack, again, shape):
    """What an adversary can say of an Attack from `start` (n, d): {name: score (n,)}, the higher, the likelier.

    A score that is constant up to rounding is left out, since its order would be that of rounding errors: such as the
    share in the span of an attack that never left it, which is 1 for all.
    """
    x = attack.images
    basis = span(released.network)
    inside = within(x, basis)
    before = within(start, basis)
    named = {
        "drift from the start": (inside - before).norm(dim=1) / before.norm(dim=1).clamp_min(1e-12),
        "share in the span": inside.norm(dim=1) / x.norm(dim=1).clamp_min(1e-12),
    }
    if again is not None:
        # In an independent Attack on the same network.
        named["recurrence"] = match(x, again.images, shape).signed
    if attack.coefficients is not None:
        named |= {
            "coefficient": attack.coefficients.abs(),
            "share of the residual": attack.details.share,
        }
    return {name: score for name, score in named.items() if not is_constant(score, x.shape[-1])}


def candidate_scores(adversary: Adversary) -> dict[str, torch.Tensor]:
    """Every score {name: (n,)} of the reconstructions by stationarity; `scores` and the chapter's own."""
    x = adversary.attack.images
    others = (adversary.again.images, adversary.unmixed)
    recurrence, agreement = (match(x, other, adversary.shape).signed for other in others)
    named = scores(adversary.released, adversary.start, adversary.attack, None, adversary.shape)
    return named | {"recurrence": recurrence, "agreement": agreement} | looks(x, adversary)


def surplus_scores(adversary: Adversary) -> dict[str, torch.Tensor]:
    """Every score {name: (n,)} of the surplus of unmixed images, whose sign is left open."""
    x = adversary.surplus
    others = (adversary.surplus_again, adversary.attack.images)
    recurrence, agreement = (match(x, other, adversary.shape).either for other in others)
    return {"recurrence": recurrence, "agreement": agreement} | looks(x, adversary)


def looks(x, adversary):
    """The scores of images x (n, d) by themselves."""
    alone = contrast.score(x, adversary.known, adversary.shape)
    return {"contrast": alone, "kinks": kink_share(x, adversary.released.network, adversary.known)}


def stack_scores(named):
    """The scores that are combined (n, 3)."""
    return torch.stack([named[name].double().cpu() for name in COMBINED], 1)


def fit(
    named: Mapping[str, torch.Tensor], truth: torch.Tensor
) -> Callable[[Mapping[str, torch.Tensor]], torch.Tensor] | None:
    """Fit eq. (eq-told-combination) to scores {name: (n,)} and the truth (n,) about a network of the adversary's own.

    Returns a function of scores that gives the probability (n,) of being true; None where all are true, or none is:
    then there is nothing to tell apart.
    """
    x = stack_scores(named)
    y = truth.cpu()
    if y.all() or not y.any():
        return None
    mean = x.mean(0)
    spread = x.std(0).clamp_min(1e-9)
    fitted = LogisticRegression().fit(((x - mean) / spread).numpy(), y.numpy())

    def probability(named):
        z = ((stack_scores(named) - mean) / spread).numpy()
        return torch.from_numpy(fitted.predict_proba(z)[:, 1])

    return probability
