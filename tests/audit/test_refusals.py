"""Every mistake of a command line ends in one sentence that names it, exit status 2, and nothing that was written."""

import sys

import numpy as np
import pytest
import torch
from helpers import main, mlp, one_sentence, saved
from PIL import Image

from audit import report

NETS = """
from torch import nn
def net(outputs=2):
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.Linear(784, outputs))
def raises(*given): raise RuntimeError("no\\nsuch GPU")
def leaves(*given): raise SystemExit(3)
def number(*given): return 3
def lazy(): return nn.Sequential(nn.Flatten(), nn.LazyLinear(2))
def wide(): return net(outputs=3)
def deeper(): return nn.Sequential(*net(), nn.Linear(2, 2))
def shallow(): return net()[:-1]
def train(pictures, labels, seed): return net()
def of_three(pictures, labels, seed): return lambda batch: batch.flatten(1)[:, :3]
def diverges(pictures, labels, seed): return lambda batch: batch.flatten(1)[:, :2] / 0
"""
USAGE = "give audit network NETWORK MEMBERS HELD_OUT [options]"
SHADOWS = "conv.pth in held --model nets:net --shadows 4"
REFUSED = {
    "network net.pth in": USAGE,
    "network net.pth in held --mean x": USAGE,
    "network --mean 0.49 0.48 net.pth in held": USAGE,
    "network net.pth in held --classes": USAGE,
    "words net.pth": "give audit words NETWORK [--before NETWORK]",
    "none.pth in held": "There is no file none.pth",
    "net.pth none held": "none is no folder",
    "net.pth in held --layout WHC": "The layout is 'WHC'",
    "net.pth in held --activation swish": "The activation is 'swish'",
    "net.pth in held --loss hinge": "The loss is 'hinge'",
    "net.pth in held --alpha grey": "The alpha is 'grey'",
    "net.pth in held --resize whole": "The resize is 'whole'",
    "net.pth in held --resize 9999": "The resize is 9999",
    "net.pth in held --resize 15": "Pictures of 15 pixels a side hold no 16×16",
    "net.pth in held --shape 0 3": "The shape is [0, 3]",
    "net.pth in held --shape 7 7": "--shape 16 16 3",
    "net.pth in held --level nan": "The level is nan",
    "net.pth in held --limit -1": "The limit is -1.0",
    "net.pth in held --limit inf": "The limit is inf",
    "net.pth in held --steps 0": "The steps is 0",
    f"net.pth in held --steps {10**400}": "give 1 to 1,000,000",
    f"net.pth in held --seed {2**64}": "give 0 to 4,294,967,295",
    "net.pth in held --accuracy 83": "The accuracy is 83.0",
    "net.pth in held --mean nan": "The mean is (nan,)",
    "net.pth in held --mean 0.1 0.2": "one for each of the 3 channels",
    "net.pth in held --mean 124": "divide mean and deviation by 255",
    "net.pth in held --deviation 0": "it must be positive",
    "net.pth in held --deviation 1e300": "it must be positive",
    "net.pth in held --before net.pth": "The first layer is that of its start",
    "net.pth in held --before bare.pth": "A layer of the network has a bias that the start lacks",
    "net.pth in held --before none-00001-of-00002.safetensors": "There is no file",
    "net.pth in held --optimizer none.pt": "There is no file",
    "net.pth in held --optimizer net.pth": "The optimizer's file holds no state",
    "net.pth in held --key ema": "holds no network ema, as its names begin with 0, 2",
    "net.pth beside held": "beside holds pictures beside folders of pictures",
    "net.pth corrupt held": "cannot be read as a picture",
    "net.pth real held": "holds real numbers",
    "net.pth program held": "x.png cannot be read as a picture",
    "net.pth steering held": r"/\x1b[2J.png cannot be read",
    "net.pth few held": "1 training picture is there: give 10 or more.",
    "grey.pth in held --shape 28 28 1": "is in colour, and the network takes grey ones of 28×28",
    "conv.pth in held --model none:net": "none:net built no network (ModuleNotFoundError",
    "conv.pth in held --model nets": "nets built no network (ValueError: Empty module name)",
    "conv.pth in held --model none/nets.py:net": "built no network (FileNotFoundError",
    "conv.pth in held --model nets:other": "nets:other built no network (AttributeError",
    "conv.pth in held --model nets.py:other": "nets.py:other built no network (KeyError",
    "conv.pth in held --model nets:raises": "(RuntimeError: no such GPU): give MODULE:FUNCTION",
    "conv.pth in held --model nets:leaves": "nets:leaves built no network (SystemExit: 3)",
    "conv.pth in held --model nets:number": "nets:number returned a int",
    "conv.pth in held --model nets:lazy": "nets:lazy built layers of no size",
    "conv.pth in held --model nets:wide": "it has in another size 2.weight, 2.bias",
    "conv.pth in held --model nets:deeper": "it lacks 3.weight, 3.bias",
    "conv.pth in held --model nets:shallow": "it has beside the module's 2.weight, 2.bias",
    "conv.pth in held --model nets:net --before conv.pth": "The network is that of its start",
    "conv.pth in held --model nets:net --key net": "conv.pth holds no network net",
    "conv.pth in held --model nets:net --train nets:train": "reference networks is 0",
    "conv.pth in held --model nets:net --shadows 5": "reference networks is 5: give an even one",
    SHADOWS: "need a function that trains them: give --train",
    f"{SHADOWS} --train nets:none": "nets:none trained no network (AttributeError",
    f"{SHADOWS} --train nets:raises": "(RuntimeError: no such GPU): let it take pictures",
    f"{SHADOWS} --train nets:leaves": "nets:leaves trained no network (SystemExit: 3)",
    f"{SHADOWS} --train nets:number": "nets:number trained no network (TypeError",
    f"{SHADOWS} --train nets:of_three": "its outputs are NaN or of another number",
    f"{SHADOWS} --train nets:diverges": "its outputs are NaN or of another number",
}


def spoil(folder, sides):
    """Folders of pictures with one mistake each."""
    for name in ("beside", "corrupt", "real", "program", "steering"):
        path = saved(folder / name, sides[0]) / "class 0" / "x.png"
        content = Image.fromarray(np.zeros((9, 9), np.float32))
        content.save(path, "TIFF") if name == "real" else path.write_text("%!PS-Adobe-3.0 EPSF-3.0")
        if name == "corrupt":
            good = next(path.parent.glob("0*.png"))
            path.write_bytes(good.read_bytes()[:60])
        if name == "steering":
            path.rename(path.with_name("\x1b[2J.png"))
        if name == "beside":
            path.rename(folder / name / "x.png")
    saved(folder / "few", [part[:1] for part in sides[0]])


@pytest.fixture(scope="module")
def place(sides, tmp_path_factory):
    folder = tmp_path_factory.mktemp("place")
    exec(NETS, names := {})
    state = mlp().state_dict()
    bare = {name: part + 1 for name, part in state.items() if name != "0.bias"}
    for name, one in {"net": state, "bare": bare, "grey": mlp(28**2).state_dict()}.items():
        torch.save(one, folder / f"{name}.pth")
    torch.save(names["net"]().state_dict(), folder / "conv.pth")
    (folder / "nets.py").write_text(NETS)
    for name, part in zip(("in", "held"), sides):
        saved(folder / name, part)
    spoil(folder, sides)
    return folder


@pytest.mark.parametrize("words", REFUSED)
def test_a_mistake_is_said_in_one_sentence(words, place, monkeypatch, capsys):
    monkeypatch.chdir(place)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.delitem(sys.modules, "nets", raising=False)
    line = words.split()
    verb = [] if line[0] in ("network", "words") else ["network"]
    assert REFUSED[words] in one_sentence([*verb, *line], capsys)


@pytest.mark.parametrize(
    "out, said",
    [
        ("net.pth/d", "cannot be written"),
        (300 * "x", "cannot be written"),
        ("taken", "report.json' (it is there, but is no file)"),
        ("", "has no name"),
    ],
)
def test_a_report_that_cannot_be_written_is_said_before_an_audit(
    out, said, place, monkeypatch, capsys
):
    monkeypatch.chdir(place)
    (place / "taken" / "report.json").mkdir(parents=True, exist_ok=True)
    assert main(["network", "net.pth", "in", "held", "--out", out]) == report.NO_ANSWER
    assert said in capsys.readouterr().err
