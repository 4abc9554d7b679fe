"""Describe the records of data/results for other programs: `python -m scripts.croissant` writes data/croissant.json.

The format is Croissant 1.0 (https://docs.mlcommons.org/croissant/docs/croissant-spec-1.0.html): files with their
SHA-256, and the columns of each with their types and meanings. Those of a grid's parameters are the comments in the
parameter cell of its experiment.
"""

import csv
import hashlib
import json
import re
from pathlib import Path

import nbformat
import yaml

ROOT = Path(__file__).parent.parent
RESULTS, FILE, CITATION = ROOT / "data" / "results", ROOT / "data" / "croissant.json", ROOT / "CITATION.cff"
AUTHORS, DATE = "The authors of Training Data Reconstruction, an executable book", "2026-11-25"  # of these records
SPECIFICATION = "http://mlcommons.org/croissant/1.0"
CONTEXT = {
    "@language": "en", "@vocab": "https://schema.org/", "sc": "https://schema.org/",
    "cr": "http://mlcommons.org/croissant/", "rai": "http://mlcommons.org/croissant/RAI/",
    "dct": "http://purl.org/dc/terms/", "citeAs": "cr:citeAs", "column": "cr:column", "conformsTo": "dct:conformsTo",
    "data": {"@id": "cr:data", "@type": "@json"}, "dataType": {"@id": "cr:dataType", "@type": "@vocab"},
    "examples": {"@id": "cr:examples", "@type": "@json"}, "extract": "cr:extract", "field": "cr:field",
    "fileProperty": "cr:fileProperty", "fileObject": "cr:fileObject", "fileSet": "cr:fileSet", "format": "cr:format",
    "includes": "cr:includes", "isLiveDataset": "cr:isLiveDataset", "jsonPath": "cr:jsonPath", "key": "cr:key",
    "md5": "cr:md5", "parentField": "cr:parentField", "path": "cr:path", "recordSet": "cr:recordSet",
    "references": "cr:references", "regex": "cr:regex", "repeated": "cr:repeated", "replace": "cr:replace",
    "separator": "cr:separator", "source": "cr:source", "subField": "cr:subField", "transform": "cr:transform",
}  # fmt: skip
COLUMNS = {
    "name": ("sc:Text", "Which quantity this is; data/quantities.yaml says what it means, and what its baseline is."),
    "seed": ("sc:Integer", "The seed of the run: which images are secret, and every draw."),
    "value": ("sc:Float", "The number."),
    "baseline": ("sc:Float", "The same quantity without an attack or a leak, where it has one; else empty."),
}


def meanings():
    """{parameter: {notebook: the comment behind it}} of all experiments, then chapters."""
    found: dict[str, dict] = {}
    for path in [*sorted((ROOT / "experiments").glob("*.ipynb")), *sorted((ROOT / "book").glob("*.ipynb"))]:
        for cell in nbformat.read(path, as_version=4).cells:
            if "parameters" in cell.metadata.get("tags", []):
                for name, text in re.findall(r"^(\w+) = .*?  # (.+)$", cell.source, re.M):
                    found.setdefault(name, {})[path.stem] = text
    return found


def number_type(values):
    """The type of a column of texts."""
    if all(re.fullmatch(r"-?\d+", value) for value in values):
        return "sc:Integer"
    return "sc:Float" if all(re.fullmatch(r"-?[\d.]+(e-?\d+)?", value) for value in values) else "sc:Text"


def fields(path, notebook, known):
    """The columns of a record, as Croissant describes them.

    A parameter means what its own notebook says, or the first one that has it.
    """
    with path.open(encoding="utf-8", newline="") as stream:
        rows = [*csv.DictReader(stream)]
    for name in rows[0]:
        kind, meaning = COLUMNS.get(name) or (
            number_type({row[name] for row in rows}),
            known[name].get(notebook) or next(iter(known[name].values())),
        )
        named = {"@id": f"{path.stem}/{name}", "name": name, "description": meaning, "dataType": kind}
        source = {"fileObject": {"@id": path.name}, "extract": {"column": name}}
        yield {"@type": "cr:Field", **named, "source": source}


def described(path, known):
    """The file and the record set of one record."""
    about = json.loads(path.with_suffix(".json").read_text(encoding="utf-8"))
    notebook = about["grid"].get("experiment") or about["grid"]["chapter"]
    text = f"{about['grid']['about']} {about['label']}. Made again by: {about['command']}"
    name, contents = path.stem, path.read_bytes()
    file = {
        "@type": "cr:FileObject", "@id": path.name, "name": path.name, "description": text,
        "contentUrl": f"data/results/{path.name}", "contentSize": f"{len(contents)} B", "encodingFormat": "text/csv",
        "sha256": hashlib.sha256(contents).hexdigest(),
    }  # fmt: skip
    columns = [*fields(path, notebook, known)]
    return file, {"@type": "cr:RecordSet", "@id": name, "name": name, "description": text, "field": columns}


def page():
    """The description of all records, as a text."""
    cited, known = yaml.safe_load(CITATION.read_text(encoding="utf-8")), meanings()
    files, sets = zip(*(described(path, known) for path in sorted(RESULTS.glob("*.csv"))))
    content = {
        "@context": CONTEXT, "@type": "sc:Dataset", "conformsTo": SPECIFICATION,
        "name": "training-data-reconstruction-records", "version": cited["version"],
        "description": "Numbers of attacks that reconstruct training images from the weights of trained networks, with "
        "the null beside each, for every run of every grid.",
        "license": f"https://spdx.org/licenses/{cited['license']}.html", "url": "https://arxiv.org/abs/2412.08544",
        "creator": {"@type": "sc:Organization", "name": AUTHORS}, "datePublished": DATE,
        "citeAs": "See CITATION.cff.", "distribution": files, "recordSet": sets,
    }  # fmt: skip
    return json.dumps(content, indent=1, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    FILE.write_text(page(), encoding="utf-8")
