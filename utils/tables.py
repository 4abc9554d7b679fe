"""Tables of trials that several chapters show; groups are {name: one trial per seed}."""

import torch

from utils import evaluate, report
from utils.evaluate import similarity


def by_group(corner, groups, columns, show=report.mean_sd):
    """A line per group, and a column {name: function of a trial} of what it comes to over the seeds."""
    lines = ([name, *(show(map(of, trials)) for of in columns.values())] for name, trials in groups.items())
    return report.table([corner, *columns], *lines)


def counts(groups, evaluated):
    """How many matches are good, evaluated as `published` or by the `adversary`, beside those of the baselines."""
    columns = {name: lambda t, b=b: evaluate.good(evaluated(t, b(t))) for name, b in evaluate.BASELINES.items()}
    return by_group("", groups, {"attack": lambda t: evaluate.good(evaluated(t)), **columns}, report.joined)


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


def detectors(groups):
    """How well each of the adversary's scores tells which reconstructions show a training image."""
    lines = []
    for name, trials in groups.items():
        told = [evaluate.detections(trial) for trial in trials]
        for score in told[0]:
            found = [one[score] for one in told if one[score]]
            rate = ", ".join(f"{one.tpr:.0%}" for one in found)
            area = interval([one.auc for one in found]) if found else "–"
            lines.append([f"{name}: {score}".removeprefix(": "), area, rate])
    return report.table(["score", "area under the ROC curve", "found at 1 % false alarms"], *lines)


def table_1(trials):
    """One cell of Table 1, by the names of RESULTS: the paper's value, ours over seeds, and two baselines."""
    name, measured = trials[0].name, [evaluate.measures(trial) for trial in trials]
    paper = {"mean_square_distance": report.number(report.TABLE_1[name.model][name.start])}
    lines = (
        [which.replace("_", " "), paper.get(which, "–"), *map(report.mean_sd, zip(*(m[which] for m in measured)))]
        for which in measured[0]
    )
    return report.table(["", "paper", "ours", "baseline: the start x₀", "baseline: θ = 0"], *lines)


def similarities(trials):
    """The mean similarity to the nearest neighbour by three measures."""
    columns, better = evaluate.COMPARISONS, {"ssim": "higher", "ncc": "higher", "l2": "lower"}
    lines = (
        [f"{by.upper()}, {side} is nearer", *(report.mean_sd(similarity(t, c, by) for t in trials) for c in columns)]
        for by, side in better.items()
    )
    return report.table(["nearest by", *columns], *lines)


def convergence(groups):
    """Whether the inner problems converged, and the outer one."""
    columns = {
        "victim's ‖∇E‖": lambda trials: report.mean_sd((t.victim.gradient_norm for t in trials), 1e-7),
        "attack's ‖∇E‖": lambda trials: report.mean_sd((t.attack.details.gradient_norm.item() for t in trials), 1e-7),
        "share of sound hypergradients": lambda trials: report.mean_sd(
            t.attack.details.sound.double().mean().item() for t in trials
        ),
        "stopped as": lambda trials: ", ".join(sorted({t.attack.stopped for t in trials})),
        "solved": lambda trials: f"{sum(map(evaluate.solved, trials))} of {len(trials)}",
    }
    lines = ([name, *(of(trials) for of in columns.values())] for name, trials in groups.items())
    return report.table(["attacker", *columns], *lines)
