"""Files with which a training goes on: what an audit reads of an optimiser's state, and what it says of others."""

import json
import re
from functools import partial

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch.nn.functional import cross_entropy

from audit import report, states, weights
from audit.command import main
from conftest import SHAPE, SIDE, drawn

ADAM = partial(torch.optim.Adam, lr=1e-3)
MOMENTUM = partial(torch.optim.SGD, lr=0.05, momentum=0.9, weight_decay=1e-3)


def decayed(parameters):
    """AdamW with weight decay on matrices alone, as Hugging Face's trainer groups parameters."""
    parts = [*parameters]
    return torch.optim.AdamW(
        [{"params": [p for p in parts if (p.dim() > 1) == many]} for many in (True, False)]
    )


def trained(side, optimiser, steps=15):
    """The states of a network, two of whose layers have 60 biases, and of its optimiser, after some steps."""
    torch.manual_seed(0)
    first, second, last = (
        torch.nn.Linear(*size) for size in ((3 * SIDE**2, 60), (60, 60), (60, 2))
    )
    net = torch.nn.Sequential(first, torch.nn.ReLU(), second, torch.nn.ReLU(), last)
    optimiser = optimiser(net.parameters())
    x = torch.from_numpy(side[0] / 255 - 0.4).permute(0, 3, 1, 2).flatten(1).float()
    labels = torch.from_numpy(side[1])
    for k in range(steps):
        optimiser.zero_grad()
        cross_entropy(net(x[k % 3 :: 3]), labels[k % 3 :: 3]).backward()
        optimiser.step()
    return net.state_dict(), optimiser.state_dict()


def saved(way, state, optimiser, folder):
    """What a way of saving leaves in a folder: paths."""
    if way == "net.safetensors":
        save_file(state, folder / way)
        torch.save(optimiser, folder / "optimizer.pt")
        return [folder / way, folder / "optimizer.pt"]
    named = {f"model.{name}": part for name, part in state.items()}
    rest = {
        "hyper_parameters": {"lr": 0.1},
        "loops": {},
        "callbacks": {"Checkpoint": {"score": torch.tensor(0.1)}},
    }
    lightning = {"state_dict": named, "optimizer_states": [optimiser], **rest}
    torch.save(
        lightning if way == "last.ckpt" else {"net": state, "optimizer_state_dict": optimiser},
        folder / way,
    )
    return [folder / way]


def status(paths, sides, folder):
    """The exit status of the command on files, and the content of its report."""
    for name, (pixels, labels) in zip(("in", "held"), sides):
        np.savez(folder / name, images=pixels, labels=labels)
    given = [
        paths[0],
        folder / "in.npz",
        folder / "held.npz",
        *(["--optimizer", *paths[1:]] * bool(paths[1:])),
    ]
    found = main(
        ["network", *map(str, given), "--mean", "0.4", "--steps", "1", "--out", str(folder / "out")]
    )
    return found, json.loads((folder / "out" / "report.json").read_text()) if (
        folder / "out"
    ).exists() else None


@pytest.mark.parametrize("side, optimiser, way, entry", [
    (0, MOMENTUM, "net.safetensors", "momentum_buffer"), (1, ADAM, "last.ckpt", "exp_avg"),
])  # fmt: skip
def test_a_moment_gives_away_the_pictures_that_it_was_trained_on(
    side, optimiser, way, entry, sides, tmp_path
):
    found, content = status(saved(way, *trained(sides[side], optimiser), tmp_path), sides, tmp_path)
    back = [
        one
        for one in content["images"]
        if one["returned"] and one["attack"] == f"unmixing of {entry}"
    ]
    assert len(back) >= 8 and {one["side"] for one in back} == {report.SIDES[side]}
    assert found == (
        report.NO_ANSWER if side else report.LEAKS
    )  # others' pictures are no leak of these
    assert states.ADVICE in content["warnings"] and content["settings"]["state"] == entry


def read(paths):
    """The State in files, as an audit reads it."""
    return states.read(paths, weights.read(paths[0], SHAPE).layers, SHAPE, "CHW")


@pytest.mark.parametrize(
    "optimiser, way", [(ADAM, "last.ckpt"), (MOMENTUM, "net.pth"), (decayed, "net.safetensors")]
)
def test_a_moment_is_that_of_the_first_layer_in_the_networks_layout(
    optimiser, way, sides, tmp_path
):
    state, kept = trained(sides[0], optimiser, 2)
    found = read(saved(way, state, kept, tmp_path))
    biases = 3 if optimiser is decayed else 1  # behind all matrices
    weight, bias = (kept["state"][k][found.entry].double() for k in (0, biases))
    turned = weight.view(-1, 3, SIDE, SIDE).permute(0, 2, 3, 1).flatten(1)
    assert torch.equal(found.checkpoint.first[0].weight, turned) and torch.equal(
        found.checkpoint.first[0].bias, bias
    )
    groups = [{**kept["param_groups"][0], "params": some} for some in ([0, 2, 4], [3], [1, 5])]
    untold = (
        read(saved(way, state, kept | {"param_groups": groups}, tmp_path)) if biases == 1 else found
    )
    assert (
        (untold.checkpoint.first[0].bias is None)
        == (untold.checkpoint.network[0].bias is None)
        == (biases == 1)
    )


def of_each(**entries):
    """A change of a state: to these entries of every parameter."""
    return {"state": {key: entries for key in range(6)}}


FIRST = torch.ones(60, 768)
UNREAD = {
    "does not tell which exp_avg of 60×768 is": of_each(exp_avg=FIRST),
    "or holds none .was it frozen.*: save the state of one group": of_each(exp_avg=drawn(60, 9)),
    "not that of its parameter groups": {"param_groups": [{"params": [0, 1, 2]}]},
    "The state is in shards": {"param_groups": 3, "state": [drawn(99)]},
    "The moment is zero: the file was": {"state": {}},
    "written before the first step": of_each(momentum_buffer=None),
    "or the state was": {"state": {}, "param_groups": []},
    "or the state was reset": {"state": {0: {"exp_avg": 0 * FIRST}}},
    "absmax1, state1, .* in all likelihood tells of the pictures": of_each(
        state1=drawn(9).byte(), absmax1=drawn(2)
    ),
    "exp_avg holds values that are NaN, infinite or": {"state": {0: {"exp_avg": FIRST / 0}}},
    "exp_avg holds no dense real numbers": {"state": {0: {"exp_avg": FIRST.byte()}}},
    "It holds exp_avg_sq_row, which": of_each(exp_avg_sq_row=drawn(9), exp_avg=FIRST),
    "It holds exp_avg_sq, .* do not publish it": of_each(exp_avg_sq=FIRST, step=3),
}


@pytest.mark.parametrize("said", UNREAD)
def test_a_state_that_is_not_read_is_said_in_one_sentence(said, sides, tmp_path):
    state, kept = trained(sides[0], ADAM, 1)
    found = read(saved("net.pth", state, kept | UNREAD[said], tmp_path))
    assert not found.entry and found.checkpoint is None and found.notes == (states.ADVICE,)
    assert re.match(f"net.pth, optimizer_state_dict: .*{said}.*[.]$", found.refusal), found.refusal


def test_what_was_not_read_is_no_all_clear(sides, tmp_path, capsys):
    both = [np.concatenate(part) for part in zip(*sides)]
    state, kept = trained(both, partial(torch.optim.SGD, lr=0.1), 60)
    for optimiser, answer, said in [
        (None, report.FOUND_NOTHING, ""), (kept, report.FOUND_NOTHING, "SGD without momentum keeps no gradient"),
        ({"state": {}, "param_groups": [{"params": [0]}]}, report.NO_ANSWER, "optimiser's state was refused"),
    ]:  # fmt: skip
        assert status(saved("net.pth", state, optimiser, tmp_path), sides, tmp_path)[0] == answer
        assert said in "".join(capsys.readouterr())
    two = saved("net.pth", *trained(sides[0], ADAM, 1), tmp_path)
    assert read([*two, *two]).refusal.startswith("Two states hold a moment")
