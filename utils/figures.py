"""One function per kind of figure. Images come as rows (n, d) with `shape` (H, W, C); colours are Okabe and Ito's."""

import base64
import html
import io

import ipywidgets as widgets
import matplotlib.pyplot as plt

BLUE, ORANGE, GREEN, PURPLE, BLACK, GREY = "#0072B2", "#E69F00", "#009E73", "#CC79A7", "#000000", "#999999"
COLOURS = [BLUE, ORANGE, GREEN, PURPLE]
MARKERS = ["o", "s", "^", "D"]

plt.rcParams.update(
    {
        "figure.dpi": 100,
        "savefig.bbox": "tight",
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.grid": True,
        "grid.alpha": 0.3,
        "legend.frameon": False,
        "axes.prop_cycle": plt.cycler(color=COLOURS),
    }
)


def show_image(ax, row, shape, frame=None):
    """Draw one image, clipped to [0, 1], with a coloured frame."""
    picture = row.detach().cpu().reshape(shape).clamp(0, 1)
    ax.imshow(picture.squeeze(-1) if shape[-1] == 1 else picture, cmap="gray", vmin=0, vmax=1)
    ax.set(xticks=[], yticks=[])
    ax.grid(False)
    for spine in ax.spines.values():
        spine.set(visible=frame is not None, color=frame, linewidth=2.5)


def image_rows(rows, shape, labels, frames, scale=0.7):
    """Draw several rows of images, one above the other, each with a label on its left and a colour of frame."""
    n = len(rows[0])
    fig, axes = plt.subplots(len(rows), n, figsize=(scale * n + 1, scale * len(rows) + 0.2), squeeze=False)
    for line, images, label, frame in zip(axes, rows, labels, frames):
        for ax, image in zip(line, images):
            show_image(ax, image, shape, frame)
        line[0].set_ylabel(label, rotation=0, ha="right", va="center")
    fig.subplots_adjust(wspace=0.08, hspace=0.08)
    return fig


def pairs(images, neighbours, shape, labels=("reconstruction", "nearest")):
    """Draw reconstructions (black frames) above their nearest neighbours (grey frames), as the first paper does."""
    return image_rows([images, neighbours], shape, labels, [BLACK, GREY], scale=0.88)


def curves(series, xlabel, ylabel, hlines=()):
    """Draw named curves [(label, x, y), …] on a logarithmic axis, with markers that tell them apart in grey too."""
    fig, ax = plt.subplots(figsize=(6.4, 3.8))
    for (label, x, y), marker in zip(series, MARKERS * len(series)):
        ax.semilogy(x, y, marker=marker, markevery=max(1, len(x) // 10), markersize=5, label=label)
    for label, level in hlines:
        ax.axhline(level, color=GREY, linestyle="--", linewidth=1)
        ax.annotate(label, (1, level), xycoords=("axes fraction", "data"), ha="right", va="bottom", color="#555555")
    ax.set(xlabel=xlabel, ylabel=ylabel)
    ax.legend()
    return fig


def sorted_curves(series, xlabel, ylabel, level):
    """Draw sorted values {label: values} against their ranks, with a threshold."""
    fig, ax = plt.subplots(figsize=(6.4, 3.8))
    for (label, values), marker in zip(series.items(), MARKERS):
        ax.plot(
            range(1, len(values) + 1),
            values,
            marker=marker,
            markevery=max(1, len(values) // 10),
            markersize=5,
            label=label,
        )
    ax.axhline(level, color=GREY, linestyle="--", linewidth=1)
    ax.set(xlabel=xlabel, ylabel=ylabel)
    ax.legend()
    return fig


def switcher(pictures, description):
    """Return a widget that shows one of several figures, {name: (figure, alternative text)}; works without a kernel."""
    panels = [widgets.HTML(picture_html(fig, alt)) for fig, alt in pictures.values()]
    buttons = widgets.ToggleButtons(options=list(pictures), description=description, index=0)
    stack = widgets.Stack(panels, selected_index=0)
    widgets.jsdlink((buttons, "index"), (stack, "selected_index"))
    return widgets.VBox([buttons, stack])


def picture_html(fig, alt):
    """Turn a figure into an <img> that carries its own pixels, and close it."""
    buffer = io.BytesIO()
    fig.savefig(buffer, format="png")
    plt.close(fig)
    data = base64.b64encode(buffer.getvalue()).decode()
    return f'<img alt="{html.escape(alt)}" style="max-width: 100%" src="data:image/png;base64,{data}">'
