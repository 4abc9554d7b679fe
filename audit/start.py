"""The start of a network, where nobody gives one: read from the signs of its weights, if torch's generator drew it."""

from functools import partial

import torch

from attacks import generator
from audit import modules, weights
from audit.stages import START, Outcome, Stage
from utils.errors import InputError, explained
from utils.kernels.layers import Network
from utils.networks import Layer

READ = "reading of the start"
SINCE = " since the read start"  # in the names of attacks that use it
WORDS = "read from the signs"  # in the settings, in place of a network that was given
MOST = 30_000_000  # weights, for which a reading takes five gigabytes
MANY = f"No start is read of more than {MOST:,} weights, as that takes too much memory here; another attacker has it."
SAID = (
    "The initial weights were read from the signs of the trained ones: torch's generator drew them ({}); "
    "nobody needs a file from before the training."
)


def planned(case, source, model):
    """The Stages, one or none, that read the start of a Case's network, which is a `source` or built by a `model`."""
    module = case.network.module
    layers = case.network.stack or case.network.layers
    if not (module or layers):
        return []
    taken = case.shape, case.showing.layout
    asked = of_module(module, model) if module else of_layers(layers, source, *taken)
    return [Stage(READ, partial(read, *asked), START)]


def of_module(module, model):
    """Named parameters, what draws such a module, and what turns one into what `weights.read` takes."""
    parameters = dict(module.named_parameters())
    own = partial(modules.redrawn, module)
    build = partial(modules.made, model, parameters) if model else own
    return parameters, build, torch.nn.Module.state_dict


def of_layers(layers, network, shape, layout):
    """What `of_module` gives, for Layers that take pictures as (H, W, C), where the `network` took them in a layout."""
    own = "HWC" if isinstance(network, tuple | list) else layout
    first = layers[0]._replace(weight=weights.reordered(layers[0].weight, shape, "HWC", own))

    def start_of(module):
        drawn, *others = (Layer(one.weight, one.bias) for one in module.requires_grad_(False))
        return drawn._replace(weight=weights.reordered(drawn.weight, shape, own, "HWC")), *others

    parameters = {
        f"{k}.{name}": part
        for k, layer in enumerate((first, *layers[1:]))
        for name, part in layer._asdict().items()
        if part is not None
    }
    return parameters, partial(stack_of, layers), start_of


def stack_of(network: Network) -> torch.nn.Sequential:
    """Fully connected layers of these sizes with torch's own start, in this order."""
    layers = [torch.nn.Linear(*l.weight.shape[::-1], bias=l.bias is not None) for l in network]
    return torch.nn.Sequential(*layers)


def read(parameters, build, start_of, name):
    """The Outcome with the start of these parameters, which `build()` draws; InputError if it is not read."""
    if sum(part.numel() for part in parameters.values()) > MOST:
        raise InputError(MANY)
    with explained("The network cannot be drawn again", "give its start (--before)"):
        found = generator.read(parameters, build)
    seed = "seed {}, {} draws before".format(*found.seed) if found.seed else "long after its seed"
    return Outcome(name, "ran", SAID.format(seed), start=start_of(found.module))
