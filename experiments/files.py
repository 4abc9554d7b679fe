"""What each entry of a training's files gives back, and what becomes of an optimiser's state that is kept otherwise."""

import itertools
import math
from functools import partial
from typing import NamedTuple

import torch
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from attacks import first_layer, known_start, unmixing
from evaluation import measures
from experiments.variants import Settings, private_gradients
from training import ordinary
from utils.errors import InputError
from utils.kernels import naive
from utils.kernels.similarity import match
from utils.networks import Checkpoint, Layer, change, span, within

# values of a block of 8 bits, and from how many on a tensor is kept so
BLOCK = 256
LARGE = 4096


class Entry(NamedTuple):
    """What came back from one entry of a training's files."""

    unmixed: tuple  # the Attack by unmixing
    exact: tuple | None = None  # the Attack that zeros make exact, or None where it was not made


def attack_rows(released, rows, shape, count, seed, *, zeros):
    """Unmix Rows, given the count where they do not tell it; with exact images if `zeros`: Entry."""
    unmixed = first_layer.attempt(released, rows, shape, count, seed)
    made = zeros and unmixed.images is not None
    return Entry(unmixed, first_layer.refine_by_vote(rows, unmixed, shape) if made else None)


def gradient(network, x, y):
    """The gradient of the mean loss of images x (m, d) at a network, as a Checkpoint's first moment: Checkpoint."""
    net = naive.module_of(network).float()
    ordinary.logistic(net(x.float()), y.float()).backward()
    parts = iter([p.grad.double() for p in net.parameters()])
    return Checkpoint(network, tuple(map(Layer, parts, parts)))


def states(released, *how):
    """What the moments of the last and of all Checkpoints give back: {name: Entry}."""
    files = released.checkpoints
    rows = {"state": first_layer.of_files(files[-1:]), "states": first_layer.of_files(files)}
    return {name: attack_rows(released, some, *how, zeros=True) for name, some in rows.items()}


def entries(released, initial, average, of_gradient, shape, count, seed):
    """What each entry of the files gives back, {name: Entry}, an `average` of weights and a gradient among them."""
    how = (shape, count, seed)
    files = released.checkpoints
    last = files[-1]
    started = first_layer.difference(last.network, initial)
    exact = {"start": started, "series": first_layer.of_files(files, moments=False)}
    others = {
        "average": first_layer.difference(last.network, average),
        "two": first_layer.of_files(files[-2:], moments=False),
        "gradient": first_layer.of_files((of_gradient,)),
    }
    if last.second:  # Adam divides by the root of the second moment: so multiply by it
        rows, (scale, *_) = started.layer, last.second
        undone = Layer(rows.weight * scale.weight.sqrt(), rows.bias * scale.bias.sqrt())
        others["second"] = started._replace(layer=undone)
    found = {
        name: attack_rows(released, rows, *how, zeros=name in exact)
        for name, rows in (exact | others).items()
    }
    found["weights"] = Entry(unmixing.attempt(released, *how, unmixing.SOON))
    return found | states(released, *how)


def crowded(released, initial, shape, count, seed):
    """What a known start and moments give back of any number of images, {name: (Rows, {how it was counted: Entry})}.

    The number is read, or else nothing comes back; or it is `given`, and believed however few the neurons are.
    """
    kept = released.checkpoints
    settings = {"seed": seed, "later": unmixing.SOON, "most": math.inf}
    found = {}
    rows = {"start": first_layer.difference(kept[-1].network, initial)}
    rows |= {"state": first_layer.of_files(kept[-1:]), "states": first_layer.of_files(kept)}
    for name, some in rows.items():
        read = first_layer.attempt(released, some, shape, None, seed)
        given = read  # if the number read is right
        if read.details.count != count:
            given = unmixing.attack(
                first_layer.as_released(some, released), shape, count=count, **settings
            )
        found[name] = some, {"read": Entry(read), "given": Entry(given)}
    return found


def inside(layer, sides):
    """Of how many images of each of two `sides` (m, d) a layer's row space holds a picture that is like them."""
    basis = span((layer,), 1e-7)
    return tuple(match(x, within(x, basis)).above(measures.STRONG) for x in sides)


def averaging(decay=0.99):
    """A `prepare` of `ordinary.tune` that keeps a running mean of the weights, and a function that gives it."""
    kept: list = []

    def prepare(net, optimiser):
        kept.append(AveragedModel(net, multi_avg_fn=get_ema_multi_avg_fn(decay)))
        kept[0].update_parameters(net)  # the first call copies
        optimiser.register_step_post_hook(lambda *_: kept[0].update_parameters(net))

    return prepare, lambda: ordinary.layers_of(kept[0].module)


def levels():
    """The 256 numbers of dynamic 8-bit quantisation (Dettmers et al., 2022), rising, from −1 to 1."""
    positive = [torch.tensor([0.0, 1.0], dtype=torch.float64)]
    for k in range(7):
        edges = torch.linspace(0.1, 1, 2**k + 1, dtype=torch.float64)
        positive.append(10.0 ** (k - 6) * (edges[1:] + edges[:-1]) / 2)
    some = torch.cat(positive)
    return torch.cat([-torch.cat(positive[1:]), some]).sort().values


def in_8_bits(part):
    """A tensor as an 8-bit optimiser keeps it: the nearest of 256 levels, in units of the largest of each block."""
    if part.numel() < LARGE:
        return part
    flat = torch.nn.functional.pad(part.flatten(), (0, -part.numel() % BLOCK)).view(-1, BLOCK)
    sizes = flat.abs().amax(1, keepdim=True).clamp_min(1e-38)
    grid = levels().to(part)
    middles = (grid[1:] + grid[:-1]) / 2
    rounded = grid[torch.bucketize(flat / sizes, middles)] * sizes
    return rounded.flatten()[: part.numel()].view_as(part)


ROUNDED = {  # how a file keeps a moment
    "32 bits": lambda p: p,
    "bfloat16": lambda p: p.bfloat16().to(p),
    "half precision": lambda p: p.half().to(p),
    "8 bits": in_8_bits,
}


def round_checkpoint(checkpoint, how):
    """A Checkpoint whose first moment is kept in one of ROUNDED."""
    return checkpoint._replace(first=change(checkpoint.first, ROUNDED[how]))


def noisy(network, share, seed):
    """A network, or moments, with normal noise of so large a `share` of the root mean square of each tensor."""
    drawn = torch.Generator().manual_seed(seed)

    def disturbed(p):
        noise = torch.randn(p.shape, dtype=p.dtype, generator=drawn).to(p.device)
        return p + share * p.square().mean().sqrt() * noise

    return change(network, disturbed)


def after(step, action):
    """A `prepare` that calls action(net, optimiser) behind so many steps; 0: behind each."""

    def prepare(net, optimiser):
        count = itertools.count(1)
        optimiser.register_step_post_hook(
            lambda *_: action(net, optimiser) if next(count) == step or not step else None
        )

    return prepare


def empty(net, optimiser):
    """Set the moments of an optimiser to zero, as a reset does."""
    for part in ordinary.moments(optimiser, net.parameters(), *ordinary.FIRST, "exp_avg_sq"):
        part.zero_()


def round_to_8_bits(net, optimiser):
    """Round an optimiser's first moments as an 8-bit one does behind each step."""
    for part in ordinary.moments(optimiser, net.parameters(), *ordinary.FIRST):
        part.copy_(in_8_bits(part))


def stop(net, optimiser):
    """Set the learning rate to zero."""
    for group in optimiser.param_groups:
        group["lr"] = 0.0


def clip(net, optimiser):
    """Clip every gradient to length one before each step."""
    optimiser.register_step_pre_hook(
        lambda *_: torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0) and None
    )


def set_beta(beta):
    """A `prepare` that sets β of momentum, or β₁ of Adam."""

    def prepare(net, optimiser):
        for group in optimiser.param_groups:
            group.update({"momentum": beta} if "momentum" in group else {"betas": (beta, 0.999)})

    return prepare


def settings(epochs):
    """What is changed of a training of so many epochs, as settings of `ordinary.train`: {name: settings}."""
    steps = epochs * ordinary.BATCHES
    prepared = {
        "β = 0.5": set_beta(0.5),
        "β = 0.95": set_beta(0.95),
        "β = 0.99": set_beta(0.99),
        "gradients clipped to length 1": clip,
        "moment in 8 bits in every step": after(0, round_to_8_bits),
        "last epoch at rate zero": after(steps - ordinary.BATCHES, stop),
        "moments emptied before the last step": after(steps - 1, empty),
    }
    changed = {name: {"prepare": prepare} for name, prepare in prepared.items()}
    return {"as it is": {}, "all images in a step": {"batches": 1}} | changed


def private(secret, mean, network, epochs, sigma, seed):
    """Train by private SGD with momentum, clipped to length 1 with noise σ, from a network: the last Checkpoint."""
    net = naive.module_of(network).float()
    x = (secret.images - mean).float()
    y = secret.labels.float()
    optimiser = ordinary.OPTIMISERS["sgd"](net.parameters())
    o = Settings(loss="logistic", clip=1.0, private=sigma)
    chance = torch.Generator().manual_seed(seed)
    gradients = partial(private_gradients, o=o, noise=chance)
    for _ in range(epochs):
        batches = ordinary.shuffle(x, y, -(-len(x) // ordinary.BATCHES), chance)
        ordinary.fit(net, optimiser, batches, gradients=gradients)
    if not all(p.isfinite().all() for p in net.parameters()):
        raise InputError("The private training diverged: choose another SEED.")
    return ordinary.checkpoint(net, optimiser)


def alone(released, checkpoint, shape, count, seed):
    """What a Checkpoint's first moment gives back, unmixed: Entry; nothing if it was rounded to zero."""
    if not checkpoint.first[0].weight.any():
        return Entry(unmixing.refuse(first_layer.NO_STEP))
    return attack_rows(released, first_layer.of_moment(checkpoint), shape, count, seed, zeros=False)


def with_start(released, network, initial, shape, count, seed):
    """What a network gives back whose start is known: Entry."""
    return Entry(
        known_start.attempt(released._replace(network=network), initial, shape, count, seed)[0]
    )


def numbers_of(entry, sides):
    """{quantity: (of training images, of held-out ones)} of an Entry, for the two sides as the network saw them."""
    found = {}
    for prefix, attack in (("", entry.unmixed), ("exact/", entry.exact)):
        if attack is not None:
            counts = measures.back(attack.images, sides, measures.BARS)
            found |= {prefix + name: pair for name, pair in counts.items()}
    found["count"] = (entry.unmixed.details.count, None)
    if entry.exact is not None:
        found["exact/sure"] = (entry.exact.details.sure.sum(), None)
    return found
