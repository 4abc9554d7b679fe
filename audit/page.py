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


def page(content, pictures, thumbnails):
    """The page of an audit's content, as data/audit.schema.json says; pictures and thumbnails as a Report has them."""
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
        "log10": math.log10,
    }
    drawn = {"galleries": pictures, "thumbnails": thumbnails, "different": DIFFERENT, "back": BACK}
    return environment.get_template("page.html").render(content, **drawn)


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
