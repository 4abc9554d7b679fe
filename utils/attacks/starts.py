"""Where an attack may begin, each an (m, d) tensor of images. Only a proof of concept begins at the secret."""

import torch

from utils.errors import InputError


def random(m, d, seed, device="cpu", draw=torch.rand, use=1):
    """Draw every pixel from U(0, 1), alike on every device; the trainer of the same seed, use 0, has other numbers."""
    return draw(m, d, dtype=torch.float64, generator=torch.Generator().manual_seed((use << 30) + seed)).to(device)


def normal(m, d, scale, seed, device="cpu"):
    """Draw every pixel from N(0, `scale`²): where the stationarity attack begins, on images without their mean."""
    return scale * random(m, d, seed, device, torch.randn)


def partition(known, m):
    """Return the first m/K images of each of K classes of a part that the attacker knows, class 0 first."""
    kinds = int(known.labels.max()) + 1
    each, available = m // kinds, len(known.labels) // kinds
    if each > available:
        raise InputError(f"PARTITION holds {available * kinds} images, but the start needs {m}: make it larger.")
    return torch.cat([known.images[k * available : k * available + each] for k in range(kinds)])
