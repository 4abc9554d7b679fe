"""Recorded numbers that stand in sentences and in drawings are those of the records (tests/numbers.yaml)."""

from fnmatch import fnmatch
from pathlib import Path
from statistics import mean

import nbformat
import pandas as pd
import yaml

from evaluation import notation
from lab import recorded

ROOT = Path(__file__).parent.parent
TOLD = yaml.safe_load((ROOT / "tests" / "numbers.yaml").read_text(encoding="utf-8"))


def ends(found):
    """“41 to 46”, or one number for all."""
    return f"{min(found):g}" if min(found) == max(found) else f"{min(found):g} to {max(found):g}"


HOW = {
    "ends": ends,
    "percents": lambda found: f"{100 * min(found):.0f} to {100 * max(found):.0f} %",
    "thousandths": lambda found: ends([round(1000 * share) for share in found]),
    "areas": lambda found: f"{min(found):.2f} to {max(found):.2f}",
    "words": notation.mean_with_range,
    "mean": mean,
    "count": len,
    "sum": sum,
}


def values(records, names, where, column="value"):
    """All recorded values, or baselines, of quantities whose names match; `where` names parameters."""
    rows = pd.concat([recorded.load(record) for record in records.split()])
    for key, x in where.items():
        rows = rows[rows[key] == x]
    found = [
        number
        for (quantity, _), number in rows[column].items()
        if any(fnmatch(quantity, name) for name in names.split())
    ]
    assert len(found) >= 5, (records, names)
    return found


def numbers():
    """{name: number, or what is said of it}."""
    found = {}
    for name, of in TOLD["numbers"].items():
        if isinstance(of, str):
            found[name] = eval(of, {}, found)
        else:
            how, records, names, where = [*of, {}][:4]
            column = "baseline" if how.startswith("null ") else "value"
            word, _, number = how.removeprefix("null ").partition(" ")  # “is 50”: how many are
            some = values(records, names, where, column)
            found[name] = some.count(float(number)) if number else HOW[word](some)
    return found


def text_of(page):
    """The text of a page, of a notebook that of its Markdown, in one line."""
    text = (ROOT / page).read_text(encoding="utf-8")
    if page.endswith(".ipynb"):
        cells = nbformat.reads(text, as_version=4).cells
        text = "\n".join(cell.source for cell in cells if cell.cell_type == "markdown")
    return " ".join(text.split())


def test_sentences_have_the_numbers_of_the_records():
    known = numbers()
    # “no held-out image comes back”
    nulls = (
        "null_read",
        "unknown_not_read",
        "null_known",
        "null_unknown",
        "null_beside",
        "null_files",
        "null_undone",
        "file_private",
    )
    assert {known[name] for name in (*nulls, "by_pixels")} == {"0"}
    assert known["natural_three"] == known["natural_sgd"] == "1"  # “all training pictures are told”
    assert known["starts_read"] == 20  # “in twenty of twenty networks”
    assert known["file_told"] == 20  # “in all twenty networks”
    assert known["file_told_tuned"] == 9  # “in nine of ten”
    assert known["exact_fresh"] == 10  # “in ten of ten fresh networks”
    for m, record in ((200, "known-start-sizes"), (500, "known-start-500")):
        assert values(record, "known_start/sgd/exact/ncc_above_0.99", {}) == [m] * 5
    for page, sentences in TOLD["sentences"].items():
        text, wanted = text_of(page), [sentence.format(**known) for sentence in sentences]
        assert not [sentence for sentence in wanted if sentence not in text], page
