"""What is drawn from elsewhere is up to date, and what is linked is there."""

import json
import re
import sys
import tomllib
from pathlib import Path
from types import SimpleNamespace

import nbformat
import pytest
import yaml
from docutils import nodes
from docutils.utils import new_document

from lab import grid

ROOT = Path(__file__).parent.parent
BOOK = ROOT / "book"
sys.path[:0] = [str(ROOT / "tools"), str(ROOT / "book" / "_extensions")]

import address  # noqa: E402
import start_page  # noqa: E402

CONTENTS = yaml.safe_load((ROOT / "_toc.yml").read_text(encoding="utf-8"))
CONFIG = yaml.safe_load((ROOT / "_config.yml").read_text(encoding="utf-8"))
PAGES = {*re.findall(r"file: book/(\S+)", (ROOT / "_toc.yml").read_text())}
# without the answer, a command, and what one looks up
CHAPTERS = [
    page
    for part in CONTENTS["parts"]
    for page in (Path(chapter["file"]).name for chapter in part["chapters"])
    if page not in ("conclusion", "try-your-own", "reference")
]


def test_every_notebook_is_in_the_table_of_contents_and_on_the_start_page():
    notebooks = {path.stem for path in BOOK.glob("*.ipynb")}
    assert notebooks <= PAGES <= {path.stem for path in BOOK.iterdir()}
    page = start_page.page()
    nbformat.validate(page)
    row = r"^\| \[([\w-]+)\]\(\.\./book/\1\.ipynb\) \| .+ \|$"
    assert {*re.findall(row, page.cells[0].source, re.M)} == notebooks


def test_every_old_address_leads_to_a_page_and_is_none_itself():
    redirects = CONFIG["sphinx"]["config"]["redirects"]
    assert {Path(new).stem for new in redirects.values()} <= PAGES
    assert not {Path(old).stem for old in redirects} & PAGES


def test_every_module_has_a_place_on_the_page_of_the_code():
    text = (BOOK / "code.md").read_text(encoding="utf-8")
    patterns = " ".join(re.findall(r"^```\{modules\} (.+)$", text, re.M)).split()
    shown = {path for pattern in patterns for path in ROOT.glob(pattern)}
    files = {path for one in ROOT.glob("*/__init__.py") for path in one.parent.rglob("[a-z]*.py")}
    assert not files - shown


def test_the_played_search_finds_more_with_every_step_and_nothing_held_out():
    told = json.loads((BOOK / "unmix.json").read_text(encoding="utf-8"))
    assert not any(told["held_out"]) and told["above"] == sorted(told["above"])  # as the page says


@pytest.mark.parametrize("name", ["README.md", "CONTRIBUTING.md", "SECURITY.md", "data/README.md"])
def test_links_lead_to_files_and_commands_to_notebooks_that_take_their_parameters(name):
    text = (ROOT / name).read_text(encoding="utf-8")
    for link in re.findall(r"\]\((?!https?:)([^)#\s]+)", text):
        assert ((ROOT / name).parent / link).exists(), link
    for notebook, given in re.findall(r"papermill (\S+\.ipynb) \S+((?: -p \w+ \S+)*)", text):
        assert {*re.findall(r"-p (\w+)", given)} <= grid.declared_by(ROOT / notebook).keys()


def test_the_notebook_of_every_record_is_there():
    for path in (ROOT / "data" / "results").glob("*.json"):
        asked = grid.read(ROOT / "experiments" / f"{path.stem}.yaml")
        assert grid.notebook_of(asked["experiment"]).is_file()


@pytest.mark.parametrize("name", CHAPTERS)
def test_a_chapter_opens_with_its_answer_draws_its_idea_and_closes_with_exercises(name):
    cells = nbformat.read(BOOK / f"{name}.ipynb", as_version=4).cells
    prose = [cell.source for cell in cells if cell.cell_type == "markdown"]
    parts = re.sub(r"<!-- \S+ -->", "", prose[0]).split("\n\n")
    answer = next(part for part in parts if not part.startswith(("# ", ">", "```", "*In")))
    plain = re.sub(r"\$[^$]*\$|\(?\{\w+\}`[^`]*`\)?", "", answer)
    assert len(answer.split()) <= 60 and len(re.findall(r"\b\d[\d.,]*", plain)) <= 3
    page = "\n".join(prose)
    assert "{figure} diagrams/" in page.partition("\n$$")[0]
    summary, exercises = page.partition("\n## Summary\n")[2].split("\n## Exercises\n")
    assert len(re.findall(r"^- ", summary, re.M)) == 3
    solutions = re.findall(r"Solution\n *:class: dropdown", exercises)
    assert len(re.findall(r"^\d\. ", exercises, re.M)) == len(solutions) == 2


@pytest.mark.parametrize(
    "base, title, lines",
    [
        (
            "",
            "",
            [
                "@misc{reconstruction-text,",
                "  title = {Training data reconstruction: an executable book},",
            ],
        ),
        ("", "Texts", ["@incollection{reconstruction-text,", "  title = {Texts},"]),
        ("https://a.b/c/", "Texts", ["  url = {https://a.b/c/book/text.html},"]),
    ],
)
def test_a_page_is_cited_as_the_file_of_the_book_says(base, title, lines):
    book = yaml.safe_load(address.FILE.read_text("utf-8"))
    told = address.cited("book/text", title, base and f"{base}book/text.html").splitlines()
    assert {*lines, f"  author = {{{{{book['authors'][0]['name']}}}}},"} <= {*told}
    assert ("  url" in str(told), "  booktitle" in str(told)) == (bool(base), bool(title))
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert f"  note = {{Version {version}}}," in told
    person = book["references"][0]["authors"][0]
    assert address.author(person) == "Runkel, Christina"


@pytest.mark.parametrize(
    "given, shown", [("", "make x\n"), ("https://a.b/c", "git clone https://a.b/c copy\nmake x\n")]
)
def test_a_clone_is_named_where_its_address_is_known(given, shown):
    options = {"repository_url": given}
    document = new_document("page")
    document += nodes.literal_block("", "git clone ADDRESS copy\nmake x\n")
    address.clone(SimpleNamespace(config=SimpleNamespace(html_theme_options=options)), document)
    assert document[0].astext() == document[0].rawsource == shown


@pytest.mark.parametrize(
    "base, told", [("", {}), ("https://a.b/c/", {"metatags": '<base href="https://a.b/c/">'})]
)
def test_the_page_for_dead_links_leads_to_the_book_from_any_depth(base, told):
    config, env = SimpleNamespace(html_baseurl=base), SimpleNamespace(titles={})
    context = {}
    address.place(SimpleNamespace(config=config, env=env), "404", "404.html", context, None)
    assert context == told
