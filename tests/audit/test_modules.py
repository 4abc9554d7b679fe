"""Networks of any kind as modules: built by a user's function, and asked by their loss, gradients and layers."""

import copy
import json
import sys

import numpy as np
import pytest
import torch
from helpers import audit, batch, checked
from known_files import learned
from torch.nn.functional import cross_entropy

from audit import modules, report, stages, whole
from audit.command import main
from conftest import M

NETS = """
import torch
from torch import nn

def small(outputs=2, features=5):
    body = nn.Conv2d(3, features, 3, stride=2), nn.BatchNorm2d(features), nn.ReLU(), nn.Flatten()
    return nn.Sequential(*body, nn.Linear(49 * features, 40), nn.ReLU(), nn.Linear(40, outputs))
"""


def small():
    """The module of NETS.small, the same in every run."""
    exec(NETS, names := {})
    torch.manual_seed(0)
    return names["small"]().eval()


def fitted(before, *some):
    """A copy of a module after a training of its last two layers on the pictures of some sides."""
    after, (pixels, labels) = copy.deepcopy(before), map(np.concatenate, zip(*some))
    optimiser = torch.optim.SGD(after[4:].parameters(), 0.1, momentum=0.9)
    return learned(after, batch(pixels), labels, 40, optimiser)


@pytest.fixture(scope="module")
def trained(sides):
    """A module before and after a training on the training pictures."""
    return small(), fitted(small(), sides[0])


@pytest.fixture
def files(trained, sides, tmp_path, monkeypatch):
    """A folder, where Python runs, with the code and weights of the network and with both sides' pictures."""
    for name, one in zip(("before", "after"), trained):
        torch.save(
            {"state_dict": {f"model.{k}": part for k, part in one.state_dict().items()}},
            tmp_path / f"{name}.pt",
        )
    for name, (pixels, labels) in zip(("in", "held"), sides):
        np.savez(tmp_path / name, images=pixels, labels=labels)
    (tmp_path / "nets.py").write_text(NETS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.delitem(sys.modules, "nets", raising=False)
    return tmp_path


def by_name(found):
    """The stages by name of a report that is whole."""
    return checked(found)["by_name"]


def test_a_module_is_built_by_the_users_code_and_said_so(files):
    given = "after.pt in.npz held.npz --before before.pt --model nets:small --out out"
    assert main(["network", *given.split()]) == report.LEAKS
    content = json.loads((files / "out" / "report.json").read_text())
    assert "The code of nets:small was run to build the network." in content["warnings"]
    assert f"4.weight, {M} of 245" in content["stages"][-1]["said"]


@pytest.mark.parametrize("spec", ["nets:make", "FOLDER/nets.py:make"])
def test_a_strangers_code_has_its_own_packages_and_ours_come_back(spec, tmp_path, monkeypatch):
    import utils.networks as ours

    spec = spec.replace("FOLDER", str(tmp_path))
    (tmp_path / "utils.py").write_text("x = 3")
    (tmp_path / "nets.py").write_text("from utils import x\ndef make(): return x - 1")
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.delitem(sys.modules, "nets", raising=False)
    if "nets:" in spec:
        monkeypatch.chdir(tmp_path)
    assert modules.called(spec) == 2
    assert sys.modules["utils.networks"] is ours and not hasattr(sys.modules["utils"], "x")
    (tmp_path / "nets.py").write_text("def make(): raise RuntimeError")
    sys.modules.pop("nets", None)
    with pytest.raises(RuntimeError):
        modules.called(spec)
    assert sys.modules["utils.networks"] is ours


def test_what_training_added_to_a_module_leaks(trained, sides):
    found = audit(trained[1], *sides, trained[0])
    assert by_name(found)[whole.BY_GRADIENT]["state"] == "ran" and found.status == report.LEAKS
    counts = {one["name"]: one for one in found.content["comparisons"]}
    inside = counts["pictures in the span of the change of 4.weight"]
    assert (inside["training"], inside["held_out"]) == (M, 0)


def test_a_module_that_knows_neither_side_or_both_does_not_leak(trained, sides):
    assert audit(trained[1], *sides[::-1], trained[0]).status != report.LEAKS
    both = audit(fitted(small(), *sides), *sides, small(), accuracy=0.83)
    assert both.status == report.FOUND_NOTHING and len(by_name(both)) == 3
    noisy = fitted(small(), *sides)
    noisy[4].weight.data += torch.randn_like(noisy[4].weight)  # no gap: all directions are taken
    said = by_name(audit(noisy, *sides, small()))[whole.BY_SPAN]["said"]
    assert said.endswith("was tested in 4.weight, 40 of 245 directions.")


def test_the_gradient_is_that_of_every_picture_in_the_trained_weights(trained, sides):
    module = copy.deepcopy(trained[1])
    module[:4].requires_grad_(False)
    said, lengths = by_name(audit(module, *sides))[whole.BY_GRADIENT]["said"], []
    for x, label in zip(batch(sides[1][0]), torch.from_numpy(sides[1][1])):
        loss = cross_entropy(module(x[None]), label[None])
        parts = torch.autograd.grad(loss, [*module[4:].parameters()])
        lengths.append(torch.cat([part.flatten() for part in parts]).norm().item())
    assert f"training and {np.mean(lengths):.2g} for held-out pictures" in said


def test_a_module_that_is_not_asked_all_is_not_cleared(sides, files):
    net = small()
    moment = {"exp_avg": torch.ones(5, 3, 3, 3)}
    kept = {"state": {0: moment}, "param_groups": [{"params": [0]}]}
    silent = audit(lambda x: net(x), *sides)
    assert silent.status == report.NO_ANSWER and [*by_name(silent)] == [stages.BY_LOSS]
    torch.save({"model": net.state_dict(), "optimizer": kept}, "net.pt")
    found = audit("net.pt", *sides, model="nets:small")
    assert found.status == report.NO_ANSWER and "It is a state of other layers" in found.sentence
    net.forward = torch.no_grad()(net.forward)
    assert "The gradient cannot be taken" in by_name(audit(net, *sides))[whole.BY_GRADIENT]["said"]
