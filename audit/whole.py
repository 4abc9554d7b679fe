"""Networks as they compute: whose loss has a small gradient, and what training added to any layer, with its inputs."""

import timeit
from functools import partial

import torch

import audit.judge as judge
import audit.stages as stages
from utils.attacks import span
from utils.errors import InputError

LAYERS = 4  # whose span is tested, at most
ROOM = 0.9  # largest share of its inputs that what training added to a layer may take
BATCH, MEMORY = 64, 2**27  # pictures, and bytes of what they are to a layer, at once
BY_GRADIENT, BY_SPAN = "membership by gradient", "span of what training added"


def planned(case):
    """The Stages for the module of a stages.Case."""
    if case.module is None:
        return []
    module, takes, before = case.module
    with torch.no_grad():
        forward = sum(map(len, case.sides)) * min(timeit.repeat(lambda: module(takes(case.sides[0][:1])), number=1))
    found = [stages.Stage(BY_GRADIENT, 1 + 10 * forward, partial(by_gradient, case))]
    if before is not None:
        layers = roomy(case)
        sizes = [sorted(layer.weight.flatten(1).shape) for layer, _ in layers.values()]
        algebra = sum(100 * a**3 + 30 * a * a * b for a, b in sizes) / stages.rate()
        found.append(stages.Stage(BY_SPAN, 1 + algebra + LAYERS * forward, partial(by_span, case, layers)))
    return found


def by_gradient(case):
    """Whether the gradient of the loss of training pictures is shorter than that of held-out ones, in all weights."""
    module, takes, _ = case.module
    if not any(part.requires_grad for part in module.parameters()):
        module.requires_grad_()
    trained = [part for part in module.parameters() if part.requires_grad]

    def length(x, label):
        loss = stages.losses(case, module(takes(x[None])).flatten(1), label[None]).sum()
        parts = torch.autograd.grad(loss, trained, allow_unused=True)
        return sum(part.square().sum() for part in parts if part is not None).sqrt()

    known = zip(case.sides, stages.classified(case).labels)
    values = [torch.stack([length(*one) for one in zip(*side)]) for side in known]
    score = judge.scored([-part for part in values], case.labels)
    ours, theirs = (f"{part.mean():.2g}" for part in values)
    sentence = f"The gradient of the loss has a mean length of {ours} for training and {theirs} for held-out pictures."
    return stages.Outcome(BY_GRADIENT, "ran", sentence, comparisons=(judge.of_area("gradient", score),), score=score)


def roomy(case):
    """The layers that training changed and that may have room: {name: (layer, its weight before)}.

    One that sees places, as a convolution does, must have more inputs and outputs than all pictures have places.
    """
    module, takes, before = case.module
    found = {}
    for name, layer in module.named_modules():
        if isinstance(layer, torch.nn.Linear | torch.nn.Conv2d):
            weight = before.get_submodule(name).weight
            try:
                places = span.inputs(module, layer, takes(case.sides[0][:1])).shape[1]
            except (InputError, TypeError, ValueError):  # a kind that is not read, or used twice or never
                continue
            least = min(weight.flatten(1).shape)
            room = least > 2 and (places == 1 or len(case.sides[0]) * places < ROOM * least)
            if room and not torch.equal(layer.weight, weight):
                found[name] = layer, weight
    return found


def by_span(case, layers):
    """Whether what training pictures are to layers lies in the span of what training added to these."""
    bases = {}
    for name, (layer, weight) in layers.items():
        try:
            bases[name] = span.basis(layer.weight, weight)
        except InputError:  # no gap
            continue
    shares = {name: basis.shape[1] / len(basis) for name, basis in bases.items()}
    best = sorted((name for name in shares if shares[name] < ROOM), key=shares.__getitem__)[:LAYERS]
    if not best:
        raise InputError("What training added leaves no room in any layer for what it did not see: none was tested.")
    comparisons, scores, said = [], [], []
    for name in best:
        energy = [1 - outside(case.module, layers[name][0], bases[name], x).square() for x in case.sides]
        inside = [part > 1 - stages.INSIDE for part in energy]
        scores.append(judge.scored(energy, case.labels))
        comparisons.append(judge.of_area(f"energy in the span of the change of layer {name}", scores[-1]))
        comparisons.append(judge.of_count(f"pictures in the span of the change of layer {name}", *inside))
        ours, theirs = (f"{part.sum()} of {len(part)}" for part in inside)
        said.append(
            f"in that of layer {name}, {bases[name].shape[1]} of {len(bases[name])} directions, {ours} and {theirs}"
        )
    sentence = f"Of training and held-out pictures lie in the span of the change: {'; '.join(said)}."
    facts = {"ranks": {name: bases[name].shape[1] for name in best}}
    return stages.Outcome(BY_SPAN, "ran", sentence, comparisons=tuple(comparisons), score=scores[0], facts=facts)


def outside(whole, layer, basis, x):
    """The distances (n,) of pictures x (n, d) from a basis of inputs to a layer, as `span.distances`, in batches."""
    places = span.inputs(whole.module, layer, whole.takes(x[:1])).shape[1]
    parts = x.split(max(1, min(BATCH, MEMORY // (8 * places * len(basis)))))
    found = [span.distances(span.inputs(whole.module, layer, whole.takes(part)), basis) for part in parts]
    return torch.cat(found).nan_to_num(1.0)
