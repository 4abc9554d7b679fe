"""Scores of membership from reference networks, each trained on a random half of some pictures.

The scores are the likelihood ratio of Carlini et al. (2022), LiRA, and the relative one of Zarifzadeh et al. (2024),
RMIA; larger for a member. Offline they use the networks alone that a picture was not in.
"""

import torch

A = 0.3  # of RMIA offline, the published value: the mean confidence p of networks without x stands for (1 + a)p + 1 − a


def halves(labels: torch.Tensor, count: int, seed: int) -> torch.Tensor:
    """Masks (count, n) of what the networks are trained on: a random half of every class (n,), then all others."""
    generator = torch.Generator().manual_seed(seed)
    masks = []
    for _ in range(count // 2):
        order = torch.randperm(len(labels), generator=generator)
        order = order[labels[order].argsort(stable=True)]
        half = torch.zeros(len(labels), dtype=torch.bool).index_fill(0, order[::2], True)
        masks += [half, ~half]
    return torch.stack(masks)


def logit(loss):
    """φ, the logit of the confidence exp(−loss)."""
    return -loss - (-torch.expm1(-loss)).log()


def lira(target: torch.Tensor, known: torch.Tensor, masks: torch.Tensor) -> torch.Tensor:
    """The likelihood ratio of losses `target` (n,), after those in networks (N, n) that were trained on masks (N, n).

    φ is the logit of the confidence exp(−loss), normal with one deviation for all pictures, about a mean in networks
    that a picture was in and one in the others. How far these are apart is shrunk to what it is for all pictures by as
    much as chance spreads it (empirical Bayes): a few networks tell little of one picture.
    """
    phi = logit(target)
    phis = logit(known)
    inside, outside = ((phis * mask).sum(0) / mask.sum(0) for mask in (masks, ~masks))
    squares = (phis - torch.where(masks, inside, outside)).square().sum()
    variance = squares / (masks.numel() - 2 * len(target))
    gap = inside - outside
    chance = 4 * variance / len(masks)  # variance of a gap, as a picture is in half of the networks
    kept = (1 - chance / gap.var().clamp_min(1e-30)).clamp_min(0)
    gap = (gap.mean() + kept * (gap - gap.mean())).clamp_min(0)
    return gap * (phi - (inside + outside) / 2) / variance.clamp_min(1e-30)


def rmia(target: torch.Tensor, known: torch.Tensor) -> torch.Tensor:
    """log p(x | network)/p(x) of losses (n,), where p(x) is the mean confidence of all networks' losses (N, n).

    The share of other pictures that a picture exceeds in this ratio is RMIA's score at γ = 1, of the same order.
    """
    return -target - (-known).logsumexp(0)


def lira_offline(
    target: torch.Tensor, known: torch.Tensor, masks: torch.Tensor, own_deviation: bool = False
) -> torch.Tensor:
    """How far φ of losses (n,) exceeds its mean in the networks (N, n) that a picture was not in, after masks (N, n).

    In units of its own deviation in these networks, or of one for all pictures, which leaves the order as it is.
    """
    phi = logit(target)
    phis = logit(known)
    outside = ~masks
    mean = (phis * outside).sum(0) / outside.sum(0)
    if not own_deviation:
        return phi - mean
    squares = ((phis - mean).square() * outside).sum(0) / (outside.sum(0) - 1)
    return (phi - mean) / squares.sqrt().clamp_min(1e-15)


def rmia_offline(target: torch.Tensor, known: torch.Tensor, masks: torch.Tensor) -> torch.Tensor:
    """log p(x | network)/p(x), where p(x) is half of (1 + a)q + 1 − a for the mean confidence q without the picture."""
    q = ((-known).exp() * ~masks).sum(0) / (~masks).sum(0)
    return -target - ((1 + A) * q + 1 - A).log()
