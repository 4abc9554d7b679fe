"""The page of a report: HTML that needs no other file, no script and no network, in light and dark, on a phone, too."""

import base64
import io
import math
from itertools import groupby
from pathlib import Path

import jinja2
import numpy as np
from PIL import Image

from audit.judge import DIFFERENT
from utils.trial import number as chance
from utils.trial import typeset


def page(content, pictures, thumbnails):
    """The page of an audit's content, as data/audit.schema.json says; pictures and thumbnails as a Report has them."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent),
        autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined,
    )  # fmt: skip
    environment.filters |= {"as": format, "number": short, "chance": chance, "png": data_uri}
    drawn = {"galleries": pictures, "thumbnails": thumbnails, "spectra": spectra(content["stages"])}
    scores = [[*some] for _, some in groupby(content["true_positives"], lambda one: one["score"])]
    return environment.get_template("page.html").render(content, **drawn, scores=scores, different=DIFFERENT)


def short(value):
    """A number as it is read best: a dash, a whole number, or three digits."""
    return "–" if value is None else f"{value:.0f}" if float(value).is_integer() else f"{value:.3g}"


def data_uri(pixels):
    """A picture (H, W, C) of bytes as the address of a PNG."""
    buffer = io.BytesIO()
    Image.fromarray(pixels[..., 0] if pixels.shape[-1] == 1 else pixels).save(buffer, "PNG")
    return f"data:image/png;base64,{base64.b64encode(buffer.getvalue()).decode()}"


def spectra(stages):
    """The singular values of the layers that were looked at as curves, with the ticks of their axis; None without."""
    values = {one["name"]: one["facts"]["singular_values"] for one in stages if "singular_values" in one["facts"]}
    if not values:
        return None
    logs = {name: [math.log10(max(value, 1e-8)) for value in line] for name, line in values.items()}
    most, floor, curves = max(map(len, logs.values())), min(-1, *map(min, logs.values())), []
    for name, line in logs.items():
        points = (f"{50 + 580 * j / most:.1f},{15 + 190 * log / floor:.1f}" for j, log in enumerate(line))
        curves.append((name.removeprefix("structure of "), " ".join(points)))
    powers = range(0, math.floor(-floor) + 1, max(1, round(-floor / 4)))
    ticks = [(f"{19 - 190 * n / floor:.0f}", typeset(f"1e-{n}").removeprefix("1·") if n else "1") for n in powers]
    return {"curves": curves, "ticks": ticks, "places": most}


def bytes_of(rows, shape):
    """Pictures (n, d) in [0, 1] as (n, H, W, C) bytes."""
    return (np.clip(rows.numpy(), 0, 1).reshape(-1, *shape) * 255).round().astype(np.uint8)
