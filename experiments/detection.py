"""How well an adversary's scores tell true reconstructions from inventions: the practice, the truth and the numbers."""

from collections.abc import Callable
from typing import NamedTuple

import torch

from attacks import detectors
from evaluation import measures, notation, null
from training import stationary
from training.images import Part

SCORES = (
    "combination",
    "agreement",
    "recurrence",
    "contrast",
    "coefficient",
    "share of the residual",
    "drift from the start",
    "kinks",
)


class Reconstructions(NamedTuple):
    """The reconstructions of one attack that scores tell apart."""

    images: Callable  # a detectors.Adversary -> the reconstructions (n, d)
    scores: Callable  # a detectors.Adversary -> scores {name: (n,)}
    signed: bool  # whether a negative of a training image is an invention


ATTACKS = {
    "stationarity": Reconstructions(lambda by: by.attack.images, detectors.candidate_scores, True),
    "unmixing": Reconstructions(lambda by: by.surplus, detectors.surplus_scores, False),
}


class Judged(NamedTuple):
    """What the evaluator knows of the n reconstructions of an attack."""

    truth: torch.Tensor  # a mask (n,): it shows a training image, by `similarity.detail_ncc`
    pixels: torch.Tensor  # a mask (n,): it shows one by a second likeness, NCC > 0.7 of all pixels
    null: torch.Tensor  # a mask (n,): it shows a held-out image, by the first likeness, by chance


def shows(adversary, images, in_pixels=False):
    """{attack: (n,)}, whether a reconstruction shows one of the images (m, d) without a mean."""
    shape, bar = (None, measures.SOME) if in_pixels else (adversary.shape, measures.ALIKE)
    masks = {}
    for name, one in ATTACKS.items():
        best = measures.match(one.images(adversary), images, shape)
        masks[name] = (best.signed if one.signed else best.either) > bar
    return masks


def judge(adversary, training, held_out):
    """{attack: Judged} of an adversary's reconstructions, for training and held-out images (m, d), without a mean."""
    masks = (
        shows(adversary, training),
        shows(adversary, training, in_pixels=True),
        shows(adversary, held_out),
    )
    return {name: Judged(*(of[name] for of in masks)) for name in ATTACKS}


def halve(part):
    """Every second image of each class, and the others: two Parts of equal size."""
    return [Part(part.images[k::2], part.labels[k::2]) for k in (0, 1)]


def practise(known, recipe, shape, seed, place, steps):
    """Fit a combination of scores for each attack on a shadow victim: {attack: function of scores, or None}.

    The adversary trains it by the public recipe on half of its photographs, and attacks it with the other half.
    """
    mine, rest = halve(known)
    shadow = stationary.train(mine, recipe, seed)
    adversary = detectors.make_attacks(shadow.released, rest, shape, seed, place, steps)
    truth = shows(adversary, mine.images - shadow.mean)
    return {
        name: detectors.fit(one.scores(adversary), truth[name]) for name, one in ATTACKS.items()
    }


def score(adversary, combinations):
    """Every score {attack: {name: (n,)}} of an adversary's reconstructions, the combination where there is one."""
    named = {attack: one.scores(adversary) for attack, one in ATTACKS.items()}
    for attack, combination in combinations.items():
        if combination:
            named[attack]["combination"] = combination(named[attack])
    return named


def detect(named, truth):
    """Each score as a detector: {attack: {name: null.Detection, or None}}, ordered as SCORES."""
    return {
        attack: {
            name: null.detection(scores[name], truth[attack]) for name in SCORES if name in scores
        }
        for attack, scores in named.items()
    }


def precision(score, truth, first=10):
    """The share of true ones among the reconstructions with the largest scores."""
    order = score.argsort(descending=True, stable=True)
    return truth[order[:first].to(truth.device)].double().mean().item()


def asked(true, invented, n, seed):
    """Indices of n true and n invented ones (k,), or of fewer, in a random order."""
    generator = torch.Generator().manual_seed(seed)
    order = torch.randperm(len(true), generator=generator)
    few = torch.cat([order[side[order]][:n] for side in (true, invented)])
    return few[torch.randperm(len(few), generator=generator)]


def name_of(attack, place, score="", quantity="auc"):
    """The name of a number in RESULTS; without a score it is that of the combination, or of the reconstructions."""
    return "/".join(
        part for part in ("detector", attack, place, score.replace(" ", "_"), quantity) if part
    )


def rows(named, judged, place, seed):
    """The Rows for RESULTS of all scores, for a stationarity attack that began at `place`."""
    listed = []
    detections = detect(named, {attack: one.truth for attack, one in judged.items()})
    for attack, one in judged.items():
        start = place if attack == "stationarity" else "none"
        numbers = {
            "share_true": (one.truth.double().mean(), one.null.double().mean()),
            "share_true_in_pixels": (one.pixels.double().mean(), None),
        }
        for score, found in detections[attack].items():
            if found:  # those of the combination come twice
                numbers |= of_score(f"{score.replace(' ', '_')}/", found)
        if combined := detections[attack].get("combination"):
            numbers |= of_score("", combined) | of_combination(named[attack]["combination"], one)
        listed += notation.rows(name_of(attack, start, quantity=""), seed, numbers)
    return listed


def of_score(prefix, found):
    """{quantity: (value, no baseline)} of a null.Detection."""
    return {f"{prefix}auc": (found.auc.value, None), f"{prefix}tpr_at_1_percent": (found.tpr, None)}


def of_combination(score, judged):
    """{quantity: (value, baseline)} of the combination (n,) alone."""
    first, by_chance, in_pixels = (
        precision(score, mask) for mask in (judged.truth, judged.null, judged.pixels)
    )
    numbers = {
        "precision_of_the_first_ten": (first, by_chance),
        "precision_in_pixels": (in_pixels, None),
    }
    if pixels := null.detection(score, judged.pixels):
        numbers["auc_in_pixels"] = pixels.auc.value, None
    return numbers
