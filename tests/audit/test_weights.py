"""Networks of strangers: files, state dicts and modules are read under whatever names, or refused; no code is run."""

import argparse

import numpy as np
import pytest
import torch
from helpers import WIDTH, mlp
from safetensors.torch import save_file
from torch.nn.utils import prune, spectral_norm
from torch.nn.utils.parametrizations import orthogonal

from audit import weights
from audit.showing import ACTIVATIONS
from conftest import SIDE, Bomb, refused
from conftest import drawn as drawn_double
from utils.networks import Layer


def drawn(*shape, seed=0):
    return drawn_double(*shape, seed=seed, dtype=torch.float32)


def renamed(state, *names):
    """A state dict with other names for its layers."""
    names = dict(zip((0, 2), names))
    parts = Layer._fields
    return {f"{name}.{of}": state[f"{k}.{of}"] for k, name in names.items() for of in parts}


MEAN = torch.full((1, 3, 1, 1), 0.25)
ADAM = {"state": {0: {"exp_avg": drawn(WIDTH, 3 * SIDE**2)}}, "param_groups": [{"lr": 0.001}]}
NAMINGS = {
    "by number": lambda state: state,
    "alphabet against the order": lambda s: dict(sorted(renamed(s, "body", "a_head").items())),
    "ten and two": lambda state: renamed(state, "layers.2", "layers.10"),
    "a checkpoint": lambda s: {"epoch": 3, "model_state_dict": renamed(s, "module.0", "module.2")},
    "beside its optimiser": lambda s: {"module": s, "optimizer": ADAM, "mean": MEAN},
    "beside its normalisation": lambda s: {"normalize.mean": MEAN, "normalize.std": MEAN, **s},
    "half precision": lambda state: {name: part.half() for name, part in state.items()},
}


@pytest.mark.parametrize("naming", NAMINGS)
def test_a_network_is_read_under_whatever_names(naming, tmp_path):
    wide = (SIDE // 2, 2 * SIDE, 3)
    module, x = mlp(), drawn(5, *wide)
    torch.save(NAMINGS[naming](module.state_dict()), tmp_path / "net.pth")
    found = weights.read(tmp_path / "net.pth", wide)
    expected = module(x.permute(0, 3, 1, 2).flatten(1)).double()
    torch.testing.assert_close(found.logits(x.flatten(1).double()), expected, rtol=0, atol=1e-2)
    assert not found.notes and [len(layer.weight) for layer in found.layers] == [WIDTH, 2]


def test_sorted_files_are_read_in_the_order_of_numbers_and_shapes_where_these_tell_one(tmp_path):
    state = {f"layers.{k}.weight": drawn(30, 30 if k else 300, seed=k) for k in range(11)}
    state |= {"a_head.weight": drawn(2, 30), "layers.2.bias": drawn(30)}
    save_file(state, tmp_path / "net.safetensors")
    layers = weights.read(tmp_path / "net.safetensors", layout="HWC").layers
    names = [*(f"layers.{k}.weight" for k in range(11)), "a_head.weight"]
    for layer, name in zip(layers, names, strict=True):
        assert torch.equal(layer.weight, state[name].double())
    assert [k for k, layer in enumerate(layers) if layer.bias is not None] == [2]


def test_of_a_module_with_other_layers_the_first_is_read_and_the_outputs_are_its_own():
    first, last = torch.nn.Linear(300, 20), torch.nn.Linear(20, 2)
    module = torch.nn.Sequential(first, torch.nn.BatchNorm1d(20), torch.nn.ReLU(), last).eval()
    found, x = weights.read(module, layout="HWC"), drawn(3, 300)
    assert found.is_more and len(found.layers) == 1
    torch.testing.assert_close(found.logits(x.double()), module(x).double())


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_the_outputs_of_a_file_are_those_behind_its_activation_and_its_mask(activation):
    module, x = mlp(300), drawn(5, 300)
    for name in ("weight", "bias"):
        prune.l1_unstructured(module[0], name, 0.3)
    between = getattr(torch.nn.functional, activation)
    expected = module[2](between(module[0](x))).double()
    found = weights.read(module.state_dict(), layout="HWC", activation=activation)
    torch.testing.assert_close(found.logits(x.double()), expected, rtol=0, atol=1e-5)
    assert len(found.layers) == 1 + (activation == "relu") and len(found.stack) == 2


LEFT = {
    "batch norm": {"1.running_mean": torch.ones(WIDTH)},
    "layer norm": {"1.weight": torch.ones(WIDTH), "1.bias": torch.ones(WIDTH)},
    "a scale": {"scale": torch.tensor(3.0)},
    "indices": {"position_ids": torch.arange(9)[None]},
    "another bias": {"0.bias": drawn(7)},
    "a branch": {"head.weight": drawn(5, WIDTH)},
    "layers behind it of a square": {"mu.weight": drawn(64, 60), "out.weight": drawn(9, 64)},
    "what gives pictures": {"a.weight": drawn(60, 60), "b.weight": drawn(3 * SIDE**2, 60)},
    "a residual": {"2.weight": drawn(2, 7)},
}


@pytest.mark.parametrize("kind", LEFT)
def test_names_that_were_not_understood_leave_the_outputs_unknown(kind):
    found = weights.read(mlp().state_dict() | LEFT[kind])
    assert found.logits is None and len(found.layers) == 1 and found.notes


GOOD = mlp(300).state_dict()
TWO = [mlp(300, seed=k).state_dict() for k in (1, 2)]
PREFIXED = {
    f"{of}.{name}": part for of, net in zip(("init", "model"), TWO) for name, part in net.items()
}
NO_STATE = {"state": {}, "param_groups": []}
CHECKPOINT = {"epoch": 3, "model": TWO[0], "model_ema": TWO[1], "optimizer": NO_STATE}
DEEP = {"state": {"net": TWO[0]}, "teacher": {"module": TWO[1]}}
OWN = TWO[0] | {"ema": TWO[1]}


def first(change):
    """A state dict whose first weight was changed."""
    return GOOD | {"0.weight": change(GOOD["0.weight"])}


REFUSED = {
    "NaN": (first(lambda w: w * torch.nan), "0.weight holds values that are NaN, infinite or"),
    "complex": (first(lambda w: w + 0j), "0.weight holds no dense real numbers (complex64"),
    "sparse": (first(torch.Tensor.to_sparse), "no dense real numbers (float32, sparse_coo"),
    "whole": (first(torch.Tensor.char), "no dense real numbers (int8"),
    "meta": (first(lambda w: w.to("meta")), "on meta"),
    "zero": (first(lambda w: 0 * w), "0.weight is zero everywhere"),
    "convolution": ({"conv1.weight": drawn(8, 3, 3, 3), **GOOD}, "has conv1.weight of 8×3×3×3"),
    "shape": (mlp(500).state_dict(), "no matrix that takes square pictures"),
    "a tensor": (drawn(3, 300), "holds a Tensor, not named weights"),
    "weight norm": (
        {"0.weight_v": drawn(60, 300), "0.weight_g": drawn(60, 1)},
        "0.weight_v is a part of a weight",
    ),
    "spectral norm": (spectral_norm(torch.nn.Linear(300, 60)).state_dict(), "a part of a weight"),
    "orthogonal": (orthogonal(torch.nn.Linear(300, 60)).state_dict(), "a part of a weight"),
    "an adapter": (
        {"base_layer.weight": drawn(60, 300), "0.lora_A.weight": drawn(8, 300)},
        "0.lora_A.weight is a part of a weight",
    ),
    "two in a checkpoint": (CHECKPOINT, "2 networks (model, model_ema): name one by --key"),
    "Flax": ({"params": {"Dense_0": {"kernel": drawn(300, 60)}}}, "params.Dense_0.kernel, as Flax"),
    "an object": ({"model": TWO[0], "a": argparse.Namespace()}, "an object (argparse.Namespace)"),
    "protocol 4": (TWO[0], "is no file of weights alone"),
    "one alphabet": (
        {"body.weight": drawn(300, 300), "encoder.weight": drawn(300, 300)},
        "not tell which of body.weight, encoder.weight takes",
    ),
    "LSTM": ({"lstm.weight_ih_l0": drawn(60, 300), **GOOD}, "not tell which of"),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_other_weights_are_refused_in_one_sentence(kind, tmp_path):
    state, said = REFUSED[kind]
    torch.save(state, tmp_path / "net.pth", pickle_protocol=4 if kind == "protocol 4" else 2)
    assert said in refused(weights.read, tmp_path / "net.pth")


def test_arrays_of_numpy_are_a_state_dict_and_no_code_in_a_file_is_run(tmp_path):
    np.savez(tmp_path / "net.npz", epoch=3, note="best", **GOOD)
    found = weights.read(tmp_path / "net.npz", layout="HWC")
    for k, layer in enumerate(found.layers):
        assert torch.equal(layer.weight, GOOD[f"{2 * k}.weight"].double())
    torch.jit.script(mlp(300)).save(tmp_path / "script.pth")
    torch.save({"0.weight": GOOD["0.weight"], "x": Bomb(tmp_path / "ran")}, tmp_path / "bomb.pth")
    (tmp_path / "net.safetensors").write_bytes((tmp_path / "bomb.pth").read_bytes())
    for name in ("script.pth", "bomb.pth", "net.safetensors"):
        assert "and no code is run: save" in refused(weights.read, tmp_path / name)
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    "state, key, second",
    [
        (CHECKPOINT, "model_ema", 1),
        ({"x": PREFIXED}, "init", 0),
        (DEEP, "teacher", 1),
        (DEEP, "state.net", 0),
        (OWN, ".", 0),
    ],
)
def test_a_key_chooses_one_of_several_networks(state, key, second):
    found = weights.read(state, layout="HWC", key=key)
    assert torch.equal(found.layers[0].weight, TWO[second]["0.weight"].double())
    assert "holds no network other" in refused(weights.read, state, key="other")
    assert "A key and an activation are those of a file" in refused(weights.read, abs, key=key)
