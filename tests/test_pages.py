"""What is generated or drawn from elsewhere is up to date, and what is linked is there."""

import json
import re
import sys
from pathlib import Path
from statistics import mean

import nbformat
import pytest
import yaml

from utils.notebook import parameters, recorded
from workflow import plan

ROOT = Path(__file__).parent.parent
BOOK = ROOT / "book"
sys.path.insert(0, str(ROOT / "scripts"))

sys.path.insert(0, str(BOOK / "_extensions"))

import forwards  # noqa: E402
import start_page  # noqa: E402

CONTENTS = re.findall(r"file: book/(\S+)", (ROOT / "_toc.yml").read_text())
TEXTS = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "data/README.md")]
SMALL, LARGE = "small decoreco/signed/{START}/alike", "decoreco decoreco/signed/{START}/alike"
RECORDS = sorted((ROOT / "data" / "results").glob("*.json"))
DRAWN = [
    (SMALL, {"START": "random"}, "{} of 50 come back"),
    (SMALL, {"START": "partition"}, "{} of 50 come back"),
    (SMALL, {"START": "ground_truth"}, "moves away: {} of 50 left"),
    (LARGE, {"START": "untuned", "SPACE": "span"}, ">{} of 500<"),
    (LARGE, {"START": "random", "SPACE": "span"}, "{} of 500, faint"),
    (LARGE, {"START": "partition", "SPACE": "span"}, "{} of 500, faint"),
    (LARGE, {"START": "ground_truth", "SPACE": "span"}, "{} of 500<"),
    ("unmixing-images unmixing/two_layers/signed/leak_auc", {"IMAGES": 500}, "500: leak AUC {:.2f}"),
    ("unmixing unmixing/three_layers/signed/ncc_above_0.7", {"LAYERS": 3, "NEURONS": 500}, "{} of 50 come back"),
]


def test_every_notebook_is_in_the_table_of_contents_and_on_the_start_page():
    notebooks = {path.stem for path in BOOK.glob("*.ipynb")}
    assert notebooks <= {*CONTENTS} and all([*BOOK.glob(f"{name}.*")] for name in CONTENTS)
    page = start_page.page()
    nbformat.validate(page)
    assert {*re.findall(r"^\| \[([\w-]+)\]\(\.\./book/\1\.ipynb\) \| .+ \|$", page.cells[0].source, re.M)} == notebooks


def test_the_played_search_finds_more_with_every_step_and_nothing_held_out():
    told = json.loads((BOOK / "unmix.json").read_text(encoding="utf-8"))
    assert not any(told["held_out"]) and told["above"] == sorted(told["above"])  # as the page says


def test_every_module_has_a_place_on_the_page_of_the_code():
    page = (BOOK / "code.md").read_text(encoding="utf-8")
    for path in (ROOT / "utils").rglob("*.py"):
        name = ".".join(path.relative_to(ROOT).with_suffix("").parts)
        assert path.name == "__init__.py" or f".. automodule:: {name}\n" in page, name


@pytest.mark.parametrize("what, where, text", DRAWN, ids=str)
def test_a_number_of_the_overview_figure_is_the_mean_of_the_recorded_ones(what, where, text):
    record, name = what.format(**where).split(" ")
    values = recorded.values(recorded.load(record), name, **where).values()
    drawn = mean(values) if ":." in text else round(mean(values))
    assert len(values) >= 5 and text.format(drawn) in (BOOK / "overview.svg").read_text(encoding="utf-8")


@pytest.mark.parametrize("path", TEXTS, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_links_lead_to_files_and_commands_to_notebooks_that_take_their_parameters(path):
    text = path.read_text(encoding="utf-8")
    for link in re.findall(r"\]\((?!https?:)([^)#\s]+)", text):
        assert (path.parent / link).exists(), link
    for name, given in re.findall(r"papermill (\S+\.ipynb) \S+((?: -p \w+ \S+)*)", text):
        cells = nbformat.read(ROOT / name, as_version=4).cells
        declared = parameters.assignments(next(c.source for c in cells if "parameters" in c.metadata.get("tags", [])))
        assert {*re.findall(r"-p (\w+)", given)} <= declared.keys(), name


def test_every_old_name_leads_to_a_page_and_is_none_itself(tmp_path):
    moved = yaml.safe_load((BOOK / "moved.yaml").read_text(encoding="utf-8"))
    assert {*moved.values()} <= {*CONTENTS} and not moved.keys() & {*CONTENTS}
    (tmp_path / "there.html").write_text("a page")
    forwards.write(tmp_path, {"old": "new", "there": "new"})
    assert 'url=new.html"' in (tmp_path / "old.html").read_text()
    assert (tmp_path / "there.html").read_text() == "a page"


@pytest.mark.parametrize("path", RECORDS, ids=lambda path: path.stem)
def test_the_notebook_of_a_record_is_found_under_its_old_name(path):
    grid = json.loads(path.read_text(encoding="utf-8"))["grid"]
    assert plan.notebook_of(grid.get("experiment") or grid["chapter"])[0].is_file()
