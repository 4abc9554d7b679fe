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


def panels(titles, height, xlabel, ylabel, sharey=True):
    """Axes beside each other, with one vertical scale or with their own."""
    fig, axes = plt.subplots(1, len(titles), figsize=(8, height), sharey=sharey, squeeze=False, layout="constrained")
    for ax, title in zip(axes[0], titles):
        ax.set(title=title, xlabel=xlabel)
    axes[0, 0].set_ylabel(ylabel)
    return fig, axes[0]


def heatmaps(tables, ticks, xlabel, ylabel):
    """Draw tables {title: (k, k)} on one scale of colours; small ones with their values written into the fields."""
    fig, axes = panels(tables, 3, xlabel, ylabel)
    most, k = max(table.max() for table in tables.values()).item(), len(ticks)
    marked = range(0, k, max(1, (k - 1) // 4))
    for ax, table in zip(axes, tables.values()):
        picture = ax.imshow(table, cmap="cividis", vmin=0, vmax=most, origin="lower")
        ax.set_xticks(marked, [f"{ticks[i]:g}" for i in marked])
        ax.set_yticks(marked, [f"{ticks[i]:g}" for i in marked])
        ax.grid(False)
        for i, j in [(i, j) for i in range(k) for j in range(k) if k <= 7]:
            colour = "white" if table[i, j] < 0.55 * most else "black"
            ax.text(j, i, f"{table[i, j]:.1f}", ha="center", va="center", color=colour, fontsize=9)
    if k > 7:
        fig.colorbar(picture, ax=axes, shrink=0.8)
    return fig


def compared(series, xlabel, ylabel, colours=None):
    """Draw {title: {label: (x, middle, spread, dotted)}}, spread and dotted (of the shape of x) or None, in panels.

    A dotted curve, that of the start, has the colour of the solid one. With `colours` {label: colour} the vertical axes
    are logarithmic, and every panel has its own.
    """
    fig, axes = panels(series, 4, xlabel, ylabel, sharey=colours is None)
    for ax, curves in zip(axes, series.values()):
        chosen = COLOURS if colours is None else [colours[label] for label in curves]
        for (label, (x, middle, spread, dotted)), colour, marker in zip(curves.items(), chosen, MARKERS):
            style = {"marker": marker, "markevery": max(1, len(x) // 8), "markersize": 5}
            ax.plot(x, middle, color=colour, label=label, **style)
            if spread is not None:
                ax.fill_between(x, middle - spread, middle + spread, color=colour, alpha=0.2, linewidth=0)
            if dotted is not None:
                ax.plot(x, dotted, color=colour, linestyle=":")
        if any(dotted is not None for *_, dotted in curves.values()):
            ax.plot([], [], color="#555555", linestyle=":", label="the start itself")
        ax.set_yscale("linear" if colours is None else "log")
        ax.legend(loc="upper center", bbox_to_anchor=(0.5, -0.2), fontsize=9)
    return fig


def contours(tables, at, points, xlabel, ylabel):
    """Draw {title: (k, k)}, losses on a plane with coordinates `at` (k,), as levels of log₁₀.

    `points` {title: {name: (s, t)}} are marked.
    """
    fig, axes = panels(tables, 4, xlabel, ylabel)
    for ax, (title, table) in zip(axes, tables.items()):
        levels = ax.contourf(at, at, table.clamp_min(1e-6).log10().mT, levels=12, cmap="cividis")
        bar = fig.colorbar(levels, ax=ax, orientation="horizontal", label="log₁₀ of the loss")
        bar.locator.set_params(nbins=4)
        for (name, place), marker in zip(points[title].items(), MARKERS):
            ax.plot(*place, marker, color="white", markeredgecolor="black", markersize=8, label=name)
        ax.set(xticks=[0, 1], yticks=[0, 1], aspect="equal")
        ax.grid(False)
    names = axes[0].get_legend_handles_labels()
    fig.legend(*names, loc="outside upper center", ncols=len(names[0]))
    return fig


def spectra(series, xlabel, ylabel):
    """Draw {label: (values, weights)} on two logarithmic axes; only positive values show."""
    fig, ax = plt.subplots(figsize=(6.4, 3.8))
    for (label, (values, weights)), marker in zip(series.items(), MARKERS):
        ax.loglog(values, weights, marker, markersize=5, label=label)
    ax.set(xlabel=xlabel, ylabel=ylabel)
    ax.legend(loc="lower left")
    return fig


def switcher(pictures, description, control=widgets.ToggleButtons):
    """Return a widget that shows one of several figures, {name: (figure, alternative text)}; works without a kernel."""
    panels = [widgets.HTML(picture_html(fig, alt)) for fig, alt in pictures.values()]
    handle = control(options=list(pictures), description=description, index=0)
    stack = widgets.Stack(panels, selected_index=0)
    widgets.jsdlink((handle, "index"), (stack, "selected_index"))
    return widgets.VBox([handle, stack])


def slider(pictures, description):
    """The `switcher` with one place of a slider for every figure."""
    return switcher(pictures, description, widgets.SelectionSlider)


def chooser(names, options, panels):
    """Return a widget with two sliders that shows panels[i][j], HTML texts; it works without a kernel.

    It begins in the middle of the first option, at the end of the second.
    """
    i, j = len(options) // 2, len(options) - 1
    sliders = [widgets.SelectionSlider(options=options, index=k, description=name) for name, k in zip(names, (i, j))]
    inner = [widgets.Stack([widgets.HTML(panel) for panel in line], selected_index=j) for line in panels]
    outer = widgets.Stack(inner, selected_index=i)
    widgets.jsdlink((sliders[0], "index"), (outer, "selected_index"))
    for stack in inner:
        widgets.jsdlink((sliders[1], "index"), (stack, "selected_index"))
    return widgets.VBox([*sliders, outer])


def strip_html(label, images, shape):
    """A labelled row of images (n, d), as an HTML text that carries its pixels (JPEG)."""
    row = images.detach().cpu().reshape(-1, *shape).clamp(0, 1).mul(255).round().byte()  # (n, H, W, C)
    row = row.expand(-1, -1, -1, 3).permute(1, 0, 2, 3).flatten(1, 2)  # (H, n·W, 3)
    buffer = io.BytesIO()
    plt.imsave(buffer, row.numpy(), format="jpeg", pil_kwargs={"quality": 75, "subsampling": 0})
    data = base64.b64encode(buffer.getvalue()).decode()
    style = f"width: {56 * len(images)}px; max-width: 100%; image-rendering: pixelated; display: block"
    return f'<div>{html.escape(label)}</div><img alt="{html.escape(label)}" style="{style}" src="data:image/jpeg;base64,{data}">'


def picture_html(fig, alt):
    """Turn a figure into an <img> that carries its own pixels, and close it."""
    buffer = io.BytesIO()
    fig.savefig(buffer, format="png")
    plt.close(fig)
    data = base64.b64encode(buffer.getvalue()).decode()
    return f'<img alt="{html.escape(alt)}" style="max-width: 100%" src="data:image/png;base64,{data}">'
