"""What an audit found: one sentence, the numbers behind it, and its two files."""

import contextlib
import json
import os
import platform
from bisect import bisect_left
from collections import namedtuple
from importlib.metadata import version
from pathlib import Path
from typing import NamedTuple

import torch

import audit.judge as judge
from audit.page import bytes_of, page
from audit.stages import BY_LOSS, BY_SHADOWS, UNREAD
from utils.errors import check_writable, write_all, written
from utils.kernels.similarity import ncc, stretch
from utils.trial import number

DATA = Path(__file__).parent.parent / "data"
SCHEMA = DATA / "audit.schema.json"
FILES = "report.json", "report.html"
FOUND_NOTHING, LEAKS, NO_ANSWER = 0, 1, 2  # exit statuses
SHOWN = 12  # pictures of a side on the page
SMALL = 200  # pictures, up to which all have a thumbnail
SIDES = "training", "held_out"
PACKAGES = "torch", "numpy", "scipy"  # on which the numbers depend beside the input
LIMITS = [
    "There are many other attacks: where these find nothing, another may find something.",
    "Pictures come back from a fully connected first layer alone; of other layers only membership is asked.",
    "Membership is tested by the loss, of modules by gradients and layers, too; by reference networks only if asked.",
    "The held-out pictures must be of the same source as the training pictures, and drawn at random from it.",
    "Pictures that were augmented, cut or resized otherwise in training are compared as they were given here.",
]
HAS_PICTURE = "For membership by loss it has the very picture, and asks whether the network was trained on it."
WITHOUT_START = "The stationarity attack and membership by loss do not use the network from before the training."


class Report(NamedTuple):
    """The result of an audit."""

    status: int  # for exit: 0 nothing was found, 1 something leaks, 2 there is no answer
    sentence: str  # the finding
    content: dict  # as data/audit.schema.json says
    pictures: dict  # for the page alone: {title: [(a picture, what came back, words)]}, pictures as (H, W, C) bytes
    thumbnails: list  # (H, W, C) bytes for the images of the content, or none

    def json(self):
        """The content as a text."""
        return json.dumps(self.content, indent=1, ensure_ascii=False, allow_nan=False)

    def html(self):
        """One page that needs no other file and no network."""
        return page(self.content, self.pictures, self.thumbnails)

    def _repr_html_(self):
        return f"<p>{self.sentence}</p>"

    def save(self, folder):
        """Write report.json and report.html into a folder, both or none: the path of the page."""
        paths, texts = [Path(folder) / name for name in FILES], (self.json(), self.html())
        with room(folder), written("The report", folder):  # names of files may be no text
            write_all({path: text.encode("utf-8", "backslashreplace") for path, text in zip(paths, texts)})
        return paths[1]


@contextlib.contextmanager
def room(folder):
    """See that files can be written into a folder, and make it; at the end remove what was made of it and is empty."""
    missing = [path for path in (Path(folder), *Path(folder).parents) if not os.path.exists(path)]
    try:
        check_writable("The report", Path(folder) / FILES[0])
        yield
    finally:
        for path in missing:
            with contextlib.suppress(OSError, ValueError):  # holds a report, or was not made
                path.rmdir()


def not_asked(target, outcomes):
    """Sentences on what was not asked of a weights.Target, and why; nothing, if its loss and an attack were run."""
    sentences = [] if target.logits and (target.layers or target.module) else [*target.notes]
    sentences += [target.guess] * bool(target.guess)
    for one in outcomes:
        if one.state == "skipped" or (one.name in (BY_LOSS, UNREAD) and one.state == "refused"):
            sentences.append(f"{one.name[0].upper()}{one.name[1:]} was {one.state}: {one.sentence}")
        if one.name == BY_LOSS and one.state == "ran" and "accuracy" not in one.facts:
            sentences.append("Membership by loss does not know the classes: give the pictures in folders of classes.")
    attacked = any(one.state == "ran" and one.name not in (BY_LOSS, BY_SHADOWS) for one in outcomes)
    return sentences if sentences or attacked else ["No attack on the weights could be run."]


def finding(near, comparisons, differences, level, missed=(), doubt="", wrong=False):
    """The exit status, and the finding in some sentences: one rule for all attacks.

    Something leaks if a comparison says so after Holm's correction. There is no answer if the two sides differ by
    themselves, unless more training pictures came back almost exactly (masks `near` of both sides); if pictures came
    back, and the held-out ones are too few to say that this is chance; if something was `missed`: not asked; or if a
    `doubt` says that pictures were shown in a wrong way.
    """
    count, others = (int(side.sum()) for side in near) if near else (0, 0)
    unlike = [one for one in differences if one.adjusted < judge.DIFFERENT]
    leaks = [one for one in comparisons if one.adjusted < level and (not unlike or one.name.startswith(judge.BACK))]
    sentences = [comparison_sentence(comparisons, unlike, leaks)]
    if count:
        pictures = f"{count} of {len(near[0])} training pictures" if count > 1 else "A training picture"
        held_out = f"{others} held-out pictures do, too" if others else "no held-out picture does"
        sentences.insert(0, f"{pictures} came back almost exactly: |NCC| above {judge.NEAR:g}; {held_out}.")
    if few := count and not others and not leaks:
        sentences.append("With so few pictures that may be chance: give more held-out ones.")
    if missed:
        sentences.append(f"Not all was asked. {' '.join(missed)}")
    if leaks:
        return LEAKS, " ".join(["Something leaks.", *sentences])
    if unlike or missed or few or not comparisons:
        return NO_ANSWER, " ".join(["There is no answer.", *sentences])
    if wrong:
        return NO_ANSWER, f"There is no answer. {doubt}"
    if not near:
        sentences.append("No attack returned pictures: these are for a fully connected first layer.")
    return FOUND_NOTHING, " ".join(["These attacks found nothing.", *sentences, doubt]).strip()


def advice(status, outcomes, case, rebuilt):
    """What to do now: sentences from an exit status, the Outcomes of a stages.Case, and whether pictures came back."""
    state = ["Publish the weights without the optimiser's state."] if case.state.entry else []
    if status == NO_ANSWER:
        return ["Mend what the finding names, and audit again: no answer clears nothing.", *state]
    if status == LEAKS:
        secret = "Where it is a secret who was in the training, give nobody this network, nor its outputs."
        if rebuilt:
            secret = "The pictures themselves can be rebuilt: give nobody the files that were given here."
        cure = "Train with differential privacy, which bounds what any attack can tell, or on more pictures"
        return [*state, secret, f"{cure} for fewer epochs, and audit what comes out."]
    asked = any(one.name == BY_SHADOWS and one.state == "ran" for one in outcomes)
    option = "--shadows 16" if case.layers else "--shadows 16 --train MODULE:FUNCTION"
    more = f"Ask reference networks, too ({option}): of membership they can tell more than the loss."
    return [
        *(state or ["Publish the weights alone, without an optimiser's state."]),
        *([] if asked else [more]),
        f"No false alarms rarer than one in {len(case.sides[1])} were looked at: more held-out pictures show these.",
    ]


def comparison_sentence(comparisons, unlike, leaks):
    """What Comparisons say: that both sides are `unlike` by themselves, or that something leaks."""
    if unlike:
        differ = f"differ by themselves, in {unlike[0].name} ({stated(unlike[0].adjusted)})"
        return f"The two sides {differ}, so no comparison can tell a leak: give pictures of one source, shuffled."
    if leaks:
        best = min(leaks, key=lambda one: one.adjusted)
        tell = "comparisons tells" if len(leaks) == 1 else "comparisons tell"
        clearest = f"{best.name}, {stated(best.adjusted)} after Holm's correction"
        return f"{len(leaks)} of {len(comparisons)} {tell} training pictures from held-out ones ({clearest})."
    if comparisons:
        return f"None of {len(comparisons)} comparisons tells training pictures from held-out ones."
    return "No attack could be run."


def stated(p):
    """A p-value as p = 0.0058, or p < 10⁻¹²."""
    return f"p {'= ' * (p >= 1e-12)}{number(p)}".replace("\u00a0", " ")


# What the audit says of one picture: its place on one of the SIDES, the Outcome that returned the picture most like it,
# or None, what data/audit.schema.json calls one of the images, and by what pictures are ordered.
Risk = namedtuple("Risk", "side index attack image strength")


def risks(outcomes, sides):
    """The Risks of all pictures of both sides, the largest first."""
    losses = next((one.facts["losses"] for one in outcomes if "losses" in one.facts), None)
    attacks, listed = [one for one in reversed(outcomes) if one.ncc], []
    for side, part in enumerate(sides):
        for k, name in enumerate(part.names):
            attack = max(attacks, key=lambda one: one.ncc[side][k], default=None)
            best = attack.ncc[side][k].item() if attack else None
            sure = [bool(one.sure[side][k] and one.ncc[side][k] > judge.NEAR) for one in outcomes if one.sure]
            likeness, loss = attack.score[side][k].item() if attack else None, losses[side][k] if losses else None
            image = {
                "name": name, "side": SIDES[side], "attack": attack and attack.name, "ncc": best, "likeness": likeness,
                "loss": loss, "above": 0.0, "returned": best is not None and best > judge.NEAR,
                "sure": any(sure) if sure else None,
            }  # fmt: skip
            listed.append(Risk(side, k, attack, image, best if attack else -(loss or 0.0)))
    held_out = sorted(one.strength for one in listed if one.side == 1)
    for one in listed:
        one.image["above"] = bisect_left(held_out, one.strength) / len(held_out)
    return sorted(listed, key=lambda one: one.strength, reverse=True)


def reported(case, target, sides, outcomes, control, warnings, doubt, settings, level, seconds):
    """The Report of the outcomes of a case of a weights.Target, under a `doubt` of run.doubt_of."""
    comparisons, missed = judge.holm([one for of in outcomes for one in of.comparisons]), not_asked(target, outcomes)
    near = [torch.stack(side).amax(0) > judge.NEAR for side in zip(*(one.ncc for one in outcomes if one.ncc))]
    status, sentence = finding(near, comparisons, control, level, missed, *doubt)
    notes, ranked = [*(note for note in target.notes if note not in missed), *warnings], risks(outcomes, sides)
    if unfinished := [f"{one.name} ({one.state})" for one in outcomes if one.state != "ran"]:
        notes.append(f"{len(unfinished)} of {len(outcomes)} stages gave no answer: {', '.join(unfinished)}.")
    if doubt[0] and doubt[0] not in sentence:
        notes.append(doubt[0])
    rebuilt = any(one.adjusted < level and one.name.startswith(judge.BACK) for one in comparisons)
    sizes, do = [layer.weight.shape for layer in case.layers], advice(status, outcomes, case, rebuilt)
    content = {
        "finding": {"status": status, "sentence": sentence, "level": level, "not_asked": missed, "advice": do},
        "warnings": notes,
        "network": {"name": target.name, "widths": [*sizes[0][::-1], *(n for n, _ in sizes[1:])] if sizes else []},
        "pictures": {"shape": list(case.shape), **{of: len(side.images) for of, side in zip(SIDES, sides)}},
        "stages": [staged(one) for one in outcomes],
        "comparisons": [one._asdict() for one in comparisons],
        "control": [one._asdict() for one in control],
        "true_positives": rates(outcomes),
        "images": [one.image for one in ranked],
        "threat_model": threat_model(case),
        "limits": [*LIMITS, *([WITHOUT_START] if case.start else [])],
        "settings": settings,
        "versions": {"python": platform.python_version()} | {name: version(name) for name in PACKAGES},
        "seconds": round(seconds, 2),
    }
    small = [bytes_of(sides[one.side].images[one.index][None], case.shape)[0] for one in ranked]
    alike = any(one.adjusted < level for one in comparisons if one.name.startswith("alike "))
    returned = any(one.image["returned"] for one in ranked if one.side == 0)
    shown = galleries(case, sides, ranked if returned or alike else [])
    return Report(status, sentence, content, shown, small if len(small) <= SMALL else [])


def staged(outcome):
    """A stage for the content."""
    facts = {key: value for key, value in outcome.facts.items() if key != "losses"}
    times = {"expected_seconds": round(outcome.expected, 2), "seconds": round(outcome.seconds, 2)}
    return {"name": outcome.name, "state": outcome.state, "said": outcome.sentence, "facts": facts, **times}


def rates(outcomes):
    """Of every score of membership the share of training pictures above all but few of the held-out ones."""
    rows = []
    scores = [scored for one in outcomes for scored in ((one.name, one.score), *one.others)]
    for name, score in (scored for scored in scores if scored[1]):
        area = dict(zip(("auc", "low", "high"), score.area))
        for rate in judge.RATES:
            allowed = int(rate * len(score.held_out))
            value = (score.training > score.held_out.sort(descending=True).values[allowed]).double().mean().item()
            of = {"rate": rate, "allowed": allowed, "of": len(score.held_out), "value": value}
            rows.append({"score": name, **area, **of})
    return rows


def threat_model(case):
    """What the attacker is taken to know, in sentences."""
    read = "all weights" if len(case.layers) > 1 else "the weights of the first layer"
    has = f"{read} of the network" if case.layers else "the outputs of the network"
    has, before = ("all weights of the network and its code", case.module.before) if case.module else (has, case.start)
    return [
        f"The attacker has {has}" + (", and those from before its training." if before else "."),
        *([f"It has the optimiser's state, with {case.state.entry} of the first layer."] if case.state.entry else []),
        "It knows the size of the pictures, and their number where it cannot be read from a layer.",
        "It has no training picture. The judge has them and the held-out ones, and matches both with what came back.",
        *([HAS_PICTURE] if case.logits else []),
    ]


def galleries(case, sides, ranked):
    """Of either side the pictures that came back best, beside what came back: {title: [(picture, returned, words)]}."""
    shown = {}
    for side, title in enumerate(("Training pictures most at risk", "Held-out pictures, chosen in the same way")):
        shown[title] = []
        for one in [one for one in ranked if one.side == side and one.attack][:SHOWN]:
            pair = torch.stack([sides[side].images[one.index], match_of(case, one)])
            words = f"{one.image['name']}: {one.image['ncc']:.2f}{', sure' * bool(one.image['sure'])}"
            shown[title].append((*bytes_of(pair, case.shape), words))
    return shown


def match_of(case, risk):
    """What came back of a picture, as a picture (d,): its best match, in its own sign and contrast, stretched."""
    seen, returned = case.sides[risk.side][risk.index], risk.attack.images
    likeness = ncc(seen[None], returned)[0]
    best = likeness.abs().argmax()
    drawn = likeness[best].sign() * (returned[best] - returned[best].mean())
    return stretch(case.shown(drawn * seen.std() / drawn.std().clamp_min(1e-30) + seen.mean())[None])[0]
