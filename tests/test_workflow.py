"""A grid is checked before its first run, survives being killed, and computes only what can give something new."""

import csv
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import yaml

from conftest import SUMS, processes, small_project, wait_until, write_notebook
from utils import fingerprint
from workflow import commits, grid, plan, record, run, verify

ROOT = Path(__file__).parent.parent
DECLARED = """# Parameters of this chapter
DATASET = "photos"
SEED = 0
DEVICE = "auto"
RESULTS = ""
PICTURES = ""
START = "random"
RATE = 0.1
"""
BODY = """import json, os, time
import numpy as np
from utils import sums
def note(word):
    with open("notes.txt", "a") as file:
        file.write(f"{word} {SEED}\\n")
note("begin")
while 0 < SEED < 100 and not os.path.exists("go"):
    time.sleep(0.05)
assert SEED < 100, "The seed\\nis too large."
provenance = {"device": "cpu", "duration_seconds": 1.0 + SEED, "versions": {}, "data_sha256": "ab"}
rows = [dict(name=f"a/{START}/b", seed=SEED, value=sums.double(SEED) + 1 / 3, baseline=0.25)]
np.savez(PICTURES, pictures=np.arange(5))
note("end")
content = dict(parameters=dict(DATASET=DATASET, SEED=SEED, RESULTS=RESULTS), provenance=provenance, rows=rows)
with open(RESULTS, "w") as file:
    json.dump(content, file)
"""
GOOD = "experiment: tiny\nlabel: two\ncross: {SEED: [0, 1], START: [random]}\npictures: [{SEED: 0, first: 2}]\n"


def git(place, *words):
    names = ["-c", "user.name=A", "-c", "user.email=a@example.org", "-c", "commit.gpgsign=false"]
    return subprocess.run(["git", *names, *words], cwd=place, check=True, capture_output=True, text=True).stdout


def repository(place):
    """A small project with a tiny experiment, which notes what it computes, and a grid."""
    small_project(place)
    for folder in ("experiments", "book", "data/results"):
        (place / folder).mkdir(parents=True)
    (place / ".snakemake-env").symlink_to(ROOT / ".snakemake-env")
    (place / ".gitignore").write_text("_build\n.snakemake-env\n__pycache__\nnotes.txt\ngo\n")
    write_notebook(place / "experiments" / "tiny.ipynb", DECLARED, BODY)
    (place / "g.yaml").write_text(GOOD)
    return place


def committed(place):
    if not (place / ".git").exists():
        git(place, "init", "-q")
    git(place, "add", "-A")
    git(place, "commit", "-q", "-m", "A commit")
    return place


def start(place, command, *words):
    settings = {"OMP_NUM_THREADS": "1", "JOBS": "2"}
    pipes = dict(stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    command = [sys.executable, "-m", f"workflow.{command}", *words]
    return subprocess.Popen(command, cwd=place, env={**os.environ, **settings}, start_new_session=True, **pipes)


def drive(place, *words):
    """Run a command to its end: its status, the lines that it prints, and what it says of mistakes."""
    process = start(place, *words)
    printed, said = process.communicate(timeout=600)
    return process.returncode, printed.splitlines(), said


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A repository with a grid that is finished, and recorded; for reading only."""
    place = committed(repository(tmp_path_factory.mktemp("made") / "place"))
    (place / "go").touch()
    status, lines, said = drive(place, "grid", "g.yaml")
    assert (status, said) == (0, "") and lines[0].startswith("0 of 2 done") and lines[-1].startswith("2 of 2 done")
    status, lines, said = drive(place, "record", "g.yaml")
    assert (status, said) == (0, "") and lines == ["g.yaml: 2 numbers of 2 runs, 1 arrays of pictures."]
    return place


@pytest.fixture
def copy(made, tmp_path):
    """A copy of that repository, to be changed."""
    return Path(shutil.copytree(made, tmp_path / "place", symlinks=True))


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A folder with the tiny experiment, in which this process plans; no repository of git."""
    place = repository(tmp_path / "place")
    for module in (plan, commits):
        monkeypatch.setattr(module, "ROOT", place)
    monkeypatch.setattr(grid, "FOLDER", place / "grids")
    monkeypatch.setattr(grid, "SNAKEMAKE", place / "snakemake")
    (place / "snakemake" / "cluster" / "bin").mkdir(parents=True)
    (place / "snakemake" / "cluster" / "bin" / "snakemake").touch()
    monkeypatch.chdir(place)
    return place


def planned(text, **given):
    (Path("h.yaml")).write_text(text)
    return plan.plan_of(plan.read("h.yaml"), given)


WRONG = [
    ("a: [1", [], "the file cannot be read as YAML ("),
    ("", [], "a grid needs experiment: and cross:"),
    (GOOD + "seeds: 3", [], "there is no key 'seeds'; a grid has experiment, about, parameters, cross, "),
    (GOOD + "experiment: tiny", [], "experiment is named twice"),
    ("experiment: tine\ncross: {SEED: [1]}", [], "experiment is 'tine', but it must be one of 'tiny'."),
    ("cross: {SEED: [1]}", [], "experiment is None, but it must be one of 'tiny'."),
    ("experiment: tiny", [], "there are no runs: say what to cross"),
    ("experiment: tiny\ncross: {}", [], "there are no runs: say what to cross"),
    ("experiment: tiny\ncross: [1]", [], "cross is [1]; it must be names with values"),
    ("experiment: tiny\ncross: {SEED: []}", [], "SEED is []; under cross it must be a list of values"),
    ("experiment: tiny\ncross: {SEED: 3}", [], "SEED is 3; under cross it must be a list of values"),
    ("experiment: tiny\ncross: {SEED: [1, 2, 1]}", [], "SEED has 1 twice: take one out."),
    ("experiment: tiny\ncross: {SEED: [1, -1]}", [], "SEED is -1; it must be 0 or larger."),
    ("experiment: tiny\ncross: {SEED: [{}]}", [], "SEED is {}; it must be a whole number"),
    ("experiment: tiny\ncross: {SEEED: [1]}", [], "There is no parameter SEEED; this chapter has DATASET, SEED,"),
    ("experiment: tiny\ncross: {RESULTS: [a, b]}", [], "RESULTS is set for every run: take it out."),
    ("experiment: tiny\ncross: {DATASET: [/nowhere.npz]}", [], "There is no file /nowhere.npz: check the path"),
    (GOOD + "minutes: soon", [], "minutes is 'soon'; it must be a number larger than 0."),
    (GOOD + "retries: 1.5", [], "retries is 1.5; it must be a whole number from 0 on."),
    ("- 1", [], "a grid needs experiment: and cross:"),
    ("experiment: tiny\ncross: {DATASET: [phtos]}", [], "DATASET is 'phtos', but it must be"),
    (GOOD + "minutes: 0", [], "minutes is 0; it must be a number larger than 0."),
    (GOOD + "retries: -1", [], "retries is -1; it must be a whole number from 0 on."),
    (GOOD, ["SEED=3"], "SEED is crossed and has one value, too: take one of them out."),
    (GOOD, ["PICTURES=a.npz"], "PICTURES is set for every run: take it out."),
    (GOOD, ["RATE=fast"], "RATE is 'fast'; it must be a number, like its default 0.1."),
    (GOOD, [], "Snakemake is not set up: `make .snakemake-env/local/ready` does it."),
    (GOOD, ["--profile", "nowhere"], "there is no file nowhere/config.yaml: give the folder of a profile."),
    (f"experiment: tiny\ncross: {{SEED: {[*range(400)]}, RATE: {[*range(1, 400)]}}}", [], "these are 159,600 runs"),
]


@pytest.mark.parametrize("text, words, sentence", WRONG, ids=lambda value: str(value)[-40:])
def test_a_mistake_is_one_sentence_that_names_the_file(text, words, sentence, place):
    (place / "g.yaml").write_text(text)
    said = grid.main(["g.yaml", *words])
    assert said.startswith(f"g.yaml: {sentence}") and "\n" not in said and said.endswith(".")
    assert not list(place.glob("grids/*/runs"))


def test_mistakes_of_the_environment_are_sentences_too(place, monkeypatch):
    assert grid.main(["h.yaml"]) == "h.yaml: the file cannot be read (No such file or directory): check its path."
    (place / "grids").write_text("in the way")
    said = grid.main(["g.yaml"])
    assert said.startswith("g.yaml: ") and "cannot be written" in said and "\n" not in said
    monkeypatch.setattr(grid.fcntl, "flock", lambda *_: (_ for _ in ()).throw(OSError(28, "No space left on device")))
    (place / "grids").unlink()
    assert grid.main(["g.yaml"]) == "g.yaml: the disk is full: free some space, and run the same command again."
    for jobs in ("many", "-1", "0"):
        monkeypatch.setenv("JOBS", jobs)
        assert grid.main(["g.yaml"]) == f"g.yaml: JOBS is {jobs!r}; it must be a whole number larger than 0."


@pytest.mark.parametrize("runs, shares", [(1, (1, 8)), (2, (2, 4)), (9, (2, 4))])
def test_one_run_has_all_cores(runs, shares, monkeypatch):
    monkeypatch.setattr("os.cpu_count", lambda: 8)
    for name in ("JOBS", "OMP_NUM_THREADS"):
        monkeypatch.delenv(name, raising=False)
    assert run.shares(runs) == shares


def test_every_combination_is_a_run_whose_key_stands_for_code_parameters_and_data(place):
    text = "experiment: tiny\ncross: {SEED: [0, 1], START: [random, partition]}\n"
    runs = planned(text, RATE="1e-3")["runs"]
    assert [each["label"] for each in runs.values()][:2] == ["SEED=0 START=random", "SEED=0 START=partition"]
    assert all(each["parameters"]["RATE"] == 0.001 for each in runs.values()) and len(runs) == 4
    assert runs == planned(text + "parameters: {RATE: 1e-3}")["runs"]
    (place / "a.npz").write_text("1")
    data = text + "parameters: {DATASET: a.npz}"
    plans = [planned(text), planned(text, RATE="0.2"), planned(data)]
    (place / "a.npz").write_text("2")
    plan.contents.cache_clear()
    plans.append(planned(data))
    notebook = place / "experiments" / "tiny.ipynb"
    notebook.write_text(notebook.read_text().replace("1 / 3", "2 / 3"))
    plans.append(planned(data))
    keys = [{each["key"] for each in found["runs"].values()} for found in plans]
    assert len(set().union(*keys)) == 5 * 4
    grown = planned(data.replace("[0, 1]", "[0, 1, 2]"))["runs"].values()
    assert len(grown) == 6 and keys[-1] < {each["key"] for each in grown}


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"parameters": {}, "rows": []', '{"parameters": {}, "rows": []}'])
def test_only_whole_results_count(text, tmp_path):
    (tmp_path / "a.json").write_text(text)
    assert run.results_of(tmp_path / "a.json") is None


def test_a_full_disk_in_a_run_is_one_sentence(place, monkeypatch, capsys):
    (key,) = [each["key"] for each in planned("experiment: tiny\ncross: {SEED: [0]}")["runs"].values()]
    (place / "finished" / key).mkdir(parents=True)
    (place / "finished" / key / "results.json").touch()
    (place / "plan.json").write_text(json.dumps(planned("experiment: tiny\ncross: {SEED: [0]}")))
    monkeypatch.setattr(run, "end_with", lambda parent: None)
    monkeypatch.setattr(run, "write", lambda *_: (_ for _ in ()).throw(OSError(28, "No space left on device")))
    assert run.main(place / "plan.json", "SEED=0", "out.json", "1", "1") == 1
    assert capsys.readouterr().out.startswith("SEED=0 failed: the disk is full: free some space")


@pytest.mark.parametrize("why", ["Kernel died before replying to kernel_info", "Kernel didn't respond in 60 seconds"])
@pytest.mark.parametrize("deaths", [2, 3])
def test_a_kernel_that_finds_its_port_taken_is_begun_again(deaths, why, monkeypatch):
    import papermill

    answers, said = iter([RuntimeError(why)] * deaths + ["done"]), f"RuntimeError: {why}" if deaths == 3 else None

    def execute(*paths, **settings):
        answer = next(answers)
        if isinstance(answer, Exception):
            raise answer

    monkeypatch.setattr(papermill, "execute_notebook", execute)
    assert run.execute("a.ipynb", "b.ipynb", {}) == said


def noted(place, word):
    """The seeds that the experiment noted when it began, or ended."""
    lines = (place / "notes.txt").read_text().splitlines() if (place / "notes.txt").exists() else []
    return sorted(int(line.split()[1]) for line in lines if line.startswith(word))


@pytest.mark.chapters
@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
def test_a_grid_that_is_killed_goes_on_and_computes_nothing_twice(tmp_path):
    place = repository(tmp_path / "place")
    (place / "g.yaml").write_text("experiment: tiny\ncross: {SEED: [0, 1]}\n")
    first = start(place, "grid", "g.yaml")
    wait_until(lambda: noted(place, "begin") == [0, 1] and (place / "_build/grids/g/runs/SEED=0.json").exists())
    status, _, said = drive(place, "grid", "g.yaml")
    busy = f"another driver is at work in {place}/_build/grids/g: wait until it has ended."
    assert (status, said) == (1, f"g.yaml: {busy}\n")
    first.kill()
    first.communicate()
    wait_until(lambda: not processes(place))
    second = start(place, "grid", "g.yaml")
    wait_until(lambda: noted(place, "begin") == [0, 1, 1])
    second.send_signal(signal.SIGINT)
    _, said = second.communicate(timeout=600)
    assert (second.returncode, said) == (1, "g.yaml: stopped; run the same command again, and it goes on.\n")
    wait_until(lambda: not processes(place))
    (place / "go").touch()
    status, lines, said = drive(place, "grid", "g.yaml")
    assert (status, said) == (0, "") and lines[0].startswith("1 of 2 done")
    assert noted(place, "begin") == [0, 1, 1, 1] and noted(place, "end") == [0, 1]
    rows = [*csv.DictReader((place / "_build/grids/g/table.csv").open())]
    assert sorted(row["value"][:5] for row in rows) == ["0.333", "2.333"]
    assert not [*place.glob("_build/grids/g/finished/*.part")]


@pytest.mark.chapters
def test_a_failing_run_is_tried_again_and_says_why(tmp_path):
    place = repository(tmp_path / "place")
    (place / "g.yaml").write_text("experiment: tiny\ncross: {SEED: [100]}\nretries: 1\n")
    status, lines, said = drive(place, "grid", "g.yaml")
    why = "SEED=100 failed: AssertionError: The seed is too large. The notebook up to there is "
    assert (status, said) == (1, "") and noted(place, "begin") == [100, 100]
    assert lines[-1].startswith("0 of 1 done: see ")
    assert [line.startswith(why) for line in lines[1:-1]] == [True, True] and Path(lines[1].split()[-1]).exists()


@pytest.mark.chapters
def test_a_hanging_cell_is_ended(place):
    said = run.execute("experiments/tiny.ipynb", "out.ipynb", {"SEED": 1}, minutes=0.05)
    assert said == "a cell took longer than 0.05 minutes and was ended."


@pytest.mark.chapters
def test_only_what_can_give_something_new_is_computed(copy):
    notebook, sums = copy / "experiments" / "tiny.ipynb", copy / "utils" / "sums.py"
    given = notebook.read_text().replace('START = \\"random', 'START = \\"partition')  # as every run is
    notebook.write_text(given)
    sums.write_text(SUMS.replace("x / 2", "x / 3").replace("2 * x", "2 * x  # twice"))
    (copy / "g.yaml").write_text(GOOD.replace("[0, 1]", "[0, 1, 2]"))
    (copy / "_build/grids/g/runs/SEED=0,START=random.json").write_text("{")  # damaged
    status, lines, said = drive(copy, "grid", "g.yaml")
    assert (status, said) == (0, "") and lines[0].startswith("1 of 3 done") and noted(copy, "end") == [0, 1, 2]
    sums.write_text(SUMS.replace("2 * x", "3 * x"))
    status, lines, said = drive(copy, "grid", "g.yaml", "--dry-run")
    assert (status, said) == (0, "") and lines[0] == "3 of 3 runs would be computed:" and len(lines) == 4


@pytest.mark.chapters
@pytest.mark.parametrize("profile", sorted(path.name for path in (ROOT / "workflow" / "profiles").iterdir()))
def test_the_same_grid_is_planned_for_a_cluster(profile, tmp_path):
    place = repository(tmp_path / "place")
    words = "grid", "g.yaml", "--dry-run", "--profile"
    status, lines, said = drive(place, *words, f"workflow/profiles/{profile}")
    assert (status, said) == (0, "") and lines[0] == "2 of 2 runs would be computed:"
    assert not (place / "_build").exists()


@pytest.mark.chapters
def test_a_profile_that_cannot_be_used_is_one_sentence(tmp_path):
    place = repository(tmp_path / "place")
    (place / "wrong").mkdir()
    (place / "wrong" / "config.yaml").write_text("executor: slurm\nslurm-nonsense: 3\n")
    status, lines, said = drive(place, "grid", "g.yaml", "--dry-run", "--profile", "wrong")
    assert status == 1 and lines == [] and "slurm-nonsense" in said and said.count("\n") == 1


@pytest.mark.chapters
def test_a_thousand_runs_are_planned_in_time(tmp_path):
    place = repository(tmp_path / "place")

    def planned(runs):
        """The seconds of one core that it takes to plan so many runs."""
        (place / "g.yaml").write_text(f"experiment: tiny\ncross: {{SEED: {[*range(runs)]}}}\n")
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        status, lines, said = drive(place, "grid", "g.yaml", "--dry-run")
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        assert (status, said) == (0, "") and lines[0] == f"{runs} of {runs} runs would be computed:"
        return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

    few, many = planned(10), planned(1000)  # about five seconds and six
    assert many < 2.5 * few


GIVEN = tuple(sorted(["SEED", "START", "DATASET", "RESULTS", "PICTURES"]))


@pytest.mark.chapters
def test_a_record_is_tidy_and_its_fingerprint_is_computed_again_at_its_commit(made, monkeypatch):
    monkeypatch.setattr(commits, "ROOT", made)
    text = (made / "data/results/g.json").read_text()
    about, head = json.loads(text), git(made, "rev-parse", "HEAD").strip()
    (code,) = about["code"]
    made_by = {"commit": head, "threads": 1, "device": "cpu", "runs": "all"}
    assert code == made_by | {"fingerprint": commits.fingerprint_at(head, about["notebook"], GIVEN)}
    assert (about["runs"], about["notebook"]) == (2, "experiments/tiny.ipynb")
    assert about["cheapest"] == {"SEED": 0, "START": "random"}
    assert about["data_sha256_by_seed"] == {"0": "ab", "1": "ab"} and str(made) not in text
    runs = [
        {"parameters": {"SEED": seed}, "provenance": {"data_sha256": data}}
        for seed, data in ((0, "b"), (0, "a"), (1, "b"))
    ]
    assert record.data_of(dict(enumerate(runs))) == {0: ["a", "b"], 1: "b"}
    with open(made / "data/results/g.csv", newline="") as file:
        rows = [*csv.DictReader(file)]
    assert rows[1] == dict(START="random", name="a/random/b", seed="1", value="2.333333333333", baseline="0.25")
    with np.load(made / "data/results/g.npz") as archive:
        assert {name: archive[name].tolist() for name in archive} == {"SEED=0 START=random/pictures": [0, 1, 4]}


@pytest.mark.chapters
def test_the_commit_of_other_code_is_marked(made, monkeypatch, tmp_path):
    monkeypatch.setattr(commits, "ROOT", made)
    head = git(made, "rev-parse", "HEAD").strip()
    code = commits.fingerprint_at(head, "experiments/tiny.ipynb", GIVEN)
    assert commits.commit_of("experiments/tiny.ipynb", GIVEN, code) == head
    assert commits.commit_of("experiments/tiny.ipynb", GIVEN, "other") == f"{head}-dirty"
    monkeypatch.setattr(commits, "ROOT", tmp_path)
    assert commits.commit_of("experiments/tiny.ipynb", GIVEN, code) == ""


@pytest.mark.chapters
def test_only_finished_runs_of_committed_code_are_recorded(made, monkeypatch, tmp_path):
    folder = made / "_build/grids/g"
    found = json.loads((folder / "plan.json").read_text())
    monkeypatch.setattr(record, "RESULTS", tmp_path)
    monkeypatch.setattr(record, "ROOT", made)
    monkeypatch.setattr(record, "plan_of", lambda *_: found)
    for commit in ("", "abc-dirty"):
        for each in found["runs"].values():
            each["commit"] = commit
        with pytest.raises(record.InputError, match="is not committed: commit it first, or .* DIRTY=1"):
            record.record(made / "g.yaml", {}, folder)
    record.record(made / "g.yaml", {}, folder, dirty=True)
    assert json.loads((tmp_path / "g.json").read_text())["code"][0]["commit"] == "abc-dirty"
    found["runs"]["SEED=0,START=random"]["key"] = "other"
    with pytest.raises(record.InputError, match="1 of 2 runs are not finished: `make grid GRID="):
        record.record(made / "g.yaml", {}, folder)


def rows_of(values, name="a/b", **more):
    return [
        {"name": name, "seed": str(seed), "value": str(value), "baseline": ""} | more
        for seed, value in enumerate(values)
    ]


@pytest.mark.parametrize(
    "how, again, equal, holds",
    [
        ("exactly", 2 + 1e-10, True, True),
        ("exactly", 2 + 1e-8, False, False),
        ("within the spread", 2 + 1e-10, True, True),
        ("within the spread", 5.9, False, True),  # the seeds give 1 to 3.5, and a width of 2.5
        ("within the spread", 6.1, False, False),
        ("within the spread", -1.4, False, True),
        ("within the spread", -1.6, False, False),
    ],
)
def test_a_number_is_equal_or_within_the_spread_of_its_quantity(how, again, equal, holds, monkeypatch):
    monkeypatch.setattr(verify, "repeats", lambda name: how)
    rows = rows_of([1, 2, 3.5], WIDTH="8") + rows_of([100, 200], WIDTH="16") + rows_of([2], name="c", WIDTH="8")
    (number,) = verify.compare(rows, {"SEED": 1, "WIDTH": 8}, [{"name": "a/b", "seed": 1, "value": again}])
    assert (number.equal, number.holds) == (equal, holds)


def test_one_seed_has_the_spread_of_a_tenth_and_recorded_names_must_stay(monkeypatch):
    monkeypatch.setattr(verify, "repeats", lambda name: "within the spread")
    rows = rows_of([10], baseline="2")
    for again, holds in ((10.9, True), (11.1, False)):
        content = [{"name": "a/b", "seed": 0, "value": again, "baseline": 2.0}]
        assert [number.holds for number in verify.compare(rows, {"SEED": 0}, content)] == [holds, True]
    (gone,) = verify.compare(rows_of([10]), {"SEED": 0}, [{"name": "a/c", "seed": 0, "value": 10}])
    assert (gone.name, gone.holds) == ("a/b", False)


def test_durations_are_not_compared():
    names = "decoreco/signed/random/seconds", "decoreco/signed/random/leak_auc"
    numbers = verify.numbers_of({"name": name, "seed": 0, "value": 0.5, "baseline": ""} for name in names)
    assert numbers == {(names[1], "0"): 0.5}


@pytest.fixture
def verified(copy, monkeypatch, capsys):
    """A function that changes the tiny grid's record, and verifies it, with the finished run in place of a new one."""
    for module in (plan, commits):
        monkeypatch.setattr(module, "ROOT", copy)
    monkeypatch.setattr(verify, "RESULTS", copy / "data/results")
    monkeypatch.setattr(verify, "FOLDER", copy / "_build/verify")
    done = json.loads((copy / "_build/grids/g/runs/SEED=0,START=random.json").read_text())
    monkeypatch.setattr(grid, "drive", lambda plan, folder: ({name: done for name in plan["runs"]}, 0))

    def call(*words, about=lambda about: None, rows=("", "")):
        monkeypatch.setattr(fingerprint, "here", lambda: fingerprint.Code(copy))
        path = copy / "data/results/g.json"
        changed = json.loads(path.read_text())
        about(changed)
        path.write_text(json.dumps(changed))
        table = path.with_suffix(".csv").read_text()
        assert rows[0] in table
        path.with_suffix(".csv").write_text(table.replace(*rows))
        return verify.main(list(words)), capsys.readouterr().out

    return call


@pytest.mark.chapters
def test_a_record_that_holds_and_records_that_do_not(verified, copy):
    status, printed = verified("g")
    assert status == 0 and printed.splitlines()[1].split()[-2:] == ["today's", "yes"]
    status, printed = verified(about=lambda about: about["data_sha256_by_seed"].update({"0": "cd"}))
    assert status == 1 and "g SEED=0 START=random: its images are others than those recorded" in printed
    undo = {"about": lambda about: about["data_sha256_by_seed"].update({"0": "ab"})}
    status, printed = verified(rows=("0.3333333333333", "2.4"), **undo)
    assert status == 1 and printed.splitlines()[1].endswith("no")
    assert "a/random/b is 0.333333, recorded 2.4; " in printed
    status, printed = verified(rows=("2.4,0.25", "0.3333333333333,"))
    assert status == 0 and printed.splitlines()[1].split()[3:] == ["1", "1", "0", "0", "1", "today's", "yes"]


@pytest.mark.chapters
def test_a_record_of_other_code_is_named(verified, copy):
    head = git(copy, "rev-parse", "HEAD")[:8]
    (copy / "utils" / "sums.py").write_text(SUMS.replace("2 * x", "x + x"))
    status, printed = verified("g")
    assert status == 0 and f"of {head}, other than today's  yes" in printed
    status, printed = verified("g", about=lambda about: about["code"][0].update(fingerprint="other"))
    assert status == 1 and f"not that of {head}  no" in printed
    assert "its commit has other code than its runs had" in printed
    status, printed = verified("g", about=lambda about: about["code"][0].update(commit="0" * 40))
    assert status == 0 and "00000000 is not in this repository  yes" in printed
    status, printed = verified("g", about=lambda about: about.pop("code"))
    assert status == 0 and "unverifiable: recorded before fingerprints  yes" in printed
    # It may name a chapter that computes it no more: then the experiment of today's grid does.
    (copy / "experiments" / "g.yaml").write_text(GOOD)
    old = {key: value for key, value in yaml.safe_load(GOOD).items() if key != "experiment"} | {"chapter": "old-page"}
    status, printed = verified("g", about=lambda about: about.update(grid=old))
    assert status == 0 and "unverifiable: recorded before fingerprints  yes" in printed


@pytest.mark.chapters
def test_what_cannot_be_computed_is_said(verified, monkeypatch):
    assert verified("h")[0] == "RECORD is 'h', but it must be one of 'g'."
    status, printed = verified(about=lambda about: about["grid"]["parameters"].update(RATTE=1))
    assert status == 1 and "g cannot be computed: There is no parameter RATTE;" in printed
    told = "g was not computed: it needs CIFAR-10's images, as DATASET=FILE.npz."
    status, printed = verified(about=lambda about: about["grid"].update(parameters={"DATASET": "cifar10-subset"}))
    assert status == 0 and told in printed
    status, printed = verified("g")
    assert status == 1 and told in printed
    monkeypatch.setattr(verify, "gpu", lambda: False)
    there = {"grid": {}, "devices": ["cuda"]}
    assert "recorded on a GPU" in verify.lacks(there, None, named=False) and not verify.lacks(there, None, named=True)


@pytest.mark.chapters
def test_verifying_computes_a_run_again(copy):
    status, lines, said = drive(copy, "verify", "g")
    assert (status, said) == (0, "") and noted(copy, "end") == [0, 0, 1] and lines[3].split()[-2:] == ["today's", "yes"]
    left = [*(copy / "_build/verify/runs").iterdir(), *(copy / "_build/verify/finished").iterdir()]
    assert not left  # so that the next call computes it again
