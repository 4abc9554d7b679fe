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
from conftest import SIDE, M, drawn
from evaluation import null
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


def test_every_picture_is_in_half_of_the_networks_and_every_class_is_halved():
    labels = torch.tensor([0] * 9 + [1] * 14 + [2])
    masks = shadows.halves(labels, 6, seed=1)
    assert torch.equal(masks[1::2], ~masks[::2]) and (masks.sum(0) == 3).all() and len(masks.unique(dim=0)) == 6
    for kind in labels.unique():
        assert ((2 * masks - 1)[:, labels == kind].sum(1).abs() <= 1).all()


@pytest.mark.parametrize("alike", [False, True])
def test_the_likelihood_ratio_finds_what_the_loss_hides(alike):
    """Pictures are of very different difficulty; with distances of their own, or only one distance for all."""
    n, masks = 400, shadows.halves(torch.zeros(400), 64, seed=0)
    hard, gap = 5 * drawn(n), 1.0 if alike else 2 * torch.rand(n, generator=torch.Generator().manual_seed(1))
    phis = hard + gap * masks + 0.5 * drawn(64, n, seed=2)
    target, known = (nn.functional.softplus(-phi) for phi in (phis[0], phis[1:]))
    inside = masks[0]
    areas = [null.area(score[inside], score[~inside]).value for score in (
        -target, shadows.lira(target, known, masks[1:]), shadows.rmia(target, known))]  # fmt: skip
    assert areas[0] < 0.65 and areas[1] > 0.85 and areas[2] > 0.8


def test_the_relative_likelihood_orders_pictures_as_its_share_of_others_does():
    target, known = drawn(30).square(), drawn(8, 30, seed=1).square()
    ratio = (-target).exp() / (-known).exp().mean(0)
    share = (ratio[:, None] > ratio).double().mean(1)
    assert torch.equal(shadows.rmia(target, known).argsort(), share.argsort())


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
    assert names == {"membership by loss", *(f"{stages.BY_SHADOWS}, {name}" for name in ("LiRA", "RMIA"))}
    told = {one["name"]: one for one in found.content["comparisons"]}
    assert all(told[f"likelihood ratio, {name}"]["training"] > 0.8 for name in ("LiRA", "RMIA"))


@pytest.mark.parametrize("known", [False, True])
def test_a_fully_connected_file_needs_no_function_and_a_stranger_to_both_sides_is_not_blamed(known, sides):
    settings = {"before": mlp(1).state_dict()} if known else {}
    found = audit(mlp().state_dict(), *sides, shadows=4, steps=1, progress=False, **settings)
    (stage,) = (one for one in found.content["stages"] if one["name"] == stages.BY_SHADOWS)
    assert shadows.GUESS in stage["said"] and found.status != report.LEAKS
    skipped = audit(mlp().state_dict(), *sides, shadows=4, limit=0.0, progress=False)
    assert f"{stages.BY_SHADOWS.capitalize()} was skipped: It would take about" in skipped.sentence
    with pytest.raises(InputError, match="need the classes of the pictures"):
        audit(mlp().state_dict(), *(pixels for pixels, _ in sides), shadows=4, progress=False)


@pytest.mark.parametrize("words", FAULTS)
def test_faults_of_options_and_functions_give_one_sentence(words, sides, tmp_path, monkeypatch, capsys):
    (tmp_path / "nets.py").write_text(CODE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "nets", raising=False)
    exec(CODE, names := {})
    torch.save(names["net"]().state_dict(), "net.pth")
    for name, (pixels, labels) in zip(("in.npz", "out.npz"), sides):
        np.savez(name, images=pixels, labels=labels)
    status = main(["net.pth", "in.npz", "out.npz", "--model", "nets:net", *words.split(), "--out", "report"])
    lines = capsys.readouterr().err.splitlines()
    assert status == report.NO_ANSWER and len(lines) == 1 and FAULTS[words] in lines[0]
