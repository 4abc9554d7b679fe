"""The page of a report: HTML that needs no other file, no script and no network, in light and dark, on a phone, too."""

import base64
import io
import math
from html import escape

import numpy as np
from PIL import Image

STYLE = """
:root { color-scheme: light dark; --ink: #1d2129; --soft: #565d69; --paper: #fff; --line: #d5d9e0; --box: #f4f6f9;
  --blue: #1f5fa8; --warm: #a8471f; --leak: #a3201b; --leakbox: #fdeeed; --quiet: #1d5f3f; --quietbox: #ecf6f0;
  --open: #6b4c00; --openbox: #fdf5e2; }
@media (prefers-color-scheme: dark) { :root { --ink: #e7e9ed; --soft: #a9b0bc; --paper: #14171c; --line: #363c46;
  --box: #1d2128; --blue: #7fb4f0; --warm: #f0a07f; --leak: #ff9d98; --leakbox: #35191a; --quiet: #86d6ad;
  --quietbox: #14281f; --open: #eccb7c; --openbox: #2c2410; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--paper); color: var(--ink); font: 1rem/1.55 system-ui, sans-serif; }
main { max-width: 60rem; margin: 0 auto; padding: 1.5rem 1rem 4rem; }
h1 { font-size: 1.6rem; line-height: 1.25; margin: 0 0 .2rem; overflow-wrap: anywhere; }
h2 { font-size: 1.2rem; margin: 2.4rem 0 .6rem; }
h3 { font-size: 1rem; margin: 1.4rem 0 .5rem; }
p, ul { margin: .6rem 0; max-width: 46rem; }
ul { padding-left: 1.3rem; }
li { margin: .25rem 0; }
.soft { color: var(--soft); }
.finding { border-left: .4rem solid; border-radius: .3rem; padding: .9rem 1.1rem; margin: 1.2rem 0; font-size: 1.1rem; }
.finding p { margin: 0; color: var(--ink); }
.s0 { color: var(--quiet); background: var(--quietbox); }
.s1 { color: var(--leak); background: var(--leakbox); }
.s2 { color: var(--open); background: var(--openbox); }
.warning { border: 1px solid var(--line); border-left: .4rem solid var(--open); border-radius: .3rem;
  padding: .6rem 1rem; overflow-wrap: anywhere; }
.pairs { display: grid; grid-template-columns: repeat(auto-fill, minmax(8rem, 1fr)); gap: 1rem; padding: 0;
  max-width: none; list-style: none; }
.pairs li { margin: 0; }
.pairs div { display: flex; gap: 2px; }
.pairs img { width: 50%; aspect-ratio: 1; object-fit: contain; image-rendering: pixelated; background: var(--box); }
.pairs span { display: block; font-size: .8rem; line-height: 1.35; overflow-wrap: anywhere; }
.scroll { overflow: auto; max-height: 34rem; border: 1px solid var(--line); border-radius: .3rem; }
table { border-collapse: collapse; width: 100%; font-size: .9rem; }
th, td { text-align: left; padding: .35rem .7rem; border-bottom: 1px solid var(--line); vertical-align: top; }
td.n, th.n { text-align: right; font-variant-numeric: tabular-nums; }
td.n { white-space: nowrap; }
tr:last-child > * { border-bottom: 0; }
thead th { background: var(--box); position: sticky; top: 0; }
tbody th { font-weight: normal; overflow-wrap: anywhere; min-width: 9rem; }
tr.risk > * { background: var(--leakbox); }
th img { width: 2.2rem; float: left; margin-right: .6rem; image-rendering: pixelated; }
figure { margin: .8rem 0; }
figure svg { width: 100%; max-width: 40rem; height: auto; font: 15px system-ui, sans-serif; }
@media (max-width: 30rem) { figure svg { font-size: 20px; } }
figcaption { font-size: .9rem; color: var(--soft); max-width: 46rem; }
"""
COLOURS = "--blue", "--warm"
HEAD = "<meta charset=utf-8><meta name=viewport content='width=device-width, initial-scale=1'>"
SUPERSCRIPT = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
COMPARED = "training", "held_out", "p", "adjusted"
AREAS = (
    "An area is the chance that a training picture scores higher than a held-out one: 0.5 if the network knows "
    "neither. A count stands beside that of the held-out pictures. The last column is p after Holm's correction for "
    "all of these; below {:g} something leaks."
)
FALSE = (
    "The share of training pictures that score higher than all held-out ones but a few. {} held-out pictures allow {}; "
    "rates below {:.1%} take more of them."
)
ORDER = (
    "The most at risk first. The column “above” says above how many of the held-out pictures a picture stands: by its "
    "best |NCC|, or by its loss if no attack returned pictures."
)
SURE = (
    "An attacker can be sure of the pictures marked so without seeing one: what they wrote into the layer has zeros at "
    "neurons that they never activated, more than chance gives. That is evidence, and no proof."
)
CLIFF = (
    "Singular values of the first layer, relative to the largest one, by their place. A cliff tells how many pictures "
    "wrote into the layer."
)
NONE = (
    "None. No training picture came back almost exactly, and what the attacks returned shows no more training pictures "
    "than held-out ones; so no picture is shown here."
)
KEEP = "This page shows training pictures. Keep it as you keep them."


def page(content, pictures, thumbnails):
    """The page of an audit's content, as data/audit.schema.json says; pictures and thumbnails as a Report has them."""
    finding, name = content["finding"], escape(content["network"]["name"])
    parts = [
        f"<h1>What {name} gives away</h1>",
        f"<p class=soft>{escape(summary(content))} {KEEP}</p>",
        f"<div class='finding s{finding['status']}'><p>{escape(finding['sentence'])}</p></div>",
        *(f"<p class=warning>{escape(warning)}</p>" for warning in content["warnings"]),
        *(gallery(title, some) for title, some in pictures.items() if some),
        *([] if any(pictures.values()) else [section("Training pictures that came back", paragraph(NONE))]),
        section("What was done", stages(content["stages"]) + spectra(content["stages"])),
        section("Training pictures beside held-out ones", compared(content)),
        section("At few false alarms", rates(content["true_positives"])),
        section("A network of the book that is like this one", paragraph(nearest(content["nearest"]))),
        section("Picture by picture", images(content["images"], thumbnails)),
        section("Who the attacker is", listed(content["threat_model"])),
        section("What this does not show", listed(content["limits"])),
        section("How it was run", settings(content)),
    ]
    head = f"<head>{HEAD}<title>Audit of {name}</title><style>{STYLE}</style></head>"
    body = "\n".join(parts)
    return f"<!DOCTYPE html>\n<html lang=en>{head}<body><main><article>\n{body}\n</article></main></body></html>\n"


def section(title, body):
    """A heading and what is below it."""
    return f"<h2>{escape(title)}</h2>\n{body}"


def paragraph(text):
    """A paragraph of plain text."""
    return f"<p>{escape(text)}</p>"


def listed(sentences):
    """A list of plain sentences."""
    return f"<ul>{''.join(f'<li>{escape(one)}</li>' for one in sentences)}</ul>"


def summary(content):
    """What was looked at, in a sentence."""
    pictures, (height, width, channels) = content["pictures"], content["pictures"]["shape"]
    sizes = " – ".join(map(str, content["network"]["widths"]))
    layers = f"Layers {sizes}" if sizes else "Layers that were not read"
    kind = "grey" if channels == 1 else "colour"
    sides = f"{pictures['training']} training and {pictures['held_out']} held-out pictures"
    return f"{layers}; {sides}, {height}×{width}, {kind}; {content['seconds']:.0f} seconds."


def number(value):
    """A number as it is read best: a dash, a whole number, or three digits."""
    if value is None:
        return "–"
    return f"{value:.0f}" if float(value).is_integer() else f"{value:.3g}"


def chance(p):
    """A p-value with two digits, as 0.0058 or 3·10⁻⁶; below a trillionth it is said to be so."""
    if p < 1e-12:
        return "< 10⁻¹²"
    digits, _, power = f"{p:.2g}".partition("e")
    return digits + (f"·10{str(int(power)).translate(SUPERSCRIPT)}" if power else "")


def table(header, rows, label):
    """A table in a box that scrolls. Rows are pairs of a class and of cells as HTML, the first one the row's head."""
    heads = "".join(f"<th scope=col{' class=n' * (k > 0)}>{head}</th>" for k, head in enumerate(header))
    lines = []
    for kind, (first, *rest) in rows:
        cells = "".join(f"<td class=n>{cell}</td>" for cell in rest)
        lines.append(f"<tr class='{kind}'><th scope=row>{first}</th>{cells}</tr>")
    body = f"<thead><tr>{heads}</tr></thead><tbody>{''.join(lines)}</tbody>"
    return f"<div class=scroll tabindex=0 role=region aria-label='{label}'><table>{body}</table></div>"


def data_uri(pixels):
    """A picture (H, W, C) of bytes as the address of a PNG."""
    buffer = io.BytesIO()
    Image.fromarray(pixels[..., 0] if pixels.shape[-1] == 1 else pixels).save(buffer, "PNG")
    return f"data:image/png;base64,{base64.b64encode(buffer.getvalue()).decode()}"


PAIRS = "On the left the picture, on the right its best match among all that came back, and |NCC|, their correlation."


def gallery(title, some):
    """Pictures beside what came back of them."""
    items = []
    for own, back, words in some:
        text = escape(words)
        first = f"<img alt='Picture {text}' src='{data_uri(own)}'>"
        items.append(f"<li><div>{first}<img alt='Its match' src='{data_uri(back)}'></div><span>{text}</span></li>")
    return section(title, f"{paragraph(PAIRS)}<ul class=pairs>{''.join(items)}</ul>")


def stages(some):
    """What every stage did, and how long it took."""
    said = [f"<li><b>{escape(one['name'])}</b> ({one['state']}): {escape(one['said'])}</li>" for one in some]
    rows = [("", (escape(one["name"]), number(one["expected_seconds"]), number(one["seconds"]))) for one in some]
    return f"<ul>{''.join(said)}</ul>{table(['stage', 'seconds, estimated', 'seconds'], rows, 'Stages')}"


def spectra(some):
    """The singular values of the layers that were looked at, as a drawing."""
    values = {one["name"]: one["facts"]["singular_values"] for one in some if "singular_values" in one["facts"]}
    if not values:
        return ""
    logs = [[math.log10(max(value, 1e-8)) for value in line] for line in values.values()]
    most, floor, drawn = max(map(len, logs)), min(-1, *map(min, logs)), ""
    for k, (name, line) in enumerate(zip(values, logs)):
        places = (f"{50 + 580 * j / most:.1f},{15 + 190 * log / floor:.1f}" for j, log in enumerate(line))
        colour = f"var({COLOURS[k]})"
        drawn += f"<polyline points='{' '.join(places)}' fill=none stroke='{colour}' stroke-width=2 />"
        label = escape(name.removeprefix("structure of "))
        drawn += f"<text x=625 y={80 + 20 * k} text-anchor=end fill='{colour}'>{label}</text>"
    for power in range(0, math.floor(-floor) + 1, max(1, round(-floor / 4))):
        height = 19 - 190 * power / floor
        text = "10⁻" + "⁰¹²³⁴⁵⁶⁷⁸"[power] if power else "1"
        drawn += f"<text x=44 y={height:.0f} text-anchor=end>{text}</text>"
    drawn += f"<text x=50 y=228>1</text><text x=630 y=228 text-anchor=end>{most}</text>"
    axes = "<path d='M50 10V208H632' fill=none stroke='var(--soft)' />"
    tag = "svg viewBox='0 0 640 235' role=img aria-label='Falling singular values, on a logarithmic scale'"
    return f"<figure><{tag} fill='var(--soft)'>{axes}{drawn}</svg><figcaption>{CLIFF}</figcaption></figure>"


def compared(content):
    """The comparisons of the two sides after the attacks, and before them."""
    level, tables = content["finding"]["level"], []
    for label, bar in (("comparisons", level), ("control", 0.01)):
        rows = []
        for one in content[label]:
            numbers = [number(one[key]) for key in COMPARED[:2]] + [chance(one[key]) for key in COMPARED[2:]]
            cells = escape(one["name"]), *map(escape, numbers)
            rows.append(("risk" * (one["adjusted"] < bar), cells))
        tables.append(table([label, "training", "held out", "p", "corrected"], rows, label.capitalize()))
    own = "<h3>Do the two sides differ by themselves, before any network?</h3>"
    return paragraph(AREAS.format(level)) + tables[0] + own + tables[1]


def rates(some):
    """True positives at few false ones, a line for every score."""
    if not some:
        return paragraph("No score of membership was measured.")
    lines = {}
    for one in some:
        area = f"{one['auc']:.2f} [{one['low']:.2f}, {one['high']:.2f}]"
        lines.setdefault(one["score"], [escape(one["score"]), area]).append(f"{one['value']:.0%}")
    allowed = {f"{one['rate']:.1%}": one["allowed"] for one in some}
    few = " and ".join(f"{count} false alarms at {rate}" for rate, count in allowed.items())
    note = FALSE.format(some[0]["of"], few, 1 / some[0]["of"])
    return paragraph(note) + table(
        ["score", "leak AUC", *(f"told at {rate}" for rate in allowed)],
        [("", cells) for cells in lines.values()],
        "True positives",
    )


def nearest(found):
    """The recorded network that is most like this one, in a sentence."""
    if found is None:
        return "Unmixing returned no picture here, so that there is nothing to compare."
    (strong, some), (own_strong, own_some) = found["shares"], found["yours"]
    return (
        f"Of the recorded networks ({found['record']}), “{found['network']}” is the nearest: of its pictures "
        f"{strong:.0%} came back with |NCC| above 0.9, and {some:.0%} above 0.7; here {own_strong:.0%} and "
        f"{own_some:.0%}."
    )


def images(rows, thumbnails):
    """A line for every picture of both sides."""
    shown, zeros = [], any(row["sure"] is not None for row in rows)
    for k, row in enumerate(rows):
        small = f"<img alt='thumbnail' src='{data_uri(thumbnails[k])}'>" if thumbnails else ""
        strongest, *others = (number(row[key]) for key in ("ncc", "likeness", "loss"))
        cells = row["side"].replace("_", " "), strongest, escape(row["attack"] or "–"), *others, f"{row['above']:.0%}"
        cells += ("yes" if row["sure"] else "–",) * zeros
        shown.append(("risk" * row["returned"], (small + escape(row["name"]), *cells)))
    header = ["picture", "side", "|NCC|", "returned by", "likeness", "loss", "above", *["sure"] * zeros]
    return paragraph(ORDER) + paragraph(SURE) * zeros + table(header, shown, "Pictures")


def settings(content):
    """The parameters and versions."""
    named = content["settings"] | {f"version of {key}": value for key, value in content["versions"].items()}
    return table(["setting", "value"], [("", (escape(k), escape(str(v)))) for k, v in named.items()], "Settings")


def bytes_of(rows, shape):
    """Pictures (n, d) in [0, 1] as (n, H, W, C) bytes."""
    return (np.clip(rows.numpy(), 0, 1).reshape(-1, *shape) * 255).round().astype(np.uint8)
