"""The Mersenne twister MT19937 (Matsumoto and Nishimura, 1998) as one linear recurrence over GF(2).

Its state is 19,937 bits, and every bit of its outputs is a sum of some of them. So the sequence u₀, u₁, … of any one
bit obeys one recurrence, whose characteristic polynomial φ has the degree 19,937. Here u is bit 23 of the outputs, and
u₀, …, u₁₉₉₃₆ are the unknowns. Bit j of output t is the inner product of the unknowns and the coefficients of
p_j(x) xᵗ mod φ, with p₂₃ = 1. A polynomial is an integer: its bit i is the coefficient of xⁱ.
"""

import functools

import numpy as np
import torch

from utils.kernels import binary

ORDER = 19937  # of the recurrence, and bits of state
WORDS = 624  # of 32 bits, in which a generator keeps its state
BIT = 23  # of an output: the highest of those that a number in single precision is made of
WIDTH = -(-ORDER // binary.BITS)  # words of 64 bits that hold the unknowns
LAST = ORDER - binary.BITS * (WIDTH - 1)  # of them in the last word
# multiplier of the seeding, and coefficients of the twist
SEEDING = 1812433253
TWIST = 0x9908B0DF


def draw(count: int, seed: int) -> np.ndarray:
    """The first outputs (count,) of a generator with a seed below 2³², as torch and numpy agree on them."""
    return np.random.RandomState(seed).randint(0, 2**32, count, dtype=np.uint32)


def as_polynomial(bits: np.ndarray) -> int:
    """Bits (n,) as an integer, the first one lowest."""
    return int.from_bytes(binary.pack(np.asarray(bits)[None]).tobytes(), "little")


def as_words(polynomial: int) -> np.ndarray:
    """A polynomial below the degree of φ as words (WIDTH,)."""
    return np.frombuffer(polynomial.to_bytes(8 * WIDTH, "little"), "<u8").copy()


def shortest_recurrence(bits: np.ndarray) -> int:
    """The characteristic polynomial of the shortest linear recurrence of bits (n,), by Berlekamp and Massey (1969)."""
    current = 1
    former = 1
    order = 0
    gap = 1
    seen = 0
    for n, bit in enumerate(bits.tolist()):
        seen = seen << 1 | bit
        if (current & seen).bit_count() & 1:
            before = current
            current = current ^ former << gap
            if 2 * order <= n:
                order = n + 1 - order
                former = before
                gap = 0
        gap += 1
    return int(f"{current:b}"[::-1], 2) << order + 1 - current.bit_length()


@functools.cache
def characteristic() -> int:
    """φ, from outputs of any one generator."""
    return shortest_recurrence(draw(2 * ORDER + 64, seed=1) >> BIT & 1)


def degrees(polynomial):
    """The degrees of its terms."""
    return [i for i in range(polynomial.bit_length()) if polynomial >> i & 1]


def reduce(polynomial: int) -> int:
    """A polynomial modulo φ."""
    low = degrees(characteristic())[:-1]
    while high := polynomial >> ORDER:
        polynomial &= (1 << ORDER) - 1
        for i in low:
            polynomial ^= high << i
    return polynomial


def multiply(a: int, b: int) -> int:
    """The product of two polynomials modulo φ."""
    product = 0
    for i in degrees(b):
        product ^= a << i
    return reduce(product)


def invert(polynomial: int) -> int:
    """1/a modulo φ of a polynomial a, by Euclid's algorithm."""
    # r ≡ xa and s ≡ ya
    r = characteristic()
    s = polynomial
    x = 0
    y = 1
    while s != 1:
        shift = r.bit_length() - s.bit_length()
        if shift < 0:
            r, s, x, y = s, r, y, x
        else:
            r = r ^ s << shift
            x = x ^ y << shift
    return reduce(y)


def numerator(bits: int) -> int:
    """N with Σ_k u_k x^(−k−1) = N/φ, of the first ORDER bits of a sequence u with this recurrence."""
    flipped = int(f"{bits:0{ORDER}b}"[::-1], 2)
    total = 0
    for i in degrees(characteristic()):
        total ^= flipped << i
    return total >> ORDER


@functools.cache
def bit_polynomials() -> tuple[int, ...]:
    """p₀, …, p₃₁: bit j of output t is the inner product of the unknowns and p_j(x) xᵗ mod φ."""
    some = draw(ORDER, seed=7)
    numerators = [numerator(as_polynomial(some >> j & 1)) for j in range(32)]
    over = invert(numerators[BIT])
    return tuple(multiply(over, one) for one in numerators)


@functools.cache
def overflows() -> np.ndarray:
    """What the 64 coefficients from x^ORDER on are modulo φ: all sums of each eight, (8, 256, WIDTH)."""
    rows = [reduce(1 << ORDER + i) for i in range(binary.BITS)]
    return binary.tabulate(np.stack([as_words(row) for row in rows]))


def shift(rows: np.ndarray, by: np.ndarray) -> np.ndarray:
    """Polynomials (n, WIDTH), each times x to the power `by` (n,) of at most 64, modulo φ; rows are overwritten."""
    left = by.astype(np.uint64)[:, None]
    carry = np.where(left > 0, rows >> np.uint64(64) - np.maximum(left, 1), 0).astype(np.uint64)
    rows[:] = np.where(left < 64, rows << np.minimum(left, 63), 0)
    rows[:, 1:] |= carry[:, :-1]
    over = rows[:, -1] >> np.uint64(LAST) | carry[:, -1] << np.uint64(64 - LAST)
    rows[:, -1] &= np.uint64((1 << LAST) - 1)
    binary.add_sums(rows, overflows(), over)
    return rows


def equations(draws: np.ndarray, mask: int = 1 << BIT) -> np.ndarray:
    """Of outputs (n,), the unknowns whose sum is the parity of an output's bits in a mask: (n, WIDTH)."""
    bits = [p for j, p in enumerate(bit_polynomials()) if mask >> j & 1]
    base = as_words(functools.reduce(int.__xor__, bits))[None]  # times x to the power 64 k
    blocks, which = np.unique(draws // 64, return_inverse=True)
    bases = []
    at = 0
    for k in blocks:
        for _ in range(k - at):
            shift(base, np.array([64]))
        bases.append(base[0].copy())
        at = k
    rows = np.array(bases)[which]
    for begin in range(0, len(rows), 1024):
        shift(rows[begin : begin + 1024], draws[begin : begin + 1024] % 64)
    return rows


def state_after(solution: np.ndarray) -> np.ndarray:
    """The words (WORDS,) of a generator that has given its first WORDS outputs, from the unknowns (WIDTH,)."""
    outputs = np.zeros(WORDS, np.uint32)
    for j in range(32):
        bits = binary.parity(equations(np.arange(WORDS), 1 << j) & solution)
        outputs |= (bits << np.uint64(j)).astype(np.uint32)
    return untemper(outputs)


def untemper(outputs: np.ndarray) -> np.ndarray:
    """The words of state (n,) that a generator's tempering turns into these outputs."""
    x = outputs ^ outputs >> np.uint32(18)
    x ^= (x << np.uint32(15)) & np.uint32(0xEFC60000)
    y = x
    for _ in range(5):
        y = x ^ (y << np.uint32(7)) & np.uint32(0x9D2C5680)
    z = y
    for _ in range(3):
        z = y ^ z >> np.uint32(11)
    return z


def as_generator(words: np.ndarray) -> torch.Generator:
    """A torch.Generator whose next output is the first one behind these words (WORDS,) of state."""
    generator = torch.Generator()
    state = generator.get_state()
    # its seed; 32 bits for the outputs left before the next twist, and as many for "it is seeded"; the next one's place
    numbers = np.array([0, 1 + (1 << 32), 0, *words], np.uint64)
    state[: numbers.nbytes] = torch.from_numpy(numbers.view(np.uint8))
    return generator.set_state(state)


def step_back(words: np.ndarray, count: int) -> np.ndarray:
    """The words before these (WORDS,), `count` of them, and these behind them: (count + WORDS,)."""
    x = np.empty(count + WORDS, np.uint32)
    x[count:] = words
    for end in range(count, 0, -396):  # so many can be told at once
        k = max(0, end - 396)
        twisted = x[k + WORDS - 1 : end + WORDS] ^ x[k + 396 : end + 397]
        odd = twisted >> np.uint32(31)
        y = (twisted ^ odd * np.uint32(TWIST)) << np.uint32(1) | odd
        x[k:end] = y[1:] & np.uint32(1 << 31) | y[:-1] & np.uint32((1 << 31) - 1)
    return x


def find_seed(words: np.ndarray, most: int = 1_000_000) -> tuple[int, int] | None:
    """The low 32 bits of the seed, and how many outputs were drawn before these words, if at most so many; or None.

    A seed fills x₀, …, x₆₂₃ by x_j = 1812433253 (x_{j−1} ⊕ x_{j−1}/2³⁰) + j, and the first output is that of x₆₂₄.
    """
    x = step_back(words, most)
    # j, where x_j is of a seeding
    steps = x[1:] - np.uint32(SEEDING) * (x[:-1] ^ x[:-1] >> np.uint32(30))
    numbers = np.arange(2, WORDS, dtype=np.uint32)
    for i in np.flatnonzero(steps[: most + 2] == 2):
        if np.array_equal(steps[i : i + len(numbers)], numbers):
            mixed = (int(x[i]) - 1) * pow(SEEDING, -1, 2**32) % 2**32
            return mixed ^ mixed >> 30, most + 1 - int(i)
    return None
