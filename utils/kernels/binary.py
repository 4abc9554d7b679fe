"""Linear equations over GF(2): every number is a bit, a sum is an exclusive or, and 64 bits share a word.

Rows are eliminated 64 columns at a time. The 64 pivots of a word are first made a unit block, and the sums of each
eight of them are tabulated, so that any other row loses its part by eight look-ups: the method of the four Russians
(Arlazarov et al., 1970; Albrecht, Bard and Hart, 2010). What was taken from a row stays in the word that became zero,
as in an LU factorisation, so that other right-hand sides, and checks, cost little.
"""

from typing import NamedTuple

import numpy as np

BITS = 64  # in a word
ONE = np.uint64(1)
FIRST = 160  # rows among which the pivots of a word are sought before all others are
CHUNK = 128  # rows that are changed at once: they stay in the cache


class Block(NamedTuple):
    """The pivots of one word."""

    word: int
    row: int  # where their rows begin
    columns: np.ndarray  # (k,) within the word, rising
    # (k,) words: of which of the k rows, as they were, each pivot's row is the sum
    inverse: np.ndarray


class Factors(NamedTuple):
    """Equations after elimination."""

    # (n, w) words: the pivots' rows, and in words before a row's own what was taken from it
    rows: np.ndarray
    order: np.ndarray  # (n,) which equation stands in which row
    blocks: list  # of Blocks
    rank: int


def pack(bits: np.ndarray) -> np.ndarray:
    """Bits (n, c) as words (n, ⌈c/64⌉), the first column lowest."""
    padded = np.pad(bits.astype(np.uint8), ((0, 0), (0, -bits.shape[1] % BITS)))
    return np.packbits(padded, axis=1, bitorder="little").view(np.uint64)


def unpack(words: np.ndarray, columns: int) -> np.ndarray:
    """Words (n, w) as bits (n, columns), of type uint8."""
    places = np.ascontiguousarray(words).view(np.uint8)
    return np.unpackbits(places, axis=1, bitorder="little", count=columns)


def parity(words: np.ndarray) -> np.ndarray:
    """Of words (n, w) whether the number of ones in each row is odd: (n,) of type uint64."""
    return (np.bitwise_count(words).sum(1) & 1).astype(np.uint64)


def tabulate(rows: np.ndarray) -> np.ndarray:
    """All sums of each eight of 64 rows (64, w): (8, 256, w)."""
    sums = np.zeros((8, 256, rows.shape[1]), np.uint64)
    for k, row in enumerate(rows):
        half = 1 << k % 8
        sums[k // 8, half : 2 * half] = sums[k // 8, :half] ^ row
    return sums


def add_sums(rows: np.ndarray, table: np.ndarray, chosen: np.ndarray) -> None:
    """Add to rows (n, w), in place, the sums that the bits of `chosen` (n,) name in a table of `tabulate`."""
    places = np.ascontiguousarray(chosen)[:, None].view(np.uint8)  # (n, 8)
    total, found = np.empty((2, CHUNK, rows.shape[1]), np.uint64)
    for begin in range(0, len(rows), CHUNK):
        part = rows[begin : begin + CHUNK]
        total[:] = 0
        for sums, place in zip(table, places[begin : begin + CHUNK].T):
            total[: len(part)] ^= np.take(sums, place, axis=0, out=found[: len(part)], mode="clip")
        part ^= total[: len(part)]


def find_pivots(words: np.ndarray) -> tuple[list, list, np.ndarray]:
    """Of words (n,) k independent ones, and k columns, in each of which a sum of these has the only one of all k.

    Returned are the words' numbers, the columns, and the sums (k,), whose bit i stands for the i-th of the k words.
    """
    words = words.copy()
    sums = np.zeros_like(words)
    taken = []
    columns = []
    for c in range(BITS):
        has = (words >> np.uint64(c) & ONE).astype(bool)
        free = has.copy()
        free[taken] = False
        if not free.any():
            continue
        p = int(free.argmax())
        sums[p] ^= ONE << np.uint64(len(taken))
        taken.append(p)
        columns.append(c)
        has[p] = False
        words[has] ^= words[p]
        sums[has] ^= sums[p]
    return taken, columns, sums[taken]


def factor(rows: np.ndarray) -> Factors:
    """Eliminate rows (n, w) of packed bits, which are overwritten: Factors."""
    order = np.arange(len(rows))
    blocks = []
    r = 0
    for w in range(rows.shape[1]):
        taken, columns, inverse = find_pivots(rows[r : r + FIRST, w])
        if len(columns) < BITS:
            taken, columns, inverse = find_pivots(rows[r:, w])
        if not columns:
            continue
        k = len(columns)
        moved = np.array(taken + [i for i in range(max(taken) + 1) if i not in taken])
        for part in (rows, order):
            part[r : r + len(moved)] = part[r + moved]
        # the k rows become a unit block in their columns
        block = np.zeros((BITS, rows.shape[1] - w), np.uint64)
        block[:k] = rows[r : r + k, w:]
        rows[r : r + k, w:] = 0
        add_sums(rows[r : r + k, w:], tabulate(block), inverse)
        # and all rows below lose what they have there
        block[:k] = rows[r : r + k, w:]
        chosen = rows[r + k :, w].copy()
        if k < BITS:
            chosen = pack(unpack(chosen[:, None], BITS).take(columns, axis=1))[:, 0]
        add_sums(rows[r + k :, w:], tabulate(block), chosen)
        rows[r + k :, w] = chosen
        blocks.append(Block(word=w, row=r, columns=np.array(columns), inverse=inverse))
        r += k
    return Factors(rows=rows, order=order, blocks=blocks, rank=r)


def solve(factors: Factors, right: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The solution (w,), packed, whose free columns are zero, and which of the n − rank spare equations it breaks."""
    rows = factors.rows
    y = right[factors.order].astype(np.uint64)
    for w, r, columns, inverse in factors.blocks:
        k = len(columns)
        y[r : r + k] = parity(inverse[:, None] & pack(y[None, r : r + k]))
        y[r + k :] ^= parity(rows[r + k :, w, None] & pack(y[None, r : r + k]))
    solution = substitute(factors, y, np.zeros(rows.shape[1], np.uint64))
    return solution, y[factors.rank :].astype(bool)


def substitute(factors: Factors, y: np.ndarray, solution: np.ndarray) -> np.ndarray:
    """A solution (w,) from reduced right-hand sides (n,) and one that holds the values of its free columns."""
    for w, r, columns, _ in reversed(factors.blocks):
        rows = slice(r, r + len(columns))
        bits = y[rows] ^ parity(factors.rows[rows, w:] & solution[w:])
        solution[w] |= np.bitwise_or.reduce(bits << columns.astype(np.uint64))
    return solution


def solve_homogeneous(factors: Factors, unknowns: int) -> list[np.ndarray]:
    """For each of the `unknowns` without a pivot the solution (w,) of the homogeneous equations in which it is one."""
    pivots = {BITS * block.word + c for block in factors.blocks for c in block.columns}
    begins = [pack(np.arange(unknowns)[None] == c)[0] for c in range(unknowns) if c not in pivots]
    return [substitute(factors, np.zeros(len(factors.order), np.uint64), begin) for begin in begins]


def check_sums(factors: Factors, wanted: np.ndarray) -> np.ndarray:
    """Which equations (n, c) sum up to zero, of sums that hold the spare ones that `wanted` (n − rank, c) says.

    Where a solution contradicts spare equations b, each column of `wanted` summed over b is the sum of the right-hand
    sides that are wrong.
    """
    sums = np.zeros((len(factors.order), wanted.shape[1]), np.float32)
    sums[factors.rank :] = wanted
    for w, r, columns, inverse in reversed(factors.blocks):
        k = len(columns)
        taken = unpack(factors.rows[r + k :, w, None], k).astype(np.float32)
        own = unpack(inverse[:, None], k).astype(np.float32)
        sums[r : r + k] = own.T @ ((sums[r : r + k] + taken.T @ sums[r + k :]) % 2) % 2
    return sums[np.argsort(factors.order)].astype(np.uint8)
