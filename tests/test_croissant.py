"""The records are described for other programs: as Croissant 1.0 says, whole, and of the files that are there."""

import csv
import json

from scripts import croissant

FOUND = json.loads(croissant.FILE.read_text(encoding="utf-8"))
ROOT = croissant.ROOT
FILE = "@id", "name", "contentUrl", "encodingFormat", "sha256"
TYPES = {"sc:Text": str, "sc:Integer": int, "sc:Float": float}


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
