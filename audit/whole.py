"""Networks as they compute: whose loss has a small gradient, and what training added to any layer, with its inputs."""

from functools import partial

import torch

from attacks import span
from audit import judge, stages
from utils.errors import InputError

LAYERS = 4  # whose span is tested, at most
ROOM = 0.9  # largest share of its inputs that what training added to a layer may take
BATCH = 8  # pictures whose inputs to a layer are in memory at once
BY_GRADIENT = "membership by gradient"
BY_SPAN = "span of what training added"


def planned(case: stages.Case) -> list[stages.Stage]:
    """The Stages for a stages.Case whose network is a module of more than layers."""
    if not case.network.is_more:
        return []
    found = [stages.Stage(BY_GRADIENT, partial(by_gradient, case), stages.GRADIENTS)]
    span_test = stages.Stage(BY_SPAN + case.since, partial(by_span, case))
    return found + [span_test] * (case.before is not None)


def by_gradient(case, name):
    """Whether the gradient of the loss of training pictures is shorter than that of held-out ones, in all weights."""
    module, takes = case.network.module, case.network.takes
    if not any(part.requires_grad for part in module.parameters()):
        module.requires_grad_()
    trained = [part for part in module.parameters() if part.requires_grad]

    def length(x, label):
        loss = stages.losses(case.loss, module(takes(x[None])).flatten(1), label[None]).sum()
        parts = torch.autograd.grad(loss, trained, allow_unused=True)
        return torch.stack([part.norm() for part in parts if part is not None]).norm()

    known = case.known()
    try:
        values = [
            torch.stack([length(*one) for one in zip(*side)])
            for side in zip(case.rows, known.labels)
        ]
    except RuntimeError as error:  # of a stranger's code; any other is a fault
        raise InputError(f"The gradient cannot be taken ({str(error).splitlines()[0]}).") from error
    score = judge.scored([-part for part in values], case.labels)
    ours, theirs = (f"{part.mean():.2g}" for part in values)
    sentence = f"The gradient of the loss has a mean length of {ours} for training and {theirs} for held-out pictures."
    comparisons = (judge.of_area("gradient", score),)
    return stages.Outcome(name, "ran", sentence, comparisons=comparisons, scores={name: score})


def roomy(case):
    """The layers with the most room of those that training changed, and bases of what it added: {name: (layer, basis)}.

    Its pictures can have taken as many directions of the inputs as they have places there, or as there are outputs;
    the latter are looked at if they leave room.
    """
    module = case.network.module
    picture = case.network.takes(case.seen(case.pictures[0].images[:1]))
    found = {}
    for name, layer in module.named_modules():
        if isinstance(layer, torch.nn.Linear | torch.nn.Conv2d):
            weight = case.before.get_submodule(name).weight
            try:
                _, places, size = span.inputs(module, layer, picture).shape
            # a kind that is not read, or used twice or never
            except (InputError, TypeError, ValueError):
                continue
            outputs = len(weight)
            taken = min(outputs, case.sizes[0] * places)
            if 2 < taken < ROOM * size and not torch.equal(layer.weight, weight):
                directions = outputs if outputs < ROOM * size else taken
                found[places * taken / size, name] = layer, weight, directions
    return {key[1]: (found[key][0], basis_of(*found[key])) for key in sorted(found)[:LAYERS]}


def by_span(case, name):
    """Whether what training pictures are to layers lies in the span of what training added to these."""
    layers = roomy(case)
    if not layers:
        raise InputError(
            "What training added leaves no room in any layer for what it did not see: none was tested."
        )
    found = {}
    comparisons = []
    said = []
    shares = [inside(case.network, layers.values(), x) for x in case.rows]
    for (place, (_, basis)), *sides in zip(layers.items(), *shares):
        score, tests = stages.in_span(sides, f"the change of {place}.weight", case.labels)
        found[f"the change of {place}.weight"] = score
        comparisons += tests
        said.append(f"{place}.weight, {basis.shape[1]} of {len(basis)} directions")
    sentence = f"The span of what training added was tested in {'; '.join(said)}."
    return stages.Outcome(
        name,
        "ran",
        sentence,
        comparisons=tuple(comparisons),
        scores={name: next(iter(found.values()))},
        spans=found,
    )


def basis_of(layer, weight, directions):
    """A basis of what training added to a layer of a `weight` before, of so many directions where no gap shows them."""
    try:
        return span.basis(layer.weight, weight)
    except InputError:
        return span.basis(layer.weight, weight, rank=directions)


def inside(network, layers, x):
    """The `energy` (n,) of pictures x (n, d), for each pair of a layer and a basis of its inputs."""
    parts = []
    for part in x.split(BATCH):
        seen = span.inputs_of(network.module, [layer for layer, _ in layers], network.takes(part))
        parts.append([energy(a, basis) for a, (_, basis) in zip(seen, layers)])
    return [torch.cat(of).nan_to_num(0.0) for of in zip(*parts)]


def energy(a, basis):
    """The shares (n,) of the energy of inputs a (n, places, inputs) in an orthonormal basis (inputs, r)."""
    return (a @ basis).square().sum((1, 2)) / a.square().sum((1, 2))
