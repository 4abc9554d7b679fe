"""Reference networks: who is in which, what their two scores tell, and that every mistake ends in one sentence."""

import json
import sys
import time
from collections import Counter

import jsonschema
import numpy as np
import pytest
import torch
from torch import nn

from audit import audit, report, shadows, stages
from audit.command import main
from conftest import SIDE, M
from utils.errors import InputError

SCHEMA = json.loads(report.SCHEMA.read_text())
CODE = """
from torch import nn
def net(): return nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.Linear(784, 2))
def train(pictures, labels, seed): return net()
def raises(pictures, labels, seed): raise RuntimeError("no\\nsuch GPU")
def leaves(pictures, labels, seed): raise SystemExit(3)
def wide(pictures, labels, seed): return lambda batch: batch.flatten(1)[:, :3]
def diverges(pictures, labels, seed): return lambda batch: batch.flatten(1)[:, :2] / 0
def forgets(pictures, labels, seed): net()
"""
FAULTS = {
    "--train nets:train": "The number of reference networks is 0",
    "--shadows 5": "The number of reference networks is 5: give an even one",
    "--shadows 4": "need a function that trains them: give --train",
    "--shadows 4 --train nets:none": "nets:none trained no network (AttributeError",
    "--shadows 4 --train nets:raises": "nets:raises trained no network (RuntimeError: no such GPU): let it take",
    "--shadows 4 --train nets:leaves": "nets:leaves trained no network (SystemExit: 3)",
    "--shadows 4 --train nets:forgets": "nets:forgets trained no network (TypeError",
    "--shadows 4 --train nets:wide": "its outputs are NaN or of another number",
    "--shadows 4 --train nets:diverges": "its outputs are NaN or of another number",
}


def mlp(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(3 * SIDE**2, 60), nn.ReLU(), nn.Linear(60, 2))


def fitted(pictures, labels, seed=0):
    """A network that has learned pictures (n, C, H, W) by heart."""
    net = mlp(seed)
    step = torch.optim.Adam(net.parameters(), 1e-3)
    for _ in range(60):
        step.zero_grad()
        nn.functional.cross_entropy(net(pictures.flatten(1)), labels).backward()
        step.step()
    return net


def test_a_function_trains_on_both_sides_alike_and_the_report_says_what_it_told(sides):
    seen = Counter()

    def train(pictures, labels, seed):
        time.sleep(0 if seen else 0.5)  # as libraries do that are loaded when they are first used
        seen.update(one.numpy().tobytes() for one in pictures)
        return fitted(pictures, labels, seed)

    members = torch.from_numpy(sides[0][0] / 255.0).permute(0, 3, 1, 2).float()
    target = fitted(members, torch.from_numpy(sides[0][1]).long())
    found = audit(lambda x: target(x.flatten(1)), *sides, shadows=4, train=train, progress=False)
    assert len(seen) == 2 * M and {*seen.values()} == {2}
    jsonschema.validate(found.content, SCHEMA)
    (stage,) = (one for one in found.content["stages"] if one["name"] == stages.BY_SHADOWS)
    assert stage["expected_seconds"] < 4 * 0.5  # of four networks
    assert stage["state"] == "ran" and "the code of train, which was run" in stage["said"]
    names = {one["score"] for one in found.content["true_positives"]}
    assert names == {
        "membership by loss",
        *(f"{stages.BY_SHADOWS}, {name}" for name in ("LiRA", "RMIA")),
    }
    told = {one["name"]: one for one in found.content["comparisons"]}
    assert all(told[f"likelihood ratio, {name}"]["training"] > 0.8 for name in ("LiRA", "RMIA"))


@pytest.mark.parametrize("known", [False, True])
def test_a_fully_connected_file_needs_no_function_and_a_stranger_to_both_sides_is_not_blamed(
    known, sides
):
    settings = {"before": mlp(1).state_dict()} if known else {}
    found = audit(mlp().state_dict(), *sides, shadows=4, steps=1, progress=False, **settings)
    (stage,) = (one for one in found.content["stages"] if one["name"] == stages.BY_SHADOWS)
    assert shadows.GUESS in stage["said"] and found.status != report.LEAKS
    skipped = audit(mlp().state_dict(), *sides, shadows=4, limit=0.0, progress=False)
    assert f"{stages.BY_SHADOWS.capitalize()} was skipped: It would take about" in skipped.sentence
    with pytest.raises(InputError, match="need the classes of the pictures"):
        audit(mlp().state_dict(), *(pixels for pixels, _ in sides), shadows=4, progress=False)


@pytest.mark.parametrize("words", FAULTS)
def test_faults_of_options_and_functions_give_one_sentence(
    words, sides, tmp_path, monkeypatch, capsys
):
    (tmp_path / "nets.py").write_text(CODE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "nets", raising=False)
    exec(CODE, names := {})
    torch.save(names["net"]().state_dict(), "net.pth")
    for name, (pixels, labels) in zip(("in.npz", "out.npz"), sides):
        np.savez(name, images=pixels, labels=labels)
    status = main(
        ["net.pth", "in.npz", "out.npz", "--model", "nets:net", *words.split(), "--out", "report"]
    )
    lines = capsys.readouterr().err.splitlines()
    assert status == report.NO_ANSWER and len(lines) == 1 and FAULTS[words] in lines[0]
