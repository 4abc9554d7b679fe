"""Networks of any kind as modules: built by a user's function, and asked by their loss, gradients and layers."""

import copy
import json
import sys

import jsonschema
import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from audit import audit, modules, report, stages, whole
from audit.command import main
from conftest import M

NETS = """
import torch
from torch import nn

def small(outputs=2, features=5):
    body = nn.Conv2d(3, features, 3, stride=2), nn.BatchNorm2d(features), nn.ReLU(), nn.Flatten()
    return nn.Sequential(*body, nn.Linear(49 * features, 40), nn.ReLU(), nn.Linear(40, outputs))

def raises(): raise RuntimeError("no\\nsuch GPU")
def leaves(): raise SystemExit(3)
def number(): return 3
def wide(): return small(outputs=3)
def deeper(): return nn.Sequential(*small(), nn.Linear(2, 2))
def shallow(): return small()[:-1]
"""


def small():
    """The module of NETS.small, the same in every run."""
    exec(NETS, names := {})
    torch.manual_seed(0)
    return names["small"]().eval()


def fitted(before, *some):
    """A copy of a module after a training of its last two layers on the pictures of some sides."""
    after, (pixels, labels) = copy.deepcopy(before), map(np.concatenate, zip(*some))
    x, labels = torch.from_numpy(pixels / 255).permute(0, 3, 1, 2).float(), torch.from_numpy(labels)
    step = torch.optim.SGD(after[4:].parameters(), 0.1, momentum=0.9)
    for _ in range(40):
        step.zero_grad()
        cross_entropy(after(x), labels).backward()
        step.step()
    return after


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


def checked(found):
    """The content of a report that keeps its schema, stages by name, and its page."""
    jsonschema.validate(json.loads(found.json()), json.loads(report.SCHEMA.read_text()))
    assert found.html()
    return {one["name"]: one for one in found.content["stages"]}


def test_a_module_is_built_by_the_users_code_and_said_so(files, capsys):
    given = [
        "after.pt",
        "in.npz",
        "held.npz",
        "--before",
        "before.pt",
        "--model",
        "nets:small",
        "--out",
        "out",
    ]
    assert main(given) == report.LEAKS
    content = json.loads((files / "out" / "report.json").read_text())
    assert "The code of nets:small was run to build the network." in content["warnings"]
    assert (
        content["settings"]["model"] == "nets:small"
        and f"4.weight, {M} of 245" in content["stages"][-1]["said"]
    )
    page = (files / "out" / "report.html").read_text()
    assert "all weights of the network and its code, and those from before its training." in page


def test_a_function_is_found_by_the_path_of_its_file_which_finds_what_is_beside_it(files):
    (files / "code").mkdir()
    (files / "nets.py").rename(files / "code" / "beside_it.py")
    (files / "code" / "train-it.py").write_text(
        "import beside_it\ndef small(): return beside_it.small()"
    )
    for place in ("code", files / "code"):
        assert len(modules.called(f"{place}/train-it.py:small")) == 7
    assert modules.built("code/train-it.py:small", "after.pt").training is False


WRONG = {
    "none:small": "none:small built no network (ModuleNotFoundError: No module named 'none')",
    "nets": "nets built no network (ValueError: Empty module name): give MODULE:FUNCTION",
    "none/nets.py:small": "none/nets.py:small built no network (FileNotFoundError: ",
    "nets:other": "nets:other built no network (AttributeError: ",
    "nets.py:other": "nets.py:other built no network (KeyError: 'other'): give",
    "nets:raises": "nets:raises built no network (RuntimeError: no such GPU): give MODULE:FUNCTION",
    "nets:leaves": "nets:leaves built no network (SystemExit: 3)",
    "nets:number": "nets:number returned a int: let it return a torch.nn.Module.",
    "nets:wide": "after.pt does not fit the module, as it has in another size 6.weight, 6.bias: give what",
    "nets:deeper": "after.pt does not fit the module, as it lacks 7.weight, 7.bias: give what",
    "nets:shallow": "after.pt does not fit the module, as it has beside the module's 6.weight, 6.bias: give",
    "nets:small --before after.pt": "The network is that of its start: nothing was trained there",
    "nets:small --key net": "after.pt holds no network net, as its names begin with model: give another key",
}


@pytest.mark.parametrize("wrong", WRONG)
def test_code_that_builds_no_such_network_gives_one_sentence(wrong, files, capsys):
    assert (
        main(["after.pt", "in.npz", "held.npz", "--out", "out", "--model", *wrong.split()])
        == report.NO_ANSWER
    )
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(WRONG[wrong])


@pytest.mark.parametrize("spec", ["nets:make", "nets.py:make", "FOLDER/nets.py:make"])
def test_a_strangers_code_has_its_own_packages_and_ours_come_back(spec, tmp_path, monkeypatch):
    import utils.networks as ours

    (tmp_path / "lab").mkdir()
    for name, code in {
        "utils": "x = 3",
        "lab/__init__": "",
        "lab/images": "from utils import x as y",
    }.items():
        (tmp_path / f"{name}.py").write_text(code)
    code = "from utils import x\ndef make():\n    from lab.images import y\n    return x + y"
    (tmp_path / "nets.py").write_text(code)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.delitem(sys.modules, "nets", raising=False)
    if "FOLDER" not in spec:
        monkeypatch.chdir(tmp_path)
    assert modules.called(spec.replace("FOLDER", str(tmp_path))) == 6
    assert sys.modules["utils.networks"] is ours and not hasattr(sys.modules["utils"], "x")
    (tmp_path / "nets.py").write_text("def make(): raise RuntimeError")
    sys.modules.pop("nets", None)
    with pytest.raises(RuntimeError):
        modules.called(spec.replace("FOLDER", str(tmp_path)))
    assert sys.modules["utils.networks"] is ours


@pytest.mark.parametrize(
    "prefix", ["", "module.", "_orig_mod.", "model.", "module._orig_mod.model."]
)
def test_prefixes_of_wrappers_fall_where_names_then_fit(prefix, trained):
    module, state = small(), {prefix + name: part for name, part in trained[1].state_dict().items()}
    assert torch.equal(modules.twin(module, state)[6].weight, trained[1][6].weight)
    own = nn.ModuleDict({"model": small()})  # a name that is no prefix
    modules.twin(own, own.state_dict())


@pytest.mark.parametrize("kind", ["a module", "a state dict", "a file", "none"])
def test_the_start_of_a_module_is_of_any_kind(kind, trained, sides, files):
    before = {
        "a module": trained[0],
        "a state dict": trained[0].state_dict(),
        "a file": "before.pt",
    }.get(kind)
    found = audit(trained[1], *sides, before, progress=False)
    there = checked(found)
    assert (whole.BY_SPAN in there) == (before is not None) and there[whole.BY_GRADIENT][
        "state"
    ] == "ran"
    if before is not None:
        counts = {one["name"]: one for one in found.content["comparisons"]}
        inside = counts["pictures in the span of the change of 4.weight"]
        assert (inside["training"], inside["held_out"]) == (M, 0) and found.status == report.LEAKS


def test_a_module_that_knows_neither_side_or_both_does_not_leak(trained, sides):
    assert audit(trained[1], *sides[::-1], trained[0], progress=False).status != report.LEAKS
    both = audit(fitted(small(), *sides), *sides, small(), accuracy=0.83, progress=False)
    assert both.status == report.FOUND_NOTHING and len(checked(both)) == 3
    noisy = fitted(small(), *sides)
    noisy[4].weight.data += torch.randn_like(noisy[4].weight)  # no gap: all directions are taken
    said = checked(audit(noisy, *sides, small(), progress=False))[whole.BY_SPAN]["said"]
    assert said.endswith("was tested in 4.weight, 40 of 245 directions.")


def test_the_gradient_is_that_of_every_picture_in_the_trained_weights(trained, sides):
    module = copy.deepcopy(trained[1])
    module[:4].requires_grad_(False)
    said, lengths = checked(audit(module, *sides, progress=False))[whole.BY_GRADIENT]["said"], []
    for pixels, label in zip(*sides[1]):
        loss = cross_entropy(
            module(torch.from_numpy(pixels / 255).permute(2, 0, 1).float()[None]),
            torch.tensor([label]),
        )
        parts = torch.autograd.grad(loss, [*module[4:].parameters()])
        lengths.append(torch.cat([part.flatten() for part in parts]).norm().item())
    assert f"training and {np.mean(lengths):.2g} for held-out pictures" in said


def test_a_module_that_is_not_asked_all_is_not_cleared(sides, files):
    net = small()
    limited = audit(net, *sides, limit=0.5, progress=False)
    assert (
        limited.status == report.NO_ANSWER
        and "Membership by gradient was skipped" in limited.sentence
    )
    kept = {"state": {0: {"exp_avg": torch.ones(5, 3, 3, 3)}}, "param_groups": [{"params": [0]}]}
    torch.save({"model": net.state_dict(), "optimizer": kept}, "net.pt")
    found = audit("net.pt", *sides, model="nets:small", progress=False)
    assert (
        found.status == report.NO_ANSWER
        and "It is a state of other layers, which is not read" in found.sentence
    )
    silent = audit(lambda x: net(x), *sides, progress=False)
    assert silent.status == report.NO_ANSWER and [*checked(silent)] == [stages.BY_LOSS]
    net.forward = torch.no_grad()(net.forward)
    assert (
        "The gradient cannot be taken"
        in checked(audit(net, *sides, progress=False))[whole.BY_GRADIENT]["said"]
    )
