"""Readings of Table 1's network: what the paper leaves open, filled in; the victims, and what came of the attacks."""

import math
from typing import Any, NamedTuple

import torch

from attacks import starts
from evaluation import notation
from experiments import truncated
from training import images, stationary
from utils import networks
from utils.errors import choose
from utils.kernels import one_hidden
from utils.kernels.similarity import pairwise_ssim
from utils.networks import Released

STARTS = ("random", "ground_truth", "partition")


class Reading(NamedTuple):
    """How the network was trained and attacked; the defaults are those of the lazy base."""

    images: int = 50  # m
    width: int = 64  # h
    sharpness: float = math.inf  # β; ∞ is the ReLU
    decay: float = 0.0  # μ
    draw: str = "standard"  # θ⁰: torch's own, uniform, U(0, 1), or small, U(±1/√d)
    knowledge: str = "known"  # inner training begins at θ⁰, at an unknown one, or at θ*: weights
    victim: str = "descent"  # how θ* was trained: by descent, quasi-Newton, or until stationary
    trained: int = 10  # for so many steps
    inner: str = "descent"  # how the attacker trains, by the same three
    inner_steps: int = 10  # K
    rate: float = 1e-2  # of descent
    outer: str = "quasi-Newton"  # or fixed: one η, eq. (7)
    steps: int = 10  # of the attack
    prepared: bool = False  # whether the start is prepared first


BASES = {
    "lazy": Reading(),
    "trained": Reading(sharpness=10.0, decay=1e-2, victim="stationary", inner="stationary"),
}
READINGS: dict[str, dict[str, Any]] = {  # {name: what differs from the base it begins with}
    "lazy": {},
    "lazy, θ⁰ unknown": {"knowledge": "unknown"},
    "lazy, from θ*": {"knowledge": "weights"},
    "lazy, trained for 11 steps": {"trained": 11},
    "lazy, U(0, 1)": {"draw": "uniform"},
    "lazy, U(0, 1), rate 1e-5": {"draw": "uniform", "rate": 1e-5},
    "lazy, U(0, 1), θ⁰ unknown": {"draw": "uniform", "knowledge": "unknown"},
    "lazy, U(0, 1), rate 1e-5, θ⁰ unknown": {
        "draw": "uniform",
        "rate": 1e-5,
        "knowledge": "unknown",
    },
    "lazy, U(±1/√d)": {"draw": "small"},
    "lazy, softplus": {"sharpness": 10.0},
    "lazy, μ = 0.1": {"decay": 0.1},
    "lazy, rate 0.1": {"rate": 0.1},
    "lazy, rate 1": {"rate": 1.0},
    "lazy, K = 100": {"trained": 100, "inner_steps": 100, "steps": 4},
    "lazy, inner L-BFGS": {"victim": "quasi-Newton", "inner": "quasi-Newton"},
    "lazy, fixed η": {"outer": "fixed"},
    "lazy, h = 16": {"width": 16},
    "lazy, h = 1024": {"width": 1024, "steps": 4},
    "lazy, h = 6144, no attack": {"width": 6144, "steps": 0},
    "lazy, m = 10": {"images": 10},
    "lazy, m = 100": {"images": 100},
    "lazy, m = 500": {"images": 500, "steps": 2},
    "trained": {},
    "trained, θ⁰ unknown": {"knowledge": "unknown"},
    "trained, from θ*": {"knowledge": "weights", "steps": 40},
    "trained, from θ*, prepared": {"knowledge": "weights", "prepared": True},
    "trained, from θ*, K = 10": {"knowledge": "weights", "inner": "descent"},
    "trained, K = 10": {"inner": "descent"},
    "trained, U(0, 1)": {"draw": "uniform"},
    "trained, U(0, 1), θ⁰ unknown": {"draw": "uniform", "knowledge": "unknown"},
    "trained, β = 1": {"sharpness": 1.0},
    "trained, β = 100": {"sharpness": 100.0},
    "trained, μ = 0.001": {"decay": 1e-3},
    "trained, μ = 0.1": {"decay": 0.1},
    "trained, from θ*, fixed η": {"knowledge": "weights", "outer": "fixed"},
    "trained, h = 16": {"width": 16},
    "trained, h = 256": {"width": 256},
    "trained, m = 10": {"images": 10},
    "trained, m = 100": {"images": 100},
}


def reading_of(name, **sizes):
    """The Reading of that name; `sizes` are its images, width and steps unless it has its own."""
    changes = READINGS[choose("READING", name, READINGS)]
    return BASES[name.partition(",")[0]]._replace(**sizes | changes)


def recipe_of(reading):
    """How the victim is built, as far as a Recipe can say it."""
    draw = "uniform" if reading.draw == "uniform" else "standard"
    return networks.one_hidden(reading.width, reading.decay, reading.sharpness, draw)


def first_weights(reading, d, seed, device="cpu"):
    """Draw θ⁰, a network for images of d values."""
    one, two = networks.initial(recipe_of(reading), d, seed, device=device)
    shrink = (reading.width / d) ** 0.5 if reading.draw == "small" else 1.0
    return one, *networks.change((two,), lambda part: shrink * part)


def victim_of(reading, secret, theta0):
    """What is Released after training from a network θ⁰: a stationary point, or where training stops."""
    (x, y), recipe = secret, recipe_of(reading)
    if reading.victim == "stationary":
        return stationary.train(secret, recipe, initial=theta0).released
    first = one_hidden.weights(theta0, reading.sharpness)
    how = reading.trained, reading.victim, reading.rate
    theta = truncated.trained(x, y, reading.decay, first, *how)
    return Released(one_hidden.network(theta), y, recipe)


def of_victim(reading, target, theta0, secret):
    """What is known of a victim with Weights θ*: {quantity: (number, no baseline)}."""
    x, y = secret
    slope = one_hidden.energy(one_hidden.pack(target), x, y, reading.decay, target.sharpness)[1]
    correct = (one_hidden.logits(x, target) > 0) == y
    far = one_hidden.square_distance(one_hidden.weights(theta0, reading.sharpness), target)
    return {
        "victim_gradient_norm": (slope.norm(), None),
        "victim_accuracy": (correct.double().mean(), None),
        "theta0_distance": (far / one_hidden.square_norm(target), None),
    }


def of_attack(images, start, before, after, target, shape):
    """What came of attacks from three starts: {quantity: (numbers, baselines)}, each (3,)."""
    norm = one_hidden.square_norm(target)
    count = one_hidden.pack(target).numel()
    units = {"relative_distance": norm, "square_distance": 1, "mean_square_distance": count}
    similar = torch.stack([pairwise_ssim(x, x0, shape).mean() for x, x0 in zip(images, start)])
    return {name: (after / unit, before / unit) for name, unit in units.items()} | {
        "moved": (truncated.moved(images, start, start[0].numel()), torch.zeros(3)),
        "ssim_to_start": (similar, torch.ones(3)),
    }


def rows_of(reading, labelled, seed, device="cpu"):
    """Train and attack a victim by a Reading, from three starts: its Rows for RESULTS."""
    m = reading.images
    data = images.split(labelled, m, m, seed, device)
    secret = data.secret
    d = secret.images.shape[1]
    theta0 = first_weights(reading, d, 2 * seed, device)
    released = victim_of(reading, secret, theta0)
    target = one_hidden.weights(released.network, reading.sharpness)
    other = first_weights(reading, d, 2 * seed + 1, device)
    begins = {"known": theta0, "unknown": other, "weights": None}
    places = starts.random(m, d, seed, device), secret.images, starts.partition(data.known, m)
    start = torch.stack(places)
    ends, before, after = truncated.attack(
        released,
        start,
        begins[reading.knowledge],
        truncated.Training(reading.inner_steps, reading.inner, reading.rate),
        iterations=reading.steps,
        fixed=reading.outer == "fixed",
        prepared=reading.prepared,
    )
    attacked = of_attack(ends, start, before, after, target, data.shape)
    listed = []
    of_all = of_victim(reading, target, theta0, secret)
    for k, place in enumerate(STARTS):
        of_one = {name: [part[k] for part in both] for name, both in attacked.items()}
        listed += notation.rows(f"reading/{place}", seed, of_one | of_all)
    return listed
