"""One attack on one victim, from the images to the Trial: trainer, attacker and evaluator, each in its turn.

A victim of the bilevel attack sees its images as they are; one of the stationarity attack sees them without their mean.
"""

from typing import NamedTuple

import torch

from attacks import bilevel, decoreco, planting, starts
from attacks.contract import Attack
from training import Victim, stationary
from training.images import Split
from utils import networks

SCALE = decoreco.ADAM.scale  # of the noise that DecoReco begins at, standard deviation of a pixel
DEPTHS = {2: "two_layers", 3: "three_layers"}  # of a network, in names of RESULTS


class Name(NamedTuple):
    """What was attacked, how, and from where."""

    attack: str  # bilevel, decoreco or the name of another attack
    model: str  # affine or one_hidden; for decoreco the rule of its coefficients
    start: str  # random, untuned, ground_truth or partition
    knowledge: str = ""  # from_weights, known_theta0 or unknown_theta0, where it matters

    @property
    def prefix(self):
        """The name in RESULTS, before the quantity."""
        return "/".join(part for part in self if part)


class Trial(NamedTuple):
    """One attack on one victim. No attack ever sees a Trial."""

    name: Name  # what was attacked, how, and from where
    seed: int  # of the run, as RESULTS have it
    data: Split  # whose secret Part trained the victim
    victim: Victim
    start: torch.Tensor  # x₀ (n, d) as drawn, for decoreco without a mean, not yet within any basis
    attack: Attack
    basis: torch.Tensor | None = None  # (d, r), if the attack searched the span of the first layer
    again: Attack | None = None  # an independent one from a random start, if it was made


def begin(place: str, data: Split, victim: Victim, seed: int, n: int) -> torch.Tensor:
    """Where an attack on a Victim begins, n images (n, d) without a mean if it saw none.

    `random` is U(0, 1), or N(0, 0.0197²) without a mean; `untuned` is N(0, 1). `partition`, known photographs, lacks
    their own mean, the only one that an attacker has. `ground_truth` comes from the evaluator, with the trainer's.
    """
    centred = victim.released.recipe.centred
    secret = data.secret.images
    if place == "ground_truth":
        return victim.subtract_mean(secret)
    if place == "partition":
        return starts.partition(data.known, n) - centred * data.known.images.mean(0)
    if place == "random" and not centred:
        return starts.random(n, secret.shape[1], seed, secret.device)
    scale = SCALE if place == "random" else 1.0
    return starts.normal(n, secret.shape[1], scale, seed, secret.device)


def bilevel_trial(data, recipe, place, seed, knowledge="", progress=False, **settings):
    """The bilevel attack on a network trained on a Split's secret images: a Trial.

    A network with a hidden layer needs `knowledge`, where the attacker's training begins: at θ* (`from_weights`), with
    a start that is prepared; at the trainer's θ⁰, drawn from 2·`seed` (`known_theta0`); or at the next draw
    (`unknown_theta0`). `settings` of bilevel.attack are for an attack that begins at a θ⁰.
    """
    victim = stationary.train(data.secret, recipe, 2 * seed)
    m, d = data.secret.images.shape
    start = begin(place, data, victim, seed, m)
    attack = planting.attack if knowledge == "from_weights" else bilevel.attack
    if knowledge.endswith("theta0"):
        draw = 2 * seed + (knowledge == "unknown_theta0")
        settings["initial"] = networks.initial(recipe, d, draw, device=start.device)
    else:
        settings = {}
    found = attack(victim.released, start, progress=progress, **settings)
    name = Name("bilevel", "one_hidden" if recipe.hidden else "affine", place, knowledge)
    return Trial(name, seed, data, victim, start, found)


def candidates(rule: str, data: Split) -> int:
    """How many images DecoReco moves by a rule: as many as the attacker has, or m by the rule `tied`.

    That rule takes the images for the whole training set, and coefficients from their losses.
    """
    return len((data.secret if rule == "tied" else data.known).labels)


def decoreco_trial(
    data, victim, settings, place, seed, space="pixels", restart=None, progress=False, watch=None
):
    """DecoReco in `pixels`, or in the `span` of the first layer, on a Victim of a Split's secret images: a Trial.

    With `restart`, a seed of coefficients, a second attack begins at other noise, which any adversary can draw; the
    first one is `watch`ed.
    """
    basis = networks.span(victim.released.network) if space == "span" else None
    start = begin(place, data, victim, seed, candidates(settings.rule, data))
    given = {"settings": settings, "basis": basis, "progress": progress}
    attack = decoreco.attack(victim.released, start, seed=seed, watch=watch, **given)
    again = None
    if restart is not None:
        noise = begin("random", data, victim, seed + 1000, len(start))
        again = decoreco.attack(victim.released, noise, seed=restart, **given)
    name = Name("decoreco", settings.rule, place)
    return Trial(name, seed, data, victim, start, attack, basis, again)
