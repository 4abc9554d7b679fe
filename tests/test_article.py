"""The article and the letters beside it have no number but those of the records, and the article is built."""

import importlib.util
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "tools"))

import article  # noqa: E402

TEXT = (ROOT / "article" / "article.typ").read_text("utf-8")
BESIDE = sorted((ROOT / "article").glob("**/*.md"))
CODE = re.compile(
    r"^ *#(?:set|show|let|block|text|v)\b.*|^//.*"  # a line that is no prose
    r'|"[^"\n]*"|`[^`]*`|@[\w-]+|<[\w-]+>|\b[\d.]+(?:pt|cm|em|fr|%)|#h\(.*?\)',
    re.M,
)


def typed(text):
    """The numbers that a text types, without those that it names."""
    return re.findall(r"\d[\d,.]*\d|\d", CODE.sub("", article.MARK.sub("", text)))


def test_every_number_of_the_article_is_named_or_a_size_that_is_listed():
    listed = yaml.safe_load(article.article_figures.OWN.read_text("utf-8"))["typed"].values()
    allowed = {number for one in listed for words in one for number in typed(words)}
    assert {*typed(TEXT)} == allowed  # and the list has no number that is not there
    assert len(article.MARK.findall(TEXT)) > 100


def test_a_typed_result_is_seen():
    text = "$x_1$ gives ⟨plain⟩ of 50, `raw 7`, width: 9cm, @lyu2020, and 49.6 more"
    assert typed(text) == ["1", "50", "49.6"]


@pytest.mark.parametrize("mark", ["⟨nothing⟩", "⟨nothing.verdict⟩", "⟨underdetermined.1⟩"])
def test_a_name_without_a_number_is_refused(mark):
    with pytest.raises(KeyError):
        article.filled(TEXT + mark)


def test_a_number_that_the_article_does_not_use_is_refused():
    with pytest.raises(KeyError, match="does not use.*doubles"):
        article.filled(TEXT.replace("⟨doubles⟩", ""))


def test_what_is_filled_in_is_what_pages_say():
    filled = article.filled(TEXT).partition("\n")[2]
    assert not re.search(r"⟨|⟩|\bnan\b|@preview", filled)  # nor a package from elsewhere
    assert "and ⟨read_adam⟩ after Adam" in TEXT and "and 17\u00a0to\u00a034 after Adam" in filled


def test_without_typst_one_sentence_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "typst", None)
    with pytest.raises(SystemExit, match=r"Typst is missing: run \S+uv pip install typst==\S+, "):
        article.build()


@pytest.mark.skipif(not importlib.util.find_spec("typst"), reason="the extra `article` is missing")
def test_the_article_is_built_with_embedded_fonts(tmp_path):
    article.build(target := tmp_path / "article.pdf")
    assert target.read_bytes().startswith(b"%PDF")
    if program := shutil.which("pdffonts"):
        lines = subprocess.run([program, target], capture_output=True, text=True).stdout
        own = re.compile(r"(Libertinus|NewCM|DejaVuSansMono)\S* .* yes yes yes ")  # embedded
        assert lines.count("\n") > 4 and all(own.search(one) for one in lines.splitlines()[2:])


@pytest.mark.parametrize("path", BESIDE, ids=lambda path: path.stem)
def test_numbers_beside_the_article_are_recorded_ones_and_letters_are_drafts(path):
    assert not [*article.sentences.mistakes(path)]
    if path.parent.name == "letters":
        assert path.read_text("utf-8").startswith("**Draft, not sent.** To the ")
