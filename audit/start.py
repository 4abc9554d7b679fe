"""The start of a network, where nobody gives one: read from the signs of its weights, if torch's generator drew it."""

from functools import partial

import torch

from attacks import generator, mersenne
from audit import modules, weights
from audit.stages import READ, Outcome, Stage
from utils.errors import InputError
from utils.kernels.layers import Network
from utils.networks import Layer

SINCE = " since the read start"  # in the names of attacks that use it
WORDS = "read from the signs"  # in the settings, in place of a network that was given
MOST = 30_000_000  # weights, for which a reading takes five gigabytes
MANY = f"No start is read of more than {MOST:,} weights, as that takes too much memory here; another attacker has it."
NEEDED = mersenne.ORDER + generator.SPARE  # weights
SAID = (
    "The initial weights were read from the signs of the trained ones: torch's generator drew them ({}); "
    "nobody needs a file from before the training."
)


def planned(target, network, model, shape, layout):
    """The Stages, one or none, that read the start of a `network`, a weights.Network that may be built by a `model`."""
    module = target.module
    layers = target.stack or target.layers
    if not (module or layers):
        return []
    asked = of_module(module, model) if module else of_layers(layers, network, shape, layout)
    parameters = asked[0].values()
    used = [p for p in parameters if p.dim() > 1 and min(p.flatten(1).shape) >= generator.NARROW]
    count = sum(p[: generator.ROWS].numel() for p in used)
    every = sum(p.numel() for p in parameters)
    few = generator.FEW.format(f"{count:,}", f"{NEEDED:,}") if count < NEEDED else ""
    if why := few or MANY * (every > MOST):
        return [Stage(READ, partial(Outcome, READ, "refused", why))]
    return [Stage(READ, partial(read, *asked))]


def of_module(module, model):
    """Named parameters, what draws such a module, and what turns one into what `weights.read` takes."""
    build = partial(modules.made, model) if model else partial(modules.redrawn, module)
    return dict(module.named_parameters()), build, torch.nn.Module.state_dict


def of_layers(layers, network, shape, layout):
    """The same of Layers that take pictures as (H, W, C), where the `network` itself took them in a layout."""
    own = "HWC" if isinstance(network, tuple | list) else layout
    places = torch.arange(layers[0].weight.shape[1])[None]
    order = weights.flattened(weights.batched(places, shape, "HWC"), own)[0]
    first = layers[0]._replace(weight=layers[0].weight[:, order])

    def given(module):
        drawn, *others = (Layer(one.weight, one.bias) for one in module.requires_grad_(False))
        return drawn._replace(weight=drawn.weight[:, order.argsort()]), *others

    linear = {f"{k}.weight": layer.weight for k, layer in enumerate((first, *layers[1:]))}
    biases = {f"{k}.bias": l.bias for k, l in enumerate(layers) if l.bias is not None}
    return linear | biases, partial(stack_of, layers), given


def stack_of(network: Network) -> torch.nn.Sequential:
    """Fully connected layers of these sizes with torch's own start, in this order."""
    layers = [torch.nn.Linear(*l.weight.shape[::-1], bias=l.bias is not None) for l in network]
    return torch.nn.Sequential(*layers)


def read(parameters, build, given):
    """The Outcome with the start of these parameters, which `build()` draws; InputError if it is not read."""
    try:
        found = generator.read(parameters, build)
    except InputError:
        raise
    except Exception as error:  # of a stranger's code
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        raise InputError(f"The network cannot be drawn again ({reason}).") from error
    seed = "seed {}, {} draws before".format(*found.seed) if found.seed else "long after its seed"
    return Outcome(READ, "ran", SAID.format(seed), start=given(found.module))
