"""How close an attack came. Beside the trainer, the evaluator alone sees the secret; no attack calls anything here.

Images are rows (n, d). What a victim saw without its mean is reconstructed without a mean; pictures are in [0, 1].
"""

from typing import NamedTuple

import torch
from scipy.optimize import linear_sum_assignment

from attacks import bilevel
from attacks.detectors import scores
from evaluation import measures, notation, null
from evaluation.trials import Trial
from utils import networks
from utils.kernels.similarity import detail_ncc, half_ncc, l2, pairwise_ssim, ssim, stretch

# Table 1 of the first paper: ‖θ* − θ‖².
TABLE_1 = {
    "affine": {"random": 1.1214e-3, "ground_truth": 1.3888e-3, "partition": 2.9749e-3},
    "one_hidden": {"random": 6.1157e-5, "ground_truth": 1.7055e-3, "partition": 6.3629e-3},
}
SOLVED = {"affine": 1e-12, "one_hidden": 1e-6}  # relative distance that counts as solved
GOOD = 0.4  # SSIM above which a reconstruction counts as good, in the published evaluation


class Matches(NamedTuple):
    """The reconstructions that m training images are compared with."""

    ssim: torch.Tensor  # (m,), of every training image with its reconstruction
    pictures: torch.Tensor  # (m, d), the reconstructions as they were compared


def secret(trial):
    """The training images as the victim saw them (m, d)."""
    return trial.victim.subtract_mean(trial.data.secret.images)


def matched_distance(network, target):
    """The `networks.distance` of networks with one hidden layer, their neurons in the order that makes it smallest."""
    # Of each neuron the weights into it and out of it: (h, d + 2).
    ours, theirs = (
        torch.cat([networks.joint(one), two.weight.mT], 1) for one, two in (network, target)
    )
    order = linear_sum_assignment(l2(theirs, ours).square().cpu())[1]
    first = networks.change(network[:1], lambda part: part[order])
    second = network[1]._replace(weight=network[1].weight[:, order])
    return networks.distance((*first, second), target)


def leak(trial: Trial, candidates: torch.Tensor | None = None) -> measures.Leak:
    """What a trial's reconstructions, or other candidates, give away of the training images."""
    found = trial.attack.images if candidates is None else candidates
    return measures.leak_of(found, trial.data, known_mean(trial))


def best_pictures(candidates, data, some):
    """Of candidates (n, d) without a mean, those most like `some` of the secret images (k,), as pictures (k, d)."""
    mean = data.secret.images.mean(0)
    closest = measures.match(data.secret.images[some] - mean, candidates, data.shape).index
    return stretch(candidates[closest] + mean)


def likeness(trial):
    """How like each reconstruction is to each training image, by `similarity.detail_ncc`: (n, m)."""
    return detail_ncc(trial.attack.images, secret(trial), trial.data.shape)


def detections(trial):
    """Each of the adversary's scores as a detector of reconstructions that show a training image: {name: Detection}.

    Without those that tell nothing, as `null.detection` says: none at all, if no reconstruction shows one.
    """
    truth = likeness(trial).amax(1) > measures.ALIKE
    named = scores(trial.victim.released, trial.start, trial.attack, trial.again, trial.data.shape)
    found = ((name, null.detection(score, truth)) for name, score in named.items())
    return {name: one for name, one in found if one}


def relative_distance(trial):
    """‖θ − θ*‖²/‖θ*‖² after the attack, which may have merged equal neurons."""
    ours = trial.attack.network
    released = trial.victim.released
    if len(ours[0].weight) < len(released.network[0].weight):
        released = bilevel.merge_neurons(released)
    return networks.distance(ours, released.network)


def solved(trial):
    """Whether the attack returned the victim's weights."""
    return relative_distance(trial) <= SOLVED[trial.name.model]


def nearest(images, references, shape):
    """The structurally most similar reference of every image: indices (n,)."""
    return ssim(images, references, shape).argmax(1)


def compare(trial, candidates, picture):
    """Match every training image with the candidate of the highest half_ncc, which may recur, as `picture` shows it."""
    candidates = trial.attack.images if candidates is None else candidates
    shape = trial.data.shape
    shown = picture(candidates[half_ncc(secret(trial), candidates, shape).argmax(1)])
    return Matches(pairwise_ssim(shown, trial.data.secret.images, shape), shown)


def published(trial: Trial, candidates: torch.Tensor | None = None) -> Matches:
    """Compare as Haim et al. do, with the truth at hand: add the training mean, stretch every picture to [0, 1]."""
    return compare(trial, candidates, lambda x: stretch(trial.victim.add_mean(x)))


def adversary(trial: Trial, candidates: torch.Tensor | None = None) -> Matches:
    """Compare as an adversary would publish: add the mean of known images, clip to [0, 1]."""
    return compare(trial, candidates, lambda x: (x + known_mean(trial)).clamp(0, 1))


def known_mean(trial):
    """The mean of the images that the attacker knows (d,), its guess of what the trainer subtracted; 0 for nothing."""
    return trial.victim.released.recipe.centred * trial.data.known.images.mean(0)


def pictures(trial, rows):
    """Reconstructions as the sources show them: with the training mean, stretched to [0, 1]."""
    return stretch(trial.victim.add_mean(trial.attack.images[rows]))


# What can be handed in without any attack: as many known photographs as there are candidates, without a mean if the
# victim's have none; the start; or a blank, of which only the mean is left.
BASELINES = {
    "strangers": lambda trial: (trial.data.known.images - known_mean(trial))[: len(trial.start)],
    "start": lambda trial: trial.start,
    "blank": lambda trial: torch.zeros_like(trial.start[:1]),
}


def span_alone(trial):
    """The start in the row space of W₁, before any step."""
    return networks.within(trial.start, networks.span(trial.victim.released.network))


def good(matches):
    """How many training images were matched with an SSIM above 0.4."""
    return (matches.ssim > GOOD).sum().item()


def best_baseline(trial, evaluated, measure):
    """The largest value of a measure that a baseline reaches."""
    return max(measure(evaluated(trial, baseline(trial))) for baseline in BASELINES.values())


def numbers_of_weights(trial):
    """{quantity: (value, baseline, the paper's)} of a bilevel attack; the baseline is the start, before any attack."""
    _, model, place, knowledge = trial.name
    own = trial.data.secret.images
    target = networks.flatten(trial.victim.released.network)
    far = relative_distance(trial)
    before = trial.attack.history[0].item()
    square = target.square().mean().item()  # ‖θ*‖² per weight

    def nearest_l2(images, others):
        return l2(images, others).amin(1).mean()

    numbers = {
        "relative_distance": (far, before),
        "mean_square_distance": (far * square, before * square, TABLE_1[model][place]),
        "nearest_training_l2": (nearest_l2(trial.attack.images, own), nearest_l2(trial.start, own)),
        "nearest_start_l2": (nearest_l2(trial.attack.images, trial.start), 0.0),
    }
    if knowledge:
        numbers["inner_gradient_norm"] = (trial.attack.details.gradient_norm,)
        numbers["outer_converged"] = (solved(trial),)
    return numbers


def numbers_of_pictures(trial):
    """{quantity: (value, baseline)} of an attack on coefficients; baseline is the best of BASELINES, or the start's."""

    def beside(evaluated, measure):
        return measure(evaluated(trial)), best_baseline(trial, evaluated, measure)

    return {
        "good_reconstructions": beside(published, good),
        "good_as_adversary": beside(adversary, good),
        "mean_ssim": beside(published, lambda matches: matches.ssim.mean().item()),
        "attack_loss": (trial.attack.loss, trial.attack.history[0]),
        "seconds": (trial.attack.seconds,),
    }


def rows(trial: Trial) -> list[notation.Row]:
    """The trial's numbers for RESULTS: of weights if the attack trains, else of pictures; and of what leaked."""
    numbers = (numbers_of_weights if trial.attack.network else numbers_of_pictures)(trial)
    ours = leak(trial)
    start = leak(trial, trial.start)
    numbers |= {
        "leak_auc": (ours.auc.value, start.auc.value),
        "leak_auc_low": (ours.auc.low, start.auc.low),
        "above": (ours.above, start.above),
        "alike": (ours.alike, ours.alike_held_out),
    }
    if trial.again and (recurrence := detections(trial).get("recurrence")):
        numbers["detector_auc"] = (recurrence.auc.value,)
    return notation.rows(trial.name.prefix, trial.seed, numbers)
