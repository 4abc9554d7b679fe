"""Files with which a training goes on: what an audit reads of an optimiser's state, and what it says of others."""

import json
import re
from functools import partial

import numpy as np
import pytest
import torch
from helpers import audit, batch, checked
from known_files import in_eight_bits, learned
from safetensors.torch import save_file

from audit import report, risks, states, weights
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
    sizes = (3 * SIDE**2, 60), (60, 60), (60, 2)
    first, second, last = (torch.nn.Linear(*size) for size in sizes)
    net = torch.nn.Sequential(first, torch.nn.ReLU(), second, torch.nn.ReLU(), last)
    optimiser = optimiser(net.parameters())
    learned(net, batch(side[0]).flatten(1) - 0.4, side[1], steps, optimiser)
    return net.state_dict(), optimiser.state_dict()


def saved(state, optimiser):
    """What a training saves in one file."""
    return {"net": state, "optimizer_state_dict": optimiser}


@pytest.mark.parametrize(
    "side, optimiser, entry", [(0, MOMENTUM, "momentum_buffer"), (1, ADAM, "exp_avg")]
)
def test_a_moment_gives_away_the_pictures_that_it_was_trained_on(side, optimiser, entry, sides):
    state, kept = trained(sides[side], optimiser)
    lightning = {
        "state_dict": {f"model.{name}": part for name, part in state.items()},
        "optimizer_states": [kept],
        "callbacks": {"Checkpoint": {"score": torch.tensor(0.1)}},
    }
    given = (lightning, None) if side else (state, kept)
    found = audit(given[0], *sides, optimizer=given[1], mean=0.4, steps=1)
    content = checked(found)
    unmixed = [one for one in content["images"] if one["attack"] == f"unmixing of {entry}"]
    back = [one["side"] for one in unmixed if one["returned"]]
    assert len(back) >= 8 and {*back} == {risks.SIDES[side]}
    # others' pictures are no leak of these
    assert found.status == (report.NO_ANSWER if side else report.LEAKS)
    assert states.ADVICE in content["warnings"]


@pytest.mark.parametrize("form", ["wrapped", "blocks of 2048", "one block", "one state"])
def test_a_moment_in_eight_bits_gives_away_pictures_and_is_said_to_be_rough(form, sides):
    state, kept = trained(sides[0], ADAM)
    size = {"blocks of 2048": 2048, "one block": FIRST.numel()}.get(form, 256)
    stored = in_eight_bits(kept, size)
    for one in stored["state"].values():
        inside = one.pop(states.WRAPPED)
        if form == "one state":
            inside.pop("state2")
        if form == "one block" and "absmax1" in inside:
            inside["max1"] = inside.pop("absmax1")
        one.update({states.WRAPPED: inside} if form == "wrapped" else inside)
    found = audit(saved(state, stored), *sides, mean=0.4, steps=1)
    content = checked(found)
    entry = "momentum_buffer" if form == "one state" else "exp_avg"
    back = [one for one in content["images"] if one["attack"] == f"unmixing of {entry}"]
    assert sum(one["returned"] for one in back if one["side"] == risks.SIDES[0]) >= 6
    assert found.status == report.LEAKS and states.ROUGH in content["warnings"]


@pytest.mark.parametrize("network", ["model.safetensors", "."])
def test_the_command_takes_an_optimiser_in_a_file_of_its_own_and_finds_it_in_a_folder(
    network, sides, tmp_path
):
    state, kept = trained(sides[0], MOMENTUM)
    save_file(state, tmp_path / "model.safetensors")
    torch.save(kept, tmp_path / "optimizer.pt")
    for name, (pixels, labels) in zip(("in", "held"), sides):
        np.savez(tmp_path / name, images=pixels, labels=labels)
    files = (str(tmp_path / name) for name in (network, "in.npz", "held.npz"))
    options = {"--out": "report"} | ({} if network == "." else {"--optimizer": "optimizer.pt"})
    placed = [word for name, file in options.items() for word in (name, str(tmp_path / file))]
    assert main(["network", *files, *placed, "--mean", "0.4", "--steps", "1"]) == report.LEAKS
    content = json.loads((tmp_path / "report" / "report.json").read_text())
    assert "unmixing of momentum_buffer" in {one["attack"] for one in content["images"]}


def read(content, *others):
    """The State in a file, or in several, as an audit reads it."""
    layers = weights.read(content, SHAPE).layers
    return states.read([content, *others], layers, SHAPE, "CHW")


@pytest.mark.parametrize("optimiser, place", [(ADAM, 1), (decayed, 3)])  # behind all matrices
def test_a_moment_is_that_of_the_first_layer_in_the_networks_layout(optimiser, place, sides):
    state, kept = trained(sides[0], optimiser, 2)
    found = read(saved(state, kept))
    weight, bias = (kept["state"][k][found.entry].double() for k in (0, place))
    turned = weight.view(-1, 3, SIDE, SIDE).permute(0, 2, 3, 1).flatten(1)
    assert torch.equal(found.checkpoint.first[0].weight, turned)
    assert torch.equal(found.checkpoint.first[0].bias, bias)


def test_a_bias_whose_layer_is_not_told_is_none(sides):
    state, kept = trained(sides[0], ADAM, 2)
    groups = [{**kept["param_groups"][0], "params": some} for some in ([0, 2, 4], [3], [1, 5])]
    found = read(saved(state, kept | {"param_groups": groups})).checkpoint
    assert found.first[0].bias is None and found.network[0].bias is None


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
    "It holds squares of gradients alone, which": {"state": {0: {"state1": FIRST}}},
    "in shards, or": of_each(state1=FIRST.byte(), qmap1=drawn(256), absmax1=drawn(7)),
    "exp_avg holds values that are NaN, infinite or": {"state": {0: {"exp_avg": FIRST / 0}}},
    "exp_avg holds no dense real numbers": {"state": {0: {"exp_avg": FIRST.byte()}}},
    "It holds exp_avg_sq_row, which": of_each(exp_avg_sq_row=drawn(9), exp_avg=FIRST),
    "It holds exp_avg_sq, .* do not publish it": of_each(exp_avg_sq=FIRST, step=3),
}


@pytest.mark.parametrize("said", UNREAD)
def test_a_state_that_is_not_read_is_said_in_one_sentence(said, sides):
    state, kept = trained(sides[0], ADAM, 1)
    found = read(saved(state, kept | UNREAD[said]))
    assert not found.entry and found.checkpoint is None and found.notes == (states.ADVICE,)
    assert re.match(f"The dict, optimizer_state_dict: .*{said}.*[.]$", found.refusal)


def test_what_was_not_read_is_no_all_clear(sides):
    both = [np.concatenate(part) for part in zip(*sides)]
    state, kept = trained(both, partial(torch.optim.SGD, lr=0.1), 60)
    empty = {"state": {}, "param_groups": [{"params": [0]}]}
    for optimiser, answer in ((kept, report.FOUND_NOTHING), (empty, report.NO_ANSWER)):
        assert audit(saved(state, optimiser), *sides, mean=0.4, steps=1).status == answer
    two = saved(*trained(sides[0], ADAM, 1))
    assert read(two, two).refusal.startswith("Two states hold a moment")
