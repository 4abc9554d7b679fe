"""The records are described for other programs: as Croissant 1.0 says, whole, and of the files that are there."""

import csv
import json
import re

import yaml

from scripts import croissant

FOUND = json.loads(croissant.FILE.read_text(encoding="utf-8"))
ROOT = croissant.ROOT
DATASET = "name", "description", "license", "url", "creator", "datePublished", "conformsTo", "distribution", "recordSet"
FILE = "@id", "name", "contentUrl", "encodingFormat", "sha256"
TYPES = {"sc:Text": str, "sc:Integer": int, "sc:Float": float}


def test_it_has_what_the_specification_asks_for():
    assert FOUND["@type"] == "sc:Dataset" and FOUND["conformsTo"] == croissant.SPECIFICATION
    assert all(FOUND[key] for key in DATASET) and re.fullmatch(r"\d{4}-\d\d-\d\d", FOUND["datePublished"])
    assert {"@vocab", "sc", "cr", "field", "recordSet", "source", "extract", "dataType"} <= FOUND["@context"].keys()
    for file in FOUND["distribution"]:
        assert file["@type"] == "cr:FileObject" and all(file[key] for key in FILE)
        assert re.fullmatch("[0-9a-f]{64}", file["sha256"])
    for record in FOUND["recordSet"]:
        assert record["@type"] == "cr:RecordSet" and record["@id"] and record["field"]
        assert all(one["@type"] == "cr:Field" and one["description"] for one in record["field"])
    names = [part["@id"] for part in (*FOUND["distribution"], *FOUND["recordSet"])]
    names += [field["@id"] for record in FOUND["recordSet"] for field in record["field"]]
    assert len(names) == len(set(names))


def test_it_tells_the_files_and_columns_that_are_there():
    """`python -m scripts.croissant` takes it anew."""
    now = json.loads(croissant.page())
    files = [[(file["contentUrl"], file["sha256"]) for file in one["distribution"]] for one in (FOUND, now)]
    kinds = [
        {field["@id"]: field["dataType"] for record in one["recordSet"] for field in record["field"]}
        for one in (FOUND, now)
    ]
    assert files[0] == files[1] and kinds[0] == kinds[1]


def test_records_can_be_loaded_by_it():
    """As a loader does: every field from the column of the file that it names, in the type that it names."""
    files, read = {file["@id"]: file for file in FOUND["distribution"]}, 0
    for record in FOUND["recordSet"]:
        for field in record["field"]:
            source, kind = field["source"], TYPES[field["dataType"]]
            path = ROOT / files[source["fileObject"]["@id"]]["contentUrl"]
            with path.open(encoding="utf-8", newline="") as stream:
                values = [row[source["extract"]["column"]] for row in csv.DictReader(stream)]
            assert all(kind(value) is not None for value in values if value)
            assert field["name"] == "baseline" or all(values)
            read += len(values)
    assert read > 10_000


def test_the_archive_is_told_what_the_citation_says():
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    told = json.loads((ROOT / ".zenodo.json").read_text(encoding="utf-8"))
    for key in ("title", "version", "license", "keywords"):
        assert told[key] == cited[key]
    assert [one["name"] for one in told["creators"]] == [one["name"] for one in cited["authors"]]
    papers = [one["url"].rpartition("/")[2] for one in cited["references"] if "arxiv.org" in one["url"]]
    assert [one["identifier"].removeprefix("arXiv:") for one in told["related_identifiers"]] == papers[:2]
    assert cited["authors"][0]["name"] == croissant.AUTHORS
