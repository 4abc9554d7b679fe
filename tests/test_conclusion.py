"""The conclusion repeats every verdict of the chapters, and nothing else."""

import importlib.util
from pathlib import Path

ROOT = Path(__file__).parent.parent
SPEC = importlib.util.spec_from_file_location("verdict_page", ROOT / "scripts" / "verdict_page.py")
verdict_page = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(verdict_page)
CHAPTERS = sorted(verdict_page.BOOK.glob("*.ipynb"))


def test_the_conclusion_holds_the_verdicts_of_all_chapters():
    text = (verdict_page.BOOK / "conclusion.md").read_text(encoding="utf-8")
    assert verdict_page.page(text, CHAPTERS) == text, "run scripts/verdict_page.py"
    assert text.count("| held |") >= 20 and text.count("| proved |") >= 5


def test_a_verdict_that_is_missing_is_noticed():
    text = (verdict_page.BOOK / "conclusion.md").read_text(encoding="utf-8")
    chapter = next(path for path in CHAPTERS if list(verdict_page.verdicts(path)))
    assert verdict_page.page(text, [path for path in CHAPTERS if path != chapter]) != text


def test_the_conclusion_says_how_many_sentences_are_judged_once_more():
    text = (verdict_page.BOOK / "conclusion.md").read_text(encoding="utf-8")
    entries = [line.split(" | ")[0] for line in text.split(verdict_page.MARKS[0])[1].splitlines() if "| {doc}`" in line]
    assert f"The entries are of {len(set(entries))} different sentences." in text and len(entries) > len(set(entries))
