"""The generator behind the initial weights: read from the signs of trained ones, and with it the start, bit for bit.

torch draws a start on the CPU from a Mersenne twister. Whether a weight began above or below the middle of its range is
one bit of one output, or the sum of two, and so a sum of unknown bits of the generator's state (`mersenne`). Training
hardly ever takes a large weight of a quiet neuron across the middle. So the signs of the largest trained weights are
equations for the state. More of them are taken than there are unknowns, and what is returned agrees with all that are
left over: a wrong start would do so with a chance of 2^−500.
"""

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

import numpy as np
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from attacks import mersenne
from utils.errors import InputError
from utils.kernels import binary
from utils.kernels.layers import Network

EQUATIONS = 20_500  # 563 more than there are unknowns
SPARE = 64  # equations that must be left over, at least
FREE = 8  # unknowns without a pivot whose values are tried, at most
LEADING = 10, 3, 30  # singular directions that are taken for what training wrote, in turn
SHARE = 1 / 6  # of a layer's directions, of which no more are taken
FLOOR = 0.02  # of a start's variance, by which every weight is taken to have moved
QUIET = 0.1  # share of the neurons whose energy is taken for the start's
DOUBTFUL = 2500  # of the least reliable equations, among which up to four wrong ones are sought
TRIED = 64  # values by which a rule is tried before it is tried by all
RULES = {  # outputs that a number of a uniform distribution takes: bits of its first one that say whether it is above the middle
    "float32": (1, 1 << 23),
    "float64": (2, 1 << 20),
    "bfloat16": (1, 1 << 7),
    "float16": (1, 1 << 10),
}
PAIRS = 16  # normal numbers are drawn so many at a time: the first eight are cosines, the others sines of eight angles
FEW = "Only {} of its weights tell bits of the generator, and {} are needed: try seeds instead."
NONE = "Its signs agree with no state of torch's generator: another generator drew them, the layers have another order, "
NONE += "neurons were permuted, or the weights moved too far."


class Drawn(NamedTuple):
    """What the initial values of one parameter say about bits of the generator's outputs."""

    name: str
    places: torch.Tensor  # (n,) of the values among the parameter's
    outputs: np.ndarray  # (n,) rising, the number of the output behind each value
    mask: int  # of the bits of it whose parity tells whether the value is above the middle
    middle: float
    above: bool  # whether the parity is one above the middle
    variance: float  # of the values


class Start(NamedTuple):
    """A start that was read."""

    state: torch.Tensor  # of torch's generator before the start was drawn, as `torch.set_rng_state` takes it
    module: torch.nn.Module  # the start
    seed: tuple[int, int] | None  # the low 32 bits of the seed, and how many outputs were drawn before; None if too many
    spare: int  # equations that were left over and hold
    mended: int  # equations that were found to be wrong


def stack_of(network: Network) -> torch.nn.Sequential:
    """Fully connected layers of these sizes with torch's own start, in this order."""
    layers = [torch.nn.Linear(*l.weight.shape[::-1], bias=l.bias is not None) for l in network]
    return torch.nn.Sequential(*layers)


def parameters_of(network: Network) -> dict[str, torch.Tensor]:
    """The parameters of a network of fully connected layers as `stack_of` names them."""
    named = {f"{k}.{name}": getattr(layer, name) for k, layer in enumerate(network) for name in ("weight", "bias")}
    return {name: p for name, p in named.items() if p is not None}


@contextlib.contextmanager
def drawing_from(state: torch.Tensor) -> Iterator[None]:
    """Torch's generator of the CPU in a state, and afterwards as it was before."""
    with torch.random.fork_rng(devices=[]):
        torch.set_rng_state(state)
        yield


class Watch(TorchDispatchMode):
    """Where torch's generator stands, among the outputs (n,) of its seed, after every operation that draws from it."""

    def __init__(self, seed):
        super().__init__()
        self.seed, self.outputs, self.marks = seed, mersenne.draw(1 << 16, seed), [0]

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        before = torch.get_rng_state()
        result = func(*args, **(kwargs or {}))
        if not torch.equal(before, torch.get_rng_state()):
            count = result.numel() if isinstance(result, torch.Tensor) else 0
            self.marks.append(self.position(self.marks[-1] + 4 * count + 64))
        return result

    def position(self, most):
        """The place of the next output, of which four are drawn from a copy of the generator and sought."""
        if most + 4 > len(self.outputs):
            self.outputs = mersenne.draw(2 * (most + 4), self.seed)
        probe = torch.rand(4, generator=torch.Generator().set_state(torch.get_rng_state()))
        seen = self.outputs[self.marks[-1] : most + 4] & (1 << 24) - 1
        same = seen[:-3] == int(probe[0] * 2**24)
        for k in range(1, 4):
            same &= seen[k : len(seen) - 3 + k] == int(probe[k] * 2**24)
        if not same.any():
            raise InputError("It draws from torch's generator in a way whose outputs cannot be counted.")
        return self.marks[-1] + int(same.argmax())


def watch(build: Callable[[], torch.nn.Module], seed: int = 1) -> list[Drawn]:
    """Which outputs of torch's generator are behind the parameters that a function `build()` draws, and how.

    No initialiser needs to be known: the function is called with a known seed, and a parameter follows from outputs if
    the bits of RULES separate its values above and below one middle, all of them.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        with Watch(seed) as watched:
            module = build()
    segments = list(zip(watched.marks, watched.marks[1:]))[::-1]  # what was drawn last counts
    found: list[Drawn] = []
    for name, p in module.named_parameters():
        if p.dim() < 2:
            continue  # a few biases
        values = p.detach().double().flatten()
        for begin, end in segments:
            if end - begin >= len(values) and (drawn := explain(name, values, watched.outputs[begin:end], begin)):
                found += drawn
                break
    return found


def explain(name, values, outputs, begin):
    """The Drawn of a parameter's values (n,), if they follow from these outputs from number `begin` on; else none."""
    for step, mask in RULES.values():
        if step * len(values) <= len(outputs):
            each = step * np.arange(len(values))
            if one := separate(name, values, torch.arange(len(values)), outputs[each], mask, begin + each):
                return [one]
            whole = max(0, len(values) // PAIRS - (len(values) % PAIRS > 0)) * PAIRS  # the last are drawn again
            places = torch.arange(whole).view(-1, 2, PAIRS // 2)
            angles = step * places[:, 1].flatten().numpy()  # of both of a pair
            halves = [(places[:, 1], mask), (places[:, 0], mask | mask >> 1)]
            found = [separate(name, values, p.flatten(), outputs[angles], m, begin + angles) for p, m in halves]
            if len(angles) and all(found):
                return found
    return []


def separate(name, values, places, outputs, mask, numbers):
    """Drawn, if the parity of the outputs' bits tells which of the values are above a middle; else None."""
    for some in (TRIED, len(places)):
        ones = torch.from_numpy(np.bitwise_count(outputs[:some] & np.uint32(mask)) & 1).bool()
        here = values[places[:some]]
        if not ones.any() or ones.all():
            return None
        above = bool(here[ones].mean() > here[~ones].mean())
        high, low = (here[ones], here[~ones]) if above else (here[~ones], here[ones])
        if low.max() > high.min():
            return None
    middle = (low.max() + high.min()).item() / 2
    return Drawn(name, places, numbers, mask, middle, above, values.var().item())


def clean(weight: torch.Tensor, variance: float, leading: int) -> tuple[torch.Tensor, torch.Tensor]:
    """What is left of a start in a trained weight (h, …), and how reliable each value's sign is, both flat.

    Training adds few directions and the start, of a known variance, lies in all: so the `leading` singular ones are
    taken off. Uncertain is a value by what it lost with them, and by the energy that its row has beyond a start's.
    """
    rows = weight.detach().double().flatten(1)
    count = min(leading, int(SHARE * min(rows.shape)))
    left, values, right = torch.linalg.svd(rows, full_matrices=False)
    left, right = left[:, :count], right[:count]
    rows = rows - left * values[:count] @ right
    lost = left.square().sum(1, keepdim=True) + right.square().sum(0)
    energy = rows.square().mean(1, keepdim=True) / (1 - lost.mean(1, keepdim=True)).clamp_min(SHARE)
    variance = min(variance, energy.quantile(QUIET).item())
    moved = lost + (energy / variance - 1).clamp_min(0) + FLOOR
    return rows.flatten(), (rows.abs() / (variance * moved).sqrt()).flatten()


def choose_signs(parameters: Mapping[str, torch.Tensor], drawn: list[Drawn], leading: int, count: int = EQUATIONS):
    """The `count` most reliable equations, the least reliable first: number of the Drawn, output and right-hand side."""
    parts = []
    cleaned = {}
    for k, one in enumerate(drawn):
        if one.name not in cleaned:
            p = parameters[one.name]
            cleaned[one.name] = clean(p - one.middle, one.variance, leading)
        values, reliability = (part[one.places].numpy() for part in cleaned[one.name])
        parts.append((np.full(len(values), k), one.outputs, (values > 0) == one.above, reliability))
    which, outputs, right, reliability = map(np.concatenate, zip(*parts))
    best = np.argsort(reliability)[-count:]
    return which[best], outputs[best], right[best]


def rows_of(drawn, which, outputs):
    """The equations (n, WIDTH) of outputs (n,) by the masks of their Drawn; unknowns begin WORDS outputs before."""
    rows = np.empty((len(which), mersenne.WIDTH), np.uint64)
    for mask in {one.mask for one in drawn}:
        of_mask = np.flatnonzero(np.array([one.mask == mask for one in drawn])[which])
        order = of_mask[np.argsort(outputs[of_mask])]
        if len(order):
            rows[order] = mersenne.equations(outputs[order] + mersenne.WORDS, mask)
    return rows


def find_wrong(fingerprints: np.ndarray, bad: np.ndarray) -> np.ndarray | None:
    """Which one to four equations are wrong, if they are among the first DOUBTFUL: numbers, or None.

    `fingerprints` (n, 64) say which checks hold an equation, and those of the wrong ones sum up to the failing checks
    `bad` (64,). Sums of two are compared with what sums of two others leave; no equation counts as one, too.
    """
    each = np.append(binary.pack(fingerprints[:DOUBTFUL])[:, 0], np.uint64(0))
    first, second = np.triu_indices(len(each), 1)
    sums = each[first] ^ each[second]
    hits = np.flatnonzero(np.isin(sums, sums ^ binary.pack(bad[None])[0, 0]))
    if not len(hits):
        return None
    other = np.flatnonzero(sums == sums[hits[0]] ^ binary.pack(bad[None])[0, 0])
    four = [first[hits[0]], second[hits[0]], first[other[0]], second[other[0]]]
    numbers, times = np.unique(four, return_counts=True)
    return numbers[(times == 1) & (numbers < len(each) - 1)]


def solve(rows: np.ndarray, right: np.ndarray) -> tuple[list[np.ndarray], int, int]:
    """The solutions (WIDTH,) of equations, the least reliable first: none, if they contradict; spare and mended ones."""
    factors = binary.factor(rows)
    spare = len(right) - factors.rank
    solution, bad = binary.solve(factors, right)
    if spare < SPARE or factors.rank < mersenne.ORDER - FREE:
        return [], spare, 0
    wrong = np.zeros(0, int)
    if bad.any():
        wrong = find_wrong(binary.check_sums(factors), bad[: binary.BITS])
        if wrong is None:
            return [], spare, 0
        right = right.copy()
        right[wrong] ^= True
        solution, bad = binary.solve(factors, right)
    if bad.any():
        return [], spare, 0
    solutions = [solution]
    for other in binary.solve_homogeneous(factors, mersenne.ORDER):
        solutions += [one ^ other for one in solutions]
    return solutions, spare, len(wrong)


def read(parameters: Mapping[str, torch.Tensor], build: Callable[[], torch.nn.Module]) -> Start:
    """The Start of trained `parameters` {name: values}, of a module that `build()` draws; InputError if it is not read.

    A small layer has to be read as a whole, so that few of its signs may be wrong. All that torch draws on the CPU by
    its own initialisers can be read but for `orthogonal_` and a `trunc_normal_` whose bounds bite.
    """
    drawn = watch(build)
    if not drawn:
        raise InputError("No initial value is drawn by torch's generator: another one drew them, or none.")
    for leading in LEADING:
        which, outputs, right = choose_signs(parameters, drawn, leading)
        if len(which) < mersenne.ORDER + SPARE:
            raise InputError(FEW.format(f"{len(which):,}", f"{mersenne.ORDER + SPARE:,}"))
        solutions, spare, mended = solve(rows_of(drawn, which, outputs), right)
        if solutions:
            starts = [start_of(solution, build) for solution in solutions]
            likeness = [alike(parameters, module) for *_, module in starts]
            words, state, module = starts[int(np.argmax(likeness))]
            return Start(state, module, mersenne.find_seed(words), spare, mended)
    raise InputError(NONE)


def start_of(solution, build):
    """Of unknowns (WIDTH,) the words of state, torch's state, and the module that `build()` draws from it."""
    words = mersenne.state_after(solution)
    state = mersenne.as_generator(words).get_state()
    with drawing_from(state):
        return words, state, build()


def alike(parameters, module):
    """The sum of correlations of parameters with those of a module."""
    return sum(
        torch.nn.functional.cosine_similarity(p.double().flatten(), parameters[name].double().flatten(), dim=0).item()
        for name, p in module.named_parameters()
        if name in parameters
    )
