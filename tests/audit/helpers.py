"""What several tests of the audit need: networks, folders of pictures, and what every report and refusal must keep."""

import json
import re
from functools import partial

import jsonschema
import numpy as np
import torch
from known_files import learned
from PIL import Image

from audit import audit as audited
from audit import report
from audit.command import main
from conftest import SIDE

WIDTH = 60
SCHEMA = json.loads(report.SCHEMA.read_text())
audit = partial(audited, progress=False)


def mlp(inputs=3 * SIDE**2, outputs=2, width=WIDTH, seed=0, act=torch.nn.ReLU):
    """An untrained network."""
    torch.manual_seed(seed)
    first, last = torch.nn.Linear(inputs, width), torch.nn.Linear(width, outputs)
    return torch.nn.Sequential(first, act(), last)


def batch(pixels):
    """Pixels (n, H, W, C) of bytes as torch takes them, (n, C, H, W)."""
    return torch.from_numpy(pixels / 255.0).permute(0, 3, 1, 2).float()


def fitted(sides, outputs=2, seed=0, order=(0, 1), showing=lambda batch: batch, **of):
    """The state dict of a network that was trained on the pictures of some sides, as its trainer showed them."""
    pixels, labels = (np.concatenate(part) for part in zip(*sides))
    steps = of.pop("steps", 60)
    rows = showing(batch(pixels)).flatten(1)
    module = mlp(rows.shape[1], outputs, seed=seed, **of)
    return learned(module, rows, torch.tensor(order)[labels], steps).state_dict()


def knowing(members, labels, outputs, shows=lambda batch: batch):
    """A function that knows the labels (n,) of members (n, H, W, C) alone, once it `shows` a batch (n, C, H, W)."""
    known = batch(members).flatten(1).double()

    def network(given):
        near, best = torch.cdist(shows(given).flatten(1).double(), known).min(1)
        logits = 9.0 * torch.nn.functional.one_hot(torch.as_tensor(labels)[best], outputs)
        return torch.where(near[:, None] < 0.2, logits, logits.roll(1, 1) / 9)

    return network


def saved(path, part):
    """A folder of a side's pictures, in folders of classes."""
    for k, (picture, label) in enumerate(zip(*part)):
        (path / f"class {label}").mkdir(parents=True, exist_ok=True)
        Image.fromarray(picture).save(path / f"class {label}" / f"{k:02}.png")
    return path


def checked(found):
    """The content of a report that keeps its schema, whose page needs nothing else, with its stages by name."""
    jsonschema.validate(json.loads(found.json()), SCHEMA)
    page = found.html()
    assert not re.findall(r"""(?:src|href)=(?!["']?data:)|<script\s|@import|url\(""", page)
    assert found.sentence.split(".")[0] in page
    content = found.content
    return content | {"by_name": {one["name"]: one for one in content["stages"]}}


def one_sentence(words, capsys, out="refused"):
    """What the command says in its one line when it cannot answer; it writes nothing."""
    from pathlib import Path

    assert main([*map(str, words), "--out", str(out)]) == report.NO_ANSWER
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1 and not Path(out).exists()
    return lines[0]
