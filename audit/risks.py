"""The risk of each picture: whether it came back, lies in what training wrote, or stands out among held-out ones."""

import csv
import io
from typing import NamedTuple

import torch

from audit import judge
from audit.stages import INSIDE, Outcome

SIDES = "training", "held_out"


class Risk(NamedTuple):
    """What the audit says of one picture."""

    side: int  # 0 for training, 1 for held out
    index: int  # its place on its side
    attack: Outcome | None  # that returned the picture most like it; None if no attack returned any
    image: dict  # what data/audit.schema.json calls one of the images


def ranked(outcomes: list[Outcome], pictures: tuple) -> list[Risk]:
    """The Risks of both sides' Pictures, the most exposed first.

    Those that came back stand before all others, by their correlation; these are ordered by their false-positive rate
    under the clearest score, and then by their correlation.
    """
    scores = scores_of(outcomes)
    clear = clearest(scores)
    rates = {name: rates_of(score) for name, score in scores.items()}
    attacks = [one for one in outcomes if one.ncc]
    losses = next((one.facts["losses"] for one in outcomes if "losses" in one.facts), None)
    listed = []
    for side, part in enumerate(pictures):
        for k, name in enumerate(part.names):
            attack = max(attacks, key=lambda one: one.ncc[side][k], default=None)
            best = attack and attack.ncc[side][k].item()
            image = {
                "name": name,
                "side": SIDES[side],
                "attack": attack and attack.name,
                "ncc": best,
                "returned": None if best is None else best > judge.NEAR,
                "sure": sure(attacks, side, k),
                "inside": inside(outcomes, side, k),
                "loss": losses and losses[side][k],
                "rates": {name: sides[side][k].item() for name, sides in rates.items()},
            }
            listed.append(Risk(side, k, attack, image))
    return sorted(listed, key=lambda one: exposure(one.image, clear), reverse=True)


def scores_of(outcomes):
    """The scores of all outcomes, {name: judge.Scored}."""
    return {name: score for one in outcomes for name, score in one.scores.items()}


def clearest(scores):
    """The name of the score of the smallest p-value, and of these the largest area; None if there is none."""
    return min(scores, key=lambda name: (scores[name].p, -scores[name].area.value), default=None)


def rates_of(score):
    """Of each picture of both sides the share of strangers that score as high: its false-positive rate, (m,) and (n,).

    The picture is counted among the held-out ones, so that of strangers a share of at most r has a rate of at most r.
    """
    held_out = score.held_out.double().sort().values
    below = (torch.searchsorted(held_out, side.double().contiguous()) for side in score[:2])
    ours, theirs = (len(held_out) - part.double() for part in below)
    return (ours + 1) / (len(held_out) + 1), theirs / len(held_out)


def sure(attacks, side, k):
    """Whether zeros tell an attacker that the k-th picture of a side came back; None where no attack can be sure."""
    known = [one for one in attacks if one.sure]
    if not known:
        return None
    return any(bool(one.sure[side][k] and one.ncc[side][k] > judge.NEAR) for one in known)


def inside(outcomes, side, k):
    """The names of the layers in whose span the k-th picture of a side lies."""
    spans = [pair for one in outcomes for pair in one.spans.items()]
    return [name for name, score in spans if score[side][k] > 1 - INSIDE]


def exposure(image, clear):
    """What is larger the more an image is exposed, where the score called `clear` orders those that did not return."""
    back = image["ncc"] if image["ncc"] is not None else 0.0
    return back if image["returned"] else 0.0, -image["rates"].get(clear, 1.0), back


def table(images):
    """The text of pictures.csv: a row for each image of a report's content, a column for each score."""
    names = [*dict.fromkeys(name for one in images for name in one["rates"])]
    plain = [name for name in images[0] if name not in ("inside", "rates")]
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    rates = [f"false-positive rate of {name}" for name in names]
    writer.writerow([*plain, "in the span of", *rates])
    for one in images:
        values = [one[name] for name in plain] + ["; ".join(one["inside"])]
        values += [one["rates"][name] for name in names]
        writer.writerow([format(x, ".4g") if isinstance(x, float) else x for x in values])
    return text.getvalue()


def summary(network, images, clear, status, promised=""):
    """The sentences that a data protection officer can copy: how many pictures are exposed, and in which way."""
    ours, theirs = ([one for one in images if one["side"] == side] for side in SIDES)
    if status == 2:
        return f"The audit of {network} gave no answer, so it clears no picture."
    sentences = [rebuilt(network, ours, theirs)]
    if clear:
        rate = 1 / (len(theirs) + 1)
        told = sum(one["rates"][clear] <= rate for one in ours)
        sentences.append(
            f"A test ({clear}) tells {told} of {len(ours)} training pictures more clearly than any picture that was"
            f" never used; one more such picture would pass with a chance of {rate:.1%}."
        )
    if status == 0:
        sentences.append(
            "So these attacks tell no training picture from others, which does not prove that none can."
        )
    return " ".join(filter(None, [*sentences, promised]))


def rebuilt(network, ours, theirs):
    """What came back of both sides' images: that nothing did is said only where an attack returned something."""
    if ours[0]["returned"] is None:
        return f"Whether training pictures of {network} can be rebuilt was not tested: no attack returned pictures."
    back, others = (sum(one["returned"] for one in some) for some in (ours, theirs))
    found = f"Of {len(ours)} training pictures of {network}, {back} came back almost exactly ({judge.BACK})."
    if others:
        chance = "which nobody can rebuild: they are only like what came back"
        return f"{found} So did {others} of {len(theirs)} pictures that were never used, {chance}."
    return f"{found} Of {len(theirs)} pictures that were never used none did."
