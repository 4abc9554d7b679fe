"""Where an attack begins: the three starts of section 4.3, each an (m, d) tensor of images."""

import torch

from utils.errors import InputError


def random(m, d, seed, device="cpu"):
    """Draw every pixel from U(0, 1); the same numbers on every device."""
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(m, d, dtype=torch.float64, generator=generator).to(device)


def ground_truth(secret):
    """Return the secret training images themselves: the paper's proof of concept, which no attacker can do."""
    return secret.images.clone()


def partition(known, m):
    """Return the first m/2 images of each class of a part that the attacker knows, class 0 first."""
    available = len(known.labels) // 2
    if m // 2 > available:
        raise InputError(f"The partition holds {2 * available} images, but the start needs {m}: make PARTITION larger.")
    return torch.cat([known.images[: m // 2], known.images[available : available + m // 2]])
