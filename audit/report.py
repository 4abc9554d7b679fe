"""What an audit found: one sentence, the numbers behind it, and its files, a folder that can be handed on."""

import json
import platform
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import NamedTuple

import torch

from audit import judge, promise, risks
from audit.__main__ import FOUND_NOTHING, LEAKS, NO_ANSWER
from audit.page import bytes_of, page
from audit.stages import GRADIENTS, OUTPUTS, STATE, WEIGHTS, Case
from audit.start import WORDS
from evaluation.notation import number
from training.images import DATA
from utils.errors import InputError, check_writable, write_all, written
from utils.kernels.similarity import closest, stretch

SCHEMA = DATA / "audit.schema.json"
FILES = "report.html", "report.json", "pictures.csv"
SHOWN = 12  # pictures of a side on the page
EXPOSED = 10  # training pictures in its first table
SMALL = 200  # pictures, up to which all have a thumbnail
PACKAGES = "torch", "numpy", "scipy"  # on which the numbers depend beside the input


class Report(NamedTuple):
    """The result of an audit."""

    status: int  # for exit: 0 nothing was found, 1 something leaks, 2 there is no answer
    sentence: str  # the finding
    content: dict  # as data/audit.schema.json says
    pictures: dict  # for the page alone: {title: [(a picture, what came back, words)]}, pictures as (H, W, C) bytes
    exposed: list  # the training pictures most at risk: (its image in the content, picture, what came back or None)
    thumbnails: list  # (H, W, C) bytes for the images of the content, or none

    def json(self):
        """The content as a text."""
        return json.dumps(self.content, indent=1, ensure_ascii=False, allow_nan=False)

    def html(self):
        """One page that needs no other file and no network."""
        return page(self.content, self.pictures, self.exposed, self.thumbnails)

    def _repr_html_(self):
        return f"<p>{self.sentence}</p>"

    def save(self, folder):
        """Write FILES into a folder, all or none: the path of the page."""
        paths = [Path(folder) / name for name in FILES]
        texts = (self.html(), self.json(), risks.table(self.content["images"]))
        with written("The report", folder):  # names of files may be no text
            write_all(
                {path: text.encode("utf-8", "backslashreplace") for path, text in zip(paths, texts)}
            )
        return paths[0]


def check_room(folder, names=FILES):
    """InputError unless files of these names can be written into a folder; one that is not there yet is not made."""
    if not str(folder):
        raise InputError("The report's folder has no name: give one (--out report).")
    for name in names:
        check_writable("The report", Path(folder) / name)


def reported(
    case: Case, outcomes: list, doubts: tuple[str, str], origin: dict, seconds: float
) -> Report:
    """The Report of the outcomes of a Case; `doubts` are `better` and `poor` of `finding`, `origin` its network's."""
    comparisons = judge.holm([one for of in outcomes for one in of.comparisons])
    control = judge.control(case)
    missed = not_asked(case.network, outcomes)
    returned = zip(*(one.ncc for one in outcomes if one.ncc))
    near = [torch.stack(side).amax(0) > judge.NEAR for side in returned]
    level = case.asking.level
    scores = risks.scores_of(outcomes)
    tested = promised(case.asking, scores, comparisons, control, case.since)
    judged = finding(near, comparisons, control, level, missed, *doubts, blindness(outcomes))
    status, sentence = concluded(case, judged, tested)
    ranked = risks.ranked(outcomes, case.pictures)
    images = [one.image for one in ranked]
    clear = risks.clearest(scores)
    promise_said = tested.said if tested else ""
    found = {
        "finding": {"status": status, "sentence": sentence, "level": level, "not_asked": missed},
        "summary": risks.summary(case.network.name, images, clear, status, promise_said),
        "promise": tested and tested._asdict(),
        "warnings": warnings(case, outcomes, missed)
        + [doubt for doubt in doubts if doubt and doubt not in sentence],
        "comparisons": [one._asdict() for one in comparisons],
        "control": [one._asdict() for one in control],
        "settings": settings_of(case, origin),
        "seconds": round(seconds, 2),
    }
    told = any(isinstance(one, judge.Alike) and one.adjusted < level for one in comparisons)
    back = ranked if told or (near and near[0].any()) else []
    content = found | described(case, outcomes, images, clear)
    return Report(status, sentence, content, *illustrated(case, ranked, back))


def concluded(case, found, tested):
    """The status and the sentence that were found, with what was tested of a promise, and what rests on a word."""
    status, sentence = found
    if tested and tested.refuted and status != LEAKS:
        return LEAKS, f"Something leaks. {tested.said}"
    if tested:
        sentence = f"{sentence} {tested.said}"
    if status == FOUND_NOTHING and case.asking.accuracy is not None:
        word = f"classified {case.asking.accuracy:.0%} of its training pictures correctly"
        sentence = (
            f"{sentence} That rests on your word that the network {word} when its training ended."
        )
    return status, sentence


def described(case, outcomes, images, clear):
    """What the content says of a Case beside what was found: its network, pictures, stages, and each image's risk."""
    layers = case.network.layers
    widths = [layer.weight.shape[1] for layer in layers[:1]] + [len(one.weight) for one in layers]
    return {
        "clearest": clear,
        "network": {"name": case.network.name, "widths": widths, "code": case.network.is_more},
        "pictures": {"shape": list(case.shape)} | dict(zip(risks.SIDES, case.sizes)),
        "stages": [staged(one) for one in outcomes],
        "true_positives": rates(outcomes),
        "images": images,
        "versions": {"python": platform.python_version()}
        | {name: version(name) for name in PACKAGES},
    }


def illustrated(case, ranked, back):
    """The pictures, the exposed ones and the thumbnails of a Report of ranked risks, of which some came `back`."""
    if not case.asking.pictures:
        return {}, [], []
    small = ranked if len(ranked) <= SMALL else []
    thumbnails = (case.pictures[one.side].images[one.index] for one in small)
    exposed = [beside(case, one) for one in ranked if one.side == 0][:EXPOSED]
    return galleries(case, back), exposed, [bytes_of(x, case.shape)[0] for x in thumbnails]


def promised(asking, scores, comparisons, control, since=""):
    """The promise.Tested of an Asking, by scores of membership, and `since` which start; None if no ε was promised."""
    if asking.epsilon is None:
        return None
    unlike = any(one.adjusted < judge.DIFFERENT for one in control)
    tested = promise.test(
        (asking.epsilon, asking.delta),
        level=asking.level,
        scores=scores,
        seed=asking.seed,
        differ=unlike or bool(comparisons and exchanged(comparisons, asking.level)),
    )
    return tested._replace(said=f"{tested.said} {promise.READABLE}") if since else tested


def not_asked(network, outcomes):
    """Sentences on what was not asked of a weights.Network, and why; with any of them, nothing found is no answer.

    That is: outputs or layers that were not read; a test of the outputs, or an optimiser's state, that was
    refused; whatever the limit skipped; classes that are not known, so that membership by loss guessed them; and else
    that no attack on the weights could be run. Any other refusal leaves the answer to the attacks that were run.
    """
    sentences = [] if network.logits and (network.layers or network.is_more) else [*network.notes]
    for one in outcomes:
        needed = one.kind in (OUTPUTS, STATE)
        if one.state == "skipped" or (needed and one.state == "refused"):
            sentences.append(f"{one.name[0].upper()}{one.name[1:]} was {one.state}: {one.sentence}")
        if "losses" in one.facts and "accuracy" not in one.facts:
            sentences.append(
                "Membership by loss took the likeliest classes for true ones: give folders of classes."
            )
    attacked = {WEIGHTS, GRADIENTS} & {one.kind for one in outcomes if one.state == "ran"}
    return sentences if sentences or attacked else ["No attack on the weights could be run."]


def finding(near, comparisons, differences, level, missed=(), better="", poor="", blind=""):
    """The exit status, and the finding in some sentences: one rule for all attacks.

    Something leaks if a comparison says so, corrected for their number. There is no answer if the two sides differ by
    themselves, unless more training pictures came back almost exactly (masks `near` of both sides); if pictures came
    back, and the held-out ones are too few to say that this is chance; if something was `missed`: not asked; if the
    held-out pictures are those that the network knows; or if a sentence says that another way to show pictures fits
    `better`, that it knows the training pictures `poor`ly, or that too few pictures make the tests `blind`.
    """
    count, others = (int(side.sum()) for side in near) if near else (0, 0)
    unlike = [one for one in differences if one.adjusted < judge.DIFFERENT]
    leaks = [
        one
        for one in comparisons
        if one.adjusted < level and (not unlike or isinstance(one, judge.Near))
    ]
    sentences = [comparison_sentence(comparisons, unlike, leaks)]
    if count:
        sentences.insert(0, came_back(count, others, len(near[0]), bool(leaks)))
    if few := count and not others and not leaks:
        sentences.append("With so few pictures that may be chance: give more held-out ones.")
    if missed:
        sentences.append(f"Not all was asked. {' '.join(missed)}")
    if leaks:
        return LEAKS, " ".join(["Something leaks.", *sentences])
    if unlike or missed or few or not comparisons:
        return NO_ANSWER, " ".join(["There is no answer.", *sentences])
    if doubt := better or " ".join(filter(None, [poor, exchanged(comparisons, level)])):
        return NO_ANSWER, f"There is no answer. {doubt}"
    if blind:
        return NO_ANSWER, " ".join(["There is no answer.", *sentences, blind])
    if not near:
        sentences.append(
            "No attack returned pictures: these are for a fully connected first layer."
        )
    return FOUND_NOTHING, " ".join(["These attacks found nothing.", *sentences])


def came_back(count, others, m, leaks):
    """How many of m training pictures came back, beside others that nobody can rebuild: chance, if nothing leaks."""
    pictures = f"{count} of {m} training pictures" if count > 1 else "A training picture"
    held_out = (
        f"{others} held-out ones look as much like what came back"
        if others
        else "no held-out picture did"
    )
    chance = ", by chance" * bool(others and not leaks)
    return f"{pictures} came back almost exactly ({judge.BACK}); {held_out}{chance}."


def comparison_sentence(comparisons, unlike, leaks):
    """What Comparisons say: that both sides are `unlike` by themselves, or that something leaks."""
    if unlike:
        differ = f"differ by themselves, in {unlike[0].name} ({stated(unlike[0].adjusted)})"
        return f"The two sides {differ}, so no comparison can tell a leak: give pictures of one source, shuffled."
    if leaks:
        best = min(leaks, key=lambda one: one.adjusted)
        tell = f"{len(leaks)} of {len(comparisons)} comparisons {'tells' if len(leaks) == 1 else 'tell'}"
        return f"{tell} training pictures from held-out ones (the clearest: {best.name}, {stated(best.adjusted)})."
    if comparisons:
        return f"None of {len(comparisons)} comparisons tells training pictures from held-out ones."
    return "No attack could be run."


def exchanged(comparisons, level):
    """A question, if Comparisons say that the network knows the held-out pictures better; or none."""
    clearest = min(comparisons, key=lambda one: one.opposite)
    if clearest.opposite >= level:
        return ""
    knows = f"The network knows the held-out pictures better ({clearest.name}, {stated(clearest.opposite)})"
    return f"{knows}: were the training and the held-out pictures exchanged?"


def stated(p):
    """An adjusted p-value, as p = 0.0058 or p < 10⁻¹², and that it is one."""
    return f"p {'= ' * (p >= 1e-12)}{number(p)}, corrected for the number of comparisons".replace(
        "\u00a0", " "
    )


def blindness(outcomes):
    """A sentence if a score of membership may tell much, and too few pictures hide it: or none."""
    members = rates([one for one in outcomes if one.kind in (OUTPUTS, GRADIENTS)])
    most = max(members, key=lambda one: one["high"], default={"high": 0.0})
    if most["high"] < judge.TELLING:
        return ""
    area = f"the area of {most['score']} may be as large as {most['high']:.2f}"
    return f"With so few pictures {area}: give more of both sides."


def warnings(case, outcomes, missed):
    """The notes on a Case that are not said to be `missed`, and how many stages gave no answer."""
    notes = [*(note for note in case.network.notes if note not in missed), *case.notes]
    if unfinished := [f"{one.name} ({one.state})" for one in outcomes if one.state != "ran"]:
        many = f"{len(unfinished)} of {len(outcomes)} stages"
        notes.append(f"{many} gave no answer: {', '.join(unfinished)}.")
    return notes


def settings_of(case, origin):
    """How the pictures were shown, what was asked, and where the network is from, for JSON; no empty ones."""
    settings = asdict(case.showing) | asdict(case.asking) | origin
    settings |= {
        "loss": case.loss,
        "state": case.state.entry,
        "classes": [*map(str, case.showing.classes)],
        "before": WORDS if case.since else origin["before"],
        "train": case.asking.train and str(case.asking.train),
    }
    return {name: value for name, value in settings.items() if value not in (None, "", (), [])}


def staged(outcome):
    """A stage for the content."""
    return {
        "name": outcome.name,
        "state": outcome.state,
        "said": outcome.sentence,
        "facts": {key: value for key, value in outcome.facts.items() if key != "losses"},
        "seconds": round(outcome.seconds, 2),
    }


def rates(outcomes):
    """Of every score of membership the share of training pictures above all but few of the held-out ones."""
    scores = [pair for one in outcomes for pair in one.scores.items()]
    rows = []
    for name, score in scores:
        n = len(score.held_out)
        for rate in judge.RATES:
            allowed = int(rate * n)
            bar = score.held_out.sort(descending=True).values[allowed]
            value = (score.training > bar).double().mean().item()
            row = {"score": name, **dict(zip(("auc", "low", "high"), score.area))}
            rows.append(row | {"rate": rate, "allowed": allowed, "of": n, "value": value})
    return rows


def galleries(case, ranked):
    """Of either side the pictures that came back best, beside what came back: {title: [(picture, returned, words)]}."""
    titles = "Training pictures most at risk", "Held-out pictures, chosen in the same way"
    best = ([one for one in ranked if one.side == side and one.attack][:SHOWN] for side in (0, 1))
    return {title: [pair(case, one) for one in some] for title, some in zip(titles, best)}


def pair(case, risk):
    """A picture, its best match of what came back, and words on both."""
    words = f"{risk.image['name']}: {risk.image['ncc']:.2f}{', sure' * bool(risk.image['sure'])}"
    return *drawn(case, risk), words


def drawn(case, risk):
    """A picture and its best match of what came back, in its own sign and contrast, stretched, as bytes."""
    picture = case.pictures[risk.side].images[risk.index]
    seen = case.seen(picture)
    match = closest(seen[None], risk.attack.images)
    contrast = seen.std() / match.std().clamp_min(1e-30)
    shown = stretch(case.shown((match - match.mean()) * contrast + seen.mean()))[0]
    return bytes_of(torch.stack([picture, shown]), case.shape)


def beside(case, risk):
    """An image of the content, its picture, and what came back of it where it returned, or None."""
    if risk.image["returned"]:
        return risk.image, *drawn(case, risk)
    return risk.image, bytes_of(case.pictures[risk.side].images[risk.index], case.shape)[0], None
