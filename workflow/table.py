"""The table of a grid's numbers, and their means over seeds: `python -m workflow.table PLAN.json`, where pandas is."""

import json
import sys
from pathlib import Path

import pandas as pd

folder, rows = Path(sys.argv[1]).parent, []
for name, run in json.loads(Path(sys.argv[1]).read_bytes())["runs"].items():
    content = json.loads((folder / "runs" / f"{name}.json").read_bytes())
    rows += [run["crossed"] | row for row in content["rows"]]
crossed = list(run["crossed"])
table = pd.DataFrame(rows, columns=[*crossed, "name", "seed", "value", "paper", "baseline"])
table.to_csv(folder / "table.csv", index=False)
groups = table.groupby(["name", *(name for name in crossed if name != "SEED")], sort=False)
means = groups["value"].agg(runs="count", mean="mean", sd="std").join(groups[["paper", "baseline"]].mean())
means.to_html(folder / "means.html", float_format="{:.3g}".format, na_rep="–")
