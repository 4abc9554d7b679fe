"""One function per kind of figure. Images come as rows (n, d) with `shape` (H, W, C); colours are Okabe and Ito's."""

import base64
import html
import io
import itertools

import ipywidgets as widgets
import matplotlib.pyplot as plt
import numpy as np
from IPython.display import HTML
from PIL import Image

from evaluation.notation import extent

BLUE = "#0072B2"
ORANGE = "#E69F00"
GREEN = "#009E73"
PURPLE = "#CC79A7"
BLACK = "#000000"
GREY = "#999999"
COLOURS = [BLUE, ORANGE, GREEN, PURPLE]
MARKERS = ["o", "s", "^", "D"]

plt.rc("figure", dpi=100)
plt.rc("savefig", bbox="tight")
plt.rc("axes", grid=True, prop_cycle=plt.cycler(color=COLOURS))
plt.rc("axes.spines", top=False, right=False)
plt.rc("grid", alpha=0.3)
plt.rc("legend", frameon=False)


def image_rows(rows, shape, labels, frames, scale=0.7):
    """Draw rows of images, clipped to [0, 1], each row with a label on its left and a colour of frame, or None."""
    n = len(rows[0])
    fig, axes = plt.subplots(
        len(rows), n, figsize=(scale * n + 1, scale * len(rows) + 0.2), squeeze=False
    )
    for line, images, label, frame in zip(axes, rows, labels, frames):
        for ax, image in zip(line, images):
            picture = image.detach().cpu().reshape(shape).clamp(0, 1).squeeze(-1)
            ax.imshow(picture, cmap="gray", vmin=0, vmax=1)
            ax.set(xticks=[], yticks=[])
            ax.grid(False)
            ax.spines[:].set(visible=frame is not None, color=frame, linewidth=2.5)
        line[0].set_ylabel(label, rotation=0, ha="right", va="center")
    fig.subplots_adjust(wspace=0.08, hspace=0.08)
    return fig


def strip(ax, images, shape, label):
    """Draw images (n, d), clipped to [0, 1], side by side."""
    tiles = images.detach().cpu().reshape(-1, *shape).clamp(0, 1).squeeze(-1)
    ax.imshow(np.concatenate([*tiles], axis=1), cmap="gray", vmin=0, vmax=1)
    ax.set(xticks=[], yticks=[], ylabel=label)
    ax.grid(False)


def curves(series, xlabel, ylabel, hlines=(), scale="log", xscale="linear", **style):
    """Draw named curves [(label, x, y), …], with markers that tell them apart in grey, and levels [(label, y), …].

    Where x is missing, values are numbered from 0. `style` is that of `Axes.plot`.
    """
    fig, ax = plt.subplots(figsize=(6.4, 3.8))
    for (label, *xy), marker in zip(series, itertools.cycle(MARKERS)):
        every = {"markevery": max(1, len(xy[-1]) // 10), "markersize": 5}
        ax.plot(*xy, marker=marker, label=label, **every | style)
    for label, level in hlines:
        ax.axhline(level, color=GREY, linestyle="--", linewidth=1)
        ax.annotate(
            label,
            (1, level),
            xycoords=("axes fraction", "data"),
            ha="right",
            va="bottom",
            color="#555555",
        )
    ax.set(xlabel=xlabel, ylabel=ylabel, yscale=scale, xscale=xscale)
    ax.legend()
    return fig


def look(k):
    """Colour and marker of the k-th series, for `Axes.plot` and `Axes.errorbar`."""
    return {"color": COLOURS[k % len(COLOURS)], "marker": MARKERS[k % len(MARKERS)]}


def extents(ax, groups, lying=False, **style):
    """Draw mean and extent of each group {place: numbers} that is not empty; `style` is that of an errorbar."""
    ends = {place: extent(numbers) for place, numbers in groups.items() if len(numbers)}
    means = [mean for mean, _, _ in ends.values()]
    bars = [
        [mean - low for mean, low, _ in ends.values()],
        [high - mean for mean, _, high in ends.values()],
    ]
    if lying:
        ax.errorbar(means, [*ends], xerr=bars, **style)
    else:
        ax.errorbar([*ends], means, yerr=bars, **style)


def rows_of(names, size, **given):
    """Axes with a row for each name, the first on top; `given` goes to `Axes.set`."""
    _, ax = plt.subplots(figsize=size, layout="constrained")
    ax.set(yticks=range(len(names)), yticklabels=[*names], **given)
    ax.invert_yaxis()
    return ax


def matrix(lines, columns, size, cmap, fontsize):
    """Draw cells below the names of their columns, and return the axes.

    `lines` are [(label, [(shade in [0, 1], words), …]), …]; a line without cells is a heading. A shade of NaN is grey,
    and one below zero white.
    """
    cmap = plt.get_cmap(cmap).with_extremes(bad="#e3e3e3", under="white")
    ax = rows_of([label for label, _ in lines], size)
    shades = [[shade for shade, _ in cells] or [-1] * len(columns) for _, cells in lines]
    ax.pcolormesh(
        range(len(columns)),
        range(len(lines)),
        shades,
        cmap=cmap,
        vmin=0,
        vmax=1,
        edgecolors="white",
    )
    for y, (_, cells) in enumerate(lines):
        ax.get_yticklabels()[y].set_weight("normal" if cells else "bold")
        for x, (shade, words) in enumerate(cells):
            colour = "white" if shade > 0.75 else "black"
            ax.text(x, y, words, ha="center", va="center", color=colour, fontsize=fontsize)
    ax.set_xticks(range(len(columns)), columns)
    ax.xaxis.tick_top()
    ax.tick_params(length=0)
    ax.grid(False)
    ax.spines[:].set_visible(False)
    return ax


def stacked(panels, handle):
    """A widget that shows the one of several widgets that a handle chooses; works without a kernel."""
    stack = widgets.Stack(panels, selected_index=handle.index)
    widgets.jsdlink((handle, "index"), (stack, "selected_index"))
    return stack


SLIDER = """<div class="frames"><label>{label}
<input type="range" min="0" max="{last}" value="{at}" aria-valuetext="{name}" data-lm-suppress-shortcuts="true"
style="width: min(100%, 24rem); height: 1.8rem; display: block; margin: 0; accent-color: {colour}"
oninput="const all = [...this.closest('.frames').querySelectorAll('.frame')];
all.forEach((one, k) => one.style.display = k == this.value ? '' : 'none');
this.setAttribute('aria-valuetext', all[this.value].querySelector('p').firstChild.data)"></label>
{frames}</div>"""  # Jupyter leaves the keys to what bears its mark


def slider(pictures, label, still=-1):
    """Return HTML of a slider over figures, {what is to be seen: (figure, alternative text)}, all of one size.

    It needs neither a kernel nor a library. The figure at the place `still` comes first, and stands alone on paper.
    The slider's value is told by the first line of what is to be seen.
    """
    at, names, frames = range(len(pictures))[still], [html.escape(one) for one in pictures], []
    for k, (name, (fig, alt)) in enumerate(zip(names, pictures.values())):
        kind, style = ("frame", "display: none") if k != at else ("frame still", "")
        said, picture = name.replace("\n", "<br>"), img(webp(fig), "webp", alt, "max-width: 100%")
        frames.append(f'<div class="{kind}" style="{style}"><p>{said}</p>{picture}</div>')
    given = {"label": label, "last": len(names) - 1, "at": at, "name": names[at].split("\n")[0]}
    return HTML(SLIDER.format(**given, colour=BLUE, frames="\n".join(frames)))


def webp(fig):
    """A buffer with a figure of the size that it was given, as the smaller of an exact and of a close picture."""
    with plt.rc_context({"savefig.bbox": None}):
        fig.savefig(drawn := io.BytesIO(), format="png")
    plt.close(fig)
    tried = []
    for how in ({"lossless": True}, {"quality": 80}):
        Image.open(drawn).convert("RGB").save(buffer := io.BytesIO(), "webp", **how)
        tried.append(buffer)
    return min(tried, key=lambda one: one.getbuffer().nbytes)


def img(buffer, kind, alt, style):
    """An <img> with the picture in a buffer of bytes."""
    data = base64.b64encode(buffer.getvalue()).decode()
    return f'<img alt="{html.escape(alt)}" style="{style}" src="data:image/{kind};base64,{data}">'
