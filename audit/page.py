"""The page of a report: HTML that needs no other file, no script and no network, in light and dark, on a phone, too."""

import base64
import io
import math
from pathlib import Path

import jinja2
import numpy as np
from PIL import Image

from audit.judge import BACK, DIFFERENT
from evaluation.notation import number as chance


def page(content, pictures, exposed, thumbnails):
    """The page of an audit's content, as data/audit.schema.json says; all pictures as a Report has them."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    environment.filters |= {
        "as": format,
        "number": short,
        "chance": chance,
        "png": data_uri,
        "columns": columns,
        "cells": cells,
        "told": told,
        "log10": math.log10,
    }
    drawn = {"galleries": pictures, "exposed": exposed, "thumbnails": thumbnails}
    words = {"different": DIFFERENT, "back": BACK}
    return environment.get_template("page.html").render(content, **drawn, **words)


def told(clearest, image):
    """The scores whose rates stand on the page: of membership alone, and the clearest of all."""
    return [name for name in image["rates"] if name.startswith("membership") or name == clearest]


def columns(image, scores):
    """The heads of the columns that `cells` fills for an image of the content, and for all others."""
    rates = [f"false alarms, {name.removeprefix('membership by ')}" for name in scores]
    sure = [] if image["sure"] is None else ["sure"]
    return ["|NCC|", "returned by", "in the span of", "loss", *rates, *sure]


def cells(image, scores):
    """What an audit says of one image of the content, with the rates of some scores: a dash where it says nothing."""
    rates = [f"{image['rates'][name]:.1%}" for name in scores]
    sure = [] if image["sure"] is None else ["yes" if image["sure"] else "–"]
    by = image["attack"] if image["returned"] else "–"
    said = by, "; ".join(image["inside"]) or "–", short(image["loss"])
    return [short(image["ncc"]), *said, *rates, *sure]


def short(value):
    """A number as it is read best: a dash, a whole number, or three digits."""
    return "–" if value is None else f"{value:.0f}" if float(value).is_integer() else f"{value:.3g}"


def data_uri(pixels):
    """A picture (H, W, C) of bytes as the address of a PNG."""
    buffer = io.BytesIO()
    Image.fromarray(pixels[..., 0] if pixels.shape[-1] == 1 else pixels).save(buffer, "PNG")
    return f"data:image/png;base64,{base64.b64encode(buffer.getvalue()).decode()}"


def bytes_of(rows, shape):
    """Pictures (n, d) in [0, 1] as (n, H, W, C) bytes."""
    return (np.clip(rows.numpy(), 0, 1).reshape(-1, *shape) * 255).round().astype(np.uint8)
