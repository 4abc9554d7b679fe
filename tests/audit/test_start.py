"""The start that nobody gave: read from the signs, used and said so, or refused; and nothing is cleared by that."""

import json

import jsonschema
import numpy as np
import pytest
import torch
from torch import nn

from attacks import generator
from audit import audit, modules, report, stages, start, weights, whole
from training import images, ordinary

SHAPE = 32, 32, 3
NETS = """
import numpy, torch
from torch import nn

def small():
    body = nn.Conv2d(3, 16, 3, stride=2), nn.BatchNorm2d(16), nn.ReLU(), nn.Flatten()
    return nn.Sequential(*body, nn.Linear(784, 120), nn.ReLU(), nn.Linear(120, 2))

def seeded():
    torch.manual_seed(3)
    return small()

def by_numpy():
    net = small()
    for part in net.parameters():
        part.data = torch.from_numpy(numpy.random.default_rng(3).uniform(-0.1, 0.1, part.shape)).float()
    return net
"""


def checked(found):
    """The stages by name of a report that keeps its schema, and its page."""
    jsonschema.validate(json.loads(found.json()), json.loads(report.SCHEMA.read_text()))
    return {one["name"]: one for one in found.content["stages"]}, found.html()


def trained(net, sides):
    """A module after a training on the training pictures, in batches (n, C, H, W)."""
    x = torch.from_numpy(sides[0][0] / 255).permute(0, 3, 1, 2).float()
    labels = torch.from_numpy(sides[0][1])
    step = torch.optim.SGD(net.parameters(), 0.05, momentum=0.9)
    for _ in range(40):
        step.zero_grad()
        nn.functional.cross_entropy(net(x), labels).backward()
        step.step()
    return net


def test_a_start_is_read_without_before_and_what_training_added_leaks():
    data = images.split(images.load("photos"), 20, 20, 0, torch.device("cpu"), held_out=20)
    victim = ordinary.train(data.secret, None, data.shape, "sgd", (64,), seed=7)
    sides = [
        (part.images.view(-1, *SHAPE), part.labels.long()) for part in (data.secret, data.held_out)
    ]
    mean = victim.mean.view(SHAPE)[0, 0].tolist()
    found = audit(victim.released.network, *sides, mean=mean, layout="HWC", steps=1, progress=False)
    by_name, page = checked(found)
    said = "torch's generator drew them (seed 7, 0 draws before); nobody needs a file from before the training."
    assert (
        by_name[stages.READ]["said"].endswith(said)
        and by_name[stages.READ]["said"] in found.content["warnings"]
    )
    assert found.status == report.LEAKS and found.content["settings"]["before"] == start.WORDS
    assert by_name["unmixing of the change of W₁ since the read start"]["state"] == "ran"
    assert "20 of 20 training pictures came back almost exactly" in found.sentence
    assert "from before its training, read from their signs." in page and "PCG64DXSM" in page


@pytest.mark.parametrize("kind", ["small", "seeded", "by_numpy"])
def test_what_a_function_draws_is_read_or_refused_in_a_sentence(kind, sides, tmp_path, monkeypatch):
    (tmp_path / "nets.py").write_text(NETS)
    model = f"{tmp_path}/nets.py:{kind}"
    torch.manual_seed(11)
    torch.save(trained(modules.made(model), sides).state_dict(), tmp_path / "net.pt")
    by_name, _ = checked(audit(tmp_path / "net.pt", *sides, model=model, limit=1e9, progress=False))
    refusals = {
        "seeded": "whose outputs cannot be counted",
        "by_numpy": "No layer of some size is drawn by torch's",
    }
    found = by_name[stages.READ]
    assert refusals.get(kind, "seed 11, 0 draws before") in found["said"]
    assert (
        (found["state"] == "ran") == (kind == "small") == (whole.BY_SPAN + start.SINCE in by_name)
    )
    if kind == "small":
        assert "was tested in 4.weight" in by_name[whole.BY_SPAN + start.SINCE]["said"]


def test_a_start_that_is_not_read_clears_nothing(sides, monkeypatch):
    monkeypatch.setattr(generator, "ATTEMPTS", generator.ATTEMPTS[:1])
    net = nn.Sequential(nn.Flatten(), nn.Linear(768, 64), nn.ReLU(), nn.Linear(64, 2))
    net[1].weight.data = torch.from_numpy(
        np.random.default_rng(0).uniform(-0.036, 0.036, (64, 768))
    ).float()
    state = trained(net, sides).state_dict()
    found = audit(state, *sides, steps=1, progress=False)
    by_name, page = checked(found)
    assert by_name[stages.READ]["said"] == generator.NONE and "PCG64DXSM" not in page
    assert found.status == report.LEAKS and f"({stages.READ} (refused)" not in found.sentence
    only = [stages.Outcome(stages.READ, "ran", "")]
    assert report.not_asked(weights.read(state, (16, 16, 3)), only) == [
        "No attack on the weights could be run."
    ]


def test_layers_are_drawn_in_the_order_in_which_the_network_took_them():
    state = start.stack_of(weights.read(nn.Linear(3072, 5).state_dict(), SHAPE).layers).state_dict()
    layers = weights.read(state, SHAPE).layers
    parameters, _, given = start.of_layers(layers, state, SHAPE, "CHW")
    assert torch.equal(parameters["0.weight"], state["0.weight"].double())
    own = start.stack_of(layers).double()
    own.load_state_dict(state)
    assert torch.equal(given(own)[0].weight, layers[0].weight)
    assert not torch.equal(layers[0].weight, parameters["0.weight"])
