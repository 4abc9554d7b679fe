"""The figures of the article, drawn from `data/results` when it is built."""

import itertools
from pathlib import Path

import numpy as np
import sentences
import yaml
from matplotlib import pyplot as plt

from experiments.margin import TRAININGS
from lab import figures, recorded

OWN = Path(__file__).parents[1] / "article" / "numbers.yaml"
PLACES = {"random": "noise", "ground_truth": "truth", "partition": "photographs"}
DOTS = {"linestyle": "none", "markersize": 4}


def starts(name, key):
    """Pictures that a recorded bilevel attack gave back from three starts, above the nearest training images."""
    rows, labels = [], []
    for place, words in PLACES.items():
        pictures, shape = recorded.pictures(name, f"{key}SEED=0 START={place}")
        rows += [pictures[what][:6] for what in recorded.PAIR]
        labels += [f"from {words}", "nearest"]
    return figures.image_rows(rows, shape, labels, [figures.BLACK, figures.GREY] * 3, 0.5)


def matches():
    """The best ten pictures of the published optimiser from three starts, above the nearest training images."""
    places = {"published": "tuned noise", "published-photographs": "photographs"}
    rows, labels = [], []
    for name, words in (places | {"published-untuned": "N(0, 1)"}).items():
        pictures, shape = recorded.pictures(name, "SEED=10")
        rows += [pictures[what][:10] for what in recorded.PAIR]
        labels += [f"from {words}", "nearest"]
    return figures.image_rows(rows, shape, labels, [figures.BLACK, figures.GREY] * 3, 0.5)


def ranges(rows, height, label, **given):
    """Training images as dots with their extent, held-out ones as squares: {words: (records, quantities, where)}."""
    ax = figures.rows_of(rows, (6, height), xlabel=label, **given)
    columns = {"value": "training images", "baseline": "held-out images (the null)"}
    for k, (column, words) in enumerate(columns.items()):
        groups = {
            place + 0.2 * k: sentences.values(*row, column)
            for place, row in enumerate(rows.values())
        }
        figures.extents(ax, groups, lying=True, capsize=2, label=words, **DOTS, **figures.look(k))
    ax.figure.legend(*ax.get_legend_handles_labels(), loc="outside upper center", ncols=2)
    return ax.figure


def landscape():
    """How far reconstructions are from the training images, by how far their starts were."""
    record = recorded.load("landscape")
    shown = {"bilevel": "bilevel, affine", "decoreco": "DecoReco, three layers"}
    fig, axes = plt.subplots(1, 2, figsize=(6, 2.9), sharey=True, layout="constrained")
    for ax, (attack, title) in zip(axes, shown.items()):
        rows = record.loc[f"landscape/{attack}/distance_to_training"]
        of = rows.groupby(["lambda_1", "lambda_2"])
        x, y, low, high = of.baseline.mean(), of.value.mean(), of.value.min(), of.value.max()
        ax.axline((0, 0), slope=1, color=figures.BLACK, linestyle=":", linewidth=1)
        ax.vlines(x, low, high, color=figures.GREY, linewidth=1)
        whole = x.index.get_level_values("lambda_2") == 1
        for k, (those, label) in enumerate([(~whole, "with noise"), (whole, "photographs alone")]):
            ax.plot(x[those], y[those], label=label, **DOTS, **figures.look(k))
        ax.set(title=title, xlabel="L2 distance of the start (pixels in [0, 1])")
    axes[0].set_ylabel("L2 distance after the attack")
    axes[0].legend()
    return fig


def lengths():
    """How many images two attacks match, by how far the network is from a KKT point."""
    record = recorded.load("training-length")
    fig, axes = plt.subplots(1, 2, figsize=(6, 2.9), sharey=True, layout="constrained")
    shown = itertools.product({"": "DecoReco", "unmixing_": "unmixing"}.items(), ("", "_held_out"))
    for k, ((way, label), held) in enumerate(shown):
        label += ", held out" * bool(held)
        for ax, first in zip(axes, ("small", "standard")):
            value = record.query("FIRST == @first").value
            x, y = (
                np.ravel([value[f"prior/length/{name}/{what}"] for name in TRAININGS])
                for what in ("kkt_at_kinks", f"{way}alike{held}")
            )
            ax.plot(x, y, label=label, fillstyle="none", **DOTS, **figures.look(k))
            ax.set(xscale="log", title=f"first weights: {first}", xlabel="distance to a KKT point")
    axes[0].set_ylabel("images matched, of 50")
    fig.legend(*axes[0].get_legend_handles_labels(), loc="outside upper center", ncols=4)
    return fig


def draw(folder):
    """Write every figure into a folder, as SVG without a date."""
    small = {"axes.titlesize": 9, "legend.fontsize": 8, "svg.hashsalt": "article"}
    plt.rcParams.update({"font.size": 8.5} | small)
    of_500, of_50 = yaml.safe_load(OWN.read_text("utf-8"))["figures"].values()
    ticks = [0, 1, 10, 100]
    wide = {"xscale": "symlog", "xlim": (-0.1, 500), "xticks": ticks, "xticklabels": ticks}
    drawn = {
        "affine": starts("affine", ""),
        "network": starts("network", "WIDTH=6144 "),
        "decoreco": ranges(of_500, 1.9, "images matched, of 500", **wide),
        "matches": matches(),
        "landscape": landscape(),
        "back": ranges(of_50, 3.1, "images back (|NCC| above 0.9), of 50", xlim=(-1.5, 51.5)),
        "lengths": lengths(),
    }
    for name, fig in drawn.items():
        fig.savefig(folder / f"{name}.svg", dpi=220, metadata={"Date": None})
