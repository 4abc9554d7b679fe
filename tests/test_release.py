"""A version has one number, and `make release` says what keeps it from being released."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "tools"))

import release  # noqa: E402

FILES = "pyproject.toml", "CITATION.cff", ".zenodo.json", "CHANGELOG.md"


def test_the_files_of_a_version_agree_and_every_part_of_the_data_has_a_source():
    found = [*release.disagreements(), *release.undescribed()]
    assert [one for one in found if "not in a version" not in one] == []


@pytest.mark.parametrize(
    "file, old, new, said",
    [
        ("pyproject.toml", 'version = "', 'version = "9', "CITATION.cff has the version"),
        (".zenodo.json", '"version": "', '"version": "9', ".zenodo.json has the version 9"),
        (".zenodo.json", '"name": "The', '"name": "Others', "name other authors"),
        ("CITATION.cff", "date-released: 20", "date-released: 19", "has no heading “## ["),
        ("CITATION.cff", "license: MIT", "license: none", "CITATION.cff, $.license: "),
        ("CITATION.cff", "message:", "massage:", "'message' is a required property"),
        ("CITATION.cff", "cff-version: 1.2.0", "cff-version: 2", "'1.2.0' was expected"),
        ("CHANGELOG.md", "## [Unreleased]\n", "## [Unreleased]\n\n- More\n", "cut them"),
    ],
)
def test_what_disagrees_is_named(file, old, new, said, tmp_path):
    for name in FILES:
        shutil.copy(ROOT / name, tmp_path)
    text = (tmp_path / file).read_text("utf-8")
    assert old in text
    (tmp_path / file).write_text(text.replace(old, new, 1), "utf-8")
    assert said in "\n".join(release.disagreements(tmp_path))


def test_dead_links_are_found(tmp_path, monkeypatch):
    monkeypatch.setattr(release, "ROOT", tmp_path)
    (tmp_path / "a.md").write_text("[b](b.md#x) [c](https://c.d) [e](#e) [f](a.md?on=g)")
    (dead,) = release.dead_links(tmp_path, "*.md", r"\]\(([^)\s]+)\)")
    assert dead == "a.md leads to b.md#x, which is not there."


def test_what_is_built_has_its_sums(tmp_path, monkeypatch):
    (pages := tmp_path / "pages").mkdir()
    (article := tmp_path / "article.pdf").write_bytes(b"%PDF")
    for name, path in {"ROOT": tmp_path, "PAGES": pages, "ARTICLE": article}.items():
        monkeypatch.setattr(release, name, path)
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    monkeypatch.setattr(release, "version", lambda: "1.2.3")
    me = ["-c", "user.name=a", "-c", "user.email=a@b.c"]
    for words in (["init", "-q"], ["add", "pyproject.toml"], [*me, "commit", "-qm", "One"]):
        subprocess.run(["git", *words], cwd=tmp_path, check=True)
    release.build()
    folder = tmp_path / "_build" / "release"
    built = ["1.2.3-article.pdf", "1.2.3-pages.zip", "1.2.3.tar.gz"]
    assert [one.name.split("-", 3)[-1] for one in sorted(folder.iterdir())][1:] == built
    sums = subprocess.run(["sha256sum", "-c", "SHA256SUMS"], cwd=folder, capture_output=True)
    assert sums.returncode == 0 and sums.stdout.count(b"OK") == 3
