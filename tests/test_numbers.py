"""Recorded numbers that stand in sentences of the README and of pages are those of the records."""

from fnmatch import fnmatch
from pathlib import Path

import nbformat
import pytest

from utils.notebook import recorded

ROOT = Path(__file__).parent.parent


def values(record, *names, column="value", **where):
    """All recorded values of quantities whose names match; `where` names parameters."""
    rows = [row for row in recorded.load(record).rows if all(row[key] == str(x) for key, x in where.items())]
    found = [float(row[column]) for name in names for row in rows if fnmatch(row["name"], name)]
    assert found, (record, names, where)
    return found


def ends(found):
    """“41 to 46”, or one number for all."""
    low, high = min(found), max(found)
    return f"{low:g}" if low == high else f"{low:g} to {high:g}"


def said(page):
    """The text of a page, of a notebook that of its Markdown, in one line."""
    path = ROOT / page
    if path.suffix == ".ipynb":
        cells = nbformat.read(path, as_version=4).cells
        text = "\n".join(cell.source for cell in cells if cell.cell_type == "markdown")
    else:
        text = path.read_text(encoding="utf-8")
    return " ".join(text.split())


def state(page, numbers, *sentences):
    """Whether a page has all these sentences, with the numbers in their places."""
    text, wanted = said(page), [sentence.format(**numbers) for sentence in sentences]
    assert not [sentence for sentence in wanted if sentence not in text], page


BAR, EXACT = "ncc_above_0.9", "exact/ncc_above_0.99"
PAGE = "book/behind-a-known-start.ipynb"


def test_how_many_of_fifty_come_back_behind_a_known_start():
    def of(*trainers, **where):
        return ends(values("known-start", *(f"known_start/{name}/{BAR}" for name in trainers), **where))

    numbers = {
        "plain": of("sgd", "sgd_decay"),
        "mirrored": of("sgd_flips"),
        "adam": of("adam", "adamw"),
        "torch": of("adam", "adamw", START="torch"),
        "tuned": of("adam", "adamw", START="pretrained"),
        "both": of("adam_flips"),
    }
    state(
        "README.md", numbers,
        "{plain} of fifty images come back in every recorded set, {mirrored} where mirror images",
        "Adam leaves {adam}, or {both} with mirror images",
    )  # fmt: skip
    state(
        "book/intro.md", numbers,
        "SGD, start known; 50 images | unmixing | {plain} |",
        "| the same | {mirrored} |",
        "unmixing, told their number | {adam} |",
        "| the same | {both} |",
    )  # fmt: skip
    state(
        "book/conclusion.md", numbers,
        "unmixing: {plain}, or {mirrored} with mirror images",
        "{adam} of fifty, or {both} with mirror images",
    )  # fmt: skip
    state(
        PAGE, numbers,
        "{plain} come back ({mirrored} where mirror images were trained on, too)",
        "unmixing returns {plain} images in all recorded sets without flips, and {mirrored} with them",
        "returns {torch} from torch's start, {tuned} after fine-tuning, and {both} with",
    )  # fmt: skip


def test_no_held_out_image_comes_back():
    kinds = "", "-exact", "-nearly", "-sizes", "-500", "-settings"
    for name in (f"known-start{kind}" for kind in kinds):
        assert set(values(name, f"known_start/*/{BAR}", f"known_start/*/exact/{BAR}", column="baseline")) == {0}, name


def test_which_are_exact():
    plain = values("known-start-exact", f"known_start/sgd/{EXACT}", f"known_start/sgd_decay/{EXACT}", START="torch")
    assert sorted(plain) == [49] * 2 + [50] * 8
    for page in ("README.md", "book/conclusion.md", PAGE):
        state(page, {}, "all fifty exact", "and 49 in two")
        assert "eight of ten" in said(page)
    for m, record in ((200, "known-start-sizes"), (500, "known-start-500")):
        assert values(record, f"known_start/sgd/{EXACT}") == [m] * 5


@pytest.mark.parametrize(
    "record, where, sentence",
    [
        ("known-start-exact", {"START": "torch"}, "{true:,.0f} of {sure:,.0f} sure columns are columns of $B$"),
        ("known-start-exact", {"START": "pretrained"}, "After fine-tuning {true:,.0f} of {sure:,.0f} are"),
        ("known-start-settings", {}, "All but {false:.0f} of {sure:,.0f} sure columns are true"),
    ],
)
def test_how_many_sure_columns_are_true(record, where, sentence):
    sure, true = (sum(values(record, f"*/exact/{name}", **where)) for name in ("sure", "sure_true"))
    state(PAGE, {"sure": sure, "true": true, "false": sure - true}, sentence)


@pytest.mark.parametrize(
    "page, sentence, record, name, where",
    [
        ("book/intro.md", "stationarity | {value}, faint | {baseline} |", "decoreco",
         "decoreco/signed/random/alike", {"START": "random", "SPACE": "span"}),
        ("book/conclusion.md", "unmixing: {value} clearly (correlation above 0.9), and no held-out", "unmixing-500",
         f"unmixing/three_layers/signed/{BAR}", {}),
        ("book/conclusion.md", r"Of 500, {value} pass $|\mathrm{{NCC}}| > 0.9$, and no held-out", "unmixing-images",
         f"unmixing/two_layers/signed/{BAR}", {"IMAGES": 500}),
        ("book/conclusion.md", "(an area of {value}; by recurrence", "detectors-500",
         "detector/stationarity/random/auc", {}),
        ("book/conclusion.md", "an area of {value}; the ten ranked first", "detectors-500",
         "detector/unmixing/none/auc", {}),
    ],
)  # fmt: skip
def test_a_mean_and_its_range_are_those_of_the_record(page, sentence, record, name, where):
    found, null = recorded.load(record), "baseline" in sentence or "no held-out" in sentence
    columns = ("value", "baseline") if null else ("value",)
    said = {column: recorded.said(found, name, column=column, **where) for column in columns}
    assert "no held-out" not in sentence or said["baseline"] == "0"
    state(page, said, sentence)


def test_how_many_of_five_hundred_come_back_with_an_unknown_start():
    name = f"unmixing/three_layers/signed/{BAR}"
    assert not any(values("unmixing-500", name, column="baseline"))
    numbers = {"found": ends(values("unmixing-500", name))}
    state("README.md", numbers, "{found} come back clearly, and no held-out image")
    state("book/intro.md", numbers, "| the same | unmixing | {found} | 0 |")


def test_how_often_the_layer_tells_the_count():
    def told(*trainers):
        names = [f"known_start/{name}/count" for name in trainers]
        return sum(len(values(record, *names)) for record in ("known-start", "known-start-exact"))

    plain, mirrored = told("sgd", "sgd_decay"), told("sgd_flips")
    numbers = {"plain": plain, "mirrored": mirrored, "both": plain + mirrored}
    state("README.md", numbers, "in {plain} of 40 networks, and with mirror images in {mirrored} of 20")
    state("book/conclusion.md", numbers, "where the layer tells their number ({both} of 60 networks)")
    numbers = {"plain": 40 - plain, "mirrored": 20 - mirrored}
    state("book/intro.md", numbers, "except in {plain} of 40 networks, and in {mirrored} of 20 with mirror images")
    state(PAGE, numbers, "in {plain} of 20 fine-tuned networks, in {mirrored} of 20 with mirror images")
