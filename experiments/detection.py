"""How well an adversary's scores tell true reconstructions from inventions: the practice, the truth and the numbers."""

from collections.abc import Callable
from typing import NamedTuple

import torch

from utils.attacks import detectors
from utils.evaluation import membership, recovery
from utils.evaluation.experiment import Row
from utils.images import Part
from utils.kernels.similarity import best_match, ncc
from utils.training import stationary

SCORES = (
    "combination", "agreement", "recurrence", "contrast", "coefficient", "share of the residual",
    "drift from the start", "kinks",
)  # fmt: skip


class Reconstructions(NamedTuple):
    """The reconstructions of one attack that scores tell apart."""

    images: Callable  # of a detectors.Adversary: (n, d)
    scores: Callable  # of a detectors.Adversary: {name: (n,)}
    signed: bool  # whether a negative of a training image is an invention


ATTACKS = {
    "stationarity": Reconstructions(lambda adversary: adversary.found.images, detectors.candidate_scores, True),
    "unmixing": Reconstructions(lambda adversary: adversary.surplus, detectors.surplus_scores, False),
}


class Judged(NamedTuple):
    """What the evaluator knows of the n reconstructions of an attack: masks (n,)."""

    truth: torch.Tensor  # shows a training image, by `similarity.detail_ncc`
    pixels: torch.Tensor  # shows one by a second likeness, that of all pixels: NCC > 0.7
    null: torch.Tensor  # shows a held-out image, by the first likeness: true by chance


def shows(adversary, images):
    """{attack: (n,)}, whether each reconstruction shows one of the images (m, d) without their mean."""
    best = {
        attack: best_match(one.images(adversary), images, adversary.shape, one.signed)
        for attack, one in ATTACKS.items()
    }
    return {attack: values > membership.ALIKE for attack, values in best.items()}


def judge(adversary, training, held_out):
    """{attack: Judged} of an adversary's reconstructions, for training and held-out images (m, d), without a mean."""
    truth, null = shows(adversary, training), shows(adversary, held_out)
    tables = {attack: ncc(one.images(adversary), training) for attack, one in ATTACKS.items()}
    best = {attack: (table if ATTACKS[attack].signed else table.abs()).amax(1) for attack, table in tables.items()}
    return {attack: Judged(truth[attack], best[attack] > recovery.SOME, null[attack]) for attack in ATTACKS}


def halved(part):
    """Every second image of each class, and the others: two Parts of equal size."""
    return [Part(part.images[k::2], part.labels[k::2]) for k in (0, 1)]


def practise(known, recipe, shape, seed, place, steps):
    """Fit a combination of scores for each attack on a shadow victim: {attack: function of scores, or None}.

    The adversary trains the shadow by the public recipe on half of its photographs, a Part, and attacks it with the
    other half, as `detectors.make_attacks` does. Here, and only here, it knows the truth.
    """
    mine, rest = halved(known)
    shadow = stationary.train(mine, recipe, seed)
    adversary = detectors.make_attacks(shadow.released, rest, shape, seed, place, steps)
    truth = shows(adversary, mine.images - shadow.mean)
    return {attack: detectors.fit(ATTACKS[attack].scores(adversary), truth[attack]) for attack in ATTACKS}


def score(adversary, combinations):
    """Every score {attack: {name: (n,)}} of an adversary's reconstructions, the combination where there is one."""
    named = {attack: one.scores(adversary) for attack, one in ATTACKS.items()}
    for attack, combination in combinations.items():
        if combination:
            named[attack]["combination"] = combination(named[attack])
    return named


def detect(named, truth):
    """Each score as a detector: {attack: {name: membership.Detection, or None}} in the order of SCORES."""
    return {
        attack: {name: membership.detection(scores[name], truth[attack]) for name in SCORES if name in scores}
        for attack, scores in named.items()
    }


def precision(score, truth, first=10):
    """The share of true ones among the reconstructions with the largest scores."""
    top = score.cpu().argsort(descending=True, stable=True)[:first]
    return truth.cpu()[top].double().mean().item()


def name_of(attack, place, score="", quantity="auc"):
    """The name of a number in RESULTS; without a score it is that of the combination, or of the reconstructions."""
    return "/".join(part for part in ("detector", attack, place, score.replace(" ", "_"), quantity) if part)


def rows(named, judged, place, seed):
    """The Rows for RESULTS of all scores, for a stationarity attack that began at `place`."""
    listed, detections = [], detect(named, {attack: one.truth for attack, one in judged.items()})
    for attack, (truth, pixels, null) in judged.items():
        start = place if attack == "stationarity" else "none"
        shares = [mask.double().mean().item() for mask in (truth, null, pixels)]
        numbers = {("", "share_true"): (shares[0], shares[1]), ("", "share_true_in_pixels"): (shares[2], None)}
        for name, found in detections[attack].items():
            for score in ("", name) if name == "combination" else (name,):
                if found:
                    numbers |= {(score, "auc"): (found.auc.value, None), (score, "tpr_at_1_percent"): (found.tpr, None)}
        if detections[attack].get("combination"):
            combination = named[attack]["combination"]
            own, chance, other = (precision(combination, mask) for mask in (truth, null, pixels))
            numbers["", "precision_of_the_first_ten"] = own, chance
            numbers["", "precision_in_pixels"] = other, None
            if told := membership.detection(combination, pixels):
                numbers["", "auc_in_pixels"] = told.auc.value, None
        listed += [
            Row(name_of(attack, start, *key), seed, value, baseline=base) for key, (value, base) in numbers.items()
        ]
    return listed
