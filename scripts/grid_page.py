"""The table and the page of a grid: all numbers, and the mean of each over seeds with its 95 % interval."""

import base64
import csv
import html
import io
import statistics

from utils.kept import write

STYLE = """
body { font: 1rem/1.5 system-ui, sans-serif; max-width: 60rem; margin: auto; padding: 0 1rem; }
img { max-width: 100%; height: auto; } .wide { overflow-x: auto; } td, th { padding: 0 .8rem 0 0; text-align: left; }
code, h2 { overflow-wrap: anywhere; }
"""
MOST = 60  # settings that one figure can show


def table(plan, done):
    """Lists of strings and numbers, the header first: one for each number of each run."""
    crossed = list(next(iter(plan["runs"].values()))["crossed"])
    yield [*crossed, "name", "seed", "value", "paper", "baseline"]
    for key, content in done.items():
        for row in content["rows"]:
            numbers = [row.get(name) for name in ("name", "seed", "value", "paper", "baseline")]
            yield [*(plan["runs"][key]["crossed"][name] for name in crossed), *numbers]


def as_csv(rows):
    """The text of a CSV file; what is not there is empty."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue()


def quantities(plan, done):
    """{quantity: {setting: {seed: row}}}; words of a name that are crossed parameters' values stand for all of them."""
    found = {}
    for key, content in done.items():
        crossed = {name: value for name, value in plan["runs"][key]["crossed"].items() if name != "SEED"}
        general = {value: f"<{name}>" for name, value in crossed.items() if isinstance(value, str)}
        setting = ", ".join(f"{name}={value}" for name, value in crossed.items()) or "all runs"
        for row in content["rows"]:
            quantity = "/".join(general.get(word, word) for word in row["name"].split("/"))
            found.setdefault(quantity, {}).setdefault(setting, {})[row.get("seed")] = row
    return found


def mean_of(rows, name):
    """The mean of a column over seeds, where it has numbers; None where it has none."""
    values = [row[name] for row in rows if row.get(name) is not None]
    return statistics.mean(values) if values else None


def figure(settings):
    """A PNG: every seed as a dot, means with their intervals, and the paper's and baseline's numbers, by setting."""
    from matplotlib.figure import Figure

    from utils.notebook.verdicts import interval

    fig = Figure(figsize=(4, 1 + 0.3 * len(settings)), layout="constrained")
    axes = fig.subplots()
    for place, rows in enumerate([*by_seed.values()] for by_seed in settings.values()):
        values, label = [row["value"] for row in rows], place == 0
        mean, low, _ = interval(values)
        half = mean - low if len(values) > 1 else None
        axes.plot(values, [place] * len(values), ".", color="0.6", label="one seed" if label else None)
        axes.errorbar(mean, place, xerr=half, fmt="ok", capsize=4, label="mean, 95 % interval" if label else None)
        for name, mark in (("paper", "D"), ("baseline", "x")):
            if (value := mean_of(rows, name)) is not None:
                axes.plot(value, place + 0.2, mark, color="C0", label=name if label else None)
    axes.set_yticks(range(len(settings)), list(settings))
    axes.set_ylim(len(settings) - 0.5, -0.5)
    fig.legend(loc="outside lower center", ncols=2, fontsize="small", frameon=False)
    with io.BytesIO() as file:
        fig.savefig(file, format="png", dpi=160, metadata={"Software": None})
        return base64.b64encode(file.getvalue()).decode()


def lines_of(quantity, settings):
    """Rows of the page's table for one quantity: text."""
    from utils.notebook.report import number
    from utils.notebook.verdicts import interval

    for setting, by_seed in settings.items():
        rows = [*by_seed.values()]
        mean, low, _ = interval([row["value"] for row in rows])
        half = mean - low if len(rows) > 1 else None
        others = [mean_of(rows, name) for name in ("paper", "baseline")]
        shown = ["–" if value is None else number(value) if value else "0" for value in (mean, half, *others)]
        yield quantity, setting, len(rows), *shown


def tabulated(header, rows):
    """An HTML table of text."""
    lines = [[f"<th>{html.escape(cell)}" for cell in header]]
    lines += [[f"<td>{html.escape(str(cell))}" for cell in row] for row in rows]
    return "<div class=wide><table>\n" + "\n".join("<tr>" + "".join(line) for line in lines) + "\n</table></div>"


def page(plan, done, failed, name, command):
    """The text of index.html; it needs no other file."""
    found = quantities(plan, done)
    title = html.escape(name)
    parts = [f"<!doctype html><html lang=en><meta charset=utf-8><title>{title}</title>"]
    parts += ['<meta name=viewport content="width=device-width, initial-scale=1">', f"<style>{STYLE}</style>"]
    parts += [f"<h1>{title}</h1>", f"<p>{html.escape(plan['about'])}" if plan["about"] else ""]
    parts += [f"<p>{len(done)} of {len(plan['runs'])} runs are done. All numbers: <a href=table.csv>table.csv</a>."]
    if failed:
        parts += ["<h2>Runs that failed</h2>", tabulated(["run", "why"], failed)]
    rows = [row for quantity, settings in found.items() for row in lines_of(quantity, settings)]
    header = ["quantity", "setting", "seeds", "mean", "± (95 %)", "paper", "baseline"]
    parts += ["<h2>Means over seeds</h2>", tabulated(header, rows)]
    for quantity, settings in found.items():
        some = dict(list(settings.items())[:MOST])
        alt = f"{quantity}: mean over seeds with its 95 % interval, for {len(some)} of {len(settings)} settings"
        parts.append(f"<h2>{html.escape(quantity)}</h2>")
        parts.append(f'<p><img alt="{html.escape(alt)}" src="data:image/png;base64,{figure(some)}">')
    parts.append(f"<h2>Made by</h2><p><code>{html.escape(command)}</code>")
    return "\n".join(parts) + "\n"


def make(plan, done, failed, folder, command):
    """Write table.csv and index.html into the folder."""
    write(folder / "table.csv", as_csv(table(plan, done)).encode())
    write(folder / "index.html", page(plan, done, failed, folder.name, command).encode())
