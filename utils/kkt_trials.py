"""One experiment with KKT sets of photographs: an exact network, a trained one, other sets for both, and retraining.

Points are the photographs without their mean. Everything is the trainer's and the evaluator's: no attack is run here.
"""

import math
from typing import NamedTuple

import torch

from utils import images, kktsets, losses, mlp
from utils.errors import InputError
from utils.kktsets import KKTSet


class Trial(NamedTuple):
    """Photographs, an exact KKT point, and a network that was trained towards one."""

    seed: int
    data: images.Split
    strangers: images.Part  # photographs that nothing was trained on
    unseen: images.Part  # others, to compare networks on
    mean: torch.Tensor  # (d,): was subtracted from the training set
    exact: KKTSet
    trained: KKTSet
    victim: mlp.Victim
    recipe: mlp.Recipe


# ---- The training set and its networks ----


def allowed(x, y):
    """Those images (m, d) with signs y that are compatible around their own mean."""
    while True:
        if min((y == sign).sum() for sign in (-1, 1)) < 2:
            raise InputError("Fewer than two images of a class are left: make IMAGES or NEURONS larger.")
        kept = kktsets.compatible(x - x.mean(0), y)
        if len(kept) == len(x):
            return x, y
        x, y = x[kept], y[kept]


def victim(x, y, recipe, width, seed):
    """Train two layers on images x (m, d) with signs y, without their mean."""
    return mlp.victim(x, (y + 1) / 2, recipe, width, depth=2, seed=seed)


def experiment(labelled, m, width, epochs, seed, device="cpu"):
    """Choose a training set among m images, build a network that it is an exact KKT set of, and train another on it.

    Left out are images that the construction does not allow, and those that the trained network misjudges.
    """
    data = images.split(labelled, m, 2 * m, seed, device)
    strangers, unseen = (images.Part(*(part[k::2] for part in data.known)) for k in (0, 1))
    recipe = mlp.RECIPES["two_classes"]._replace(epochs=epochs)
    x, y = data.secret.images, losses.signs(data.secret.labels)
    right = torch.zeros_like(y, dtype=torch.bool)
    while not right.all():
        x, y = allowed(x, y)
        found = victim(x, y, recipe, width, seed)
        right = y * mlp.forward(found.weights, x - found.mean)[1][-1][:, 0] > 0
        x, y = x[right], y[right]
    exact = kktsets.two_groups(x - found.mean, y, max(1, width // 2), seed=seed)
    trained = kktsets.fitted(found.weights, x - found.mean, y)
    return Trial(seed, data, strangers, unseen, found.mean, exact, trained, found, recipe)


def stopped(trial, epochs):
    """The trained network's set if its training stops after some epochs."""
    x, y = trial.trained.points + trial.mean, trial.trained.signs
    width = len(trial.victim.weights[0].weight)
    found = victim(x, y, trial.recipe._replace(epochs=epochs), width, trial.seed)
    return kktsets.fitted(found.weights, trial.trained.points, y)


def centred_strangers(trial):
    """The strangers without their own mean: (m, d)."""
    return trial.strangers.images - trial.strangers.images.mean(0)


def fitted_strangers(trial):
    """As many strangers per class as there are training images, with the λ that suit the trained network best."""
    y = losses.signs(trial.strangers.labels)
    rows = torch.cat([(y == s).nonzero()[: (trial.trained.signs == s).sum(), 0] for s in (-1, 1)])
    x = centred_strangers(trial)[rows]
    return kktsets.best_multipliers(KKTSet(trial.trained.network, x, y[rows], torch.zeros_like(y[rows])))


def relative(kkt):
    """ε in units of ‖θ‖."""
    return kktsets.conditions(kkt).stationarity / mlp.flatten(kkt.network).norm().item()


def slackness(kkt):
    """δ in units of Σλ."""
    return kktsets.conditions(kkt).slackness / kkt.multipliers.sum().item()


# ---- Other sets ----


def reach(kkt, i, direction):
    """How far point i can move both ways."""
    return min(part[i].item() for part in kktsets.budget(kkt, direction))


def towards_each_other(kkt, longest):
    """Split every point along its margin towards the next one of its label, by 0.9 of its budget, at most `longest`."""
    made, n = kkt, len(kkt.points)
    for i in reversed(range(n)):
        mine = [k for k in range(n) if kkt.signs[k] == kkt.signs[i]]
        other = mine[(mine.index(i) + 1) % len(mine)]
        ahead = kktsets.tangent(kkt, [i], kkt.points[other] - kkt.points[i])
        made = kktsets.split(made, [i], ahead, min(0.9 * reach(kkt, i, ahead), longest))
    return made


def along_strangers(kkt, trial):
    """Split every point along what the network does not see of a stranger, by as much as there is of it."""
    made, wishes = kkt, centred_strangers(trial)
    for i in reversed(range(len(kkt.points))):
        ahead = kktsets.hidden(kkt, wishes[i])
        made = kktsets.split(made, [i], ahead, (wishes[i] @ ahead).item())
    return made


def planted(kkt, trial, count=10):
    """Merge every cell, then spread its point towards `count` strangers of its label as far as the pattern allows."""
    made = kktsets.condense(kkt)
    for i in reversed(range(len(made.points))):
        own = trial.strangers.images[losses.signs(trial.strangers.labels) == made.signs[i]][:count]
        moves, gradient = own - own.mean(0), kktsets.input_gradients(made)[i]
        moves = moves - torch.outer(moves @ gradient, gradient) / gradient.dot(gradient)
        here = made._replace(points=made.points[i : i + 1])
        room = min(kktsets.budget(here, move).forward.item() for move in moves)
        shares = own.new_full((len(own),), 1 / len(own))
        made = kktsets.spread(made, i, min(1.0, 0.9 * room) * moves, shares)
    return made


# ---- How far, how many, and what training makes of it ----


def principal(kkt, every=1):
    """Every 1st, 2nd, … principal direction of the points, the widest first."""
    return torch.linalg.svd(kkt.points, full_matrices=False)[2][: len(kkt.points) - 1 : every]


def some(kkt, every=1):
    """Every 1st, 2nd, … of the points with λ > 0."""
    return (kkt.multipliers > 1e-12).nonzero()[::every, 0].tolist()


def along_the_margin(kkt, every=1):
    """(γ, largest step, derived bound, quoted bound) of points along principal directions made tangent: (…, 4)."""
    found = []
    for i in some(kkt, every):
        for direction in principal(kkt, every):
            ahead = kktsets.tangent(kkt, [i], direction)
            gamma = (kkt.points @ ahead).abs().max().item()
            limits = kktsets.bounds(kkt, i, ahead)
            found.append((gamma, reach(kkt, i, ahead), limits.derived, limits.quoted))
    return torch.tensor(found, dtype=torch.float64)


def off_the_margin(kkt, known, every=3):
    """The largest steps of points along principal directions as they are, for an attacker who knows `known`·δ or None."""
    delta, found = (known or 0.0) * kktsets.conditions(kkt).slackness, []
    for i in some(kkt, every):
        for direction in principal(kkt, every):
            limit = kktsets.known_slack_budget(kkt, i, direction, delta) if known else math.inf
            found.append(min(reach(kkt, i, direction), limit))
    return torch.tensor(found, dtype=torch.float64)


def orthogonal_to_the_points(kkt):
    """The largest steps in a direction that is orthogonal to the points, and need not be to the neurons: (n,)."""
    generator = torch.Generator().manual_seed(1)
    direction = torch.rand(kkt.points.shape[1], dtype=torch.float64, generator=generator) - 0.5
    return torch.stack(kktsets.budget(kkt, kktsets.without(direction.to(kkt.points), kkt.points))).min(0).values


def start(trial, width, seed):
    """A network's θ⁰, on the trial's device."""
    network = mlp.initial_weights([len(trial.mean), width, 1], seed, trial.recipe.small)
    return mlp.change(network, lambda p: p.to(trial.mean))


def sharing(network, x, y):
    """The share of images whose cell holds another one."""
    kkt = KKTSet(network, x - x.mean(0), y, torch.ones_like(y))
    return sum(len(cell) for cell in kktsets.cells(kkt) if len(cell) > 1) / len(x)


def sharing_trained_and_not(trial, everything, width):
    """`sharing` of the training set, or of all images it was chosen from, in a trained network and in its θ⁰."""
    x, y = trial.trained.points + trial.mean, trial.trained.signs
    if everything:
        x, y = trial.data.secret.images, losses.signs(trial.data.secret.labels)
    found = victim(x, y, trial.recipe, width, trial.seed)
    return sharing(found.weights, x, y), sharing(start(trial, width, trial.seed), x, y)


def functions(network):
    """ū = Σ_j |v_j| w̄_j over v_j > 0 and over v_j < 0, which do not depend on the order of the neurons."""
    first = torch.cat([network[0].weight, network[0].bias[:, None]], 1)
    return [network[1].weight[0].mul(s).clamp_min(0) @ first for s in (1, -1)]  # (h,) @ (h, d+1) -> (d+1,)


class Comparison(NamedTuple):
    """A network beside the victim."""

    right: float  # share of the victim's training images that it classifies correctly
    agreement: float  # share of unseen images to which both give the same class
    cosine: float  # the smaller one of the two groups' ū


def compare(network, trial):
    """Compare a network with the victim."""
    right = trial.trained.signs * mlp.forward(network, trial.trained.points)[1][-1][:, 0] > 0
    unseen = trial.unseen.images - trial.mean
    ours, theirs = (mlp.forward(net, unseen)[1][-1][:, 0] > 0 for net in (network, trial.victim.weights))
    pairs = zip(functions(network), functions(trial.victim.weights))
    cosine = min(torch.cosine_similarity(a, b, dim=0).item() for a, b in pairs)
    return Comparison(right.double().mean().item(), (ours == theirs).double().mean().item(), round(cosine, 4))


def untrained(trial):
    """Compare the victim's θ⁰ with the victim."""
    return compare(start(trial, len(trial.victim.weights[0].weight), trial.seed), trial)


def retrain(trial, points, signs, seed):
    """Train on other points from the θ⁰ of a seed, with the victim's recipe, and compare."""
    width = len(trial.victim.weights[0].weight)
    return compare(kktsets.retrained(start(trial, width, seed), points, signs, trial.recipe), trial)
