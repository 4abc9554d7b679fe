"""Where an attack begins: the starts of sections 4.3 and 4.4, each an (m, d) tensor of images."""

import torch

from utils.errors import InputError


def random(m, d, seed, device="cpu"):
    """Draw every pixel from U(0, 1); the same numbers on every device."""
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(m, d, dtype=torch.float64, generator=generator).to(device)


def ground_truth(secret):
    """Return the secret training images themselves: the paper's proof of concept, which no attacker can do."""
    return secret.images.clone()


def normal(m, d, scale, seed, device="cpu"):
    """Draw every pixel from N(0, `scale`²): where the stationarity attack begins, on images without their mean."""
    generator = torch.Generator().manual_seed(seed)
    return scale * torch.randn(m, d, dtype=torch.float64, generator=generator).to(device)


def partition(known, m):
    """Return the first m/K images of each of K classes of a part that the attacker knows, class 0 first."""
    kinds = int(known.labels.max()) + 1
    each, available = m // kinds, len(known.labels) // kinds
    if each > available:
        raise InputError(
            f"The partition holds {available * kinds} images, but the start needs {m}: make PARTITION larger."
        )
    return torch.cat([known.images[k * available : k * available + each] for k in range(kinds)])


def mixture(truth, partition, noise, first, second):
    """λ₂(λ₁x_GT + (1 − λ₁)x_part) + (1 − λ₂)x_rnd, eq. (10): (S, m, d) for S pairs of λ₁ `first` and λ₂ `second`.

    InputError unless all of them lie between 0 and 1, and there is at least one.
    """
    for name, values in (("λ₁", first), ("λ₂", second)):
        if not len(values):
            raise InputError(f"There is no {name}: give at least one value from 0 to 1.")
        wrong = values[~((values >= 0) & (values <= 1))]
        if len(wrong):
            raise InputError(f"{name} is {wrong[0].item():g}; a weight of eq. (10) must lie between 0 and 1.")
    first, second = (torch.as_tensor(values).to(truth)[:, None, None] for values in (first, second))
    return second * (first * truth + (1 - first) * partition) + (1 - second) * noise
