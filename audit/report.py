"""What an audit found: one sentence, the numbers behind it, and its two files."""

import csv
import json
import os
import platform
import tempfile
from bisect import bisect_left
from importlib.metadata import version
from pathlib import Path
from typing import NamedTuple

import torch

import audit.judge as judge
from audit.page import bytes_of, chance, page
from audit.stages import BY_LOSS
from utils.errors import InputError
from utils.kernels.similarity import ncc, stretch

DATA = Path(__file__).parent.parent / "data"
SCHEMA = DATA / "audit.schema.json"
FILES = "report.json", "report.html"
FOUND_NOTHING, LEAKS, NO_ANSWER = 0, 1, 2  # exit statuses
BARS = [0.9, 0.7]  # of |NCC|, in the records of the book
RECORDED = 50  # pictures of each network in these
SHOWN = 12  # pictures of a side on the page
SMALL = 200  # pictures, up to which all have a thumbnail
SIDES = "training", "held_out"
LIMITS = [
    "These attacks are some of many: that they found nothing does not mean that nothing can be found.",
    "They read a fully connected first layer; a convolution shares its weights over places, and is another mixture.",
    "Membership is tested by the loss alone, without reference networks; stronger tests of membership exist.",
    "The held-out pictures must be of the same source as the training pictures, and drawn at random from it.",
    "Pictures that were augmented, cut or resized otherwise in training are compared as they were given here.",
]
WITHOUT_START = "The stationarity attack and membership by loss do not use the network from before the training."


class Report(NamedTuple):
    """The result of an audit."""

    content: dict  # as data/audit.schema.json says
    pictures: dict  # for the page alone: {title: [(a picture, what came back, words)]}, pictures as (H, W, C) bytes
    thumbnails: list  # (H, W, C) bytes for the images of the content, or none

    @property
    def status(self):
        """The exit status: 0 nothing was found, 1 something leaks, 2 there is no answer."""
        return self.content["finding"]["status"]

    @property
    def sentence(self):
        """The finding."""
        return self.content["finding"]["sentence"]

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
        texts, folder = [self.json(), self.html()], writable(folder)
        try:
            with tempfile.TemporaryDirectory(dir=folder, prefix="report.") as beside:
                for name, text in zip(FILES, texts):
                    (Path(beside) / name).write_text(text, encoding="utf-8")
                for name in FILES:
                    os.replace(Path(beside) / name, folder / name)
        except OSError as error:
            raise unwritable(folder, error) from error
        return folder / FILES[1]


def writable(folder):
    """The path of a folder in which files can be written, made if it is missing; InputError otherwise."""
    folder = Path(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=folder, prefix="report.", suffix=".tmp") as probe:
            probe.write(bytes(2**20))
            probe.flush()
            os.fsync(probe.fileno())
    except (OSError, ValueError) as error:
        raise unwritable(folder, error) from error
    return folder


def unwritable(folder, error):
    """The InputError for a folder in which nothing can be written."""
    reason = getattr(error, "strerror", None) or error
    return InputError(f"The report cannot be written to {folder} ({reason}): give a folder of yours with room in it.")


class Doubt(NamedTuple):
    """Why a finding of nothing may be worth nothing."""

    said: str = ""  # in a sentence; empty: there is no doubt
    wrong: bool = False  # whether the network classifies its pictures better if they are shown in another way


def nearly_exact(outcomes):
    """Which training and held-out pictures came back almost exactly, by any attack: masks, or None without pictures."""
    best = [one.ncc for one in outcomes if one.ncc]
    return [torch.stack(side).amax(0) > judge.NEAR for side in zip(*best)] or None


def stated(p):
    """A p-value with its sign, as in the tables: = 0.0058, or < 10⁻¹²."""
    return chance(p) if p < 1e-12 else f"= {chance(p)}"


def not_asked(target, outcomes):
    """Sentences on what was not asked of a weights.Target, and why; nothing, if its loss and an attack were run."""
    ran = {one.name for one in outcomes if one.state == "ran"}
    said = [] if target.logits and target.layers else [*target.notes]
    for one in outcomes:
        if one.state == "skipped" or (one.name == BY_LOSS and one.state == "refused"):
            said.append(f"{one.name[0].upper()}{one.name[1:]} was {one.state}: {one.said}")
    return said if said or ran - {BY_LOSS} else ["No attack on the weights could be run."]


def finding(near, comparisons, differences, level, missed=()):
    """The exit status, and the finding in some sentences: one rule for all attacks.

    Something leaks if a comparison says so after Holm's correction. There is no answer if the two sides differ by
    themselves, unless more training pictures came back almost exactly; if pictures came back, and the held-out ones are
    too few to say that this is chance; or if something was `missed`: not asked.
    """
    count, others = (int(side.sum()) for side in near) if near else (0, 0)
    said, unlike = [], [one for one in differences if one.adjusted < judge.DIFFERENT]
    told = [one for one in comparisons if one.adjusted < level and (not unlike or one.name.startswith(judge.BACK))]
    if count:
        held_out = f"{others} held-out pictures do, too" if others else "no held-out picture does"
        pictures = f"{count} of {len(near[0])} training pictures" if count > 1 else "A training picture"
        said.append(f"{pictures} came back almost exactly: |NCC| above {judge.NEAR:g}; {held_out}.")
    if unlike:
        differ = f"differ by themselves, in {unlike[0].name} (p {stated(unlike[0].adjusted)})"
        said.append(f"The two sides {differ}, so no comparison can tell a leak: give pictures of one source, shuffled.")
    elif told:
        best = min(told, key=lambda one: one.adjusted)
        tell = "comparisons tells" if len(told) == 1 else "comparisons tell"
        clearest = f"{best.name}, p {stated(best.adjusted)} after Holm's correction"
        said.append(f"{len(told)} of {len(comparisons)} {tell} training pictures from held-out ones ({clearest}).")
    elif comparisons:
        said.append(f"None of {len(comparisons)} comparisons tells training pictures from held-out ones.")
    else:
        said.append("No attack could be run.")
    if few := count and not others and not told:
        said.append("With so few pictures that may be chance: give more held-out ones.")
    if missed:
        said.append(f"Not all was asked. {' '.join(missed)}")
    if told:
        return LEAKS, " ".join(["Something leaks.", *said])
    if unlike or missed or few or not comparisons:
        return NO_ANSWER, " ".join(["There is no answer.", *said])
    return FOUND_NOTHING, " ".join(["These attacks found nothing.", *said])


def nearest(outcomes, with_start):
    """The recorded network of the book that gave back the most like shares of its pictures: a dict, or None."""
    found = [one.ncc[0] for one in outcomes if one.ncc and one.name.startswith("unmixing")]
    if not found:
        return None
    ours = max([(best > bar).double().mean().item() for bar in BARS] for best in found)
    record = "known-start" if with_start else "unmixing-map"
    means = shares(record, ("TRAINER", "START") if with_start else ("VICTIM",), 3 if with_start else 4)
    name = min(means, key=lambda name: sum(abs(a - b) for a, b in zip(means[name], ours)))
    return {"record": record, "network": name, "shares": means[name], "yours": ours, "bars": BARS}


def shares(record, keys, depth):
    """{network: mean share of its pictures above each of BARS} of a record whose names have so many parts."""
    counts = {}
    with (DATA / "results" / f"{record}.csv").open(encoding="utf-8", newline="") as stream:
        for row in csv.DictReader(stream):
            *head, quantity = row["name"].split("/")
            bars = [k for k, bar in enumerate(BARS) if quantity == f"ncc_above_{bar}"]
            if bars and len(head) + 1 == depth:
                of = counts.setdefault(", start: ".join(row[key] for key in keys), [[] for _ in BARS])
                of[bars[0]].append(float(row["value"]) / RECORDED)
    return {name: [sum(some) / len(some) for some in of] for name, of in counts.items()}


def versions():
    """What the numbers depend on beside the input."""
    return {"python": platform.python_version()} | {name: version(name) for name in ("torch", "numpy", "scipy")}


class Risk(NamedTuple):
    """What the audit says of one picture."""

    side: int  # of SIDES
    index: int  # on that side
    ncc: float | None  # the best |NCC| with what any attack returned
    attack: int | None  # which of the outcomes that was
    likeness: float | None  # to what that attack returned, by details; or None without one
    loss: float | None
    above: float  # share of the held-out pictures that it stands above, by |NCC|, or by its loss if nothing came back
    returned: bool  # almost exactly
    sure: bool | None  # and the attacker can be sure of it, by zeros; None where no attack looks for them


def risks(outcomes, sizes):
    """The Risks of all pictures on sides of these sizes, the largest first."""
    attacks = [k for k, one in enumerate(outcomes) if one.ncc]
    losses = next((one.facts["losses"] for one in outcomes if "losses" in one.facts), None)
    found = []
    for side, size in enumerate(sizes):
        for k in range(size):
            best, attack = max(((outcomes[a].ncc[side][k].item(), a) for a in attacks), default=(None, None))
            like = None if attack is None else outcomes[attack].score[side][k].item()
            loss = losses[side][k] if losses else None
            returned = best is not None and best > judge.NEAR
            sure = [bool(one.sure[side][k] and one.ncc[side][k] > judge.NEAR) for one in outcomes if one.sure]
            found.append(Risk(side, k, best, attack, like, loss, 0.0, returned, any(sure) if sure else None))
    held_out = sorted(strength(one) for one in found if one.side == 1)
    found = [one._replace(above=bisect_left(held_out, strength(one)) / len(held_out)) for one in found]
    return sorted(found, key=strength, reverse=True)


def strength(risk):
    """What pictures are ordered by."""
    return risk.ncc if risk.ncc is not None else -(risk.loss or 0.0)


def doubted(status, sentence, doubt):
    """A finding under a Doubt: nothing was found, or there is no answer if pictures were shown in a wrong way."""
    if not doubt.said or status != FOUND_NOTHING:
        return status, sentence
    return (NO_ANSWER, f"There is no answer. {doubt.said}") if doubt.wrong else (status, f"{sentence} {doubt.said}")


def reported(case, target, sides, outcomes, control, warnings, doubt, settings, level, seconds):
    """The Report of all outcomes of a case of a weights.Target, under a Doubt."""
    comparisons, missed = judge.holm([one for of in outcomes for one in of.comparisons]), not_asked(target, outcomes)
    status, sentence = finding(nearly_exact(outcomes), comparisons, control, level, missed)
    status, sentence = doubted(status, sentence, doubt)
    doubts = [doubt.said] if doubt.said and doubt.said not in sentence else []
    found = risks(outcomes, [len(side.images) for side in sides])
    content = {
        "finding": {"status": status, "sentence": sentence, "level": level, "not_asked": missed},
        "warnings": [*(note for note in target.notes if note not in missed), *warnings, *unfinished(outcomes), *doubts],
        "network": {"name": target.name, "widths": widths(case.layers)},
        "pictures": {"shape": list(case.shape), **{of: len(side.images) for of, side in zip(SIDES, sides)}},
        "stages": [staged(one) for one in outcomes],
        "comparisons": [one._asdict() for one in comparisons],
        "control": [one._asdict() for one in control],
        "true_positives": rates(outcomes),
        "nearest": nearest(outcomes, bool(case.start)),
        "images": [described(one, outcomes, sides) for one in found],
        "threat_model": threat_model(case),
        "limits": [*LIMITS, *([WITHOUT_START] if case.start else [])],
        "settings": settings,
        "versions": versions(),
        "seconds": round(seconds, 2),
    }
    small = [bytes_of(sides[one.side].images[one.index][None], case.shape)[0] for one in found]
    shown = found if came_back(found, comparisons, level) else []
    return Report(content, galleries(case, outcomes, sides, shown), small if len(small) <= SMALL else [])


def came_back(risks, comparisons, level):
    """Whether a training picture came back almost exactly, or clearly more of them than held-out ones are alike."""
    alike = [one for one in comparisons if one.name.startswith("alike ")]
    return any(one.returned for one in risks if one.side == 0) or any(one.adjusted < level for one in alike)


def unfinished(outcomes):
    """A sentence on the stages that gave nothing, if there are any."""
    missing = [f"{one.name} ({one.state})" for one in outcomes if one.state != "ran"]
    return [f"{len(missing)} of {len(outcomes)} stages gave no answer: {', '.join(missing)}."] if missing else []


def widths(layers):
    """How many values go in, and come out of every layer."""
    return [layers[0].weight.shape[1], *(len(layer.weight) for layer in layers)] if layers else []


def staged(outcome):
    """A stage for the content."""
    facts = {key: value for key, value in outcome.facts.items() if key != "losses"}
    times = {"expected_seconds": round(outcome.expected, 2), "seconds": round(outcome.seconds, 2)}
    return {"name": outcome.name, "state": outcome.state, "said": outcome.said, "facts": facts, **times}


def rates(outcomes):
    """True positives at few false ones, of every score of membership."""
    found = []
    for one in outcomes:
        for rate in judge.RATES if one.score else ():
            value, allowed = judge.true_positives(one.score, rate)
            area = dict(zip(("auc", "low", "high"), one.score.area))
            of = {"rate": rate, "allowed": allowed, "of": len(one.score.held_out), "value": value}
            found.append({"score": one.name, **area, **of})
    return found


def described(risk, outcomes, sides):
    """A picture for the content."""
    numbers = {name: getattr(risk, name) for name in ("ncc", "likeness", "loss", "above", "returned", "sure")}
    attack = None if risk.attack is None else outcomes[risk.attack].name
    return {"name": sides[risk.side].names[risk.index], "side": SIDES[risk.side], "attack": attack, **numbers}


def threat_model(case):
    """What the attacker is taken to know, in sentences."""
    read = "all weights" if len(case.layers) > 1 else "the weights of the first layer"
    has = f"{read} of the network" if case.layers else "the outputs of the network"
    said = [
        f"The attacker has {has}" + (", and those from before its training." if case.start else "."),
        "It knows the size of the pictures, and how many there were where a layer does not tell.",
        "It has no training picture. The judge has them and the held-out ones, and matches both with what came back.",
    ]
    if case.logits:
        said.append("For membership by loss it has the very picture, and asks whether the network was trained on it.")
    return said


def galleries(case, outcomes, sides, risks):
    """Of either side the pictures that came back best, beside what came back: {title: [(picture, returned, words)]}."""
    shown = {}
    for side, title in enumerate(("Training pictures most at risk", "Held-out pictures, chosen in the same way")):
        shown[title] = []
        for one in [one for one in risks if one.side == side and one.attack is not None][:SHOWN]:
            own, found = sides[side].images[one.index], back(case, outcomes[one.attack].found, one)
            words = f"{sides[side].names[one.index]}: {one.ncc:.2f}{', sure' * bool(one.sure)}"
            shown[title].append((*bytes_of(torch.stack([own, found]), case.shape), words))
    return shown


def back(case, found, risk):
    """What came back of a picture, as a picture (d,): its best match, in its own sign and contrast, stretched."""
    seen = case.sides[risk.side][risk.index]
    likeness = ncc(seen[None], found)[0]
    best = likeness.abs().argmax()
    drawn = likeness[best].sign() * (found[best] - found[best].mean())
    return stretch(case.shown(drawn * seen.std() / drawn.std().clamp_min(1e-30) + seen.mean())[None])[0]
