"""Whole audits: what leaks is found, what is not asked is no all-clear, and the command says so by its status."""

import io
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers import WIDTH, audit, batch, checked, fitted, knowing, mlp, saved
from known_files import toy
from sklearn.metrics import roc_curve

from audit import before, judge, report, risks, stages
from audit.__main__ import FAULT, INTERRUPTED
from audit.command import main
from conftest import SHAPE, SIDE, M, refused
from conftest import drawn as drawn_double
from training import images, ordinary
from utils.errors import InputError

MEAN = torch.full((1, 3, 1, 1), 0.25)


def drawn(*shape, seed=0):
    return drawn_double(*shape, seed=seed, dtype=torch.float32)


@pytest.fixture(scope="module")
def mixing(sides):
    """A state dict whose first layer is a mixture of the training pictures, flattened as torch does."""
    mixture, state = drawn(WIDTH, M), mlp().state_dict()
    weight = mixture @ batch(sides[0][0]).flatten(1)
    return state | {"0.weight": weight / 100, "0.bias": mixture.sum(1) / 100}


def compared(content):
    """The numbers of training and held-out pictures of every comparison of a report."""
    return {one["name"]: (one["training"], one["held_out"]) for one in content["comparisons"]}


def test_a_mixture_of_training_pictures_leaks(sides, mixing):
    found = audit(mixing, *sides, steps=5)
    content = checked(found)
    assert found.status == report.LEAKS
    assert f"a cliff that shows {M} pictures." in content["by_name"]["structure of W₁"]["said"]
    assert compared(content)["pictures in the span of W₁"] == (M, 0)
    back = [one["ncc"] * one["returned"] for one in content["images"]]
    assert len(back) == 2 * M and back == sorted(back, reverse=True) and back[0] > judge.NEAR


def test_a_count_below_that_of_the_pictures_is_doubted(sides, mixing):
    few = batch(sides[0][0][:8]).flatten(1)
    weight = drawn(WIDTH, len(few)) @ few / 100
    content = checked(audit(mixing | {"0.weight": weight}, *sides, steps=1))["by_name"]
    for name in ("structure of W₁", "unmixing of W₁"):
        assert f"shows 8 pictures, and there are {M}: after many" in content[name]["said"]


def test_what_training_added_to_a_known_start_leaks(sides, mixing):
    initial = mlp(seed=3).state_dict()
    after = mixing | {"0.weight": mixing["0.weight"] + 0.9 * initial["0.weight"]}
    blind = checked(audit(after, *sides, steps=5))
    assert not any("shows 12 pictures" in one["said"] for one in blind["stages"])
    found = audit(after, *sides, initial, steps=5)
    inside = compared(checked(found))["pictures in the span of the change of W₁"]
    assert inside == (M, 0) and found.status == report.LEAKS


def test_pictures_behind_a_known_start_are_sure_where_biases_are_known(sides):
    rows, labels = (torch.from_numpy(part) for part in sides[0])
    part = images.Part(rows.flatten(1).double() / 255, labels.double())
    victim = ordinary.train(part, None, SHAPE, "sgd", (3 * WIDTH,), epochs=40)
    networks = victim.released.network, victim.initial
    given = {"mean": victim.mean.view(SHAPE)[0, 0].tolist(), "layout": "HWC", "steps": 1}

    def sure(after, start):
        images = checked(audit(after, *sides, start, **given))["images"]
        return [[one["sure"] for one in images if one["side"] == side] for side in risks.SIDES]

    ours, theirs = sure(*networks)
    assert sum(ours) >= M // 2 and not any(theirs)
    bare = ((first._replace(bias=None), *others) for first, *others in networks)
    assert {*sum(sure(*bare), [])} == {None}


def test_an_untrained_network_is_not_said_to_be_safe(sides):
    found = audit(mlp().state_dict(), *sides, steps=5)
    assert found.status == report.NO_ANSWER
    assert "of the training pictures correctly: it was not" in found.sentence
    assert "safe" not in re.sub("base64,[^']*", "", found.html())
    assert not any(found.pictures.values())  # no photograph stands beside noise


def test_a_function_is_audited_by_its_losses_alone(sides):
    found = audit(knowing(*sides[0], 2), *sides)
    assert found.status == report.LEAKS
    assert [*checked(found)["by_name"]] == ["membership by loss"]


def test_rates_are_those_of_a_receiver_operating_characteristic():
    sides = drawn(90) + 1, drawn(250, seed=1)
    scores = {stages.BY_LOSS: judge.scored(sides)}
    outcome = stages.Outcome(stages.BY_LOSS, "ran", "", scores=scores)
    false, true, _ = roc_curve([1] * 90 + [0] * 250, torch.cat(sides), drop_intermediate=False)
    for row in report.rates([outcome]):
        assert row["value"] == true[false <= row["rate"]].max()


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


def test_an_autoencoder_and_a_function_are_not_asked_all(sides):
    coder = mlp(outputs=3 * SIDE**2)
    for given in (coder.state_dict(), coder, lambda batch: torch.zeros(len(batch), 2)):
        found = audit(given, *sides, steps=1)
        content = checked(found)
        (said,) = content["finding"]["not_asked"]
        assert found.status == report.NO_ANSWER
        assert said in found.sentence and said not in content["warnings"]


def test_the_normalisation_of_a_file_is_used_unless_another_is_given(sides, mixing):
    held = mixing | {"normalize.mean": MEAN, "normalize.std": 2 * MEAN}
    for given, mean in (({}, (0.25, 0.25, 0.25)), ({"mean": 0.0, "deviation": 1.0}, (0.0,))):
        assert audit(held, *sides, steps=1, **given).content["settings"]["mean"] == mean


def test_a_frozen_first_layer_is_said(sides):
    start = mlp().state_dict()
    found = audit(start | {"2.weight": start["2.weight"] + 1}, *sides, start, steps=1)
    assert before.FROZEN in found.content["warnings"] and found.status != report.LEAKS


@pytest.mark.parametrize("seed", [0, 1])
def test_a_start_of_another_network_is_noticed(seed, sides):
    found = audit(fitted(sides, steps=20), *sides, mlp(seed=seed).state_dict(), steps=1)
    assert (before.STRANGE in found.content["warnings"]) == (seed == 1)


def test_no_stage_begins_behind_the_limit(sides, mixing):
    found = audit(mixing, *sides, limit=0.0)
    content = checked(found)
    assert found.status == report.NO_ANSWER and "No attack could be run." in found.sentence
    assert "Membership by loss was skipped: The audit had taken its limit of 0 s" in found.sentence
    assert {one["state"] for one in content["stages"]} == {"skipped"}
    assert any("ways to show pictures were not tried (" in one for one in content["warnings"])


@pytest.mark.parametrize("name, value", [("shape", (8, 8, 3)), ("means", 0.5)])
def test_wrong_options_are_refused(name, value, sides, mixing):
    with pytest.raises(InputError, match="The option is 'means'|have the sizes"):
        audit(mixing, *sides, **{name: value})


def test_the_command_says_by_its_status_what_it_found(sides, mixing, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    torch.save(mixing, "leaks.pth")
    # each picture stands on the other side as well, with its rows as columns
    turned = [(rows.transpose(0, 2, 1, 3), labels) for rows, labels in sides[::-1]]
    more = [[np.concatenate(part) for part in zip(*pair)] for pair in zip(sides, turned)]
    torch.save(fitted(more), "fair.pth")
    for name, part in zip(("in", "held"), more):
        saved(tmp_path / name, part)

    def status(network, out):
        return main(["network", network, "in", "held", "--steps", "1", "--out", out])

    assert status("leaks.pth", "a") == report.LEAKS
    assert status("fair.pth", "b") == report.FOUND_NOTHING
    assert json.loads(Path("b/report.json").read_text())["finding"]["status"] == 0
    monkeypatch.setattr("audit.command.audit", lambda **given: 1 / 0)
    assert status("leaks.pth", "e/f") == FAULT  # never taken for a leak
    assert not Path("e/f").exists()


# What a library, or code of a stranger's, may do while an audit runs, and its exit status.
ENDS = {
    "cannot be loaded": ("sys.modules['audit.report'] = 3", "", FAULT),
    "cannot write": ("", "2>/dev/full", FAULT),
    "ends the process": ("sys.meta_path.insert(0, type('', (), {'find_spec': ends}))", "", FAULT),
    "is stopped by Ctrl-C": ("stop = signal.SIGINT", "", INTERRUPTED),
    "is stopped by kill": ("stop = signal.SIGTERM", "", INTERRUPTED),
}


@pytest.mark.parametrize("kind", ENDS)
def test_no_fault_is_taken_for_an_answer(kind, tmp_path):
    before, words, status = ENDS[kind]
    code = f"""
import os, runpy, signal, sys
def ends(name, *_): name == 'audit.judge' and os._exit(1)
def soon(): stop and signal.setitimer(signal.ITIMER_REAL, 0.5)
stop = None
{before}
signal.signal(signal.SIGALRM, lambda *_: os.kill(os.getpid(), stop))
os.register_at_fork(after_in_parent=soon)
runpy.run_module('audit', run_name='__main__', alter_sys=True)"""
    command = f'"$0" -c "$1" network none.pth in held {words}'
    env = os.environ | {"PYTHONPATH": os.getcwd()}
    shell = ["sh", "-c", command, sys.executable, code]
    run = subprocess.run(shell, env=env, cwd=tmp_path, stderr=subprocess.PIPE)
    assert run.returncode == status
    assert (b"Interrupted: no report was written." in run.stderr) == (status == INTERRUPTED)


def test_every_verb_has_its_help(capsys):
    assert main([]) == report.NO_ANSWER
    for verb in ("network", "words"):
        assert main([verb, "--help"]) == 0
        assert f"usage: audit {verb} NETWORK" in capsys.readouterr().out
    assert main(["none.pth", "in", "held"]) == report.NO_ANSWER
    assert "This spelling is old" in capsys.readouterr().err


def test_all_is_said_in_any_encoding(sides, mixing, tmp_path, monkeypatch):
    found = audit(mixing, *sides, steps=1)
    # a name that is no text, as unzip leaves them
    found.content["images"][0]["name"] = "caf\udce9.png"
    monkeypatch.setattr("audit.command.audit", lambda **given: found)
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(io.BytesIO(), "ascii"))
    assert main(["network", "n.pth", "in", "held", "-o", str(tmp_path / "отчёт")]) == report.LEAKS


def test_a_full_disk_leaves_no_half_of_a_report(sides, mixing, tmp_path, monkeypatch):
    found, write = audit(mixing, *sides, steps=1), Path.write_bytes

    def full(path, contents):
        if path.name.startswith(report.FILES[1]):
            raise OSError(28, "No space left on device")
        return write(path, contents)

    monkeypatch.setattr(Path, "write_bytes", full)
    assert "No space left" in refused(found.save, tmp_path / "out")
    assert not [*tmp_path.iterdir()]
