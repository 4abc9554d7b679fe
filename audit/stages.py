"""The stages of an audit, thin calls of what the book has: structure, unmixing, stationarity, membership by loss."""

import math
from collections.abc import Callable
from functools import cache, partial
from typing import Any, NamedTuple

import torch

from attacks import decoreco, first_layer, starts, unmixing
from audit import judge
from audit.showing import Asking, Showing
from audit.states import State
from audit.weights import Network
from evaluation import measures
from utils import networks
from utils.errors import InputError
from utils.kernels.losses import LOSSES, signs
from utils.kernels.similarity import match, ncc
from utils.networks import Released

INSIDE = 1e-3  # share of the energy of a picture outside of a span in which it counts as lying
BY_LOSS = "membership by loss"
UNREAD = "unmixing of the optimiser's state"
PLOTTED = 3  # singular values that are kept, in multiples of the number of pictures
# kinds of stages: the exit status rests on these, and on no name
OUTPUTS = "membership, by outputs alone"
GRADIENTS = "membership, by gradients of the weights"
WEIGHTS = "an attack on the weights"
STATE = "an optimiser's state that was not read"
START = "the network from before the training"


class Case(NamedTuple):
    """All that stages look at. Rows are pictures as the network sees them, (H, W, C) in a line, made when asked for."""

    network: Network
    showing: Showing  # with its shape, mean and deviation
    asking: Asking
    pictures: tuple  # both sides' Pictures
    average: torch.Tensor  # (d,) what the trainer subtracted; zero unless the network is centred
    apart: torch.Tensor  # (d,) the same less the mean of both sides together
    outputs: int  # K, or 1 if they are not known
    labels: tuple  # (m,) and (n,), or two None
    known: Callable  # () -> what the network makes of the rows, Classified, which is found once
    notes: tuple = ()  # sentences for the report
    state: State = State()  # of the optimiser
    initial: tuple = ()  # Layers of the network before training; empty if they are not known
    # the module from then, where the network is more than layers
    before: torch.nn.Module | None = None
    # in the names of attacks on what training added: from when, if nobody gave that start
    since: str = ""

    @property
    def shape(self):
        """(H, W, C) of the pictures."""
        return self.showing.shape

    @property
    def sizes(self):
        """How many pictures either side has."""
        return [len(side.images) for side in self.pictures]

    @property
    def rows(self):
        """Training pictures (m, d) and held-out ones (n, d), both without what the trainer subtracted."""
        return tuple(self.seen(side.images) for side in self.pictures)

    @property
    def exchanged(self):
        """The same, but without the mean of both sides together where the trainer subtracted that of one."""
        return tuple(rows.add_(self.apart) for rows in self.rows)

    @property
    def loss(self):
        """The name of the loss that the network was trained by, which follows from its outputs if it is not given."""
        usual = "cross_entropy" if self.outputs > 1 else "logistic"
        return usual if self.asking.loss == "auto" else self.asking.loss

    @property
    def stated(self):
        """How many training pictures there were, near-copies among them, as is stated to an attacker."""
        return self.pictures[0].count

    @property
    def released(self):
        """What an attacker is given."""
        layers = self.network.layers
        widths = tuple(len(layer.weight) for layer in layers[:-1])
        recipe = networks.Recipe(widths, self.loss, 0.0, centred=self.showing.centred)
        return Released(layers, torch.zeros(self.stated), recipe)

    def seen(self, images):
        """Pictures (n, d) in [0, 1] as rows, in the precision of `average`."""
        return self.showing.rows(images.to(self.average)).sub_(self.average)

    def shown(self, rows):
        """Rows (n, d) as the network sees them as pictures, mostly in [0, 1]."""
        return self.showing.pixels(rows + self.average)


class Outcome(NamedTuple):
    """What one stage gave."""

    name: str
    state: str  # ran, refused or skipped
    sentence: str
    seconds: float = 0.0
    comparisons: tuple = ()  # judge.Comparisons
    images: torch.Tensor | None = None  # pictures (k, d) that came back, as the network sees them
    ncc: tuple = ()  # the best |NCC| with them of training (m,) and held-out (n,) pictures
    sure: tuple = ()  # whether these best matches rest on zeros, masks (m,) and (n,), of known starts and states
    scores: dict = {}  # of membership: {name: judge.Scored}
    spans: dict = {}  # shares of pictures in what training wrote into a layer: {its name: judge.Scored}
    facts: dict = {}  # what else there is to say, for JSON
    start: Any = None  # of the network, as `weights.read` takes it, if it was read
    kind: str = WEIGHTS


class Classified(NamedTuple):
    """What a network makes of pictures. Each field has one part for either side."""

    outputs: list  # (n, K)
    labels: list | tuple  # labels, or the likeliest classes (n,)
    right: list  # masks (n,) of what is classified correctly


class Stage(NamedTuple):
    """What can be run."""

    name: str  # of the attack or test, and of what it looks at
    run: Callable  # (this name) -> Outcome
    kind: str = WEIGHTS


def planned(case: Case) -> list[Stage]:
    """The Stages for a Case, the fast ones first."""
    network = case.network
    stages = [Stage(BY_LOSS, partial(by_loss, case), OUTPUTS)] if network.logits else []
    if case.state.refusal:
        refused = partial(Outcome, state="refused", sentence=case.state.refusal)
        stages.append(Stage(UNREAD, refused, STATE))
    if not network.layers:
        return stages
    first = case.released._replace(network=network.layers[:1])
    layers = {"W₁": lambda: (first, None)}
    if case.initial:
        change = first_layer.refine, first_layer.difference, first.network, case.initial[:1]
        layers[f"the change of W₁{case.since}"] = cache(partial(written, case, first, *change))
    if case.state.entry:
        moment = first_layer.refine_by_vote, first_layer.of_moment, case.state.checkpoint
        layers[case.state.entry] = cache(partial(written, case, first, *moment))
    stages += [
        Stage(f"structure of {layer}", partial(structure, case, layer, of))
        for layer, of in layers.items()
    ]
    stages += [
        Stage(f"unmixing of {layer}", partial(unmixed, case, of)) for layer, of in layers.items()
    ]
    if network.logits and len(network.layers) > 1:
        stages.append(Stage("stationarity", partial(stationary, case)))
    return stages


def written(case, first, refine, entry, *files):
    """What training wrote into the `first` layer, the `entry` of files, as Released, and how to `refine` an attack."""
    rows = entry(*files)
    return first_layer.as_released(rows, first), lambda mixed: refine(rows, mixed, case.shape)


def structure(case, layer, of, name):
    """Whether the singular values of the first layer fall off a cliff, and which pictures lie in the span before it."""
    released, _ = of()
    m = case.stated
    weight = released.network[0].weight
    gram = weight @ weight.mT if weight.shape[0] <= weight.shape[1] else weight.mT @ weight
    values = torch.linalg.eigvalsh(gram).flip(0).clamp_min(0).sqrt()
    values = (values / values[0].clamp_min(1e-300))[: PLOTTED * m + 1]
    try:
        count, basis, _ = unmixing.read(released)
        sentence = (
            f"The singular values of {layer} fall off a cliff that shows {doubted(count, m)}."
        )
    except InputError:
        basis = unmixing.read(released, m)[1]
        sentence = f"{layer} has no cliff in its singular values; the first {m} directions were taken for the span."
    shares = [(x @ basis).square().sum(1) / x.square().sum(1).clamp_min(1e-30) for x in case.rows]
    score, comparisons = in_span(shares, layer, case.labels)
    return Outcome(
        name,
        "ran",
        sentence,
        comparisons=comparisons,
        scores={name: score},
        spans={layer: score},
        facts={"singular_values": values.tolist()},
    )


def doubted(count, m):
    """How many pictures a layer shows, in words, with a doubt where there are more: m."""
    few = f", and there are {m}: after many epochs a layer shows too few"
    return f"{count} pictures{few * (count < m)}"


def in_span(shares, name, labels):
    """The Scored shares of pictures' energy in a span, (m,) and (n,), and its Comparisons: who is likelier inside."""
    score = judge.scored(shares, labels)
    count = judge.of_count(
        f"pictures in the span of {name}", [part > 1 - INSIDE for part in shares], labels
    )
    return score, (judge.of_area(f"energy in the span of {name}", score), count)


def returned(case, name, images, sentence, sure=None):
    """The Outcome of an attack that returned pictures (k, d): matched with both sides alike. `sure` is a mask (k,)."""
    likeness = [match(part, images, case.shape).signed for part in case.exchanged]
    correlated, best = zip(*(ncc(part, images).abs().max(1) for part in case.rows))
    known = () if sure is None else tuple(sure[index] for index in best)
    alike = [part > measures.ALIKE for part in likeness]
    near = [part > judge.NEAR for part in correlated]
    score = judge.scored(likeness, case.labels)
    comparisons = (
        judge.of_area(f"likeness to what {name} returned", score),
        judge.Alike(*judge.of_count(f"alike what {name} returned", alike, case.labels)),
        judge.Near(*judge.of_count(f"{judge.BACK} with what {name} returned", near, case.labels)),
    )
    return Outcome(
        name,
        "ran",
        sentence,
        comparisons=comparisons,
        images=images,
        ncc=correlated,
        sure=known,
        scores={name: score},
    )


def unmixed(case, of, name):
    """The unmixing attack on a first layer; it is given the number of pictures where the layer does not show it."""
    m, (released, refine) = case.stated, of()
    mixed = unmixing.attempt(released, case.shape, m, case.asking.seed)
    if mixed.images is None:
        raise InputError(mixed.refusals[-1])
    count = mixed.details.count
    sentence = f"The attack was given their number, {m}."
    if count:
        sentence = f"The layer shows {doubted(count, m)}."
    if refine and released.network[0].bias is not None:
        mixed = refine(mixed)
        sure = mixed.details.sure
        like = ncc(case.rows[0], mixed.images).abs().amax(0)
        wrong = (sure & (like <= judge.NEAR)).sum()
        sentence += f" Zeros at neurons that a picture never activated make {sure.sum()} of {len(sure)} sure"
        sentence += (
            f"; {wrong} of these showed no training picture nearly exactly." if wrong else "."
        )
    return returned(case, name, mixed.images, sentence, mixed.details.sure)


def stationary(case, name):
    """The stationarity attack, from noise in the span of the first layer, with twice as many candidates as pictures."""
    released = case.released
    outputs, inputs = len(released.network[-1].weight), released.network[0].weight.shape[1]
    count = max(2 * case.sizes[0], outputs)
    seed = case.asking.seed
    start = starts.normal(count, inputs, decoreco.ADAM.scale, seed)
    # pixels beyond the published range are not theirs
    wide = max(part.abs().max() for part in case.rows) > 1
    settings = decoreco.ADAM._replace(
        rule="signed" if outputs == 1 else "multiclass",
        range_weight=0.0 if wide else 1.0,
        iterations=case.asking.steps,
    )
    basis = networks.span(released.network)
    attack = decoreco.attack(released, start, settings, basis=basis, seed=seed)
    sentence = f"{count} candidates moved for {case.asking.steps} steps; the loss fell to {attack.loss:.2g} of ‖θ‖²."
    return returned(case, name, attack.images, sentence)


def classified(logits, rows, labels):
    """What logits make of the rows of both sides, Classified; InputError if they are no classes.

    Where there are no labels the likeliest are taken. Two classes of one output are exchanged if it has them so.
    """
    outputs = [logits(x) for x in rows]
    if not all(part.isfinite().all() for part in outputs):
        raise InputError(
            "The outputs of the network are not finite for these pictures: check their normalisation."
        )
    if outputs[0].shape[1] == rows[0].shape[1]:
        raise InputError(
            "The outputs are as many as the values of a picture, as an autoencoder's are, and no classes."
        )
    likeliest = [z.argmax(1) if z.shape[1] > 1 else (z[:, 0] > 0).long() for z in outputs]
    labels = likeliest if labels[0] is None else labels
    right = [ours == own for ours, own in zip(likeliest, labels)]
    if outputs[0].shape[1] == 1 and torch.cat(right).double().mean() < 0.5:
        labels = [1 - part for part in labels]
        right = [~part for part in right]
    return Classified(outputs, labels, right)


def losses(loss, outputs, labels):
    """The loss of every picture, from outputs (n, K) and labels (n,): (n,)."""
    of_one = "square" if loss == "square" else "logistic"
    return LOSSES["cross_entropy" if outputs.shape[1] > 1 else of_one].value(outputs, labels)


def margins(loss, outputs, labels):
    """What falls as the loss of a picture rises, (n,), and is not rounded where that is 0."""
    if outputs.shape[1] == 1:
        own = signs(labels) * outputs[:, 0]
        return -(own - 1).abs() if loss == "square" else own
    own = outputs.gather(1, labels[:, None])
    others = outputs.scatter(1, labels[:, None], -math.inf)
    return own[:, 0] - others.logsumexp(1)


def by_loss(case, name):
    """Whether the loss of training pictures is smaller than that of held-out ones."""
    outputs, labels, right = case.known()
    values = [losses(case.loss, *one) for one in zip(outputs, labels)]
    facts = {"losses": [part.tolist() for part in values]}
    score = judge.scored([margins(case.loss, *one) for one in zip(outputs, labels)], case.labels)
    comparisons = (judge.of_area("loss", score),)
    sentence = "The classes are not known, so the loss of the likeliest class was taken."
    if case.labels[0] is not None:
        comparisons += (judge.of_count("classified correctly", right, case.labels),)
        facts["accuracy"] = ours, theirs = [part.double().mean().item() for part in right]
        sentence = f"{ours:.0%} of the training and {theirs:.0%} of the held-out pictures are classified correctly."
        if labels is not case.labels:
            sentence += " The two classes were exchanged, as the network has them so."
    return Outcome(
        name, "ran", sentence, comparisons=comparisons, scores={name: score}, facts=facts
    )
