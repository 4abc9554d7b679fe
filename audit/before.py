"""The network from before the training, given or read: whether it is this network's own, and what it is good for."""

import torch

from attacks import first_layer
from audit import files, modules, start, weights
from audit.stages import Case, Outcome
from utils import networks
from utils.errors import InputError

FROZEN = (
    "The weights of the first layer are those from before the training: nothing was trained there."
)
STRANGE = "The network from before the training is no more like this one than any other is: give its own start."
USELESS = (
    "A network before training is of use where the first layer can be read: leave it out here."
)
RELATED = 4  # standard deviations of the correlation of unrelated weights, above which two networks are related


def with_start(case: Case, outcome: Outcome) -> Case:
    """The Case with the start that the Outcome of a reading has, or as it was."""
    if outcome.start is None:
        return case
    case = case._replace(since=start.SINCE, notes=(*case.notes, outcome.sentence))
    return with_before(case, outcome.start, None)


def with_before(case: Case, before: weights.Source, key: str | None) -> Case:
    """The Case with the network `before` training: its Layers, unless the first one was frozen, and its module."""
    network, shape, layout = case.network, case.shape, case.showing.layout
    key = files.key_in(before, key)
    twin = modules.twin(network.module, before, key)[0] if network.is_more else None
    if twin:
        before, key = twin.state_dict(), None
    initial = weights.read(before, shape, layout, key).layers if network.layers else ()
    if not (twin or initial):
        raise InputError(USELESS)
    if twin and modules.equal(network.module, twin):
        raise InputError(first_layer.UNCHANGED.replace("first layer", "network"))
    case = case._replace(before=twin)
    if not initial:
        return case
    own = network.stack or network.layers
    same = all(torch.equal(*map(networks.joint, pair)) for pair in zip(own, initial))
    same = same and network.logits
    if first_layer.is_unchanged(network.layers, initial) and (twin or not same):
        return case._replace(notes=(*case.notes, FROZEN))
    first_layer.check(network.layers[:1], initial[:1])
    case = case._replace(initial=initial)
    return case if related(own[0], initial[0]) else case._replace(notes=(*case.notes, STRANGE))


def related(layer, initial):
    """Whether the weights of a layer are more like those of an initial one than chance explains."""
    both = torch.stack([layer.weight.flatten(), initial.weight.flatten()])
    return both.corrcoef()[0, 1].abs() * both.shape[1] ** 0.5 > RELATED
