"""Reference networks: trained as the network was, each on a random half of both sides' pictures, and compared with it.

A picture is in exactly half of them, whichever side it is on, and no training hears of sides: if the network knows
neither, both can still be exchanged. The scores are those of `evaluation.membership`, LiRA and RMIA.
"""

from functools import partial

import torch

from audit import judge, modules, stages, weights
from evaluation.membership import halves, lira, rmia
from utils import networks
from utils.errors import InputError, explained

BY_SHADOWS = "membership by reference networks"
# of Adam, where no function trains them
STEPS = 500
RATE = 1e-3
SMALLEST = 1e-15  # loss, below which double precision tells no two apart
GUESS = "Adam on its own widths, a guess: where its training was another one, this test sees less, and errs no more"
MEND = "let it take pictures (n, C, H, W), labels (n,) and a seed, and return a torch module or a function of pictures"


def planned(case: stages.Case) -> list[stages.Stage]:
    """The Stages of reference networks for a stages.Case, none or one; InputError if there is nothing to train.

    Its `train` is a function (pictures (n, C, H, W) as the network sees them, labels (n,), seed) -> a torch module or a
    function of a batch; or "MODULE:FUNCTION", whose code is run. The first network is trained at once, so that a
    mistake in it is told before an attack is made.
    """
    count, train, network = case.asking.shadows, case.asking.train, case.network
    if count == 0 and train is None:
        return []
    if count < 4 or count % 2:
        mend = "give an even one of 4 or more (--shadows 16)"
        raise InputError(f"The number of reference networks is {count}: {mend}.")
    if network.logits is None or case.labels[0] is None:
        missing = "outputs of the network" if network.logits is None else "classes of the pictures"
        mend = "which are not known: leave out --shadows here"
        raise InputError(f"Reference networks need the {missing}, {mend}.")
    if train is None and (network.is_more or not network.layers):
        raise InputError(
            "Reference networks of this kind need a function that trains them: give --train."
        )
    masks = halves(torch.cat(case.labels), count, case.asking.seed)
    ask = partial(asked, case, train or own(case))
    how = GUESS if train is None else f"the code of {named(train)}, which was run"
    run = partial(by_shadows, case, masks, ask, ask(masks[0], 0), how)
    return [stages.Stage(BY_SHADOWS, run, stages.OUTPUTS)]


def named(train):
    """What to call a function that trains, or its MODULE:FUNCTION."""
    return train if isinstance(train, str) else getattr(train, "__name__", "a function")


def asked(case, train, mask, k):
    """The losses (n,) of all pictures in the k-th reference network, which is trained on a mask (n,) of them."""
    x = torch.cat(case.exchanged)
    labels = torch.cat(case.labels)
    seed = case.asking.seed + k
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        rows = mask.nonzero()[torch.randperm(mask.sum()), 0]  # an order that tells no side
        with explained(f"{named(train)} trained no network", MEND):
            pictures = weights.taking(case.shape)(x[rows])
            call = partial(modules.called, train) if isinstance(train, str) else train
            network = call(pictures, labels[rows], seed)
            if not callable(network):
                raise TypeError(f"it returned a {type(network).__name__}")
            logits = weights.read(network, case.shape).logits
            found, expected = (of(x[:2]) for of in (logits, case.network.logits))  # type: ignore[misc]
            if found.shape != expected.shape or not found.isfinite().all():
                raise ValueError("its outputs are NaN or of another number")
    return losses(case, stages.classified(logits, case.exchanged, case.labels))


def losses(case, known):
    """The losses (n,) of both sides' pictures, training ones first, of what a network makes of them, Classified."""
    outputs, labels, _ = known
    values = [stages.losses(case.loss, *one) for one in zip(outputs, labels)]
    return torch.cat(values).clamp_min(SMALLEST)


def own(case):
    """What trains a network of the same widths, from its start where that is known, until it fits half of all as well.

    A function as `planned` takes it.
    """
    values = losses(case, case.known()).sort().values
    # whichever side that half is
    enough = values[: len(values) // 2].mean()
    layers_of, recipe = case.network.layers, case.released.recipe

    def adam(batch, labels, seed):
        rows = batch.permute(0, 2, 3, 1).flatten(1)
        drawn = networks.initial(recipe, rows.shape[1], seed, len(layers_of[-1].weight))
        initial = case.initial if len(case.initial) == len(layers_of) else drawn
        layers = networks.change(initial, lambda part: part.float().requires_grad_())
        logits = weights.outputs(layers)
        step = torch.optim.Adam(filter(torch.is_tensor, sum(layers, ())), RATE)
        for _ in range(STEPS):
            loss = stages.losses(case.loss, logits(rows), labels).mean()
            if loss <= enough:
                break
            step.zero_grad()
            loss.backward()
            step.step()
        return lambda batch: logits(batch.permute(0, 2, 3, 1).flatten(1))

    return adam


def by_shadows(case, masks, ask, first, how, name):
    """Whether the network knows training pictures better than its reference networks do, more than held-out ones."""
    target = losses(case, case.known())
    known = torch.stack([first, *(ask(masks[k], k) for k in range(1, len(masks)))])
    values = {"LiRA": lira(target, known, masks), "RMIA": rmia(target, known)}
    scores = {by: judge.scored(of.split(case.sizes), case.labels) for by, of in values.items()}
    return stages.Outcome(
        name,
        "ran",
        f"{len(masks)} networks were trained, each on a random half of both sides' pictures, by {how}.",
        comparisons=tuple(
            judge.of_area(f"likelihood ratio, {by}", of) for by, of in scores.items()
        ),
        scores={f"{name}, {by}": of for by, of in scores.items()},
    )
