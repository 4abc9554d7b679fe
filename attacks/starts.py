"""Where an attack may begin, each an (m, d) tensor of images. Only a proof of concept begins at the secret."""

from collections.abc import Callable

import torch

from attacks.contract import Photographs
from utils.errors import InputError
from utils.kernels.layers import Shape


def random(
    m: int,
    d: int,
    seed: int,
    device: str | torch.device = "cpu",
    draw: Callable = torch.rand,
    use: int = 1,
) -> torch.Tensor:
    """Draw every pixel from U(0, 1), alike on every device; the trainer of the same seed, use 0, has other numbers."""
    return draw(
        m, d, dtype=torch.float64, generator=torch.Generator().manual_seed((use << 30) + seed)
    ).to(device)


def normal(
    m: int, d: int, scale: float, seed: int, device: str | torch.device = "cpu"
) -> torch.Tensor:
    """Draw every pixel from N(0, `scale`²): where the stationarity attack begins, on images without their mean."""
    return scale * random(m, d, seed, device, torch.randn)


def drawings(text, shape, m, seed):
    """m copies (m, d) of a drawing in lines of text: # is ink, the rest is paper, stretched to a `shape` (H, W, C).

    Each copy has a paper of its own, of a colour from U(0, 1), and an ink half of the range away in every channel.
    """
    lines = text.strip("\n").split("\n")
    width = max(map(len, lines))
    if width == 0:
        raise InputError("DRAWING is empty: give it a line of text, with # for dark.")
    ink = torch.tensor([[mark == "#" for mark in line.ljust(width)] for line in lines])
    size = shape[:2]
    mode = "area" if width > shape[1] else "nearest"
    ink = torch.nn.functional.interpolate(ink[None, None].double(), size=size, mode=mode).reshape(
        1, -1, 1
    )
    paper = random(m, shape[2], seed)[:, None]  # (m, 1, C)
    return ((paper + ink / 2) % 1).reshape(m, -1)  # (m, H·W, C) -> (m, d)


def targets(known: Photographs, shape: Shape, text: str, seed: int) -> dict[str, torch.Tensor]:
    """Pictures (m, d) to plant in place of m training images: {noise, the known photographs, a drawing}."""
    m, d = known.images.shape
    return {
        "noise": random(m, d, seed, known.images.device),
        "photographs": partition(known, m),
        "drawing": drawings(text, shape, m, seed).to(known.images),
    }


def partition(known: Photographs, m: int) -> torch.Tensor:
    """Return the first m/K images of each of K classes of a part that the attacker knows, class 0 first."""
    kinds = int(known.labels.max()) + 1
    each = m // kinds
    available = len(known.labels) // kinds
    if each > available:
        raise InputError(
            f"PARTITION holds {available * kinds} images, but the start needs {m}: make it larger."
        )
    return torch.cat([known.images[k * available : k * available + each] for k in range(kinds)])
