"""A network that cannot be handed over, by a table of its outputs: which rows it was trained on, and nothing else.

The table is a CSV file with a row for each record: `member`, whether the network was trained on it (1 or 0), `label`,
its class, and the probabilities of all classes, in their order; or that of the second one of two alone.
"""

from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd
import torch

from audit import judge, report, risks, stages
from audit.__main__ import LEAKS
from audit.pictures import FEWEST, named
from audit.showing import Asking
from utils.errors import InputError, explained, write, written

FILE = "records.csv"
GIVEN = "member", "label"  # columns beside the probabilities
SIDES = {"1": True, "true": True, "0": False, "false": False}
TOLERANCE = 1e-3  # by which probabilities may not add up to 1
SMALLEST = 1e-30  # probability, below which it is taken for rounded
ALONE = "Only outputs were given, and so membership alone was asked: they do not tell what the weights give away."


class Outputs(NamedTuple):
    """What a network made of records. Each field has one part for either side."""

    logits: list  # (n, K), or (n, 1)
    labels: list  # (n,) numbers
    rows: list  # (n,) lines of the file


class Found(NamedTuple):
    """What the outputs gave away."""

    status: int  # for exit: 1 something leaks, 2 there is no answer; outputs alone clear nothing
    sentence: str
    records: str  # the risk of each record, the most exposed first, as CSV

    def save(self, folder):
        """Write the table of records into a folder: its path."""
        path = Path(folder) / FILE
        with written("The table", path):
            write(path, self.records.encode("utf-8", "backslashreplace"))
        return path


def outputs(table: str | Path, **options: Any) -> Found:
    """Ask a CSV file of outputs who was trained on: Found, or InputError. `options` are fields of `Asking`."""
    asking = Asking(**options)
    given = read(Path(table))
    count = given.logits[0].shape[1]
    loss = "cross_entropy" if count > 1 else "logistic"
    margins, values = (
        [of(loss, *one) for one in zip(given.logits, given.labels)]
        for of in (stages.margins, stages.losses)
    )
    right = [
        (logits.argmax(1) if count > 1 else (logits[:, 0] > 0).long()) == labels
        for logits, labels in zip(given.logits, given.labels)
    ]
    score = judge.scored(margins, given.labels)
    tests = (
        judge.of_area("loss", score),
        judge.of_count("classified correctly", right, given.labels),
    )
    comparisons = judge.holm(tests)
    control = judge.holm([judge.balance(given.labels)])
    status, sentence = report.finding([], comparisons, control, asking.level, [ALONE])
    scores = {stages.BY_LOSS: score}
    if tested := report.promised(asking, scores, comparisons, control):
        status = LEAKS if tested.refuted else status
        sentence = f"{sentence} {tested.said}"
    sentence = sentence.replace("picture", "record")
    return Found(status, sentence, table_of(given, values, risks.rates_of(score)))


def read(path):
    """The Outputs in a CSV file; InputError in one sentence if it holds none."""
    with explained(f"{path} is no table of outputs", "give a CSV file with a head"):
        frame = pd.read_csv(path, dtype={"member": str, "label": str})
    if missing := [name for name in GIVEN if name not in frame]:
        mend = "give member (1 or 0), label, and the probability of each class"
        raise InputError(f"{path} has no column {missing[0]}: {mend}.")
    sides = frame.member.str.strip().str.lower().map(SIDES)
    if sides.isna().any():
        wrong = frame.member[sides.isna()].iloc[0]
        raise InputError(f"{path}: a member is {wrong!r}: give 1 where it was trained on, else 0.")
    frame = frame.drop(columns="member")
    classes = [name for name in frame if name != "label"]
    logits = logits_of(frame[classes], path)
    labels = torch.tensor(numbers_of(frame.label, classes, path))
    masks = [torch.tensor((sides == side).to_numpy()) for side in (True, False)]
    for mask, what in zip(masks, ("training", "held-out")):
        if mask.sum() < FEWEST:
            raise InputError(f"{path} has {mask.sum()} {what} records: give {FEWEST} or more.")
    rows = torch.arange(len(frame)) + 2
    return Outputs(*([of[mask] for mask in masks] for of in (logits, labels, rows)))


def logits_of(frame, path):
    """The logits of a frame of probabilities, one column for each class, or that of the second of two alone."""
    with explained(f"{path} holds no probabilities", "give numbers beside member and label"):
        values = torch.tensor(frame.to_numpy(dtype=float))
    alone = values.shape[1] == 1
    in_range = ((values >= 0) & (values <= 1)).all()
    if not in_range or not (alone or ((values.sum(1) - 1).abs() < TOLERANCE).all()):
        mend = "give what softmax or a sigmoid returns, and no other column"
        raise InputError(
            f"{path}: the probabilities of a row lie in [0, 1] and add up to 1: {mend}."
        )
    values = values.clamp_min(SMALLEST)
    return values.log() - (1 - values).clamp_min(SMALLEST).log() if alone else values.log()


def numbers_of(labels, classes, path):
    """Labels as numbers of classes: numbers as they are, or the names of the columns."""
    known = {str(k): k for k in range(max(len(classes), 2))}
    known |= {name: k for k, name in enumerate(classes) if len(classes) > 1}
    found = [known.get(str(named(label))) for label in labels]
    if None in found:
        wrong = labels.iloc[found.index(None)]
        mend = "name a column, or number them from 0 on"
        raise InputError(f"{path}: no class is called {wrong!r}: {mend}.")
    return found


def table_of(given, losses, rates):
    """A CSV table of records: the row in the file, the side, the loss and the false-positive rate."""
    parts = [
        pd.DataFrame({"row": rows, "side": name, "loss": loss, "false-positive rate": rate})
        for rows, name, loss, rate in zip(given.rows, risks.SIDES, losses, rates)
    ]
    return pd.concat(parts).sort_values("false-positive rate", kind="stable").to_csv(index=False)
