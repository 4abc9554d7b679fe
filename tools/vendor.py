"""Collect the JavaScript that the book's pages need, so that they work without a network.

    .venv/bin/python tools/vendor.py _vendor

By default a page fetches MathJax (equations) and the ipywidgets library (sliders, buttons) from the
internet each time someone reads it. Two packages of this project's environment carry the same
programs; this script copies them into the given folder, from which the book takes them. It
downloads nothing.
"""

import shutil
import sys
from importlib.metadata import distribution
from pathlib import Path

# The "full" part has all of TeX in it.
MATHJAX = "core", "input/tex-full", "output/svg", "output/svg/fonts/tex", "a11y/assistive-mml"


def installed_file(package, path):
    """Return where an installed package keeps one of its files; stop if the file is not there."""
    file = Path(str(distribution(package).locate_file(path)))
    if not file.is_file():
        sys.exit(f"vendor.py: {package} {distribution(package).version} has no file {path}.")
    return file


def copy_mathjax(folder):
    """Join the parts of MathJax that turn TeX into SVG and MathML; none of them loads another file.

    The file that MathJax has joined itself is a quarter larger: it holds a menu, which the pages do not need.
    """
    place = "sphinx-mathjax-offline/static/mathjax"
    files = [
        installed_file("sphinx-mathjax-offline", f"{place}/{part}.js")
        for part in ("startup", *MATHJAX)
    ]
    startup, *parts = [file.read_text(encoding="utf-8") for file in files]
    loaded = f"MathJax.loader.preLoad({', '.join(map(repr, MATHJAX))});"
    (folder / "mathjax.js").write_text(";\n".join([startup, loaded, *parts]), encoding="utf-8")


def copy_ipywidgets(folder):
    """Copy the ipywidgets library, made into one function of the three names that it expects."""
    file = installed_file("widgetsnbextension", "widgetsnbextension/static/extension.js")
    licence = file.with_name("extension.js.LICENSE.txt").read_text(encoding="utf-8")
    code = file.read_text(encoding="utf-8").replace("window.requirejs", "requirejs")
    code = code.replace("//# sourceMappingURL=extension.js.map", "")
    text = f"/* The library of Jupyter widgets, under the BSD-3-Clause licence. It contains: */\n{licence}\n"
    text += f"function ipywidgets(define, requirejs, Jupyter) {{\n{code}\n}}\n"
    (folder / "ipywidgets.js").write_text(text, encoding="utf-8")


def main(folder):
    """Fill the folder; widgets.js, which lies next to this script, is our own."""
    folder.mkdir(parents=True, exist_ok=True)
    copy_mathjax(folder)
    copy_ipywidgets(folder)
    shutil.copy(Path(__file__).with_name("widgets.js"), folder)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
