"""Print the book, rendered as one page, into a PDF.

    python tools/print_book.py FOLDER BOOK.pdf

FOLDER is what the builder `singlehtml` wrote. BROWSER_PATH names a Chromium that is not on the PATH.
"""

import os
import shutil
import sys
from pathlib import Path

from playwright.sync_api import Error, sync_playwright

from utils.errors import InputError

NAMES = ("chromium", "chromium-browser", "google-chrome", "microsoft-edge")
READY = """async () => {
  await window.MathJax?.startup?.promise;
  await Promise.allSettled([...document.images].map((image) => image.decode()));
}"""
NUMBER = '<div style="font-size: 8px; width: 100%; text-align: center"><span class="pageNumber"></span></div>'


def browser():
    """The path of a Chromium, or None."""
    return os.environ.get("BROWSER_PATH") or next(filter(None, map(shutil.which, NAMES)), None)


def one_page(folder):
    """The page of a folder in which its links hold: Sphinx leaves it a folder deeper than they say."""
    [deep] = folder.glob("*/intro.html")
    return deep.rename(folder / "index.html")


def print_page(html, pdf):
    """Print a page, with its outline and numbered pages; InputError without a Chromium that can."""
    if not browser():
        raise InputError(
            f"There is no Chromium to print with; BROWSER_PATH can name one. The page is {html}."
        )
    try:
        with sync_playwright() as playwright:
            chromium = playwright.chromium.launch(executable_path=browser(), args=["--no-sandbox"])
            page = chromium.new_page()
            page.set_default_timeout(600_000)
            page.goto(Path(html).resolve().as_uri())
            page.evaluate(READY)
            page.pdf(
                path=pdf,
                format="A4",
                scale=0.75,
                outline=True,
                print_background=True,
                prefer_css_page_size=True,
                display_header_footer=True,
                header_template="<span></span>",
                footer_template=NUMBER,
            )
    except (Error, OSError) as error:
        raise InputError(
            f"{browser()} could not print {html}: {str(error).splitlines()[0]}"
        ) from error


def main(folder, pdf):
    """Return the status to exit with."""
    try:
        print_page(one_page(Path(folder)), pdf)
    except InputError as error:
        return str(error)
    print(f"The book as a PDF: {pdf}; as one page: {Path(folder) / 'index.html'}")


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
