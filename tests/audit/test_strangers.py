"""Files as strangers have them: read truly, under whatever names, or refused in one sentence that is true."""

import json
import os
import sys
import types
import zipfile

import numpy as np
import pytest
import torch
import torchvision
from helpers import batch, mlp
from safetensors.torch import save_file, save_model
from torch import nn

from audit import files, modules, weights
from conftest import SHAPE, refused

NETS = """
from torch import nn
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.norm = nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4)
        self.second = nn.Conv2d(4, 4, 3, padding=1)
        self.tied = nn.Conv2d(4, 4, 3, padding=1)
        self.tied.weight = self.second.weight
        self.head = nn.Linear(1024, 2)
    def forward(self, x):
        return self.head(self.tied(self.second(self.norm(self.first(x)))).flatten(1))
def cuda(): raise RuntimeError("Cannot re-initialize CUDA in forked subprocess")
"""


def net(seed=0):
    """A module of NETS, with numbers of its own everywhere."""
    exec(NETS, names := {})
    torch.manual_seed(seed)
    module = names["Net"]().eval()
    module.norm.running_mean.normal_()
    return module


def behind(prefix, state):
    """A state dict whose names have a prefix."""
    return {prefix + name: part for name, part in state.items()}


OWN, OTHER = net().state_dict(), net(1).state_dict()
COUNTLESS = {name: part for name, part in OWN.items() if "num_batches" not in name}
MLP = mlp().state_dict()
INNER = {name.replace("first.", "first._fsdp_wrapped_module."): part for name, part in OWN.items()}
LIGHTNING = {
    "state_dict": behind("model.", OWN) | {"criterion.weight": torch.ones(2)},
    "optimizer_states": [{"state": {0: {"exp_avg": torch.ones(4, 3)}}, "param_groups": []}],
    "callbacks": {"EMA": {"weights": behind("model.", OTHER)}, "best": torch.tensor(0.5)},
    "hyper_parameters": {"lr": 0.1},
    "pytorch-lightning_version": "2.5.0",
}
# what a file holds, and the key of the network
FIT = {
    "no counts": (COUNTLESS, None),
    "Opacus": (behind("_module.", OWN), None),
    "FSDP, inside as well": (behind("_fsdp_wrapped_module.", INNER), None),
    "compiled, in Lightning": ({"state_dict": behind("model._orig_mod.", OWN)}, None),
    "a loss beside it": (LIGHTNING["state_dict"], None),
    "Lightning, averages beside it": (LIGHTNING, "state_dict"),
    "in a dict in a list": ([{"epoch": 3, "net": behind("module.", OWN)}], None),
    "timm, averages beside it": ({"state_dict_ema": OWN, "state_dict": OTHER}, "state_dict_ema"),
    "averages beside its names": (OWN | behind("ema.", OTHER), "."),
    "an averaged model": (behind("module.", OWN) | {"n_averaged": torch.tensor(3)}, None),
    "parts": ({part: getattr(net(), part).state_dict() for part in net()._modules}, None),
    "bfloat16": ({name: part.bfloat16() for name, part in OWN.items()}, None),
    "numbers of numpy": ({"net": OWN, "best": np.float64(0.5), "epoch": np.int64(3)}, None),
}


@pytest.mark.parametrize("kind", FIT)
def test_a_module_takes_its_weights_from_wherever_they_are(kind, tmp_path):
    content, key = FIT[kind]
    torch.save(content, tmp_path / "net.ckpt")
    found = modules.twin(net(2), tmp_path / "net.ckpt", key)[0].state_dict()
    for name, part in COUNTLESS.items():
        torch.testing.assert_close(found[name], part, rtol=1e-2, atol=1e-2)
    if key:
        said = refused(modules.twin, net(), tmp_path / "net.ckpt")
        assert "holds 2 networks (" in said and key in said


def test_a_modules_own_names_stay_though_wrappers_have_such_too():
    own = nn.ModuleDict({"model": nn.ModuleDict({"module": net(), "_blocks": net(1)})})
    other = modules.twin(own, {"state_dict": behind("module.", own.state_dict())})[0]
    assert modules.equal(other, own)


def shards(folder, state, names, save):
    """A folder of transformers, with weights in two files, and its optimiser's state."""
    some = [*state][::2]
    for name, part in zip(names[1:], (some, state.keys() - some)):
        save({one: state[one] for one in part}, folder / name)
    placed = {one: names[1 if one in some else 2] for one in state}
    (folder / names[0]).write_text(json.dumps({"weight_map": placed}))
    torch.save({"state": {}, "param_groups": [{"params": [0]}]}, folder / "optimizer.pt")
    return folder


def tensors_in(folder):
    return shards(
        folder,
        OWN,
        ["model.safetensors.index.json", *(f"model-0000{k}-of-00002.safetensors" for k in (1, 2))],
        save_file_of_copies,
    )


def save_file_of_copies(state, path):
    save_file({name: part.clone() for name, part in state.items()}, path)


def pickles_in(folder):
    names = [f"pytorch_model-0000{k}-of-00002.bin" for k in (1, 2)]
    return shards(folder, OWN, ["pytorch_model.bin.index.json", *names], torch.save)


def tied(folder):
    save_model(net(), str(folder / "net.safetensors"))
    return folder / "net.safetensors"


def another_suffix(folder):
    return tied(folder).rename(folder / "net.bin")


def whole(folder):
    torch.save(OWN, folder / "pytorch_model.bin")
    return folder


PATHS = {
    "shards": tensors_in,
    "an index": lambda folder: tensors_in(folder) / "model.safetensors.index.json",
    "older shards": pickles_in,
    "a folder": whole,
    "tied weights": tied,
    "safetensors called .bin": another_suffix,
}


@pytest.mark.parametrize("kind", PATHS)
def test_files_and_folders_are_read_for_what_they_are(kind, tmp_path):
    found = modules.twin(net(2), PATHS[kind](tmp_path))[0].state_dict()
    assert all(torch.equal(part, OWN[name]) for name, part in found.items())


def archive(folder):
    with zipfile.ZipFile(folder / "net.zip", "w") as file:
        file.writestr("net/model.safetensors", b"")
    return folder / "net.zip"


def bomb(folder):
    np.savez_compressed(folder / "net.npz", weight=np.zeros((60, 5_000_000), np.float32))
    return folder / "net.npz"


def object_in(folder):
    lightning = LIGHTNING | {"hyper_parameters": types.SimpleNamespace(lr=0.1)}
    torch.save(lightning, folder / "net.ckpt")
    return folder / "net.ckpt"


def objects(folder):
    np.savez(folder / "net.npz", history=np.array([{}]), weight=np.ones((2, 3)))
    return folder / "net.npz"


def cut(folder):
    whole(folder)
    path = folder / "pytorch_model.bin"
    path.write_bytes(path.read_bytes()[:-99])
    return path


def pipe(folder):
    os.mkfifo(folder / "net.pth")
    return folder / "net.pth"


def without_a_shard(folder):
    (tensors_in(folder) / "model-00002-of-00002.safetensors").unlink()
    return folder


def holding(*names, content=b"\x08\x07"):
    """What writes a folder of files, or one file."""

    def write(folder):
        for name in names:
            (folder / name).write_bytes(content)
        return folder if names[1:] else folder / names[0]

    return write


LFS = b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n"
UNREAD = {
    "net.pth is empty: copy it again": holding("net.pth", content=b""),
    "is a pointer of Git LFS": holding("net.safetensors", content=LFS),
    "is a page of the web": holding("net.pt", content=b"<!DOCTYPE html>"),
    "is an HDF5 file, as Keras writes": holding("net.keras", content=b"\x89HDF\r\n\x1a\n"),
    "is an ONNX file: save": holding("net.onnx"),
    "is a GGUF file: save": holding("net.gguf", content=b"GGUF\3"),
    "is a file of TensorFlow Lite": holding("net.tflite", content=b"\x1c\0\0\0TFL3"),
    "is no file of weights alone": holding("net.msgpack"),
    "is an archive of other files: give the weights in it, or save": archive,
    "net.npz cannot be read (ValueError: Object arrays": objects,
    "cannot be read (BadZipFile: File is not a zip file): copy it again": cut,
    "There is no file": pipe,
    "net.npz unpacks to 1,200,000,128 bytes": bomb,
    "an object (types.SimpleNamespace), which takes code": object_in,
    "is one of several files of a network: give their folder": lambda folder: (
        tensors_in(folder) / "model-00001-of-00002.safetensors"
    ),
    "which model.safetensors.index.json names: copy it, too": without_a_shard,
    "is no index of weights (JSONDecodeError": holding("pytorch_model.bin.index.json", "a"),
    "of torch.distributed, in shards": holding(".metadata", "__0_0.distcp"),
    "of DeepSpeed, in shards": holding("zero_to_fp32.py", "latest"),
    "mp_rank_00_model_states.pt is a checkpoint of DeepSpeed": holding(
        "mp_rank_00_model_states.pt"
    ),
    "is an adapter without its network": holding(
        "adapter_config.json", "adapter_model.safetensors"
    ),
    "but notes.txt, run.log: give the file": holding("run.log", "notes.txt"),
    "and no pytorch_model.bin, but nothing": lambda folder: folder,
}


@pytest.mark.parametrize("said", UNREAD)
def test_a_file_of_another_kind_is_named_in_one_sentence(said, tmp_path):
    place = UNREAD[said](tmp_path)
    assert said in refused(files.contents, place)
    assert said in refused(weights.read, place) and said in refused(modules.twin, net(), place)


def test_a_full_memory_is_no_fault_of_a_file(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "load_file", lambda path: bytearray(2**62))
    with pytest.raises(MemoryError):
        files.contents(tied(tmp_path))


class Returns(nn.Module):
    """A network that takes pictures (n, C, H, W), as one that looks at their size does, and returns something."""

    def __init__(self, change):
        super().__init__()
        self.body, self.change = mlp(), change

    def forward(self, x):
        n, c, h, w = x.shape
        return self.change(self.body(x.view(n, c * h * w)))


class Output(types.SimpleNamespace):
    """What a library returns."""


RETURNED = {
    "a tuple, of which entry 0": lambda z: (z, torch.cat([z, z], 1)),
    "a tuple, of which entry 1": lambda z: (None, z),
    "a list, of which entry 0": lambda z: [z],
    "a dict, of which entry logits": lambda z: {"features": 2 * z, "logits": z},
    "a Output, of which entry scores": lambda z: Output(scores=z, loss=None),
    "a dict, of which entry out": lambda z: {"loss": z.sum(), "out": z},
    "a Output, of which entry logits": lambda z: Output(hidden_states=(z,), logits=z),
    "": lambda z: z,
}


@pytest.mark.parametrize("note", RETURNED)
def test_logits_are_taken_from_what_a_network_returns_and_said_so(note, sides):
    module, x = Returns(RETURNED[note]), batch(sides[0][0])
    found = weights.read(module, SHAPE)
    rows = x.permute(0, 2, 3, 1).flatten(1).double()
    torch.testing.assert_close(found.logits(rows), module.body(x.flatten(1)).double())
    told = [one for one in found.notes if "was taken for its logits" in one]
    assert len(told) == bool(note) and note in "".join(told)
    assert torch.is_tensor(found.module(found.takes(rows)))


def test_one_number_for_each_picture_is_the_only_output():
    found = weights.read(Returns(lambda z: z[:, 0]), SHAPE)
    assert found.logits(torch.rand(3, 768).double()).shape == (3, 1)


@pytest.mark.parametrize(
    "change, said",
    [
        (lambda z: {"a": z, "b": z}, "returns a dict of a, b: let it return its logits"),
        (lambda z: None, "returns a NoneType of nothing"),
        (lambda z: z.view(-1, 1), "(ValueError: it returns 4 rows for 2 pictures)"),
        (lambda z: z[:, 9], "does not take these pictures (IndexError"),
    ],
)
def test_what_returns_no_logits_is_refused_in_one_sentence(change, said):
    assert said in refused(weights.read, Returns(change), SHAPE)


@pytest.mark.parametrize("layout", ["CHW", "HWC"])
def test_a_module_that_takes_rows_alone_gets_them_in_their_layout(layout):
    module = nn.Sequential(*mlp(), nn.BatchNorm1d(2)).eval()
    x = torch.rand(3, *SHAPE, dtype=torch.float64)
    flat = (x if layout == "HWC" else x.permute(0, 3, 1, 2)).flatten(1)
    found = weights.read(module, SHAPE, layout)
    torch.testing.assert_close(found.logits(x.flatten(1)), module(flat.float()).double())


def stand_in(name, num_classes=1000):
    """What timm builds."""
    return nn.Sequential(nn.Flatten(), *mlp(outputs=num_classes))


@pytest.mark.parametrize("library", ["timm", "torchvision"])
def test_a_named_network_of_a_library_has_the_outputs_of_the_file(library, monkeypatch):
    monkeypatch.setitem(sys.modules, "timm", types.SimpleNamespace(create_model=stand_in))
    name = {"timm": "small", "torchvision": "squeezenet1_1"}[library]
    small = torchvision.models.squeezenet1_1(num_classes=3) if name != "small" else stand_in("", 3)
    state = behind("model.", small.state_dict())
    found, notes = modules.built(f"{library}:{name}", {"state_dict": state, "x": OWN})
    assert torch.equal([*found.parameters()][-1], [*small.parameters()][-1])
    assert f"The code of {library}:{name} was run" in notes[0] and "left out: x.first" in notes[1]


def test_a_library_that_is_not_there_and_a_network_on_a_gpu_are_said(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "timm", None)
    assert "timm cannot be loaded (ModuleNotFoundError" in refused(modules.built, "timm:a", OWN)
    assert "Unknown model resnet1" in refused(modules.built, "torchvision:resnet1", OWN)
    (tmp_path / "nets.py").write_text(NETS)
    assert "that builds it on the CPU" in refused(modules.built, f"{tmp_path}/nets.py:cuda", OWN)
