"""What keeps a version from being released; what would be uploaded, in _build/release. Nothing is uploaded."""

import hashlib
import json
import re
import shutil
import subprocess
import sys
import tomllib
from itertools import chain
from pathlib import Path

import jsonschema
import yaml

ROOT = Path(__file__).parents[1]
PAGES = ROOT / "_build/test/_build/html"  # with committed outputs, as `make test` renders them
ARTICLE = ROOT / "_build" / "article.pdf"
NAMES = "name", "family-names", "given-names"
FOLDERS = ".", "data", "article", "article/letters"
PERSON = {"required": ["family-names", "given-names"]}
CITED = {  # of the Citation File Format 1.2.0 what this file needs
    "type": "object",
    "required": ["cff-version", "message", "title", "authors"],
    "properties": {
        "cff-version": {"const": "1.2.0"},
        "type": {"enum": ["software", "dataset"]},
        "version": {"type": "string", "pattern": r"^\d+\.\d+\.\d+$"},
        "date-released": {"type": "string", "pattern": r"^\d{4}-\d\d-\d\d$"},
        "license": {"const": "MIT"},
        "doi": {"type": "string", "pattern": r"^10\.\d{4,}/\S+$"},
        "authors": {"type": "array", "minItems": 1, "items": {"anyOf": [PERSON, {"required": ["name"]}]}},
        "keywords": {"type": "array", "minItems": 1, "items": {"type": "string"}},
        "references": {"type": "array", "items": {"required": ["type", "title", "authors"]}},
    },
}  # fmt: skip


def git(*words):
    """What git prints."""
    return subprocess.check_output(["git", *words], cwd=ROOT, text=True).strip()


def version(root=ROOT):
    """The version, which pyproject.toml alone decides."""
    return tomllib.loads((root / "pyproject.toml").read_text("utf-8"))["project"]["version"]


def disagreements(root=ROOT):
    """A sentence for each file that names another version, date or author, or that is not in its form."""
    text = (root / "CITATION.cff").read_text("utf-8")
    cited = yaml.load(text, yaml.BaseLoader)  # dates and versions stay text
    zenodo, now = json.loads((root / ".zenodo.json").read_text("utf-8")), version(root)
    for mistake in jsonschema.Draft202012Validator(CITED).iter_errors(cited):
        yield f"CITATION.cff, {mistake.json_path}: {mistake.message}."
    for file, about in {"CITATION.cff": cited, ".zenodo.json": zenodo}.items():
        if about.get("version") != now:
            yield f"{file} has the version {about.get('version')}, pyproject.toml has {now}."
    authors = [", ".join(filter(None, map(one.get, NAMES))) for one in cited["authors"]]
    if authors != [one["name"] for one in zenodo["creators"]]:
        yield "CITATION.cff and .zenodo.json name other authors."
    log = (root / "CHANGELOG.md").read_text("utf-8")
    if (heading := f"## [{now}] - {cited['date-released']}") not in log:
        yield f"CHANGELOG.md has no heading “{heading}”."
    if re.search(r"## \[Unreleased\]\s+(?!## \[)\S", log):
        yield "CHANGELOG.md has changes that are not in a version: cut them."


def undescribed():
    """A sentence for each part of data/ that data/README.md does not name, and for a missing licence of ours."""
    text = (ROOT / "data" / "README.md").read_text("utf-8")
    parts = {file.split("/")[1] for file in git("ls-files", "data").splitlines()}
    for part in sorted(parts - {"README.md"}) + ["Everything else in this folder"]:
        if part not in text:
            yield f"data/README.md does not say of this where it is from, or its licence: {part}."


def dead_links(folder, pattern, found):
    """A sentence for each link of files in a folder that leads to no file; other sites are left out."""
    for file in sorted(folder.glob(pattern)):
        for link in re.findall(found, file.read_text("utf-8")):
            path = link.partition("#")[0].partition("?")[0]
            if path and not re.match("[a-z]+:", link) and not (file.parent / path).exists():
                yield f"{file.relative_to(ROOT)} leads to {link}, which is not there."


def unready():
    """A sentence for each thing that keeps this commit from being released, before its tests."""
    if git("status", "--porcelain"):
        yield "Files have changes that are not committed."
    tag = f"v{version()}"
    if git("tag", "-l", tag) and git("rev-list", "-1", tag) != git("rev-parse", "HEAD"):
        yield f"{tag} is another commit: choose the next version."
    pages = (dead_links(ROOT / folder, "*.md", r"\]\(([^)\s]+)\)") for folder in FOLDERS)
    yield from chain(disagreements(), undescribed(), *pages)


def build():
    """The source, the pages and the article in _build/release, with their SHA-256 sums."""
    target, name = ROOT / "_build" / "release", f"training-data-reconstruction-{version()}"
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(parents=True)
    git("archive", f"--prefix={name}/", "-o", str(target / f"{name}.tar.gz"), "HEAD")
    shutil.make_archive(str(target / f"{name}-pages"), "zip", PAGES)
    shutil.copy(ARTICLE, target / f"{name}-article.pdf")
    sums = {file.name: hashlib.sha256(file.read_bytes()) for file in sorted(target.iterdir())}
    lines = [f"{of.hexdigest()}  {file}" for file, of in sums.items()]
    (target / "SHA256SUMS").write_text("\n".join(lines) + "\n", "utf-8")
    print(f"Ready for people to upload, in {target.relative_to(ROOT)}:", *sums, sep="\n")


if __name__ == "__main__":
    last = sys.argv[1:] == ["build"]
    pages = (PAGES, PAGES / "book") if last else ()
    rendered = (dead_links(one, "*.html", r'(?:href|src)="([^"]+)"') for one in pages)
    if found := [*chain(unready(), *rendered)]:
        sys.exit("\n".join(found))
    if last:
        build()
