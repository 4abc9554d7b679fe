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
        sizes = [sorted(layer.weight.flatten(1).shape) for layer, *_ in layers.values()]
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
    try:
        values = [torch.stack([length(*one) for one in zip(*side)]) for side in known]
    except RuntimeError as error:  # of a stranger's code
        raise InputError(f"The gradient cannot be taken ({str(error).splitlines()[0]}).") from error
    score = judge.scored([-part for part in values], case.labels)
    ours, theirs = (f"{part.mean():.2g}" for part in values)
    sentence = f"The gradient of the loss has a mean length of {ours} for training and {theirs} for held-out pictures."
    return stages.Outcome(BY_GRADIENT, "ran", sentence, comparisons=(judge.of_area("gradient", score),), score=score)


def roomy(case):
    """The layers with the most room of those that training changed: {name: (layer, its weight before, directions)}.

    Its pictures can have taken as many directions of the inputs as they have places there, or as there are outputs.
    """
    module, takes, before = case.module
    found = {}
    for name, layer in module.named_modules():
        if isinstance(layer, torch.nn.Linear | torch.nn.Conv2d):
            weight = before.get_submodule(name).weight
            try:
                _, places, size = span.inputs(module, layer, takes(case.sides[0][:1])).shape
            except (InputError, TypeError, ValueError):  # a kind that is not read, or used twice or never
                continue
            taken = min(len(weight), len(case.sides[0]) * places)
            if 2 < taken < ROOM * size and not torch.equal(layer.weight, weight):
                found[places * taken / size, name] = layer, weight, taken
    return {key[1]: found[key] for key in sorted(found)[:LAYERS]}


def by_span(case, layers):
    """Whether what training pictures are to layers lies in the span of what training added to these."""
    if not layers:
        raise InputError("What training added leaves no room in any layer for what it did not see: none was tested.")
    comparisons, scores, said, facts = [], [], [], {}
    for name, (layer, weight, taken) in layers.items():
        of = f"in the span of the change of {name}.weight"
        try:
            basis, told = span.basis(layer.weight, weight), True
        except InputError:  # no gap
            full = len(weight) < ROOM * weight[0].numel()
            basis, told = span.basis(layer.weight, weight, rank=len(weight) if full else taken), False
        facts[name] = basis.shape[1]
        energy = [1 - outside(case.module, layer, basis, x).square() for x in case.sides]
        scores.append(judge.scored(energy, case.labels))
        comparisons.append(judge.of_area(f"energy {of}", scores[-1]))
        said.append(f"{name}.weight, {basis.shape[1]} of {len(basis)} directions")
        if told:
            comparisons.append(judge.of_count(f"pictures {of}", *(part > 1 - stages.INSIDE for part in energy)))
            said[-1] += f" ({comparisons[-1].training} training and {comparisons[-1].held_out} held-out pictures)"
    sentence = f"The span of what training added was tested in {'; '.join(said)}."
    found = {"comparisons": tuple(comparisons), "score": scores[0], "facts": {"ranks": facts}}
    return stages.Outcome(BY_SPAN, "ran", sentence, **found)


def outside(whole, layer, basis, x):
    """The distances (n,) of pictures x (n, d) from a basis of inputs to a layer, as `span.distances`, in batches."""
    places = span.inputs(whole.module, layer, whole.takes(x[:1])).shape[1]
    parts = x.split(max(1, min(BATCH, MEMORY // (8 * places * len(basis)))))
    found = [span.distances(span.inputs(whole.module, layer, whole.takes(part)), basis) for part in parts]
    return torch.cat(found).nan_to_num(1.0)
