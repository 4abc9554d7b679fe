"""The seed that initial weights were drawn from, found by trying: the usual ones first, then all 2³².

Torch draws on a CPU by MT19937 (Matsumoto and Nishimura, 1998), of whose seed the low 32 bits count. Training leaves
much of the first layer: it agrees with what its own seed draws, and with other seeds no more than fair coins do.
"""

from collections.abc import Callable, Iterable
from heapq import nlargest
from itertools import takewhile

import numpy as np
import torch
from joblib import Parallel, delayed

from utils.errors import InputError

# the last is torch's own
FAVOURITES = 42, 0, 1, 1234, 123, 2, 3, 1337, 3407, 12345, 7, 10, 31337, -1, 67280421310721
LARGE = (123456, 1234567, 12345678, 123456789, 1234567890, 987654321, 314159, 2**31 - 1, 0xDEADBEEF)
SURE = 10  # z of a seed that is told
APART = 0.75  # the next one's part of it
LEAST = 3.5  # z of a seed to look at
FEW = 40  # weights by which all seeds are compared
BLOCK = 2**15  # seeds at once
SHARE = 2**20  # and in a task
# masks, see `signs`
OUTPUT = 0x00880100
TWIST = 0x01100201


def common() -> list[int]:
    """The usual seeds, the likeliest first: favourites, 0 to 99,999, dates of 2015 to 2026, some large ones."""
    days = [100 * month + day for month in range(1, 13) for day in range(1, 32)]
    dates = [10_000 * year + day for year in range(2015, 2027) for day in (year, *days)]
    return [*dict.fromkeys(seed % 2**32 for seed in (*FAVOURITES, *range(100_000), *dates, *LARGE))]


def score(seed: int, draw: Callable[[torch.Generator], torch.Tensor], values: np.ndarray) -> float:
    """z of a seed: √n times the correlation of weights (n,) with what `draw` takes of its generator, by any fill."""
    drawn = draw(torch.Generator().manual_seed(seed)).flatten()
    return float(np.corrcoef(drawn, values)[0, 1] * len(values) ** 0.5)


def choose(scored: Iterable[tuple[float, int]]) -> tuple[float, int]:
    """The (z, seed) of those scored that cannot be chance, e⁻⁵⁰ for a wrong seed; InputError if none is, or two are."""
    (z, seed), (second, _) = nlargest(2, [*scored, (-np.inf, -1), (-np.inf, -1)])
    if z > SURE and second < APART * z:
        return z, seed
    raise InputError(
        f"No seed is told by its z, {z:.1f}, with {second:.1f} for the next; it takes one above {SURE}, and the next "
        "far below: try more weights, or other seeds."
    )


def signs(draws: np.ndarray, seeds: np.ndarray) -> np.ndarray:
    """Whether draws t < 227 (n,) of torch.rand, all different, by seeds (m,) of uint32, are 1/2 or more: 0 or 1 (n, m).

    That is bit 23 of output t. From the seed's words x to outputs, all is shifts and exclusive ors: so the bit says
    whether the number of ones at certain places, a mask, is odd. Tempering reads it at OUTPUT of a word, which the
    twist made: x_{t+397}, with y moved one to the right, and with a constant if y is odd; y is the top bit of x_t and
    the rest of x_{t+1}. So it is read at OUTPUT of x_{t+397} and at TWIST of y: OUTPUT moved back, and the last bit,
    since the constant has an odd number of ones at OUTPUT. The top bit is not among them: x_t does not matter.
    """
    row = {t: k for k, t in enumerate(draws.tolist())}
    ones = np.zeros((len(draws), len(seeds)), np.uint32)
    word = seeds.copy()
    for place in range(1, max(row) + 398):
        word ^= word >> 30
        word *= 1812433253
        word += place
        if place - 1 in row:
            ones[row[place - 1]] ^= word & TWIST
        if place - 397 in row:
            ones[row[place - 397]] ^= word & OUTPUT
    return np.bitwise_count(ones) & 1


def scan(
    draws: np.ndarray, values: np.ndarray, first: int, count: int, least: float
) -> list[tuple[float, int]]:
    """[(z, seed)], z > `least`, of `count` seeds from `first`: weights (n,), around 0, by `signs` of draws (n,)."""
    weights = (values / np.linalg.norm(values)).astype(np.float32)
    found = []
    for begin in range(first, first + count, BLOCK):
        seeds = np.arange(begin, min(begin + BLOCK, first + count)).astype(np.uint32)
        z = 2 * (weights @ signs(draws, seeds).astype(np.float32)) - weights.sum()
        found += [(float(z[k]), begin + int(k)) for k in np.flatnonzero(z > least)]
    return found


def search(
    draws: np.ndarray, values: np.ndarray, seeds: int = 2**32, jobs: int = 1
) -> tuple[float, int]:
    """(z, seed) of all below `seeds`, by values (n,) of draws (n,) of torch.rand; InputError as `choose`.

    The FEW largest values of draws t < 227 choose by `scan` whom all score: that takes a core 0.4 hours for 2³². Of a
    normal fill give the second eight of each sixteen, sin(2πu), signs turned.
    """
    some = np.argsort(-np.abs(np.where(draws < 227, values, 0)))[:FEW]
    if len(values) <= SURE**2 or draws[some].max() >= 227 or not np.isfinite(values).all():
        raise InputError(
            f"A seed is told by more than {SURE**2} finite weights, {FEW} of them of the first 227 draws."
        )
    most = int(draws.max()) + 1
    best: list = []
    # after a sure one, no share is begun
    firsts = takewhile(lambda _: not best or best[0][0] <= SURE, range(0, seeds, SHARE))
    tasks = (delayed(scan)(draws[some], values[some], first, SHARE, LEAST) for first in firsts)
    for hits in Parallel(jobs, return_as="generator")(tasks):
        scored = [
            (score(seed, lambda g: torch.rand(most, generator=g)[draws], values), seed)
            for _, seed in hits
        ]
        best = nlargest(2, [*best, *scored])
    return choose(best)
