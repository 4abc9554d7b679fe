"""A grid of starts in one call against one start after the other, and all-pairs SSIM against a library called for every pair.

The starts are those of eq. (10), 5 × 5 of them. One after the other they are attacked once in the same coordinates as the
batch, which shows what batching is worth, and once in pixels, which is how a single attack is run in the book.
"""

import time

import torch
from skimage.metrics import structural_similarity

from utils import affine, bilevel, decoreco, evaluate, images, landscape, mlp, starts

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
STEPS = 100  # of DecoReco
WEIGHT_DECAY = 1e-2


def seconds(function):
    """The result and the time of one call."""
    if DEVICE.type == "cuda":
        torch.cuda.synchronize()
    begun = time.perf_counter()
    result = function()
    if DEVICE.type == "cuda":
        torch.cuda.synchronize()
    return result, time.perf_counter() - begun


def grid_table(width, m=50):
    """Time the 25 starts of both formulations, the affine model and a three-layer network of this width."""
    data = images.split(images.load("photos"), m, m, 0, DEVICE)
    truth, labels = data.secret.images, data.secret.labels
    noise = starts.random(m, truth.shape[1], 0, DEVICE)
    first, second = landscape.pairs(torch.linspace(0, 1, 5))
    target = affine.train(*data.secret, WEIGHT_DECAY).weights
    victim = mlp.victim(*data.secret, mlp.RECIPES["regression"], width)

    def by_bilevel(x, basis):
        own = None if basis is None else landscape.reachable(x, target[:-1])
        return bilevel.attack(target, labels, x, weight_decay=WEIGHT_DECAY, basis=own)

    def by_decoreco(x, basis):
        settings = {"iterations": STEPS, "range_weight": 0.0, "basis": basis}
        return decoreco.attack(victim.weights, labels, x, **settings)

    attacks = {
        "bilevel": (by_bilevel, target[:-1], 0.0),
        f"DecoReco, {STEPS} steps": (by_decoreco, decoreco.span(victim.weights).mT, victim.mean),
    }
    total = [0.0, 0.0, 0.0]
    print(f"\nwidth {width}\n25 starts            one call   one by one   … in pixels   ratio   ratio to pixels")
    for name, (attack, rows, mean) in attacks.items():
        sets = [part - mean for part in (truth, data.known.images, noise)]
        basis, x = landscape.reachable(*sets, rows), starts.mixture(*sets, first, second)
        attack(x[:2], basis)  # warm-up
        together, one = seconds(lambda: attack(x, basis))
        singles, several = seconds(lambda: [attack(start, basis) for start in x])
        _, pixels = seconds(lambda: [attack(start, None) for start in x])
        if attack is by_bilevel:
            single = torch.stack([found.images for found in singles])
            assert (together.images - single).norm() <= 1e-4 * single.norm()
        total = [a + b for a, b in zip(total, (one, several, pixels))]
        line(name, one, several, pixels)
    line("both", *total)


def line(name, one, several, pixels):
    """Print one line of the table."""
    print(
        f"{name:20} {one:6.2f} s   {several:8.2f} s   {pixels:9.2f} s   {several / one:4.1f}×   {pixels / one:10.1f}×"
    )


def similarity_table(n=1000, k=500, sample=200):
    """Time all pairs of n and k images."""
    crops = torch.as_tensor(images.load("photos").images)  # (N, 32, 32, 3)
    shape = tuple(crops.shape[1:])
    rows = crops.reshape(len(crops), -1)
    rows = rows.repeat((n + k) // len(rows) + 1, 1)[: n + k]
    generator = torch.Generator().manual_seed(0)
    rows = (rows + 0.1 * torch.rand(rows.shape, dtype=rows.dtype, generator=generator)).clamp(0, 1)
    x, y = rows[:n].to(DEVICE), rows[n:].to(DEVICE)
    evaluate.ssim(x[:10], y[:10], shape)  # warm-up
    table, fast = seconds(lambda: evaluate.ssim(x, y, shape))
    index = torch.randint(n * k, (sample,), generator=generator)
    pairs = [(i // k, i % k) for i in index.tolist()]
    pictures = [part.reshape(-1, *shape).cpu().numpy() for part in (x, y)]
    settings = {"win_size": 7, "data_range": 1.0, "channel_axis": 2}

    def loop():
        return [structural_similarity(pictures[0][i], pictures[1][j], **settings) for i, j in pairs]

    exact, slow = seconds(loop)
    slow *= n * k / sample
    error = max(abs(table[i, j].item() - value) for (i, j), value in zip(pairs, exact))
    assert error <= 1e-5
    print(
        f"SSIM of {n} × {k} images: {fast:.2f} s; a loop over pairs {slow:.0f} s (from {sample} pairs); {slow / fast:.0f}×"
    )
    print(f"largest difference {error:.0e}")


if __name__ == "__main__":
    print(f"{torch.get_num_threads()} threads, {DEVICE.type}")
    similarity_table()
    for width in (200, 500):  # the chapter's, and that of the other chapters
        grid_table(width)
