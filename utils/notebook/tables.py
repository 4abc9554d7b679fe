"""Tables of trials that several chapters show; groups are {name: one trial per seed}."""

import torch

from utils.evaluation import evaluate
from utils.notebook import recorded, report


def interval(areas):
    """An area with its interval, or the mean and standard deviation over seeds."""
    alone = f"{areas[0].value:.2f} [{areas[0].low:.2f}, {areas[0].high:.2f}]"
    return alone if len(areas) == 1 else report.mean_sd(area.value for area in areas)


LEAKS = {
    "leak AUC": lambda found: interval([leak.auc for leak in found]),
    "largest p": lambda found: report.number(max(leak.p for leak in found)),
    "above 99 % of held-out": lambda found: report.joined(leak.above for leak in found),
    "alike": lambda found: report.joined(leak.alike for leak in found),
    "held-out alike": lambda found: report.joined(leak.alike_held_out for leak in found),
}


def leaks(groups):
    """What attacks give away, beside the span alone where they searched it; for the first, what needs no weights."""
    lines = []
    for name, trials in groups.items():
        sources = {"attack": lambda t: t.attack.images}
        if trials[0].again:
            sources["both runs"] = lambda t: torch.cat([t.attack.images, t.again.images])
        sources |= {"span alone": evaluate.span_alone} if trials[0].basis is not None else {}
        for source, candidates in (sources | (evaluate.BASELINES if not lines else {})).items():
            found = [evaluate.leak(trial, candidates(trial)) for trial in trials]
            lines.append([f"{name}: {source}".removeprefix(": "), *(show(found) for show in LEAKS.values())])
    return report.table(["", *LEAKS], *lines)


def beside(found, trials, wanted, **where):
    """Paper, recorded runs and trials side by side, a line for each {label: name in RESULTS, or (name, "baseline")}."""
    prefix, rows = trials[0].name.prefix, [row for trial in trials for row in evaluate.rows(trial)]
    lines = []
    for label, quantity in wanted.items():
        quantity, column = (quantity, "value") if isinstance(quantity, str) else quantity
        here = [row for row in rows if row.name == f"{prefix}/{quantity}"]
        paper = report.number(here[0].paper) if here and here[0].paper and column == "value" else "–"
        said = recorded.said(found, f"{prefix}/{quantity}", column=column, **where)
        values = [getattr(row, column) for row in here]
        show = report.joined if values and all(value % 1 == 0 for value in values) else report.mean_sd  # counts
        lines.append([label, paper, said, show(values)])
    return report.table(["", "paper", f"recorded: {found.about['label']}", "here, now"], *lines)


def attackers(found, groups, wanted):
    """Recorded runs of {label: trials} that differ in where inner training begins, and the distance of these trials.

    `wanted` is {title: quantity of RESULTS, or (quantity, "baseline")}.
    """
    lines = []
    for label, trials in groups.items():
        told = []
        for quantity in wanted.values():
            quantity, column = (quantity, "value") if isinstance(quantity, str) else quantity
            told.append(recorded.said(found, f"{trials[0].name.prefix}/{quantity}", column=column))
        lines.append([label, *told, report.mean_sd(map(evaluate.relative_distance, trials))])
    return report.table(["inner solves begin at", *wanted, "distance, here, now"], *lines)
