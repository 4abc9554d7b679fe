"""Whole audits: what leaks is found, what is not asked is no all-clear, and the command says so by its status."""

import io
import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers import WIDTH, audit, batch, checked, fitted, mlp, saved
from known_files import toy

from audit import before, judge, report, stages, weights
from audit.__main__ import FAULT, INTERRUPTED
from audit.command import main, network_line
from conftest import SHAPE, SIDE, M
from conftest import drawn as drawn_double
from training import images, ordinary
from utils.errors import InputError

MEAN = torch.full((1, 3, 1, 1), 0.25)


def drawn(*shape):
    return drawn_double(*shape, dtype=torch.float32)


@pytest.fixture(scope="module")
def mixing(sides):
    """A state dict whose first layer is a mixture of the training pictures, flattened as torch does."""
    mixture, state = drawn(WIDTH, M), mlp().state_dict()
    weight = mixture @ batch(sides[0][0]).flatten(1)
    return state | {"0.weight": weight / 100, "0.bias": mixture.sum(1) / 100}


def compared(content):
    """The numbers of training and held-out pictures of every comparison of a report."""
    return {one["name"]: (one["training"], one["held_out"]) for one in content["comparisons"]}


def test_a_mixture_of_training_pictures_leaks(sides, mixing, tmp_path):
    found = audit(mixing, *sides, steps=5)
    content = checked(found)
    assert found.status == report.LEAKS and found.sentence.startswith("Something leaks.")
    assert "The pictures themselves can be rebuilt" in found.html()
    said = content["by_name"]["structure of W₁"]["said"]
    assert said == f"The singular values of W₁ fall off a cliff that shows {M} pictures."
    assert compared(content)["pictures in the span of W₁"] == (M, 0)
    risks = [one["ncc"] for one in content["images"]]
    assert len(risks) == 2 * M and risks == sorted(risks, reverse=True)
    assert found.save(tmp_path / "out") == tmp_path / "out" / "report.html"
    assert {path.name for path in (tmp_path / "out").iterdir()} == {*report.FILES}


def test_what_training_added_to_a_known_start_leaks(sides, mixing):
    initial = mlp(seed=3).state_dict()
    after = mixing | {"0.weight": mixing["0.weight"] + 0.9 * initial["0.weight"]}
    moments = {k: {"exp_avg": drawn(*part.shape)} for k, part in enumerate(after.values())}
    state = {"state": moments, "param_groups": [{"params": [*moments]}]}
    blind, seeing = (
        checked(found := audit(after, *sides, before, steps=5, optimizer=state))
        for before in (None, initial)
    )
    inside = compared(seeing)["pictures in the span of the change of W₁"]
    assert inside == (M, 0) and found.status == report.LEAKS
    assert not any("shows 12 pictures" in one["said"] for one in blind["stages"])


def test_pictures_behind_a_known_start_are_sure(sides):
    rows, labels = (torch.from_numpy(part) for part in sides[0])
    part = images.Part(rows.flatten(1).double() / 255, labels.double())
    victim = ordinary.train(part, None, SHAPE, "sgd", (3 * WIDTH,), epochs=40)
    networks = victim.released.network, victim.initial
    given = {"mean": victim.mean.view(SHAPE)[0, 0].tolist(), "layout": "HWC", "steps": 1}
    after, start = networks
    content = checked(audit(after, *sides, start, **given))
    sure = {
        of: [one["sure"] for one in content["images"] if one["side"] == of] for of in report.SIDES
    }
    assert sum(sure["training"]) >= M // 2 and not any(sure["held_out"])
    said = content["by_name"]["unmixing of the change of W₁"]["said"]
    assert int(re.search("make (\\d+) of", said)[1]) >= sum(sure["training"])
    after, start = ((net[0]._replace(bias=None), *net[1:]) for net in networks)
    blind = checked(audit(after, *sides, start, **given))
    assert {one["sure"] for one in blind["images"]} == {None}


def test_an_untrained_network_is_not_said_to_be_safe(sides):
    found = audit(mlp().state_dict(), *sides, steps=5)
    checked(found)
    page = found.html()
    assert found.status == report.NO_ANSWER
    assert "of the training pictures correctly: it was not" in found.sentence
    assert "safe" not in re.sub("base64,[^']*", "", page)
    assert not any(found.pictures.values())  # no photograph stands beside noise
    assert "so none is shown" in page and "pictures most at risk" not in page


def test_a_function_is_audited_by_its_losses_alone(sides):
    marks = {one.numpy().tobytes(): label for one, label in zip(batch(sides[0][0]), sides[0][1])}

    def classify(pictures):
        known = [marks.get(one.contiguous().numpy().tobytes()) for one in pictures]
        rows = [[0.0, 0.1] if k is None else [5.0 * (1 - k), 5.0 * k] for k in known]
        return torch.tensor(rows)

    found = audit(classify, *sides)
    content = checked(found)
    assert [*content["by_name"]] == ["membership by loss"] and found.status == report.LEAKS
    assert "can be rebuilt" not in found.html()  # no picture came back
    first = content["true_positives"][0]
    assert [first[of] for of in ("auc", "rate", "allowed", "of", "value")] == [1.0, 0.01, 0, M, 1.0]


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
    said = "The mean is that in the network's file: 0.25, 0.25, 0.25."
    for given, mean in (({}, (0.25, 0.25, 0.25)), ({"mean": 0.0, "deviation": 1.0}, (0.0,))):
        content = checked(audit(held, *sides, steps=1, **given))
        assert content["settings"]["mean"] == mean
        assert (said in content["warnings"]) == (not given)
    assert checked(audit(mixing, *sides, steps=1))["settings"]["deviation"] == (1.0,)


@pytest.mark.parametrize("activation", ["relu", "sigmoid"])
def test_a_frozen_first_layer_is_said_and_all_else_is_asked(activation, sides):
    start = mlp().state_dict()
    after = start | {"2.weight": start["2.weight"] + 1}
    found = audit(after, *sides, start, steps=1, activation=activation)
    content = checked(found)
    assert before.FROZEN in content["warnings"] and found.status != report.LEAKS
    assert {"membership by loss", "structure of W₁"} <= {*content["by_name"]}


@pytest.mark.parametrize("seed", [0, 1])
def test_a_start_of_another_network_is_noticed(seed, sides):
    found = audit(fitted(sides, steps=20), *sides, mlp(seed=seed).state_dict(), steps=1)
    assert (before.STRANGE in found.content["warnings"]) == (seed == 1)


def test_more_pictures_than_neurons_are_refused_and_no_stage_begins_behind_the_limit(sides, mixing):
    content = checked(audit(mlp(width=M).state_dict(), *sides, steps=1))
    one = content["by_name"]["unmixing of W₁"]
    assert one["state"] == "refused" and "too few to tell 12" in one["said"]
    found = audit(mixing, *sides, limit=0.0)
    content = checked(found)
    assert found.status == report.NO_ANSWER and "No attack could be run." in found.sentence
    assert "Membership by loss was skipped: The audit had taken its limit of 0 s" in found.sentence
    assert {one["state"] for one in content["stages"]} == {"skipped"}
    assert any("ways to show pictures were not tried (" in one for one in content["warnings"])


def test_what_was_not_asked_is_listed():
    def outcomes(state, *names):
        return [stages.Outcome(name, state, "No.") for name in names]

    network = weights.read(mlp().state_dict())
    ran = outcomes("ran", "structure of W₁")
    (said,) = report.not_asked(network, ran + outcomes("skipped", "unmixing of W₁"))
    assert said == "Unmixing of W₁ was skipped: No."
    both = outcomes("refused", stages.BY_LOSS, "unmixing of W₁")
    assert report.not_asked(network, both) == ["Membership by loss was refused: No."]
    assert report.not_asked(network, both[1:]) == ["No attack on the weights could be run."]


@pytest.mark.parametrize("name, value", [("layout", "WHC"), ("shape", (8, 8, 3)), ("means", 0.5)])
def test_wrong_options_are_refused(name, value, sides, mixing):
    with pytest.raises(InputError, match=f"The (option is 'means'|{name} is)|have the sizes"):
        audit(mixing, *sides, **{name: value})


def test_the_command_says_by_its_status_what_it_found(sides, mixing, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    torch.save(mixing, "leaks.pth")
    # each picture stands on the other side as well, with its rows as columns
    turned = [(rows.transpose(0, 2, 1, 3), labels) for rows, labels in sides[::-1]]
    more = [[np.concatenate(part) for part in zip(*pair)] for pair in zip(sides, turned)]
    torch.save(fitted(more), "fair.pth")
    for name, part in zip(("in", "held"), more):
        saved(tmp_path / name, part)

    def status(network, out, *verb):
        return main([*verb, network, "in", "held", "--steps", "5", "--out", out])

    assert status("leaks.pth", "a", "network") == 1
    said = capsys.readouterr()
    assert "Something leaks." in said.out and "spelling" not in said.err
    assert status("fair.pth", "b") == 0
    assert "This spelling is old: say `audit network" in capsys.readouterr().err
    assert json.loads(Path("b/report.json").read_text())["finding"]["status"] == 0
    with monkeypatch.context() as patch:
        patch.setattr(judge, "TELLING", 0.5)  # as if there were fewer
        assert status("fair.pth", "d", "network") == 2
        assert "give more of both sides." in capsys.readouterr().out
    monkeypatch.setattr("audit.command.audit", lambda **given: 1 / 0)
    Path("old").mkdir()
    assert (
        status("leaks.pth", "e/f") == status("leaks.pth", "old") == FAULT
    )  # never taken for a leak
    assert not Path("e/f").exists() and Path("old").is_dir()  # what we made is gone, and only that


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


@pytest.mark.parametrize("module", ["audit", "audit.words"])
@pytest.mark.parametrize("kind", ENDS)
def test_no_fault_is_taken_for_an_answer(kind, module, tmp_path):
    before, words, status = ENDS[kind]
    code = f"""
import os, runpy, signal, sys
def ends(name, *_): name == 'audit.judge' and os._exit(1)
def stop(*_): os.kill(os.getpid(), signal.SIGINT)
{before}
runpy.run_module('{module}', run_name='__main__', alter_sys=True)"""
    given = "none.pth in held" if module == "audit" else "none.pth --before none.pth"
    command = f'"$0" -c "$1" {given} {words}'
    env = os.environ | {"PYTHONPATH": os.getcwd()}
    shell = ["sh", "-c", command, sys.executable, code]
    run = subprocess.run(shell, env=env, cwd=tmp_path, capture_output=True, text=True)
    assert run.returncode == status
    assert kind == "cannot write" or module == "audit" or "say `audit words" in run.stderr


def test_the_command_and_its_help(capsys):
    scripts = tomllib.loads(Path("pyproject.toml").read_text())["project"]["scripts"]
    assert scripts == {"audit": "audit.__main__:command"}
    given = network_line().parse_args(
        ["net", "in", "held", "--mean", "0.49", "-0.45", "--unturned", "--resize", "20"]
    )
    assert (given.mean, given.turn, given.resize, given.centred) == (
        [0.49, -0.45],
        False,
        20,
        False,
    )
    assert main([]) == report.NO_ANSWER and main(["--help"]) == 0
    for verb in ("network", "words"):
        assert main([verb, "--help"]) == 0
        said = capsys.readouterr().out
        assert f"usage: audit {verb} NETWORK" in said and "exit status" in said


def test_outside_of_a_clone_the_command_says_what_to_do(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("audit.command.DATA", tmp_path / "none")
    assert main(["network", "none.pth", "in", "held"]) == report.NO_ANSWER
    assert "install it from a clone" in capsys.readouterr().err


def test_all_is_said_in_any_encoding(sides, mixing, tmp_path, monkeypatch):
    coded = {"stdout": "cp1252", "stderr": "ascii"}
    streams = {name: io.TextIOWrapper(io.BytesIO(), code) for name, code in coded.items()}
    for name, stream in streams.items():
        monkeypatch.setattr(sys, name, stream)
    assert main(["нет.pth", "in", "held"]) == report.NO_ANSWER
    found = audit(mixing, *sides, steps=1)
    # a name that is no text, as unzip leaves them
    found.content["images"][0]["name"] = "caf\udce9.png"
    monkeypatch.setattr("audit.command.audit", lambda **given: found)
    assert main(["net.pth", "in", "held", "--out", str(tmp_path / "отчёт")]) == report.LEAKS
    assert streams["stdout"].buffer.getvalue().startswith(b"Something leaks.")


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
