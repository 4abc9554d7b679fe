"""Training to a stationary point, or down to a loss; networks that others published; how stationary a network is.

A network sees its images through X̄ᵀ = QLᵀ only (QR of the images with a column of ones): m numbers per neuron, not d.
"""

import math
from functools import partial
from typing import NamedTuple

import torch

from training import Victim
from training.images import Part
from training.polish import Stationary, polish, relative_gradients
from utils import networks
from utils.errors import InputError, choose
from utils.kernels import affine, layers, one_hidden, solvers
from utils.kernels.layers import Layer, Network, change, flatten, joint, parted, unflatten
from utils.kernels.losses import LOSSES
from utils.kernels.step import run, tuned
from utils.networks import Recipe, Released

STATIONARY = 0.05  # largest ‖∇E‖/(μ‖θ‖) of a layer at which a victim counts as converged
CALM = 60  # steps at a tenth of the rate behind a loss that was to be reached, in which oscillations die out


class Pace(NamedTuple):
    """How fast a descent went: the sum of all rates is its *time*; with a fixed rate η it takes time/η epochs."""

    times: list  # after every step that was taken
    losses: list  # behind it

    def loss_at(self, time):
        """The first loss after a time of training; the last one if there is none."""
        return next((v for t, v in zip(self.times, self.losses) if t >= time), self.losses[-1])


def train(secret: Part, recipe: Recipe, seed: int = 0, initial: Network | None = None) -> Victim:
    """Minimise E = (1/m) Σ ℓ + (μ/2)‖θ‖² on a Part of the images from θ⁰: the network `initial`, or drawn from `seed`.

    With a smooth hidden layer or none by Newton's method until ‖∇E‖ vanishes, else by descent for the recipe's epochs.
    InputError if recipe and labels do not fit together.
    """
    x, y = secret
    smooth = not recipe.hidden or math.isfinite(recipe.sharpness)
    outputs = check(recipe, secret, smooth)
    mean = x.mean(0) * recipe.centred
    initial = initial or networks.initial(recipe, x.shape[1], seed, outputs, x.device)
    if not smooth:
        return make_victim(train_by_descent(initial, x - mean, y, recipe), secret, recipe)
    model = one_hidden if recipe.hidden else affine
    basis = None  # the affine model finds few coordinates by itself
    coordinates = x - mean
    if recipe.hidden:
        basis = networks.span_of(coordinates)
        coordinates = coordinates @ basis
    solved = model.solve(
        coordinates, y, recipe.weight_decay, model.weights(initial, recipe.sharpness, basis)
    )
    z = model.logits(coordinates, solved.weights)[:, None]
    return victim_of(model.network(solved.weights, basis), z, y, recipe, mean, solved.gradient_norm)


def train_without_decay(
    secret: Part, recipe: Recipe, seed: int = 0, gradient_tolerance: float = 1e-6
) -> Network:
    """A softplus network trained without decay by L-BFGS until ‖∇E‖ ≤ `gradient_tolerance`, 3000 steps at most."""
    x, y = secret
    theta0 = networks.initial(recipe, x.shape[1], seed, device=x.device)
    basis = networks.span_of(x)  # in which training happens
    coordinates = x @ basis
    start = one_hidden.pack(one_hidden.weights(theta0, recipe.sharpness, basis))
    objective = partial(
        one_hidden.energy, x=coordinates, y=y, weight_decay=0.0, sharpness=recipe.sharpness
    )
    end = solvers.lbfgs(objective, start, gradient_tolerance=gradient_tolerance, iterations=3000).x
    return one_hidden.network(one_hidden.unpack(end, coordinates.shape[1]), basis)


def make_victim(network: Network, secret: Part, recipe: Recipe) -> Victim:
    """The Victim that is a ReLU network, whoever trained it on a Part of the images."""
    (x, y), mean = secret, secret.images.mean(0) * recipe.centred
    _, slope, z = mean_loss(network, x - mean, y, LOSSES[recipe.loss])
    return victim_of(
        network, z, y, recipe, mean, (slope + recipe.weight_decay * flatten(network)).norm()
    )


def mean_loss(network, x, y, loss):
    """(1/m) Σ ℓ of a ReLU network at x (m, d) and labels y (m,), its gradient in θ as a vector, and the outputs z."""
    z, slope = layers.pullback(network, x, lambda z: loss.slope(z, y) / len(x))
    return loss.value(z, y).mean(), slope, z


def victim_of(network, z, labels, recipe, mean, gradient_norm):
    """The Victim with outputs z (m, K) for its training images, whose mean and ‖∇E‖ are known."""
    loss = LOSSES[recipe.loss].value(z, labels).mean().item()
    released = Released(network, labels, recipe)
    return Victim(released, mean, loss, len(labels), gradient_norm=gradient_norm.item())


def stationarity(victim: Victim, secret: Part) -> Stationary:
    """How stationary a ReLU network with one output is for its training images, as `relative_gradients` says."""
    network, labels, recipe, *_ = victim.released
    inputs = victim.subtract_mean(secret.images)
    return relative_gradients(network, inputs, labels, LOSSES[recipe.loss], recipe.weight_decay)


def check(recipe, secret, smooth):
    """The number of outputs that these labels need; InputError unless the recipe can be followed with them."""
    choose("loss", recipe.loss, LOSSES)
    y = secret.labels
    if not 0 < len(y) == len(secret.images):
        raise InputError(
            f"There are {len(y)} labels for {len(secret.images)} images: give one for each of them."
        )
    several = recipe.loss == "cross_entropy"
    decays = recipe.weight_decay > 0
    needs = [
        (
            several or torch.isin(y, y.new_tensor([0, 1])).all(),
            f"The {recipe.loss} loss needs labels 0 and 1, but they reach from {y.min()} to {y.max()}.",
        ),
        (
            recipe.sharpness > 0,
            f"SHARPNESS is {recipe.sharpness}; softplus(βs)/β needs a positive β.",
        ),
        (
            decays or not smooth,
            f"WEIGHT_DECAY is {recipe.weight_decay}; without a positive one E has no single minimiser.",
        ),
        (
            not recipe.stages or decays and not several and not recipe.biases,
            "A polish needs one output, no later biases and a positive WEIGHT_DECAY: use stages=0.",
        ),
        (
            not smooth or len(recipe.hidden) < 2 and recipe.loss == "logistic",
            "A softplus network is trained with one hidden layer and the logistic loss: use sharpness=∞.",
        ),
    ]
    for holds, sentence in needs:
        if not holds:
            raise InputError(sentence)
    return int(y.max()) + 1 if several else 1


def train_by_descent(network, x, y, recipe):
    """Train by gradient descent in the recipe's type, in the coordinates L; all else is in the type of x.

    Outside of the row space of X̄ the gradient of W̄₁ is μW̄₁, so that this part of W̄₁ keeps its direction, and one number
    is moved for it: its norm. With a polish, the descent is made twice, and the polish in between leaves nothing there.
    """
    loss = LOSSES[recipe.loss]
    decay = recipe.weight_decay
    basis, upper = torch.linalg.qr(one_hidden.append_ones(x).mT)  # Q (d+1, m), Lᵀ (m, m)
    first, orthogonal = layers.split(joint(network[0]), basis)
    inner = (Layer(first, None), *network[1:])
    norm = orthogonal.norm().clamp_min(1e-300)
    coordinates = upper.mT.to(recipe.dtype)
    labels = y.to(recipe.dtype)

    def objective(theta):
        value, slope, _ = mean_loss(unflatten(theta[:-1], inner), coordinates, labels, loss)
        slope = torch.cat([slope, slope.new_zeros(1)]).add_(decay * theta)
        return value + decay / 2 * theta @ theta, slope

    with tuned(coordinates, inner):
        theta = descend(objective, torch.cat([flatten(inner), norm[None]]).to(recipe.dtype), recipe)
        if recipe.stages:
            inside = polish(
                unflatten(theta[:-1], inner), coordinates, labels, loss, decay, recipe.stages
            )
            theta = descend(objective, torch.cat([flatten(inside), theta.new_zeros(1)]), recipe)
    theta = theta.to(x)
    inner = unflatten(theta[:-1], inner)
    first = layers.join(inner[0].weight, basis, orthogonal, theta[-1] / norm)
    return change((parted(first), *inner[1:]), torch.clone)


def descend(objective, theta, recipe):
    """Descent with momentum; the rate grows while the energy falls, else the step is undone and the rate cut."""
    state = begin(objective, theta, recipe.learning_rate)  # a step changes it in place
    run(
        partial(descent_step, objective, recipe.momentum, recipe.growth, *state),
        state,
        recipe.epochs,
    )
    return state[0]


def begin(objective, theta, rate):
    """Where this descent stands: θ, E, ∇E, the velocity, what is kept of it, and the rate."""
    theta, (value, slope) = theta.clone(), objective(theta)
    rate = torch.full((), rate, dtype=torch.float64, device=theta.device)
    return theta, value, slope, torch.zeros_like(theta), torch.zeros_like(value), rate


def descent_step(objective, momentum, growth, theta, value, slope, velocity, kept, rate):
    """A step of this descent, without a question to the device; `kept` is the momentum, or 0 behind an undone step."""
    trial = theta - rate * velocity.mul_(kept).add_(slope)
    new, new_slope = objective(trial)
    better = new <= value
    taken = better.to(theta)  # 1 or 0, which leaves all as it was
    theta.lerp_(trial, taken)
    slope.lerp_(new_slope.nan_to_num_(), taken)
    kept.copy_(momentum * taken)
    torch.fmin(value, new, out=value)
    rate.copy_(torch.where(better, growth * rate, 0.8 * rate))


def train_to(
    secret: Part, recipe: Recipe, initial: Network, target: float, most: int = 60_000
) -> tuple[Victim, Pace]:
    """Descend from the network `initial` until the mean logistic loss is below `target`: Victim, and its Pace.

    Without decay, momentum or a mean, on a Part. InputError if `most` steps are not enough.
    """
    (x, y), loss = secret, LOSSES["logistic"]
    basis = networks.span_of(x)  # (d, m)
    first, orthogonal = layers.split(initial[0].weight, basis)
    inner = (Layer(first, initial[0].bias), *initial[1:])
    coordinates = x @ basis
    terms = coordinates, y, loss
    theta, pace = descend_to(
        lambda v: mean_loss(unflatten(v, inner), *terms)[:2], flatten(inner), target, most
    )
    (first, bias), *upper = unflatten(theta, inner)
    network = Layer(layers.join(first, basis, orthogonal), bias), *upper
    return Victim(
        Released(network, y, recipe), torch.zeros_like(x[0]), pace.losses[-1], len(y)
    ), pace


def descend_to(objective, theta, target, most):
    """Steps without momentum until the objective is below `target`, and then CALM at a tenth of the rate: θ, Pace."""
    state = begin(objective, theta, 0.1)
    value = state[1]
    rate = state[-1]
    calm = CALM
    pace = Pace([0.0], [math.inf])
    while calm and len(pace.times) < most:
        if value < target:
            rate.mul_(0.1 if calm == CALM else 1.0)
            calm -= 1
        before = rate.item()
        descent_step(objective, 0.0, 1.05 if calm == CALM else 1.0, *state)
        if rate >= before:  # the step was taken
            pace.times.append(pace.times[-1] + before)
            pace.losses.append(value.item())
    if calm:
        raise InputError(f"The loss is {value:.1e} after {most} steps: raise LOSS.")
    return state[0], pace


def victim_of_published(network: Network, secret: Part, recipe: Recipe) -> Victim:
    """The Victim whose network others trained, such as the layers that `audit.weights.read` finds in a file.

    `recipe` says how it was trained, such as networks.perceptron("margin"), but for widths and biases; `secret` is the
    Part it was trained on. For the perceptrons of github.com/nivha/dataset_reconstruction (Haim et al. 2022) and
    github.com/gonbuzaglo/decoreco (Buzaglo et al. 2023) that is CIFAR-10 in file order: of vehicles and animals the
    first 250 each (IMAGES=500), of ten classes the first 50.
    """
    network = change(network, lambda p: p.to(secret.images))
    widths = [len(layer.weight) for layer in network]
    biases = [layer.bias is not None for layer in network]
    recipe = recipe._replace(
        hidden=tuple(widths[:-1]), biases=any(biases[1:]), sharpness=math.inf, stages=0
    )
    outputs = check(recipe, secret, smooth=False)
    if widths[-1] != outputs:
        needed = f"these labels and the {recipe.loss} loss need K = {outputs}: choose another recipe or other labels"
        raise InputError(f"The network has K = {widths[-1]} outputs, but {needed}.")
    return make_victim(network, secret, recipe)
