"""Embed the letters that a drawing uses, so that it looks the same everywhere: the fonts are those of the figures.

.venv/bin/python tools/embed_font.py book/diagrams/*.svg
"""

import base64
import io
import re
import sys
from pathlib import Path

import matplotlib
from fontTools import subset
from fontTools.ttLib import TTFont

FONTS = Path(matplotlib.get_data_path()) / "fonts" / "ttf"
FACES = {  # CSS of a face: its file, and what a drawing holds that uses it
    "font-family: 'Book'": ("DejaVuSans.ttf", "'Book'"),
    "font-family: 'Book'; font-weight: bold": ("DejaVuSans-Bold.ttf", "bold"),
    "font-family: 'Book Math'; font-style: italic": ("STIXGeneralItalic.ttf", "italic"),
    "font-family: 'Book Math'": ("STIXGeneral.ttf", "'Book Math'"),
}
STYLE = re.compile(r'<style id="font">.*?</style>\n?', re.S)


def letters(drawing):
    """The letters of all texts of a drawing."""
    return {
        ord(letter)
        for letter in re.sub(r"<[^>]*>", "", STYLE.sub("", drawing))
        if letter.isprintable()
    }


def face(css, file, wanted):
    """A font with these letters alone, as a rule of CSS."""
    font = TTFont(FONTS / file)
    packed = io.BytesIO()
    options = subset.Options(layout_features=["kern"], hinting=False, drop_tables=["FFTM"])
    cut = subset.Subsetter(options)
    cut.populate(unicodes=wanted)
    cut.subset(font)
    font.flavor, font.recalcTimestamp = "woff", False
    font.save(packed)
    return f"@font-face {{ {css}; src: url(data:font/woff;base64,{base64.b64encode(packed.getvalue()).decode()}) }}"


def embed(drawing):
    """The drawing with its fonts, in place of those it had."""
    plain = STYLE.sub("", drawing)
    faces = [
        face(css, file, letters(plain)) for css, (file, mark) in FACES.items() if mark in plain
    ]
    style = '<style id="font">\n' + "\n".join(faces) + "\n</style>\n"
    at = plain.index("</svg>")
    return plain[:at] + style + plain[at:]


if __name__ == "__main__":
    for name in sys.argv[1:]:
        file = Path(name)
        file.write_text(embed(file.read_text(encoding="utf-8")), encoding="utf-8")
