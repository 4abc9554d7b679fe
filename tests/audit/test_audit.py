"""The audit: networks and pictures of strangers, one null, one rule, and a report that holds what it says."""

import argparse
import io
import json
import os
import re
import subprocess
import sys
import tomllib
from functools import partial
from pathlib import Path

import jsonschema
import numpy as np
import pytest
import torch
from known_files import toy
from PIL import Image
from safetensors.torch import save_file
from scipy.stats import fisher_exact, kstest
from torch.nn.utils import prune, spectral_norm
from torch.nn.utils.parametrizations import orthogonal

import conftest
from audit import audit as audited
from audit import judge, pictures, report, stages, weights
from audit.__main__ import FAULT, INTERRUPTED
from audit.command import main, parser
from audit.run import FROZEN, STRANGE, network_for
from conftest import SHAPE, SIDE, Bomb, M
from training import images, ordinary
from utils import networks
from utils.errors import InputError
from utils.networks import Layer

WIDTH = 60
SCHEMA = json.loads(report.SCHEMA.read_text())
drawn = partial(conftest.drawn, dtype=torch.float32)
audit = partial(audited, progress=False)


def torch_network(inputs=3 * SIDE**2, outputs=2, width=WIDTH, seed=0, act=torch.nn.ReLU):
    torch.manual_seed(seed)
    return torch.nn.Sequential(
        torch.nn.Linear(inputs, width), act(), torch.nn.Linear(width, outputs)
    )


def fitted(
    sides, outputs=2, seed=0, order=(0, 1), mean=0.0, deviation=1.0, layout="CHW", steps=60, **of
):
    """A network that was trained on the pictures of both sides, as its trainer showed them."""
    pixels, labels = (torch.from_numpy(np.concatenate(part)) for part in zip(*sides))
    rows = (
        ((pixels / 255.0 - mean) / deviation)
        .permute(*((0, 3, 1, 2) if layout == "CHW" else (0, 1, 2, 3)))
        .flatten(1)
    )
    module = torch_network(rows.shape[1], outputs, seed=seed, **of)
    labels = torch.tensor(order)[labels]
    optimizer = torch.optim.Adam(module.parameters(), 0.003)
    for _ in range(steps):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(module(rows.float()), labels).backward()
        optimizer.step()
    return module.state_dict()


def doubled(sides):
    """Twice as many pictures of both sides: each stands on the other side as well, with its rows as columns."""
    turned = [(rows.transpose(0, 2, 1, 3), labels) for rows, labels in sides[::-1]]
    return [[np.concatenate(part) for part in zip(*pair)] for pair in zip(sides, turned)]


@pytest.fixture(scope="module")
def mixing(sides):
    """A state dict whose first layer is a mixture of the training pictures, flattened as torch does."""
    seen = torch.from_numpy(sides[0][0] / 255.0).permute(0, 3, 1, 2).flatten(1).float()
    state = torch_network().state_dict()
    state["0.weight"], state["0.bias"] = drawn(WIDTH, M) @ seen / 100, drawn(WIDTH, M).sum(1) / 100
    return state


def saved(path, part):
    """A folder of a side's pictures, in folders of classes."""
    for k, (picture, label) in enumerate(zip(*part)):
        (path / f"class {label}").mkdir(parents=True, exist_ok=True)
        Image.fromarray(picture).save(path / f"class {label}" / f"{k:02}.png")
    return path


def renamed(state, *names):
    """A state dict with other names for its layers."""
    return {
        f"{name}.{part}": state[f"{k}.{part}"]
        for k, name in zip((0, 2), names)
        for part in Layer._fields
    }


MEAN = torch.full((1, 3, 1, 1), 0.25)
ADAM = {"state": {0: {"exp_avg": drawn(WIDTH, 3 * SIDE**2)}}, "param_groups": [{"lr": 0.001}]}
NAMINGS = {
    "by number": lambda state: state,
    "by name": lambda state: renamed(state, "fc1", "fc2"),
    "alphabet against the order": lambda state: dict(
        sorted(renamed(state, "body", "a_head").items())
    ),
    "ten and two": lambda state: renamed(state, "layers.2", "layers.10"),
    "a checkpoint": lambda state: {
        "epoch": 3,
        "model_state_dict": renamed(state, "module.0", "module.2"),
    },
    "beside its optimiser": lambda state: {
        "module": state,
        "optimizer": ADAM,
        "mean": torch.rand(1, 3, 1, 1),
    },
    "in one letter": lambda state: dict(zip(("W1", "b1", "W2", "b2"), state.values())),
    "beside numbers of numpy": lambda state: {
        "model": state,
        "best": np.float64(0.9),
        "epoch": np.int64(3),
    },
    "beside its normalisation": lambda state: {
        "normalize.mean": MEAN,
        "normalize.std": 2 * MEAN,
        **state,
    },
    "half precision": lambda state: {name: part.half() for name, part in state.items()},
}


@pytest.mark.parametrize("naming", NAMINGS)
def test_a_network_is_read_under_whatever_names(naming, tmp_path):
    wide = (SIDE // 2, 2 * SIDE, 3)
    module, x = torch_network(), torch.rand(5, *wide, generator=torch.Generator().manual_seed(1))
    torch.save(NAMINGS[naming](module.state_dict()), tmp_path / "net.pth")
    target = weights.read(tmp_path / "net.pth", wide)
    expected = module(x.permute(0, 3, 1, 2).flatten(1)).double()
    torch.testing.assert_close(target.logits(x.flatten(1).double()), expected, rtol=0, atol=2e-3)
    assert not target.notes and [len(layer.weight) for layer in target.layers] == [WIDTH, 2]


def test_sorted_files_are_read_in_the_order_of_numbers_and_shapes_where_these_tell_one(tmp_path):
    state = {f"layers.{k}.weight": drawn(30, 30 if k else 300, seed=k) for k in range(11)}
    state |= {"a_head.weight": drawn(2, 30), "layers.2.bias": drawn(30)}
    save_file(state, tmp_path / "net.safetensors")
    layers = weights.read(tmp_path / "net.safetensors", layout="HWC").layers
    names = [*(f"layers.{k}.weight" for k in range(11)), "a_head.weight"]
    assert all(
        torch.equal(layer.weight, state[name].double())
        for layer, name in zip(layers, names, strict=True)
    )
    assert [k for k, layer in enumerate(layers) if layer.bias is not None] == [2]
    save_file(
        {"in.weight": drawn(30, 300), "x.weight": drawn(30, 30), "y.weight": drawn(30, 30)},
        tmp_path / "net.safetensors",
    )
    found = weights.read(tmp_path / "net.safetensors")
    assert (
        len(found.layers) == 1
        and not found.logits
        and "as x.weight, y.weight may come between" in found.notes[0]
    )


@pytest.mark.parametrize("other", [torch.nn.BatchNorm1d(20), torch.nn.Tanh()])
def test_of_a_module_with_other_layers_the_first_is_read_and_the_outputs_are_its_own(other):
    module = torch.nn.Sequential(
        torch.nn.Linear(300, 20), other, torch.nn.ReLU(), torch.nn.Linear(20, 2)
    )
    target = weights.read(module)
    assert len(target.layers) == 1 and "more than layers with ReLUs" in target.notes[0]
    assert (
        target.logits(torch.rand(3, 300).double()).shape == (3, 2)
        and len(weights.read(torch_network()).layers) == 2
    )


@pytest.mark.parametrize("activation", weights.ACTIVATIONS)
def test_the_outputs_of_a_file_are_those_behind_its_activation(activation):
    module, x = torch_network(300), torch.rand(5, 300, generator=torch.Generator().manual_seed(1))
    expected = module[2](weights.ACTIVATIONS[activation](module[0](x))).double()
    target = weights.read(module.state_dict(), layout="HWC", activation=activation)
    torch.testing.assert_close(target.logits(x.double()), expected, rtol=0, atol=1e-5)
    assert (len(target.layers), len(target.notes)) == ((2, 0) if activation == "relu" else (1, 1))
    assert (
        len(target.all_layers) == 2
        and report.not_asked(target, [stages.Outcome("", "ran", "")]) == []
    )
    with pytest.raises(InputError, match="A key and an activation are those of a file"):
        weights.read(module, activation="tanh")
    with pytest.raises(InputError, match="The activation is 'swish'"):
        weights.read(module.state_dict(), activation="swish")


GOOD = torch_network(300).state_dict()
LORA = {
    "0.base_layer.weight": drawn(60, 300),
    "0.lora_A.weight": drawn(8, 300),
    "0.lora_B.weight": drawn(60, 8),
}
TWO = [torch_network(300, seed=k).state_dict() for k in (1, 2)]
PREFIXED = {
    f"{of}.{name}": part for of, net in zip(("init", "model"), TWO) for name, part in net.items()
}
CHECKPOINT = {
    "epoch": 3,
    "model": TWO[0],
    "model_ema": TWO[1],
    "optimizer": {"state": {}, "param_groups": []},
}
DEEP, OWN = {"state": {"net": TWO[0]}, "teacher": {"module": TWO[1]}}, TWO[0] | {"ema": TWO[1]}
SAME = {f"{name}.weight": drawn(300, 300) for name in ("body", "encoder")}
INNER = {
    "head.weight": drawn(60, 7),
    "blocks.0.weight": drawn(60, 300),
    "blocks.1.weight": drawn(60, 300),
}
REFUSED = {
    "NaN": (
        GOOD | {"0.weight": GOOD["0.weight"] * torch.nan},
        "0.weight holds values that are NaN, infinite or",
    ),
    "complex": (
        GOOD | {"0.weight": GOOD["0.weight"] + 0j},
        "0.weight holds no dense real numbers [(]complex64",
    ),
    "sparse": (
        GOOD | {"0.weight": GOOD["0.weight"].to_sparse()},
        "no dense real numbers [(]float32, sparse_coo",
    ),
    "whole": (
        GOOD | {"0.weight": GOOD["0.weight"].to(torch.int8)},
        "no dense real numbers [(]int8",
    ),
    "meta": (GOOD | {"0.weight": GOOD["0.weight"].to("meta")}, "no dense real numbers .*on meta"),
    "convolution": (
        {"conv1.weight": drawn(8, 3, 3, 3), **GOOD},
        "has conv1.weight of 8×3×3×3, and .*--model",
    ),
    "shape": (
        torch_network(500).state_dict(),
        "no matrix that takes square pictures, but 0.weight of 60×500, 2.we",
    ),
    "no matrix": ({"epoch": 3, "0.bias": drawn(7)}, "holds no matrix"),
    "zero": (GOOD | {"0.weight": 0 * GOOD["0.weight"]}, "0.weight is zero everywhere"),
    "a tensor": (drawn(3, 300), "holds a Tensor, not named weights"),
    "weight norm": (
        {"0.weight_v": drawn(60, 300), "0.weight_g": drawn(60, 1)},
        "0.weight_v is a part of a weight",
    ),
    "spectral norm": (
        spectral_norm(torch.nn.Linear(300, 60)).state_dict(),
        "weight_orig is a part of a weight",
    ),
    "orthogonal": (
        orthogonal(torch.nn.Linear(300, 60)).state_dict(),
        "parametrizations.weight.*is a part of a weight",
    ),
    "an adapter": (LORA, "0.lora_A.weight is a part of a weight"),
    "two by prefix": (
        PREFIXED,
        "does not tell which of init.0.weight, model.0.weight takes the pictures: .* --key",
    ),
    "two in a checkpoint": (CHECKPOINT, "2 networks [(]model, model_ema[)]: name one by --key"),
    "one inside": (OWN, "2 networks [(]., ema[)]: name one by --key"),
    "Flax": (
        {"params": {"Dense_0": {"kernel": drawn(300, 60)}}},
        "holds params.Dense_0.kernel, as Flax and Keras",
    ),
    "an object": (
        {"model": TWO[0], "a": argparse.Namespace(x=1)},
        "holds an object [(]argparse.Namespace[)]",
    ),
    "protocol 4": (TWO[0], "is no file of weights alone, .* torch.save without pickle_protocol"),
    "one alphabet": (SAME, "does not tell which of body.weight, encoder.weight takes"),
    "an inner layer": (INNER, "does not tell which of blocks.0.weight, blocks.1.weight takes"),
    "LSTM": (
        {"lstm.weight_ih_l0": drawn(60, 300), **GOOD},
        "does not tell which of lstm.weight_ih_l0, 0.weight takes",
    ),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_other_weights_are_refused_in_one_sentence(kind, tmp_path):
    state, said = REFUSED[kind]
    torch.save(state, tmp_path / "net.pth", pickle_protocol=4 if kind == "protocol 4" else 2)
    with pytest.raises(InputError, match=f"^({tmp_path}/)?net.pth.*{said}"):
        weights.read(tmp_path / "net.pth")


def test_arrays_of_numpy_are_a_state_dict_and_objects_and_code_are_not_read(tmp_path):
    state = torch_network(300).state_dict()
    np.savez(tmp_path / "net.npz", epoch=3, note="best", **state)
    found = weights.read(tmp_path / "net.npz", layout="HWC")
    assert all(
        torch.equal(layer.weight, state[f"{2 * k}.weight"].double())
        for k, layer in enumerate(found.layers)
    )
    np.savez(tmp_path / "net.npz", history=np.array([{}]), **state)
    torch.jit.script(torch_network(300)).save(tmp_path / "net.pth")
    (tmp_path / "net.h5").write_bytes(b"\x89HDF\r\n\x1a\n")
    for name in ("net.npz", "net.pth", "net.h5"):
        with pytest.raises(
            InputError, match=f"{name} is no file of weights alone, and no code is run: save"
        ):
            weights.read(tmp_path / name)


def test_a_part_of_a_network_and_a_network_in_the_way_are_never_cleared():
    many = toy("both sides", 2, None, size=(SIDE, SIDE), counts=(30, 30)).sides
    state = {f"net.{name}": part for name, part in fitted(many, width=64).items()}
    nameless = [pixels for pixels, _ in many]
    assert audit(state, *many, steps=1).status == report.FOUND_NOTHING
    other = {"query.weight": drawn(3 * SIDE**2, 3 * SIDE**2)} | state
    for net, key in ((state, "net.0"), (other, None)):
        found = audit(net, *many, steps=1, key=key)
        assert found.status == report.NO_ANSWER and "or is a part of another one" in found.sentence
        assert audit(net, *nameless, steps=1, key=key).status == report.NO_ANSWER


@pytest.mark.parametrize("state, key, second", [
    (CHECKPOINT, "model", 0), (CHECKPOINT, "model_ema", 1), (PREFIXED, "model", 1), ({"x": PREFIXED}, "init", 0),
    (DEEP, "teacher", 1), (DEEP, "state.net", 0), (OWN, ".", 0), (OWN, "ema", 1),
])  # fmt: skip
def test_a_key_chooses_one_of_several_networks(state, key, second, tmp_path):
    torch.save(state, tmp_path / "net.pth")
    found = weights.read(tmp_path / "net.pth", layout="HWC", key=key)
    assert torch.equal(found.layers[0].weight, TWO[second]["0.weight"].double()) and not found.notes
    with pytest.raises(
        InputError,
        match="^net.pth holds no network other, as its names begin with .*, .*: give ano",
    ):
        weights.read(tmp_path / "net.pth", key="other")
    with pytest.raises(InputError, match="A key and an activation are those of a file"):
        weights.read([torch_network(), abs][second], key=key)


def test_the_normalisation_of_a_file_is_used_unless_another_is_given(sides, mixing):
    held = mixing | {"normalize.mean": MEAN, "normalize.std": 2 * MEAN}
    for given, mean in (({}, (0.25, 0.25, 0.25)), ({"mean": 0.0, "deviation": 1.0}, (0.0,))):
        content = checked(audit(held, *sides, steps=1, **given))
        assert content["settings"]["mean"] == mean
        assert (
            "The mean is that in the network's file: 0.25, 0.25, 0.25." in content["warnings"]
        ) == (not given)
    assert checked(audit(mixing, *sides, steps=1))["settings"]["deviation"] == (1.0,)


@pytest.mark.parametrize("activation", ["relu", "sigmoid"])
def test_a_frozen_first_layer_is_said_and_all_else_is_asked(activation, sides):
    before = torch_network().state_dict()
    after = before | {"2.weight": before["2.weight"] + 1}
    found = audit(after, *sides, before, steps=1, activation=activation)
    assert FROZEN in checked(found)["warnings"] and found.status != report.LEAKS
    assert {"membership by loss", "structure of W₁"} <= {
        one["name"] for one in found.content["stages"]
    }


@pytest.mark.parametrize("seed", [0, 1])
def test_a_start_of_another_network_is_noticed(seed, sides):
    found = audit(fitted(sides, steps=20), *sides, torch_network(seed=seed).state_dict(), steps=1)
    assert (STRANGE in found.content["warnings"]) == (seed == 1)


def test_a_pruned_weight_is_read_with_its_mask():
    module, x = torch_network(300), torch.rand(5, 300, generator=torch.Generator().manual_seed(1))
    for name in ("weight", "bias"):
        prune.l1_unstructured(module[0], name, 0.3)
    target = weights.read(module.state_dict(), layout="HWC")
    torch.testing.assert_close(target.logits(x.double()), module(x).double(), rtol=0, atol=1e-5)
    assert (target.layers[0].weight == 0).sum() == 0.3 * WIDTH * 300 and not target.notes


LEFT = {
    "batch norm": lambda state: state | {"1.running_mean": torch.ones(WIDTH)},
    "layer norm": lambda state: (
        state | {"1.weight": torch.ones(WIDTH), "1.bias": torch.ones(WIDTH)}
    ),
    "a scale": lambda state: state | {"scale": torch.tensor(3.0)},
    "indices": lambda state: state | {"position_ids": torch.arange(9)[None]},
    "another bias": lambda state: state | {"0.bias": drawn(7)},
    "a branch": lambda state: state | {"head.weight": drawn(5, WIDTH)},
    "layers behind it of a square": lambda state: (
        state | {"mu.weight": drawn(64, 60), "out.weight": drawn(9, 64)}
    ),
    "what gives pictures": lambda state: (
        state | {"a.weight": drawn(60, 60), "b.weight": drawn(3 * SIDE**2, 60)}
    ),
    "a residual": lambda state: state | {"2.weight": drawn(2, 7)},
}


@pytest.mark.parametrize("kind", LEFT)
def test_names_that_were_not_understood_leave_the_outputs_unknown(kind):
    target = weights.read(LEFT[kind](torch_network().state_dict()))
    (said,) = report.not_asked(target, [])
    assert target.logits is None and len(target.layers) == 1
    assert re.match(
        "Only 0.weight of .*, and its outputs are not known, as .* may come between: name the func",
        said,
    )
    assert kind != "layer norm" or "as 1.weight, 1.bias may come" in said


def test_an_autoencoder_and_a_function_are_not_asked_all(sides):
    coder = torch_network(outputs=3 * SIDE**2)
    for given in (coder.state_dict(), coder, lambda batch: torch.zeros(len(batch), 2)):
        found = audit(given, *sides, steps=1)
        (said,) = checked(found)["finding"]["not_asked"]
        assert (
            found.status == report.NO_ANSWER
            and said in found.sentence
            and said not in found.content["warnings"]
        )
        assert "What was asked, and what not" in found.html()


def test_no_code_in_a_file_is_run(tmp_path):
    torch.save({"0.weight": GOOD["0.weight"], "x": Bomb(tmp_path / "ran")}, tmp_path / "net.pth")
    (tmp_path / "net.safetensors").write_bytes((tmp_path / "net.pth").read_bytes())
    for name, said in {
        "pth": "holds an object",
        "safetensors": "is no file of weights",
        "pt": "There is no",
    }.items():
        with pytest.raises(InputError, match=said):
            weights.read(tmp_path / f"net.{name}")
    assert not (tmp_path / "ran").exists()


def test_what_was_done_to_pictures_is_said(tmp_path):
    noise = np.random.default_rng(0).integers(0, 256, (5, 40, 30, 4), dtype=np.uint8)
    Image.fromarray(noise[0, ..., :3]).save(tmp_path / "a.png")
    Image.fromarray(noise[1, :16, :16]).save(tmp_path / "b.png")
    Image.fromarray(noise[2, :16, :16, 0]).save(tmp_path / "c.png")
    Image.fromarray(noise[3, :16, :16, 0].astype(np.uint16) * 257).save(tmp_path / "d.png")
    (tmp_path / "e.png").write_bytes((tmp_path / "a.png").read_bytes()[:60])
    (tmp_path / "notes.txt").write_text("no picture")
    found = pictures.load(str(tmp_path), SHAPE, "held-out pictures", skip=True)
    assert found.names == ["a.png", "b.png", "c.png", "d.png"] and found.labels is None
    grey = noise[3, :16, :16, 0] / 255
    np.testing.assert_allclose(found.images[3].reshape(SHAPE)[..., 1], grey)
    white = 255 - noise[1, 0, 0, 3].astype(float)
    assert found.images[1, 0] * 255 == pytest.approx(
        white + noise[1, 0, 0, 0] * (noise[1, 0, 0, 3] / 255), abs=1.01
    )
    done = (
        "1 were cut",
        "1 are transparent",
        "2 are grey",
        "1 have 16 bits",
        "1 could not be read",
        "1 files are no",
    )
    assert all(f"Of the held-out pictures, {part}" in " ".join(found.notes) for part in done)


@pytest.mark.parametrize("how", range(2, 9))
def test_pictures_are_turned_as_their_cameras_say(how, tmp_path):
    upright = np.random.default_rng(0).integers(0, 256, (9, 12, 3), dtype=np.uint8)
    undo = {2: 0, 3: 3, 4: 1, 5: 5, 6: 2, 7: 6, 8: 4}[how]  # of Image.Transpose
    exif = Image.Exif()
    exif[pictures.ORIENTATION] = how
    Image.fromarray(upright).transpose(undo).save(tmp_path / "a.png", exif=exif)
    assert pictures.own_shapes([tmp_path]) == [(9, 12, 3)]
    found = pictures.load(tmp_path, upright.shape, "training pictures")
    assert torch.equal(found.images[0], torch.from_numpy(upright).double().flatten() / 255)
    assert found.notes[0].startswith(
        "Of the training pictures, 1 were turned as their cameras say (EXIF)"
    )


@pytest.mark.parametrize("mode", ["L", "RGB", "P", "I;16"])
@pytest.mark.parametrize("kind", ["flat", "class"])
def test_pictures_of_the_networks_size_are_neither_cut_nor_coloured(mode, kind, sides, tmp_path):
    for name, (pixels, _) in zip(("in", "held"), sides):
        (tmp_path / name / kind).mkdir(parents=True)
        for k, one in enumerate(pixels):
            grey = Image.fromarray(one).convert("L").resize((30, 40))
            deep = Image.fromarray(np.asarray(grey).astype(np.uint16) * 257)
            path = tmp_path / name / (kind if kind == "class" else "") / f"{k}.png"
            (deep if mode == "I;16" else grey.convert(mode)).save(path)
    folders = [tmp_path / "in", tmp_path / "held"]
    target, shape = network_for(torch_network(1200).state_dict(), folders, None, "CHW")
    assert shape == (40, 30, 1) and target.logits
    assert pictures.load(folders[0], shape, "pictures").images.shape == (M, 1200)
    with pytest.raises(
        InputError, match=r"takes pictures of 40×30×3, but 0.weight .*[(]such as --shape 32 32 3[)]"
    ):
        network_for(torch_network(3072).state_dict(), folders, None, "CHW")


def test_the_same_pictures_are_read_from_folders_files_and_arrays(tmp_path, sides):
    pixels, labels = sides[0]
    np.savez(tmp_path / "a.npz", images=pixels, labels=labels)
    ways = [saved(tmp_path / "a", (pixels, labels)), str(tmp_path / "a.npz"), (pixels, labels)]
    ways += [(torch.from_numpy(pixels).permute(0, 3, 1, 2) / 255.0, torch.from_numpy(labels))]
    first, *others = (pictures.load(way, SHAPE, "training pictures") for way in ways)
    order = sorted(range(M), key=lambda k: (labels[k], k))  # of a folder: class after class
    for other in others:
        torch.testing.assert_close(other.images[order], first.images, rtol=0, atol=1e-7)
        assert (
            pictures.numbered((other, first._replace(labels=other.labels)), 2)[0].tolist()
            == labels.tolist()
        )


def test_pictures_that_are_on_both_sides_are_left_out_and_few_are_refused(sides):
    ours, theirs = (
        pictures.load(part, SHAPE, what) for part, what in zip(sides, ("training", "held-out"))
    )
    shared = theirs._replace(images=torch.cat([theirs.images[1:], 0.99 * ours.images[3:4]]))
    found, notes = pictures.distinct([ours, shared], SHAPE)
    assert [one.names for one in found] == [[*ours.names[:3], *ours.names[4:]], theirs.names[:-1]]
    left_out = zip((1, 1), ("training", "held-out"), ("training 3", "held-out 11"))
    said = "{} {} pictures are copies of others, or nearly so, and were left out, such as {}."
    assert notes == [said.format(*one) for one in left_out]
    with pytest.raises(InputError, match="There are 0 training pictures, without near-copies"):
        pictures.distinct([ours, ours], SHAPE)
    with pytest.raises(InputError, match="No output is of the class 7"):
        pictures.numbered((ours, theirs._replace(labels=[7] * M)), 2)


def test_p_values_are_uniform_without_a_leak_and_within_classes():
    labels = (torch.arange(20) % 2, (torch.arange(30) % 10 == 0).long())
    found = []
    for seed in range(60):
        ours, theirs = (
            drawn(len(part), seed=2 * seed + k) + 5 * part for k, part in enumerate(labels)
        )
        found.append(judge.p_value(ours, theirs, labels, seed))
    assert kstest(found, "uniform").pvalue > 0.01
    assert judge.p_value(ours, theirs) < 0.05  # the classes are taken for a leak


def comparison(name, p):
    """A Comparison with this p-value, which needs no correction."""
    return judge.Comparison(name, 0.9, 0.5, p, p)


def test_a_count_is_exchanged_within_classes():
    """Sides of other classes do not tell a network that knows neither; without classes the test is Fisher's."""
    labels = torch.arange(60) < 45, torch.arange(60) < 20
    passing = [part.clone() for part in labels]
    assert (
        judge.of_count("right", passing).p < 1e-5
        and judge.of_count("right", passing, labels).p == 1
    )
    ours, theirs = torch.arange(20) < 12, torch.arange(30) < 7
    expected = fisher_exact([[12, 8], [7, 23]], alternative="greater").pvalue
    assert judge.of_count("right", [ours, theirs]).p == pytest.approx(expected)


def test_losses_that_are_rounded_to_nothing_are_told_apart(sides):
    case = stages.Case(
        (), (), None, 3, (), (), (), SHAPE, abs, networks.Recipe((), "cross_entropy", 0.0)
    )
    z = torch.tensor([[90.0, 0, 0], [0, 100, 0], [3, 2, 1]], dtype=torch.float64)
    labels = torch.tensor([0, 1, 0])
    values, losses = stages.margins(case, z, labels), stages.losses(case, z, labels)
    assert losses[0] == losses[1] == 0 and values[1] > values[0] > values[2]
    assert torch.nn.functional.softplus(-values[2]) == pytest.approx(losses[2].item())
    assert stages.margins(case, z[:, :1], labels).tolist() == [-90, 0, -3]


def test_counts_are_judged_by_fisher_and_their_number_by_holm():
    count = judge.of_count("alike", [torch.arange(18) < 7, torch.zeros(18, dtype=torch.bool)])
    assert (count.training, count.held_out) == (7, 0) and count.p == pytest.approx(0.0038, abs=2e-4)
    adjusted = [one.adjusted for one in judge.holm([comparison("", p) for p in (0.04, 0.01, 0.03)])]
    assert adjusted == pytest.approx([0.06, 0.03, 0.06])


@pytest.mark.parametrize(
    "ours, theirs", [((9, 200), (0, 9)), ((1, 10), (0, 10)), ((9, 9), (0, 9)), ((9, 9), (4, 9))]
)
@pytest.mark.parametrize("level", [0.05, 1e-4])
@pytest.mark.parametrize("differ", [False, True])
def test_pictures_that_came_back_leak_by_both_sizes_and_the_level(ours, theirs, level, differ):
    near = [torch.arange(size) < count for count, size in (ours, theirs)]
    (count,) = judge.holm([judge.of_count(f"{judge.BACK} with what unmixing returned", near)])
    status, said = report.finding(near, [count], [comparison("brightness", 1e-4)] * differ, level)
    assert (status == report.LEAKS) == (count.p < level)
    assert "came back almost exactly" in said
    alone = not theirs[0]  # that none of so few came back does not say that nothing leaks
    assert (status == report.NO_ANSWER) == (count.p >= level and (differ or alone))


OPENINGS = "These attacks found nothing. ", "Something leaks. ", "There is no answer. "
LEAK = "1 of 1 comparisons tells"
NONE = "None of 1 comparisons tells training pictures from held-out ones. "
BLIND = "With so few pictures the area of membership by loss may be as large as 0.75: give more of both sides."


@pytest.mark.parametrize("p, differ, given, status, words", [
    ([1e-4], 1e-4, {}, 2, "The two sides differ by themselves, in brightness"), ([1e-4], 1.0, {}, 1, LEAK),
    ([1e-4], 1.0, {"poor": "50 %."}, 1, LEAK), ([], 1.0, {}, 2, "No attack could be run."),
    ([0.5], 1.0, {"poor": "50 %."}, 2, "50 %."), ([0.5], 1.0, {"poor": "5 %.", "better": "50 %."}, 2, "50 %."),
    ([0.5], 1.0, {}, 0, NONE),
    ([0.5], 1.0, {"missed": ["No losses."]}, 2, f"{NONE}Not all was asked. No losses."),
    ([1e-4], 1.0, {"missed": ["No losses."]}, 1, LEAK), ([1e-4], 1.0, {"blind": 0.99}, 1, LEAK),
    ([0.5], 1.0, {"blind": 0.7499}, 0, NONE), ([0.5], 1.0, {"blind": 0.75}, 2, f"{NONE}{BLIND}"),
])  # fmt: skip
def test_what_is_found(p, differ, given, status, words):
    scores = [
        {"score": "structure", "high": 1.0},
        {"score": stages.BY_LOSS, "high": given.get("blind", 0.0)},
    ]
    tests = [comparison("loss", one) for one in p], [comparison("brightness", differ)]
    found, sentence = report.finding(
        None, *tests, 0.05, **given | {"blind": report.blindness(scores)}
    )
    assert (
        found == status
        and sentence.startswith(OPENINGS[status] + words)
        and not re.search("NCC|Holm", sentence)
    )
    assert ("No losses." in sentence) == ("missed" in given)
    assert ("50 %" in sentence) == ("poor" in given and status != report.LEAKS)


def checked(found):
    """A report that keeps its schema, and a page that needs nothing else."""
    jsonschema.validate(json.loads(found.json()), SCHEMA)
    page = found.html()
    assert not re.findall(r"""(?:src|href)=(?!["']?data:)|<script|@import|url\(""", page)
    assert found.sentence.split(".")[0] in page
    return found.content


def test_a_mixture_of_training_pictures_leaks(sides, mixing, tmp_path):
    found = audit(mixing, *sides, steps=5)
    content = checked(found)
    assert found.status == report.LEAKS and found.sentence.startswith("Something leaks.")
    assert "The pictures themselves can be rebuilt" in found.html()
    structure = next(one for one in content["stages"] if one["name"] == "structure of W₁")
    assert (
        structure["said"] == f"The singular values of W₁ fall off a cliff that shows {M} pictures."
    )
    inside = {one["name"]: (one["training"], one["held_out"]) for one in content["comparisons"]}
    assert inside["pictures in the span of W₁"] == (M, 0)
    assert len(content["images"]) == 2 * M
    risks = [one["ncc"] for one in content["images"]]
    assert risks == sorted(risks, reverse=True)
    assert found.save(tmp_path / "out") == tmp_path / "out" / "report.html"
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
        "report.html",
        "report.json",
    ]


def test_what_training_added_to_a_known_start_leaks(sides, mixing):
    initial = torch_network(seed=3).state_dict()
    after = mixing | {"0.weight": mixing["0.weight"] + 0.9 * initial["0.weight"]}
    moments = {k: {"exp_avg": drawn(*part.shape)} for k, part in enumerate(after.values())}
    state = {"state": moments, "param_groups": [{"params": [*moments]}]}
    blind, seeing = (
        audit(after, *sides, before, steps=5, optimizer=state) for before in (None, initial)
    )
    inside = {
        one["name"]: (one["training"], one["held_out"]) for one in checked(seeing)["comparisons"]
    }
    assert (
        inside["pictures in the span of the change of W₁"] == (M, 0)
        and seeing.status == report.LEAKS
    )
    assert not any("shows 12 pictures" in one["said"] for one in checked(blind)["stages"])


def test_an_untrained_network_is_not_said_to_be_safe(sides):
    found = audit(torch_network().state_dict(), *sides, steps=5)
    assert (
        found.status == report.NO_ANSWER
        and "of the training pictures correctly: it was not" in found.sentence
    )
    assert "safe" not in re.sub("base64,[^']*", "", found.html())
    checked(found)
    assert not any(found.pictures.values())  # no photograph stands beside noise
    assert "so none is shown" in found.html() and "pictures most at risk" not in found.html()


def test_a_function_is_audited_by_its_losses_alone(sides):
    marks = {one.tobytes(): label for one, label in zip(*sides[0])}

    def classify(batch):
        known = [
            marks.get((255 * one.permute(1, 2, 0)).round().byte().numpy().tobytes())
            for one in batch
        ]
        return torch.tensor(
            [[0.0, 0.1] if label is None else [5.0 * (1 - label), 5.0 * label] for label in known]
        )

    found = audit(classify, *sides)
    content = checked(found)
    assert [one["name"] for one in content["stages"]] == [
        "membership by loss"
    ] and found.status == report.LEAKS
    assert "can be rebuilt" not in found.html()  # no picture came back
    first = content["true_positives"][0]
    assert (first["auc"], first["rate"], first["allowed"], first["of"], first["value"]) == (
        1.0,
        0.01,
        0,
        M,
        1.0,
    )


def test_more_pictures_than_neurons_are_refused_at_once(sides):
    found = audit(torch_network(width=M).state_dict(), *sides, steps=1)
    one = next(one for one in checked(found)["stages"] if one["name"] == "unmixing of W₁")
    assert (
        one["state"] == "refused"
        and one["expected_seconds"] == 1
        and "too few to tell 12" in one["said"]
    )


def test_a_stage_beyond_the_limit_is_skipped_and_said(sides, mixing):
    assert audit(torch_network().state_dict(), *sides, limit=0.3).status == report.NO_ANSWER
    found = audit(mixing, *sides, limit=0.0)
    assert found.status == report.NO_ANSWER and "No attack could be run." in found.sentence
    assert "Membership by loss was skipped: It would take about 1 s" in found.sentence
    slow = stages.Outcome(
        "unmixing of W₁", "skipped", "It would take about 9 s, and the limit is 1 s."
    )
    target = weights.Target("net", weights.read(mixing).layers, abs, [])
    assert report.not_asked(target, [stages.Outcome("structure", "ran", ""), slow])[0].startswith(
        "Unmixing of W₁ was"
    )
    refused = [
        stages.Outcome(name, "refused", "No.") for name in (stages.BY_LOSS, "unmixing of W₁")
    ]
    assert report.not_asked(target, refused) == ["Membership by loss was refused: No."]
    assert report.not_asked(target, refused[1:]) == ["No attack on the weights could be run."]
    assert {one["state"] for one in checked(found)["stages"]} == {"skipped"}


def test_the_command_says_by_its_status_what_it_found(sides, mixing, tmp_path, capsys, monkeypatch):
    torch.save(mixing, tmp_path / "leaks.pth")
    more = doubled(sides)
    torch.save(fitted(more), tmp_path / "fair.pth")
    folders = [str(saved(tmp_path / name, part)) for name, part in zip(("in", "out"), more)]

    def status(network, out):
        return main(
            [str(tmp_path / network), *folders, "--steps", "5", "--out", str(tmp_path / out)]
        )

    assert status("leaks.pth", "a") == 1 and "Something leaks." in capsys.readouterr().out
    assert status("fair.pth", "b") == 0
    with monkeypatch.context() as patch:
        patch.setattr(judge, "TELLING", 0.5)  # as if there were fewer
        assert (
            status("fair.pth", "d") == 2 and "give more of both sides." in capsys.readouterr().out
        )
    assert json.loads((tmp_path / "b" / "report.json").read_text())["finding"]["status"] == 0
    assert status("none.pth", "c") == 2 and not (tmp_path / "c").exists()
    assert capsys.readouterr().err.splitlines()[-1].startswith("There is no file")
    for unwritten in ("leaks.pth/d", 300 * "x"):
        assert (
            status("leaks.pth", unwritten) == 2 and "cannot be written" in capsys.readouterr().err
        )
    monkeypatch.setattr("audit.command.audit", lambda **given: 1 / 0)
    (tmp_path / "old").mkdir()
    assert (
        status("leaks.pth", "e/f") == status("leaks.pth", "old") == FAULT
    )  # never taken for a leak
    assert (
        not (tmp_path / "e" / "f").exists() and (tmp_path / "old").is_dir()
    )  # what we made is gone, and only that


ENDS = {  # what a library, or code of a stranger's, may do while an audit runs, and its exit status
    "cannot be loaded": ("sys.modules['audit.report'] = 3", "", FAULT),
    "cannot write": ("", "2>/dev/full", FAULT),
    "helps": ("", "--help", 0),
    "ends the process": ("sys.meta_path.insert(0, type('', (), {'find_spec': ends}))", "", FAULT),
    "is stopped": (
        "signal.signal(signal.SIGALRM, stop); signal.setitimer(signal.ITIMER_REAL, 0.5)",
        "",
        INTERRUPTED,
    ),
}


@pytest.mark.parametrize("kind", ENDS)
def test_no_fault_is_taken_for_an_answer(kind, tmp_path):
    before, words, status = ENDS[kind]
    code = f"""
import os, runpy, signal, sys
def ends(name, *_): name == 'audit.judge' and os._exit(1)
def stop(*_): os.kill(os.getpid(), signal.SIGINT)
{before}
runpy.run_module('audit', run_name='__main__', alter_sys=True)"""
    command = f'"$0" -c "$1" none.pth in held {words}'
    env = os.environ | {"PYTHONPATH": os.getcwd()}
    run = subprocess.run(
        ["sh", "-c", command, sys.executable, code], env=env, cwd=tmp_path, capture_output=True
    )
    assert run.returncode == status


def test_the_installed_command_has_its_own_name(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["bin/audit", "none.pth", "in", "held"])
    scripts = tomllib.loads(Path("pyproject.toml").read_text())["project"]["scripts"]
    assert scripts == {"audit": "audit.__main__:command"}
    assert parser().prog == "audit" and "audit tuned.safetensors" in parser().format_help()
    assert parser().parse_args(
        ["net", "in", "held", "--mean", "0.49", "-0.45", "--centred"]
    ).mean == [0.49, -0.45]
    monkeypatch.setattr("audit.command.DATA", tmp_path / "none")
    assert main() == report.NO_ANSWER and "install it from a clone" in capsys.readouterr().err


def test_all_is_said_in_any_encoding(sides, mixing, tmp_path, monkeypatch):
    streams = {
        name: io.TextIOWrapper(io.BytesIO(), code)
        for name, code in (("stdout", "cp1252"), ("stderr", "ascii"))
    }
    for name, stream in streams.items():
        monkeypatch.setattr(sys, name, stream)
    assert main(["нет.pth", "in", "held"]) == report.NO_ANSWER
    found = audit(mixing, *sides, steps=1)
    # a name that is no text, as unzip leaves them
    found.content["images"][0]["name"] = "caf\udce9.png"
    monkeypatch.setattr("audit.command.audit", lambda **given: found)
    assert main(["net.pth", "in", "held", "--out", str(tmp_path / "отчёт")]) == report.LEAKS
    assert streams["stdout"].buffer.getvalue().startswith(b"Something leaks.")


@pytest.mark.parametrize("name, value, said", [
    ("layout", "WHC", "The layout is"), ("loss", "hinge", "The loss is"), ("shape", (8, 8, 3), "have the sizes"),
])  # fmt: skip
def test_wrong_parameters_are_refused(name, value, said, sides, mixing):
    with pytest.raises(InputError, match=said):
        audit(mixing, *sides, **{name: value})


def test_pictures_behind_a_known_start_are_sure(sides):
    rows, labels = (torch.from_numpy(part) for part in sides[0])
    part = images.Part(rows.flatten(1).double() / 255, labels.double())
    victim = ordinary.train(part, None, SHAPE, "sgd", (3 * WIDTH,), epochs=40)
    after = victim.released.network
    before = victim.initial
    mean = victim.mean.view(SHAPE)[0, 0].tolist()
    content = checked(audit(after, *sides, before, mean=mean, layout="HWC", steps=1))
    sure = {
        side: [one["sure"] for one in content["images"] if one["side"] == side]
        for side in report.SIDES
    }
    assert sum(sure["training"]) >= M // 2 and not any(sure["held_out"])
    change = next(one for one in content["stages"] if one["name"] == "unmixing of the change of W₁")
    assert int(re.search("make (\\d+) of", change["said"])[1]) >= sum(sure["training"])
    after, before = ((net[0]._replace(bias=None), *net[1:]) for net in (after, before))
    blind = audit(after, *sides, before, mean=mean, layout="HWC", steps=1)
    assert {one["sure"] for one in checked(blind)["images"]} == {None}


PICTURES = {
    "corrupt": (
        lambda path: path.write_bytes(path.read_bytes()[:60]),
        "cannot be read as a picture",
    ),
    "real": (
        lambda path: Image.fromarray(np.zeros((9, 9), np.float32)).save(path, "TIFF"),
        "holds real numbers",
    ),
    "a program": (
        lambda path: path.write_text("%!PS-Adobe-3.0 EPSF-3.0"),
        "00.png cannot be read as a picture",
    ),
    "steering": (
        lambda path: path.rename(path.with_name("\x1b[2J.png")).write_text(""),
        r"/\x1b[2J.png cannot be read",
    ),
    "few": (
        lambda path: [one.unlink() for one in sorted(path.parent.iterdir())[2:]],
        "There are 8 training pictures",
    ),
    "beside": (
        lambda path: path.rename(path.parent.parent / "x.png"),
        "holds pictures beside folders of pictures",
    ),
}
OPTIONS = {
    "--level nan": "The level is nan",
    "--limit -1": "The limit is -1.0",
    "--limit inf": "The limit is inf: give the seconds",
    "--steps 0": "There are 0 steps",
    f"--steps {10**400}": "give one step to 1,000,000",
    f"--seed {2**64}": "a seed from 0 to 4,294,967,295",
    "--deviation 1e300": "it must be positive, for pixels in [0, 1]",
    "--resize 15": "Pictures of 15 pixels a side hold no 16×16: resize them to more",
    "--resize 9999": "1 to 4096 pixels of the shorter side",
    "--resize whole": "The way to resize is 'whole', but",
    "--accuracy 83": "The accuracy is 83.0: give the share",
    "--mean nan": "The mean is",
    "--mean 0.1 0.2": "The mean is",
    "--deviation 0": "it must be positive",
    "--before SELF": "The first layer is that of its start",
    "--before BIASLESS": "A layer of the network has a bias that the start lacks",
    "--key ema": "holds no network ema, as its names begin with 0, 2: give another key, or none.",
    "--before none-00001-of-00002.safetensors": "There is no file",
}


def one_sentence(arguments, out, capsys):
    """What the command says in its one line when it cannot answer; it writes nothing."""
    assert main([*map(str, arguments), "--out", str(out)]) == report.NO_ANSWER
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1 and not out.exists()
    return lines[0]


@pytest.fixture
def folders(sides, tmp_path):
    torch.save(torch_network().state_dict(), tmp_path / "net.pth")
    return [
        tmp_path / "net.pth",
        *(saved(tmp_path / name, part) for name, part in zip(("in", "held"), sides)),
    ]


@pytest.mark.parametrize("kind", [*PICTURES, *OPTIONS])
def test_bad_pictures_and_options_give_one_sentence(kind, folders, tmp_path, capsys):
    spoil, said = PICTURES.get(kind, (str, OPTIONS.get(kind)))
    spoil(sorted(folders[1].rglob("*.png"))[0])
    bare = {
        name: part + 1 for name, part in torch_network().state_dict().items() if name != "0.bias"
    }
    torch.save(bare, tmp_path / "bare.pth")
    files = {"SELF": folders[0], "BIASLESS": tmp_path / "bare.pth"}
    words = [files.get(word, word) for word in kind.split() if kind in OPTIONS]
    assert said in one_sentence([*folders, *words], tmp_path / "out", capsys)


def test_a_grey_network_takes_grey_pictures_alone(sides, folders, tmp_path, capsys):
    """It is not asked about what it cannot have been trained on; grey pictures may have three equal channels."""
    torch.save(torch_network(28**2).state_dict(), tmp_path / "grey.pth")
    grey = [
        saved(tmp_path / name, (part[..., :1].repeat(3, -1), labels))
        for name, (part, labels) in zip("ab", sides)
    ]
    assert (
        "12 were cut to their middle"
        in audit(tmp_path / "grey.pth", *grey, steps=1, shape=(28, 28)).content["warnings"][0]
    )
    said = one_sentence(
        [tmp_path / "grey.pth", *folders[1:], *["--shape", "28", "28", "1"]],
        tmp_path / "out",
        capsys,
    )
    assert "01.png is in colour, and the network takes grey ones of 28×28" in said


@pytest.mark.parametrize("failing", [0, 1])
def test_a_full_disk_leaves_no_half_of_a_report(failing, sides, mixing, tmp_path, monkeypatch):
    found, write = audit(mixing, *sides, steps=1), Path.write_bytes

    def full(path, contents):
        if path.name.startswith(report.FILES[failing]):
            raise OSError(28, "No space left on device")
        return write(path, contents)

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(InputError, match="cannot be written .*No space left"):
        found.save(tmp_path / "out")
    assert not [*(tmp_path / "out").iterdir()]
