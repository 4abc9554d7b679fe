"""The stages of an audit, thin calls of what the book has: structure, unmixing, stationarity, membership by loss."""

import contextlib
import functools
import timeit
from collections import namedtuple
from collections.abc import Callable
from typing import NamedTuple

import torch

import audit.judge as judge
import audit.states as states
from audit.weights import Whole
from utils import measures, networks
from utils.attacks import checkpoints, decoreco, known_start, starts, unmixing
from utils.attacks.contract import Released
from utils.errors import InputError
from utils.kernels.losses import LOSSES
from utils.kernels.similarity import match, ncc

INSIDE = 1e-3  # share of the energy of a picture outside of a span in which it counts as lying
EVALUATIONS = 100, 620  # of the objective of an unmixing, for up to unmixing.FEW pictures, and more
BY_LOSS, BY_SHADOWS = "membership by loss", "membership by reference networks"
UNREAD = "unmixing of the optimiser's state"
STARTS = 2  # that an unmixing usually makes
PLOTTED = 3  # singular values that are kept, in multiples of the number of pictures


class Case(NamedTuple):
    """All that stages look at. Rows are pictures as the network sees them, flattened as (H, W, C)."""

    layers: tuple  # of the network: all, the first one, or none
    start: tuple  # of the network before training; empty if it is not known
    logits: Callable | None  # rows (n, d) -> outputs (n, K)
    sides: tuple  # training pictures (m, d) and held-out ones (n, d), both without what the trainer subtracted
    exchanged: tuple  # the same, but without the mean of both sides together where the trainer subtracted that of one
    labels: tuple  # (m,) and (n,), or two None
    shape: tuple  # (H, W, C)
    recipe: networks.Recipe
    steps: int  # of the stationarity attack
    seed: int
    shown: Callable  # rows as the network sees them (n, d) -> pictures, mostly in [0, 1]
    state: states.State = states.State()  # of the optimiser
    module: Whole | None = None  # where its layers are not all that it computes

    @property
    def released(self):
        """What an attacker is given."""
        return Released(self.layers, torch.zeros(len(self.sides[0])), self.recipe)


class Outcome(NamedTuple):
    """What one stage gave."""

    name: str
    state: str  # ran, refused or skipped
    sentence: str
    expected: float = 0.0  # seconds, as they were estimated beforehand
    seconds: float = 0.0
    comparisons: tuple = ()  # judge.Comparisons
    images: torch.Tensor | None = None  # pictures (k, d) that came back, as the network sees them
    ncc: tuple = ()  # the best |NCC| with them of training (m,) and held-out (n,) pictures
    sure: tuple = ()  # whether these best matches rest on zeros, masks (m,) and (n,), of known starts and states
    score: judge.Scored | None = None  # of membership
    others: tuple = ()  # other such scores: (name, judge.Scored)
    facts: dict = {}  # what else there is to say, for JSON


# Outputs (n, K) of both sides, labels or the likeliest classes (n,), masks of what is right or None, and a sentence.
Classified = namedtuple("Classified", "outputs labels right note")
Stage = namedtuple("Stage", "name expected run")  # what can be run: its seconds, and a function () -> Outcome


@functools.cache
def rate():
    """Floating-point operations in a second, in products of matrices."""
    x = torch.ones(400, 400)
    x @ x  # the first product is slower
    return 5 * 2 * 400**3 / timeit.timeit(lambda: x @ x, number=5)


def planned(case):
    """The Stages for a Case, the fast ones first."""
    stages = [Stage(BY_LOSS, 1.0, functools.partial(by_loss, case))] if case.logits else []
    if case.state.refusal:
        stages.append(Stage(UNREAD, 0.0, functools.partial(refuse, case.state.refusal)))
    if not case.layers:
        return stages
    look, unmixing_once, moving = costs(case)
    first = case.released._replace(network=case.layers[:1])
    layers = {"W₁": (look, lambda: (first, None, None))}
    if case.start:  # whose factor α takes some rounds
        layers["the change of W₁"] = 15 * look, functools.cache(lambda: change_of(case, first))
    if case.state.entry:
        layers[case.state.entry] = 15 * look, functools.cache(lambda: moment_of(case, first))
    for name, (seconds, of) in layers.items():
        stages.append(Stage(f"structure of {name}", 0.2 + seconds, functools.partial(structure, case, name, of)))
    for name, (_, of) in layers.items():
        once = unmixing_once if tells(case, of) else 0.0
        stages.append(Stage(f"unmixing of {name}", 0.5 + once, functools.partial(unmixed, case, name, of)))
    if case.logits and len(case.layers) > 1:
        stages.append(Stage("stationarity", 1 + look + moving, functools.partial(stationary, case)))
    return stages


def change_of(case, first):
    """The Released change of the `first` layer, α, and what makes exact what was unmixed from it."""
    changed, alpha = known_start.trained_part(first, case.start[:1])
    return changed, alpha, lambda mixed: known_start.exact(first, case.start[:1], alpha, mixed, case.shape)


def moment_of(case, first):
    """The Released moment of the `first` layer in the optimiser's state, None, and what makes exact, as `change_of`."""
    rows = checkpoints.of_moment(first, case.state.checkpoint)
    return first._replace(network=(rows.layer,)), None, lambda mixed: checkpoints.exact(rows, mixed, case.shape)


def refuse(sentence):
    """Raise InputError with a sentence, as a stage that cannot be run."""
    raise InputError(sentence)


def costs(case):
    """About how many seconds one look at the first layer, its unmixing, and stationarity take here."""
    m, few = len(case.sides[0]), len(case.sides[0]) <= unmixing.FEW
    (rows, columns), (height, width, channels) = case.layers[0].weight.shape, case.shape
    least = min(rows, columns)
    look = 30 * least**3 + 8 * rows * columns * least
    details = 8 * channels * height * width  # numbers of a picture that unmixing looks at
    unmixing_once = 6 * m * m * details * (STARTS * EVALUATIONS[0] if few else EVALUATIONS[1])
    sizes = [(least, rows), *(tuple(layer.weight.shape) for layer in case.layers[1:])]
    steps = case.steps * 2 * m * sum(12 * a * b + 100 * (a + b) for a, b in sizes)
    matching = 5 * 2 * 2 * m * sum(map(len, case.sides)) * details  # of what came back with both sides
    return look / rate(), unmixing_once / rate(), (steps + matching) / rate()


def tells(case, of):
    """Whether a first layer has enough neurons and pixels to tell its pictures, or shows another number of them."""
    if len(case.sides[0]) <= unmixing.MOST * min(case.layers[0].weight.shape):
        return True
    with contextlib.suppress(InputError):
        return bool(unmixing.read(of()[0]))
    return False


def structure(case, name, of):
    """Whether the singular values of the first layer fall off a cliff, and which pictures lie in the span before it."""
    released, alpha, _ = of()
    m, weight = len(case.sides[0]), released.network[0].weight
    gram = weight @ weight.mT if weight.shape[0] <= weight.shape[1] else weight.mT @ weight
    values = torch.linalg.eigvalsh(gram).flip(0).clamp_min(0).sqrt()
    values = (values / values[0].clamp_min(1e-300))[: PLOTTED * m + 1]
    facts = {"singular_values": values.tolist(), "count": None, "alpha": alpha}
    try:
        count, basis, _ = unmixing.read(released)
        facts["count"] = count
    except InputError as error:
        try:
            count, basis, _ = unmixing.read(released, m)
        except InputError:
            return Outcome(f"structure of {name}", "refused", str(error), facts=facts)
    shares = tuple((x @ basis).square().sum(1) / x.square().sum(1).clamp_min(1e-30) for x in case.sides)
    score = judge.scored(shares, case.labels)
    comparisons = [judge.of_area(f"energy in the span of {name}", score)]
    facts["share"] = [part.mean().item() for part in shares]
    if facts["count"] is None:
        sentence = f"{name} has no cliff in its singular values; the first {count} directions were taken for the span."
    else:
        inside = [part > 1 - INSIDE for part in shares]
        facts["inside"] = [part.sum().item() for part in inside]
        comparisons.append(judge.of_count(f"pictures in the span of {name}", *inside))
        ours, theirs = facts["inside"]
        sentence = (
            f"The singular values of {name} fall off a cliff that shows {count} pictures; {ours} of {m} training and "
            f"{theirs} of {len(shares[1])} held-out pictures lie in the span before it."
        )
    return Outcome(f"structure of {name}", "ran", sentence, comparisons=tuple(comparisons), score=score, facts=facts)


def returned(case, name, images, sentence, facts, sure=None):
    """The Outcome of an attack that returned pictures (k, d): matched with both sides alike. `sure` is a mask (k,)."""
    likeness = [match(part, images, case.shape).signed for part in case.exchanged]
    correlated, best = zip(*(ncc(part, images).abs().max(1) for part in case.sides))
    known = () if sure is None else tuple(sure[index] for index in best)
    score = judge.scored(likeness, case.labels)
    comparisons = (
        judge.of_area(f"likeness to what {name} returned", score),
        judge.of_count(f"alike what {name} returned", *(part > measures.ALIKE for part in likeness)),
        judge.of_count(f"{judge.BACK} with what {name} returned", *(c > judge.NEAR for c in correlated)),
    )
    matched = {"images": images, "ncc": correlated, "sure": known, "score": score}
    return Outcome(name, "ran", sentence, comparisons=comparisons, facts=facts, **matched)


def unmixed(case, name, of):
    """The unmixing attack on a first layer; it is given the number of pictures where the layer does not show it."""
    m, (released, _, refine) = len(case.sides[0]), of()
    mixed = unmixing.attempt(released, case.shape, m, case.seed)
    if mixed.images is None:
        return Outcome(f"unmixing of {name}", "refused", mixed.refusals[-1])
    count = mixed.details.count
    who = f"The layer shows {count} pictures." if count else f"The attack was given their number, {m}."
    if refine is None or released.network[0].bias is None:
        return returned(case, f"unmixing of {name}", mixed.images, who, {"count": count})
    exact = refine(mixed)
    facts = {"count": count, "sure": int(exact.details.sure.sum())}
    zeros = f"Zeros at neurons that a picture never activated make {facts['sure']} of {len(exact.images)} sure."
    return returned(case, f"unmixing of {name}", exact.images, f"{who} {zeros}", facts, exact.details.sure)


def stationary(case):
    """The stationarity attack, from noise in the span of the first layer, with twice as many candidates as pictures."""
    outputs, released = len(case.layers[-1].weight), case.released
    kinds, n, scale = max(outputs, 2), 2 * len(case.sides[0]), decoreco.SETTINGS["adam"].scale
    start = starts.normal(-(-n // kinds) * kinds, case.layers[0].weight.shape[1], scale, case.seed)
    wide = max(part.abs().max() for part in case.sides) > 1  # then the published range of pixels is not theirs
    settings = {"rule": "signed" if outputs == 1 else "multiclass", "range_weight": 0.0 if wide else 1.0}
    settings |= {"basis": networks.span(released.network), "seed": case.seed, "iterations": case.steps}
    attack = decoreco.attack(released, start, **settings)
    loss = attack.loss.item()
    sentence = f"{len(start)} candidates moved for {case.steps} steps; the loss fell to {loss:.2g} of ‖θ‖²."
    return returned(case, "stationarity", attack.images, sentence, {"loss": loss})


def likeliest(outputs):
    """The class that outputs (n, K) give to every picture: (n,)."""
    return outputs.argmax(1) if outputs.shape[1] > 1 else (outputs[:, 0] > 0).long()


def classified(case):
    """What a network makes of both sides' pictures, Classified; InputError if its outputs are no classes."""
    outputs, labels, right, note = [case.logits(x) for x in case.sides], case.labels, None, ""
    if not all(part.isfinite().all() for part in outputs):
        raise InputError("The outputs of the network are not finite for these pictures: check their normalisation.")
    if outputs[0].shape[1] == case.sides[0].shape[1]:
        raise InputError("The outputs are as many as the values of a picture, as an autoencoder's are, and no classes.")
    if labels[0] is None:
        return Classified(outputs, [*map(likeliest, outputs)], right, note)
    right = [likeliest(z) == part for z, part in zip(outputs, labels)]
    if outputs[0].shape[1] == 1 and torch.cat(right).double().mean() < 0.5:
        labels, right = tuple(1 - part for part in labels), [~part for part in right]
        note = " The two classes were exchanged, as the network has them so."
    return Classified(outputs, labels, right, note)


def losses(case, outputs, labels):
    """The loss of every picture, from outputs (n, K) and labels (n,): (n,)."""
    one_output = outputs.shape[1] == 1
    kind = ("square" if case.recipe.loss == "square" else "logistic") if one_output else "cross_entropy"
    return LOSSES[kind].value(outputs, labels)


def by_loss(case):
    """Whether the loss of training pictures is smaller than that of held-out ones."""
    outputs, labels, right, note = classified(case)
    facts, sentence = {}, "The classes are not known, so the loss of the likeliest class was taken."
    if right is not None:
        facts["accuracy"] = ours, theirs = [part.double().mean().item() for part in right]
        sentence = f"{ours:.0%} of the training and {theirs:.0%} of the held-out pictures are classified correctly."
    values = [losses(case, *one) for one in zip(outputs, labels)]
    facts["losses"] = [part.tolist() for part in values]
    score = judge.scored([-part for part in values], case.labels)
    comparisons = [judge.of_area("loss", score)]
    if "accuracy" in facts:
        comparisons.append(judge.of_count("classified correctly", *right))
    return Outcome(BY_LOSS, "ran", sentence + note, comparisons=tuple(comparisons), score=score, facts=facts)
