"""The conclusion has every verdict of the ledger, and counts them as the ledger does."""

import importlib.util
from pathlib import Path

import pytest

from lab import ledger

ROOT = Path(__file__).parent.parent
SPEC = importlib.util.spec_from_file_location("verdict_page", ROOT / "tools" / "verdict_page.py")
verdict_page = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(verdict_page)
TEXT = verdict_page.FILE.read_text(encoding="utf-8")
pytestmark = pytest.mark.usefixtures("judged")


def test_the_conclusion_is_that_of_the_ledger():
    assert verdict_page.page(TEXT) == TEXT, "run python -m tools.verdict_page"
    assert verdict_page.table() == verdict_page.TABLE.read_text(encoding="utf-8"), "run python -m tools.verdict_page"


def test_a_verdict_that_has_changed_is_noticed(monkeypatch):
    monkeypatch.setattr(ledger, "verdict", lambda row: "held")
    assert verdict_page.page(TEXT) != TEXT


def test_the_counts_in_the_text_are_those_of_the_ledger():
    counts = {word: number for word, (number, _) in ledger.counts().items()}
    lines = sum(len(row["lines"]) for row in ledger.load())
    said = f"{len(ledger.load())} sentences in {lines} settings: " + ", ".join(
        f"{number} {word}" for word, number in counts.items()
    )
    assert said in TEXT
