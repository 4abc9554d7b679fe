"""Networks as they compute: whose loss has a small gradient, and what training added to any layer, with its inputs."""

from functools import partial

import torch
from torch.utils.flop_counter import FlopCounterMode

import audit.judge as judge
import audit.stages as stages
from attacks import span
from utils.errors import InputError

LAYERS = 4  # whose span is tested, at most
ROOM = 0.9  # largest share of its inputs that what training added to a layer may take
BATCH = 8  # pictures whose inputs to a layer are in memory at once
BY_GRADIENT = "membership by gradient"
BY_SPAN = "span of what training added"


def planned(case: stages.Case) -> list[stages.Stage]:
    """The Stages for the module of a stages.Case."""
    if case.module is None:
        return []
    module, takes, before = case.module
    forward = sum(map(len, case.sides)) * seconds(lambda x: module(takes(x)), case.sides[0])
    found = [stages.Stage(BY_GRADIENT, 1 + 10 * forward, partial(by_gradient, case))]
    if before is not None:
        layers = roomy(case)
        algebra = (
            200
            * sum(len(weight) * weight.numel() for _, weight, _ in layers.values())
            / stages.RATE
        )
        found.append(
            stages.Stage(
                BY_SPAN + case.since, 1 + algebra + LAYERS * forward, partial(by_span, case, layers)
            )
        )
    return found


@torch.no_grad()
def seconds(network, rows):
    """About how long a network takes for one of these rows (n, d), by its products alone."""
    with FlopCounterMode(display=False) as counter:
        network(rows[:1])
    return counter.get_total_flops() / stages.RATE


def by_gradient(case):
    """Whether the gradient of the loss of training pictures is shorter than that of held-out ones, in all weights."""
    module, takes, _ = case.module
    if not any(part.requires_grad for part in module.parameters()):
        module.requires_grad_()
    trained = [part for part in module.parameters() if part.requires_grad]

    def length(x, label):
        loss = stages.losses(case, module(takes(x[None])).flatten(1), label[None]).sum()
        parts = torch.autograd.grad(loss, trained, allow_unused=True)
        return torch.stack([part.norm() for part in parts if part is not None]).norm()

    known = zip(case.sides, stages.classified(case).labels)
    try:
        values = [torch.stack([length(*one) for one in zip(*side)]) for side in known]
    except RuntimeError as error:  # of a stranger's code
        raise InputError(f"The gradient cannot be taken ({str(error).splitlines()[0]}).") from error
    score = judge.scored([-part for part in values], case.labels)
    ours, theirs = (f"{part.mean():.2g}" for part in values)
    sentence = f"The gradient of the loss has a mean length of {ours} for training and {theirs} for held-out pictures."
    return stages.Outcome(
        BY_GRADIENT, "ran", sentence, comparisons=(judge.of_area("gradient", score),), score=score
    )


def roomy(case):
    """The layers with the most room of those that training changed: {name: (layer, its weight before, directions)}.

    Its pictures can have taken as many directions of the inputs as they have places there, or as there are outputs;
    the latter are looked at if they leave room.
    """
    module, takes, before = case.module
    found = {}
    for name, layer in module.named_modules():
        if isinstance(layer, torch.nn.Linear | torch.nn.Conv2d):
            weight = before.get_submodule(name).weight
            try:
                _, places, size = span.inputs(module, layer, takes(case.sides[0][:1])).shape
            except (
                InputError,
                TypeError,
                ValueError,
            ):  # a kind that is not read, or used twice or never
                continue
            outputs = len(weight)
            taken = min(len(weight), len(case.sides[0]) * places)
            if 2 < taken < ROOM * size and not torch.equal(layer.weight, weight):
                found[places * taken / size, name] = (
                    layer,
                    weight,
                    outputs if outputs < ROOM * size else taken,
                )
    return {key[1]: found[key] for key in sorted(found)[:LAYERS]}


def by_span(case, layers):
    """Whether what training pictures are to layers lies in the span of what training added to these."""
    if not layers:
        raise InputError(
            "What training added leaves no room in any layer for what it did not see: none was tested."
        )
    scores = []
    comparisons = []
    said = []
    for name, (layer, weight, directions) in layers.items():
        try:
            basis = span.basis(layer.weight, weight)
        except InputError:  # no gap
            basis = span.basis(layer.weight, weight, rank=directions)
        shares = [inside(case.module, layer, basis, x) for x in case.sides]
        score, tests = stages.in_span(shares, f"the change of {name}.weight", case.labels)
        scores.append(score)
        comparisons += tests
        said.append(f"{name}.weight, {basis.shape[1]} of {len(basis)} directions")
    sentence = f"The span of what training added was tested in {'; '.join(said)}."
    name = BY_SPAN + case.since
    return stages.Outcome(name, "ran", sentence, comparisons=tuple(comparisons), score=scores[0])


def inside(whole, layer, basis, x):
    """The shares (n,) of the energy of pictures x (n, d), as a layer sees them, in a basis of its inputs."""
    parts = (span.inputs(whole.module, layer, whole.takes(part)) for part in x.split(BATCH))
    return torch.cat([1 - span.distances(part, basis).square() for part in parts]).nan_to_num(0.0)
