"""The generator behind the initial weights: read from the signs of trained ones, and with it the start, bit for bit.

torch draws a start on the CPU from a Mersenne twister. Whether a weight began above or below the middle of its range is
one bit of one output, or the sum of two, and so a sum of unknown bits of the generator's state (`mersenne`). Training
hardly ever takes a large weight of a quiet neuron across the middle. So the signs of the largest trained weights are
equations for the state. More of them are taken than there are unknowns, and what is returned agrees with all that are
left over. In a large layer these are 563, and a wrong start would agree with a chance of 2^−563, or about 2^−520 if
four signs were mended; of the smallest layers 64 are left over, and it is 2^−64, or about 2^−23.
"""

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import torch
from scipy.special import ndtr
from torch.nn.functional import cosine_similarity
from torch.overrides import TorchFunctionMode

from attacks import mersenne
from utils.errors import InputError
from utils.kernels import binary

EQUATIONS = 20_500  # 563 more than there are unknowns
SPARE = 64  # equations that must be left over, at least
FREE = 8  # unknowns without a pivot whose values are tried, at most
LEADING = 0, 1, 2, 3, 5, 8, 12, 30  # singular directions that may be taken for what training wrote
# shares of a layer's motion, one of which each neuron and input is taken to have at least
ATTEMPTS = (0.25, 0.1)
NARROW = 16  # rows and columns of a weight that is used, at least
# of a weight's rows and columns, and of its values: only what is among the first ones is looked at
ROWS = 1024
COLUMNS = 1 << 14
VALUES = 1 << 23
KEPT = 0.05  # share of a value that is left, at least, when directions are taken off
FLOOR = 0.02  # of a start's variance, by which every weight is taken to have moved
QUIET = 0.1  # share of the neurons whose energy is taken for the start's
DOUBTFUL = 2500  # of the least reliable equations, among which up to four wrong ones are sought
ALONE = 2  # parameters that are tried before all of them, at most
HOPELESS = 200  # equations that are expected to be wrong, above which none are solved
ROUNDING = 0.01  # share of their range by which values above and below may overlap: in half precision they do
TRIED = 64  # values by which a rule is tried before it is tried by all
# outputs a uniform number takes, in single and double precision; its highest bit
RULES = ((1, 1 << 23), (2, 1 << 20))
PAIRS = 16  # normal numbers are drawn so many at a time: the first eight are cosines, the others sines of eight angles
FEW = "Only {} of its weights tell bits of the generator, and {} are needed: try seeds instead."
MOVED = "The weights moved too far: of the signs that are needed, about {:,.0f} changed."
NONE = (
    "Its signs agree with no state of torch's generator: another one drew them, the layers have another order, "
    "neurons were permuted, or the weights moved too far."
)


class Drawn(NamedTuple):
    """What the initial values of one parameter say about bits of the generator's outputs."""

    name: str
    places: torch.Tensor  # (n,) of the values among those of the parameter that are looked at
    outputs: np.ndarray  # (n,) rising, the number of the output behind each value
    mask: int  # of the bits of it whose parity tells whether the value is above the middle
    middle: float
    above: bool  # whether the parity is one above the middle
    variance: float  # of the values


class Start(NamedTuple):
    """A start that was read."""

    # of torch's generator before the start was drawn, as `torch.set_rng_state` takes it
    state: torch.Tensor
    module: torch.nn.Module  # the start
    # its low 32 bits, and how many outputs were drawn before; None if too many
    seed: tuple[int, int] | None
    spare: int = 0  # equations that were left over and hold
    mended: int = 0  # equations that were found to be wrong


@contextlib.contextmanager
def drawing_from(state: torch.Tensor) -> Iterator[None]:
    """Torch's generator of the CPU in a state, and afterwards as it was before."""
    with torch.random.fork_rng(devices=[]):
        torch.set_rng_state(state)
        yield


class Watch(TorchFunctionMode):
    """Where torch's generator stands, among the outputs (n,) of its seed, after every call that draws from it."""

    def __init__(self, seed):
        super().__init__()
        self.seed = seed
        self.outputs = mersenne.draw(1 << 16, seed)
        self.marks = [0]

    def __torch_function__(self, func, types, args=(), kwargs=None):
        before = torch.get_rng_state()
        result = func(*args, **(kwargs or {}))
        if not torch.equal(before, torch.get_rng_state()):
            count = result.numel() if isinstance(result, torch.Tensor) else 0
            self.marks.append(self.position(count))
        return result

    def position(self, count):
        """The place of the next output, of which four are drawn from a copy of the generator and sought.

        A number takes one output as a rule: so the search begins behind `count` of them.
        """
        copy = torch.Generator().set_state(torch.get_rng_state())
        probe = (torch.rand(4, generator=copy) * 2**24).numpy().astype(np.uint32)
        last = self.marks[-1]
        for begin, end in ((last + count, last + count + 64), (last, last + 4 * count + 64)):
            if end > len(self.outputs):
                self.outputs = mersenne.draw(end + end // 2, self.seed)
            drawn = self.outputs[begin:end] & np.uint32((1 << 24) - 1)
            place = drawn.tobytes().find(probe.tobytes())
            if place >= 0:
                return begin + place // probe.itemsize
        raise InputError(
            "It draws from torch's generator in a way whose outputs cannot be counted."
        )


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
        if p.dim() < 2 or min(p.flatten(1).shape) < NARROW:
            continue  # few values, and much trained
        explained = (explain(name, p.detach(), watched.outputs, *segment) for segment in segments)
        found += next(filter(None, explained), [])
    return found


def looked_at(p):
    """What is looked at of a weight (h, inputs, ·): its first rows and inputs, with all places of a kernel."""
    weight = p.detach().flatten(1).view(*p.shape[:2], -1)
    return weight[: min(ROWS, VALUES // weight[0].numel()), : COLUMNS // weight.shape[2]]


def explain(name, p, outputs, begin, end):
    """The Drawn of what is looked at of a parameter, if it follows from outputs `begin` to `end`; else none."""
    n = p.numel()
    if n > end - begin:
        return []
    kept = looked_at(torch.arange(n).view(p.shape)).flatten()
    values = looked_at(p).flatten().double()
    for step, mask in RULES:
        if step * n > end - begin:
            continue
        numbers = begin + step * kept
        places = torch.arange(len(kept))
        if uniform := separate(name, values, places, numbers, mask, outputs):
            return [uniform]
        whole = kept < (n // PAIRS - (n % PAIRS > 0)) * PAIRS  # the last ones are drawn again
        half = PAIRS // 2
        sines, cosines = (places[whole & (kept % PAIRS // half == k)] for k in (1, 0))
        angles = numbers[cosines] + step * half  # of both of a pair
        normal = [
            separate(name, values, sines, numbers[sines], mask, outputs),
            separate(name, values, cosines, angles, mask | mask >> 1, outputs),
        ]
        if all(normal):
            return normal
    return []


def separate(name, values, places, numbers, mask, outputs):
    """Drawn, if the parity of bits of some outputs (n,) tells which of the values are above a middle; else None."""
    numbers = numbers.numpy()
    for some in (TRIED, len(places)):
        parity = np.bitwise_count(outputs[numbers[:some]] & np.uint32(mask)) & 1
        ones = torch.from_numpy(parity).bool()
        here = values[places[:some]]
        if not ones.any() or ones.all():
            return None
        above = bool(here[ones].mean() > here[~ones].mean())
        high, low = (here[ones], here[~ones]) if above else (here[~ones], here[ones])
        if low.max() - high.min() > ROUNDING * (high.max() - low.min()):
            return None
    middle = (low.max() + high.min()).item() / 2
    return Drawn(name, places, numbers, mask, middle, above, values.var().item())


def clean(weight: torch.Tensor, variance: float, least: float) -> tuple[torch.Tensor, torch.Tensor]:
    """What is left of a start in a trained weight (h, inputs, ·), and how reliable each sign is, both flat.

    Training adds few directions, and a start of a known variance lies in all: so some leading singular ones are taken
    off, as many as leave the signs most reliable. A value is uncertain by what it lost with them, and by what training
    left there: the product of the energies that its neuron and its input have beyond a start's, each taken to be at
    least the share `least` of the layer's.
    """
    rows = weight.double().flatten(1)
    directions = torch.linalg.eigh(rows @ rows.mT)[1].flip(1)
    quantile = 1 - 1.5 * rows.shape[1] ** -0.5  # of the QUIET of a start's energies, about
    wanted = min(EQUATIONS, rows.numel() // 4)
    best = -1.0
    for count in (k for k in LEADING if k <= min(rows.shape) // 4):
        left = directions[:, :count]
        taken = left.mT @ rows
        rest = rows - left @ taken
        shares = taken.square() / taken.square().sum(1, keepdim=True)
        lost = left.square().sum(1, keepdim=True) + shares.sum(0)
        energy = rest.square() / (1 - lost).clamp_min(KEPT)
        usual = min(variance, energy.mean(1).quantile(QUIET).item() / quantile)
        energy = energy / usual - 1
        of_input = energy.view(len(rows), weight.shape[1], -1)  # of all places of a kernel together
        by_input = shrink(of_input, (0, 2), least).expand_as(of_input[:1]).reshape(1, -1)
        moved = shrink(energy, (1,), least) * by_input / energy.mean().clamp_min(FLOOR)
        tried = (rest.abs() / (usual * (lost + moved + FLOOR)).sqrt()).flatten()
        lowest = tried.topk(wanted).values.min().item()
        if lowest > best:
            best = lowest
            cleaned = rest.flatten()
            reliability = tried
    return cleaned, reliability


def shrink(energy, dims, least):
    """Means of energies over dimensions, drawn to that of all as they are uncertain, and at least a share of it."""
    means = energy.mean(dims, keepdim=True)
    overall = energy.mean().clamp_min(FLOOR)
    # The variance of a mean of squares of normal numbers.
    noise = 2 * means.numel() / energy.numel()
    return ((means / noise + 1 / overall) / (1 / noise + 1 / overall**2)).maximum(least * overall)


def choose_signs(
    parameters: Mapping[str, torch.Tensor], drawn: Sequence[Drawn], least: float
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The most reliable equations, the least reliable first: (n,) masks, outputs' numbers, and right-hand sides.

    InputError if there are too few, or if by their reliability too many are wrong.
    """
    parts = []
    cleaned = {}
    for one in drawn:
        if one.name not in cleaned:
            weight = looked_at(parameters[one.name]) - one.middle
            cleaned[one.name] = clean(weight, one.variance, least)
        rest, reliability = (part[one.places].numpy() for part in cleaned[one.name])
        masks = np.full(len(rest), one.mask)
        parts.append((masks, one.outputs, (rest > 0) == one.above, reliability))
    *equations, reliability = map(np.concatenate, zip(*parts))
    best = np.argsort(reliability)[-EQUATIONS:]
    if len(best) < mersenne.ORDER + SPARE:
        raise InputError(FEW.format(f"{len(best):,}", f"{mersenne.ORDER + SPARE:,}"))
    if (wrong := ndtr(-reliability[best]).sum()) > HOPELESS:
        raise InputError(MOVED.format(wrong))
    masks, outputs, right = (part[best] for part in equations)
    return masks, outputs, right


def rows_of(masks, outputs):
    """The equations (n, WIDTH) of outputs (n,) by masks (n,); the unknowns begin WORDS outputs before."""
    rows = np.empty((len(masks), mersenne.WIDTH), np.uint64)
    for mask in np.unique(masks):
        rows[masks == mask] = mersenne.equations(outputs[masks == mask] + mersenne.WORDS, int(mask))
    return rows


def find_wrong(fingerprints: np.ndarray, bad: np.ndarray) -> list[int]:
    """Which equations are wrong: one or two of all, or up to four among the first DOUBTFUL; none, if these do not tell.

    `fingerprints` (n, 64) say which checks hold an equation, and those of the wrong ones sum up to the failing checks
    `bad` (64,). So the sum of some of them is found among what `bad` leaves of the sums of others.
    """
    each = np.append(binary.pack(fingerprints)[:, 0], np.uint64(0))  # the last one is no equation
    every = np.arange(len(each))
    few = np.append(every[:-1][:DOUBTFUL], every[-1])
    pairs = tuple(few[part] for part in np.triu_indices(len(few), 1))
    for parts in ((every,), pairs):
        sums = np.bitwise_xor.reduce([each[part] for part in parts])
        rest = sums ^ binary.pack(bad[None])[0, 0]
        if (hits := np.flatnonzero(np.isin(sums, rest))).size:
            both = [hits[0], np.flatnonzero(sums == rest[hits[0]])[0]]
            numbers, times = np.unique([part[both] for part in parts], return_counts=True)
            return numbers[(times == 1) & (numbers < len(fingerprints))].tolist()
    return []


def solve(factors: binary.Factors, right: np.ndarray) -> tuple[list[np.ndarray], int, int]:
    """The solutions (WIDTH,) of equations, the least reliable first, none if they contradict; spare and mended ones."""
    spare = len(right) - factors.rank
    solution, bad = binary.solve(factors, right)
    if spare < SPARE or factors.rank < mersenne.ORDER - FREE:
        return [], spare, 0
    wrong: list[int] = []
    if bad.any():
        wanted = np.random.default_rng(0).integers(0, 2, (spare, binary.BITS))
        wrong = find_wrong(binary.check_sums(factors, wanted), bad @ wanted % 2)
        mended = right ^ np.isin(np.arange(len(right)), wrong)
        solution, bad = binary.solve(factors, mended)
    if bad.any():
        return [], spare, 0
    solutions = [solution]
    for other in binary.solve_homogeneous(factors, mersenne.ORDER):
        solutions += [one ^ other for one in solutions]
    return solutions, spare, len(wrong)


def read(parameters: Mapping[str, torch.Tensor], build: Callable[[], torch.nn.Module]) -> Start:
    """The Start of trained `parameters` {name: values}, of a module that `build()` draws; InputError if it is not read.

    Which outputs are known, and by what sign → a linear system over GF(2) → the state → the seed, and the start that
    is drawn from there. Parameters with many weights are tried alone, the largest first, then all together. A small
    layer has to be read as a whole, so that few of its signs may be wrong. All that torch draws on the CPU by its own
    initialisers can be read but for `orthogonal_` and a `trunc_normal_` whose bounds bite.
    """
    drawn = watch(build)
    if not drawn:
        raise InputError(
            "No layer of some size is drawn by torch's generator: another one drew the start, or none."
        )
    sizes = {one.name: parameters[one.name].numel() for one in drawn}
    large = [name for name in sizes if sizes[name] > 2 * EQUATIONS]
    alone = sorted(large, key=sizes.__getitem__, reverse=True)[:ALONE]
    tried = [([one for one in drawn if one.name == name], ATTEMPTS[0]) for name in alone]
    refusal = InputError(NONE)
    for some, least in tried + [(drawn, least) for least in ATTEMPTS]:
        try:
            masks, outputs, right = choose_signs(parameters, some, least)
        except InputError as error:
            refusal = error
            continue
        solutions, spare, mended = solve(binary.factor(rows_of(masks, outputs)), right)
        if solutions:
            return draw_start(solutions, parameters, build)._replace(spare=spare, mended=mended)
    raise refusal


def draw_start(
    solutions: Sequence[np.ndarray],
    parameters: Mapping[str, torch.Tensor],
    build: Callable[[], torch.nn.Module],
) -> Start:
    """The Start that `build()` draws from unknowns (WIDTH,), of several solutions the one most like the parameters.

    If one of them tells a seed, the others are not drawn.
    """
    told = [(words, mersenne.find_seed(words)) for words in map(mersenne.state_after, solutions)]

    def drawn():
        for words, seed in [one for one in told if one[1]] or told:
            state = mersenne.as_generator(words).get_state()
            with drawing_from(state):
                yield Start(state, build(), seed)

    return max(drawn(), key=lambda start: alike(parameters, start.module))


def alike(parameters, module):
    """The sum of correlations of parameters with those of a module."""
    pairs = [(p, parameters[name]) for name, p in module.named_parameters() if name in parameters]
    flat = ([looked_at(p).double().flatten() for p in pair] for pair in pairs if pair[0].dim() > 1)
    return sum(cosine_similarity(ours, theirs, dim=0).item() for ours, theirs in flat)
