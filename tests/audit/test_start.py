"""The start that nobody gave: read from the signs, used and said so, or refused; and nothing is cleared by that."""

import numpy as np
import pytest
import torch
from helpers import audit, batch, checked
from known_files import learned
from torch import nn

from attacks import generator
from audit import modules, report, stages, start, weights, whole
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


def trained(net, sides):
    """The state dict of a module after a training on the training pictures."""
    optimiser = torch.optim.SGD(net.parameters(), 0.05, momentum=0.9)
    return learned(net, batch(sides[0][0]), sides[0][1], 40, optimiser).state_dict()


def test_a_start_is_read_without_before_and_what_training_added_leaks():
    data = images.split(images.load("photos"), 20, 20, 0, torch.device("cpu"), held_out=20)
    victim = ordinary.train(data.secret, None, data.shape, "sgd", (64,), seed=7)
    sides = [(x.view(-1, *SHAPE), y.long()) for x, y in (data.secret, data.held_out)]
    mean = victim.mean.view(SHAPE)[0, 0].tolist()
    found = audit(victim.released.network, *sides, mean=mean, layout="HWC", steps=1)
    content = checked(found)
    said = content["by_name"][start.READ]["said"]
    assert said == start.SAID.format("seed 7, 0 draws before") and said in content["warnings"]
    assert found.status == report.LEAKS
    assert "20 of 20 training pictures came back almost exactly" in found.sentence


@pytest.mark.parametrize(
    "kind, said",
    [
        ("small", "seed 11, 0 draws before"),
        ("seeded", "whose outputs cannot be counted"),
        ("by_numpy", "No layer of some size is drawn by torch's"),
    ],
)
def test_what_a_function_draws_is_read_or_refused_in_a_sentence(kind, said, sides, tmp_path):
    (tmp_path / "nets.py").write_text(NETS)
    model = f"{tmp_path}/nets.py:{kind}"
    torch.manual_seed(11)
    torch.save(trained(modules.made(model), sides), tmp_path / "net.pt")
    by_name = checked(audit(tmp_path / "net.pt", *sides, model=model, limit=1e9))["by_name"]
    assert said in by_name[start.READ]["said"]
    span = by_name.get(whole.BY_SPAN + start.SINCE, {"said": ""})
    assert ("was tested in 4.weight" in span["said"]) == (kind == "small")


def test_a_start_that_is_not_read_clears_nothing(sides, monkeypatch):
    monkeypatch.setattr(generator, "ATTEMPTS", generator.ATTEMPTS[:1])
    monkeypatch.setattr(generator, "ALONE", 0)
    net = nn.Sequential(nn.Flatten(), nn.Linear(768, 64), nn.ReLU(), nn.Linear(64, 2))
    drawn = np.random.default_rng(0).uniform(-0.036, 0.036, (64, 768))
    net[1].weight.data = torch.from_numpy(drawn).float()
    state = trained(net, sides)
    found = audit(state, *sides, steps=1)
    assert checked(found)["by_name"][start.READ]["said"] == generator.NONE
    only = [stages.Outcome(start.READ, "ran", "", kind=stages.START)]
    not_asked = report.not_asked(weights.read(state, (16, 16, 3)), only)
    assert not_asked == ["No attack on the weights could be run."]


def test_layers_are_drawn_in_the_order_in_which_the_network_took_them():
    state = nn.Sequential(nn.Linear(3072, 5)).state_dict()
    layers = weights.read(state, SHAPE).layers
    parameters, build, given = start.of_layers(layers, state, SHAPE, "CHW")
    assert torch.equal(parameters["0.weight"], state["0.weight"].double())
    own = build().double()
    own.load_state_dict(state)
    assert torch.equal(given(own)[0].weight, layers[0].weight)
    assert not torch.equal(layers[0].weight, parameters["0.weight"])
