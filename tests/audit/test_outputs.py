"""A table of outputs: members are told by it, it clears nothing, and each mistake is one sentence."""

import numpy as np
import pandas as pd
import pytest

from audit.command import main
from audit.report import LEAKS, NO_ANSWER

COUNT = 60  # records of either side


def table(path, sure=0.0, classes=3, change=lambda frame: frame):
    """A CSV file of records, in which the network is that much surer of the members' classes."""
    draw = np.random.default_rng(0)
    member = np.repeat([1, 0], COUNT)
    label = draw.permutation(np.resize(range(max(classes, 2)), 2 * COUNT))
    logits = draw.normal(0, 1, (2 * COUNT, max(classes, 2)))
    logits[np.arange(2 * COUNT), label] += 1 + sure * member
    chances = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    columns = {f"class {k}": chances[:, k] for k in range(max(classes, 2))[-classes:]}
    change(pd.DataFrame({"member": member, "label": label, **columns})).to_csv(path, index=False)
    return str(path)


@pytest.mark.parametrize("classes", [1, 2, 3])
@pytest.mark.parametrize("sure, status", [(4.0, LEAKS), (0.0, NO_ANSWER)])
def test_members_are_told_by_outputs_alone_which_clear_nothing(
    classes, sure, status, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    given = table("t.csv", sure, classes)
    assert main(["outputs", given, "--epsilon", "0.5", "-o", "out"]) == status
    said = capsys.readouterr().out
    assert "membership alone was asked" in said and "picture" not in said
    assert f"is {'not ' * (not sure)}refuted" in said
    records = pd.read_csv("out/records.csv")
    assert sorted(records.row) == [*range(2, 2 * COUNT + 2)]
    rates = records["false-positive rate"]
    assert rates.is_monotonic_increasing and rates.between(0, 1).all()
    told = records[rates <= 1 / COUNT].side == "training"
    assert told.sum() > COUNT // 3 if sure else told.sum() < COUNT // 6


def test_labels_may_be_the_names_of_columns(tmp_path, capsys):
    def named(frame):
        return frame.assign(label="class " + frame.label.astype(str))

    out = "-o", str(tmp_path)
    ended = [
        main(["outputs", table(tmp_path / "t.csv", 4.0, change=change), *out])
        for change in (named, lambda frame: frame)
    ]
    one, two = capsys.readouterr().out.split(f"{tmp_path}/records.csv\n")[:2]
    assert one == two and ended == [LEAKS, LEAKS]


REFUSED = {
    "has no column member": lambda frame: frame.drop(columns="member"),
    "has no column label": lambda frame: frame.drop(columns="label"),
    "a member is 'yes'": lambda frame: frame.assign(member="yes"),
    "no class is called 'dog'": lambda frame: frame.assign(label="dog"),
    "holds no probabilities": lambda frame: frame.assign(name="x"),
    "lie in [0, 1] and add up to 1": lambda frame: frame.assign(name=3),
    "has 0 held-out records": lambda frame: frame[frame.member == 1],
    "add up to 1": lambda frame: frame.drop(columns="class 0"),
}


@pytest.mark.parametrize("said", REFUSED)
def test_a_table_of_another_kind_is_refused_in_one_sentence(said, tmp_path, capsys):
    given = table(tmp_path / "t.csv", change=REFUSED[said])
    assert main(["outputs", given, "-o", str(tmp_path / "out")]) == NO_ANSWER
    error = capsys.readouterr().err
    assert said in error and error.count("\n") == 1 and not (tmp_path / "out").exists()


@pytest.mark.parametrize("content", [None, b"", b"\x89PNG\r\n\x1a\n"])
def test_what_is_no_table_is_said_so(content, tmp_path, capsys):
    path = tmp_path / "t.csv"
    if content is not None:
        path.write_bytes(content)
    assert main(["outputs", str(path)]) == NO_ANSWER
    error = capsys.readouterr().err
    assert "is no table of outputs" in error and error.count("\n") == 1


def test_classes_that_differ_by_side_give_no_answer(tmp_path, capsys):
    def sorted_by_class(frame):
        return frame.assign(label=1 - frame.member)

    assert (
        main(["outputs", table(tmp_path / "t.csv", 4.0, 2, sorted_by_class), "-o", str(tmp_path)])
        == NO_ANSWER
    )
    assert "The two sides differ by themselves" in capsys.readouterr().out


def test_a_folder_that_cannot_be_written_is_said_before_the_table_is_read(tmp_path, capsys):
    (tmp_path / "out").write_text("a file")
    assert main(["outputs", "none.csv", "-o", str(tmp_path / "out")]) == NO_ANSWER
    assert "cannot be written" in capsys.readouterr().err
