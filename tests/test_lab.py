"""A grid is checked before its first run, survives being killed, and computes only what can give something new."""

import argparse
import csv
import json
import os
import shutil
import signal
import subprocess
import sys
import time
import tomllib
from pathlib import Path

import nbformat
import numpy as np
import psutil
import pytest

from conftest import refused
from lab import grid, run, verify

ROOT = Path(__file__).parent.parent
SUMS = "def double(x):\n    return 2 * x\n"
# What a grid loads beside the lab.
LOADED = (
    "utils/__init__",
    "utils/errors",
    "attacks/__init__",
    "evaluation/__init__",
    "evaluation/notation",
)
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
if SEED < 0:
    report.begin(START=("random", "partition"))
def note(word):
    with open("notes.txt", "a") as file:
        file.write(f"{word} {SEED}\\n")
note("begin")
while 0 < SEED < 100 and not os.path.exists("go"):
    time.sleep(0.05)
assert SEED < 100, "The seed\\nis too large."
provenance = {"device": "cpu", "threads": 1, "products": "mkl", "duration_seconds": 1.0 + SEED}
provenance |= {"versions": {}, "data_sha256": "ab"}
rows = [dict(name="certificate/needed", seed=SEED, value=sums.double(SEED) + 1 / 3, baseline=0.25)]
np.savez(PICTURES, pictures=np.arange(5))
note("end")
content = dict(parameters=dict(DATASET=DATASET, SEED=SEED, RESULTS=RESULTS), provenance=provenance, rows=rows)
with open(RESULTS, "w") as file:
    json.dump(content, file)
"""
GOOD = "experiment: tiny\nlabel: two\ncross: {SEED: [0, 1], START: [random]}\npictures: [{SEED: 0, first: 2}]\n"


def git(place, *words):
    names = ["-c", "user.name=A", "-c", "user.email=a@example.org", "-c", "commit.gpgsign=false"]
    return subprocess.run(
        ["git", *names, *words], cwd=place, check=True, capture_output=True, text=True
    ).stdout


def write_notebook(path, *cells):
    """Write a notebook with these cells of code; the first is that of the parameters."""
    cells = [nbformat.v4.new_code_cell(text) for text in cells]
    cells[0].metadata["tags"] = ["parameters"]
    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    nbformat.write(nbformat.v4.new_notebook(cells=cells, metadata={"kernelspec": kernel}), path)


def repository(place):
    """A project of `lab`, a `utils` that is loaded in no time, a grid, and an experiment that notes its runs."""
    shutil.copytree(ROOT / "lab", place / "lab", ignore=shutil.ignore_patterns("__pycache__"))
    for folder in ("utils", "attacks", "evaluation", "experiments", "book", "data/results"):
        (place / folder).mkdir(parents=True)
    for name in LOADED:
        shutil.copy(ROOT / f"{name}.py", place / f"{name}.py")
    (place / "utils" / "sums.py").write_text(SUMS)
    shutil.copy(ROOT / "pyproject.toml", place)
    (place / "requirements.lock").write_text("x==1 \\\n    --hash=sha256:0\n")
    (place / ".snakemake-env").symlink_to(ROOT / ".snakemake-env")
    (place / ".gitignore").write_text("_build\n.snakemake-env\n__pycache__\nnotes.txt\ngo\n")
    write_notebook(place / "experiments" / "tiny.ipynb", DECLARED, BODY)
    (place / "g.yaml").write_text(GOOD)
    (place / "experiments" / "g.yaml").write_text(GOOD)
    shutil.copy(ROOT / "data" / "quantities.yaml", place / "data")
    return place


def processes(place):
    """The command lines of all processes that name a folder."""
    lines = [
        " ".join(process.info["cmdline"] or ()) for process in psutil.process_iter(["cmdline"])
    ]
    return [line for line in lines if str(place) in line]


def wait_until(condition):
    for _ in range(12_000):
        if condition():
            return
        time.sleep(0.1)
    raise AssertionError("this took more than twenty minutes")


def start(place, command, *words):
    environment = {**os.environ, "PYTHONPATH": str(place), "OMP_NUM_THREADS": "1", "JOBS": "2"}
    pipes = dict(stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    command = [sys.executable, "-m", f"lab.{command}", *words]
    return subprocess.Popen(command, cwd=place, env=environment, start_new_session=True, **pipes)


def drive(place, *words):
    """Run a command to its end: its status, the lines that it prints, and its mistakes."""
    process = start(place, *words)
    printed, mistakes = process.communicate(timeout=600)
    return process.returncode, printed.splitlines(), mistakes


def well(place, *words):
    """The lines that a command prints which ends well."""
    status, lines, mistakes = drive(place, *words)
    assert (status, mistakes) == (0, "")
    return lines


def to_run(lines):
    """How many runs Snakemake says that it would compute."""
    return next(int(line.split()[1]) for line in lines if line.startswith("run "))


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A repository with a grid that is finished, and recorded; for reading only."""
    place = repository(tmp_path_factory.mktemp("made") / "place")
    for words in (["init", "-q"], ["add", "-A"], ["commit", "-q", "-m", "A commit"]):
        git(place, *words)
    (place / "go").touch()
    lines = well(place, "grid", "g.yaml")
    assert lines[0].startswith("0 of 2 done") and lines[-1].startswith("2 of 2 done")
    assert well(place, "record", "g.yaml") == ["g.yaml: 2 numbers of 2 runs, 1 arrays of pictures."]
    return place


@pytest.fixture
def copy(made, tmp_path):
    """A copy of that repository, to be changed."""
    return Path(shutil.copytree(made, tmp_path / "place", symlinks=True))


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A folder with the tiny experiment, in which this process plans; no repository of git."""
    place = repository(tmp_path / "place")
    monkeypatch.setattr(grid, "ROOT", place)
    monkeypatch.setattr(grid, "FOLDER", place / "grids")
    monkeypatch.setattr(grid, "SNAKEMAKE", place / "snakemake")
    monkeypatch.chdir(place)
    return place


def planned(text, **given):
    Path("h.yaml").write_text(text)
    run.code_of.cache_clear()
    return grid.plan_of(grid.read("h.yaml"), given)


TINY = "experiment: tiny\ncross: "
WRONG = [  # a grid, what is given with it, and what is said
    ("a: [1", "", "the file cannot be read as YAML ("),
    (TINY + "{SEED: [2024-13-01]}", "", "the file cannot be read as YAML (month must be in"),
    (TINY + "{}", "", "there are no runs: say what to cross"),
    (TINY + "{SEED: []}", "", "SEED is []; under cross it must be a list of values"),
    (GOOD + "seeds: 3", "", "a key is 'seeds', but it must be one of 'experiment', 'about', "),
    (GOOD + "experiment: tiny", "", "the file has 'experiment' twice: take one out."),
    (GOOD + "minutes: 0", "", "minutes is 0: write it as in experiments/example.yaml."),
    (TINY + "{on: [1]}", "", "There is no parameter True; this chapter has DATASET, SEED,"),
    (TINY + "{SEED: [1, 2, 1]}", "", "SEED has 1 twice: take one out."),
    (TINY + "{START: [truth]}", "", "START is 'truth', but it must be one of 'random', 'partition'."),
    (TINY + "{RESULTS: [a, b]}", "", "RESULTS is set for every run: take it out."),
    (TINY + "{DATASET: [/nowhere.npz]}", "", "There is no file /nowhere.npz: check its path"),
    (GOOD, "SEED=3", "SEED is crossed and has one value, too: take one of them out."),
    (GOOD, "", "Snakemake is not set up: `make .snakemake-env/ready` does it."),
    (f"{TINY}{{SEED: {[*range(400)]}, RATE: {[*range(1, 400)]}}}", "", "these are 159,600 runs"),
]  # fmt: skip


@pytest.mark.parametrize("text, given, sentence", WRONG, ids=lambda value: str(value)[-40:])
def test_a_mistake_is_one_sentence_that_names_the_file(text, given, sentence, place):
    (place / "g.yaml").write_text(text)
    ended = grid.main(["g.yaml", *given.split()])
    assert ended.startswith(f"g.yaml: {sentence}") and "\n" not in ended and ended.endswith(".")
    assert not list(place.glob("grids/*/runs"))


def test_every_combination_is_a_run_with_a_key_of_code_parameters_and_data(place, monkeypatch):
    monkeypatch.setattr(run, "ROOT", place)
    text = "experiment: tiny\ncross: {SEED: [0, 1], START: [random, partition]}\n"
    runs = planned(text, RATE="1e-3")["runs"]
    assert len(runs) == 4 and {each["parameters"]["RATE"] for each in runs.values()} == {0.001}
    assert runs == planned(text + "parameters: {RATE: 1e-3}")["runs"]
    data = text + "parameters: {DATASET: a.npz}"
    plans = [planned(text), planned(text, RATE="0.2")]
    listed = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"]
    later = [f"{name.replace('.', '/')}/later.py" for name in listed]
    changed = (*later, "a.npz", "utils/sums.py", "requirements.lock", "experiments/tiny.ipynb")
    (place / "a.npz").write_text("x = 1 / 3")
    plans.append(planned(data))
    for path in changed:
        (place / path).parent.mkdir(parents=True, exist_ok=True)
        old = (place / path).read_text() if (place / path).exists() else "x = 1 / 3"
        (place / path).write_text(old.replace("/ 3", "/ 4").replace("x", "y"))
        plans.append(planned(data))
    assert len({key for plan in plans for key in plan["runs"]}) == (3 + len(changed)) * 4
    grown = planned(data.replace("[0, 1]", "[0, 1, 2]"))["runs"]
    assert len(grown) == 6 and plans[-1]["runs"].keys() < grown.keys()


def test_git_is_asked_about_the_files_of_the_key(place):
    git(place, "init", "-q")
    git(place, "add", "-A")
    seen = grid.git("ls-files", "--", *grid.FOR_GIT).splitlines()
    assert {*seen} == {
        str(file.relative_to(place)) for pattern in run.CODE for file in place.glob(pattern)
    }
    assert "utils/sums.py" in seen


def noted(place, word):
    """The seeds that the experiment noted when it began, or ended."""
    lines = (place / "notes.txt").read_text().splitlines() if (place / "notes.txt").exists() else []
    return sorted(int(line.split()[1]) for line in lines if line.startswith(word))


@pytest.mark.chapters
def test_a_grid_that_is_killed_goes_on_and_computes_nothing_twice(tmp_path):
    place = repository(tmp_path / "place")
    (place / "g.yaml").write_text("experiment: tiny\ncross: {SEED: [0, 1]}\n")
    first, folder = start(place, "grid", "g.yaml"), place / "_build/grids/g"
    wait_until(lambda: noted(place, "begin") == [0, 1] and [*folder.glob("runs/*/results.json")])
    second = start(place, "grid", "g.yaml")
    waits = f"another driver is at work in {folder}: waiting until it has ended.\n"
    assert second.stdout.readline() == waits and noted(place, "begin") == [0, 1]
    first.kill()
    first.communicate()
    wait_until(lambda: noted(place, "begin") == [0, 1, 1])
    second.send_signal(signal.SIGINT)
    assert "stopped; run the same command again" in second.communicate(timeout=600)[1]
    wait_until(lambda: not processes(place))
    (place / "go").touch()
    assert well(place, "grid", "g.yaml")[0].startswith("1 of 2 done")
    assert noted(place, "begin") == [0, 1, 1, 1] and noted(place, "end") == [0, 1]
    rows = [*csv.DictReader((folder / "table.csv").open())]
    assert sorted(row["value"][:5] for row in rows) == ["0.333", "2.333"]


@pytest.mark.chapters
def test_a_failing_run_says_why_and_stops_no_other(tmp_path):
    place = repository(tmp_path / "place")
    (place / "g.yaml").write_text("experiment: tiny\ncross: {SEED: [0, 100]}\n")
    status, lines, mistakes = drive(place, "grid", "g.yaml")
    why = "SEED=100 failed: AssertionError: The seed is too large. The notebook up to there is "
    assert (status, mistakes) == (1, "") and noted(place, "begin") == [0, 100]
    (failed,) = [line for line in lines if line.startswith(why)]
    assert Path(failed.split()[-1]).exists() and lines[-1].startswith("1 of 2 done: see ")


@pytest.mark.chapters
def test_only_what_can_give_something_new_is_computed(copy):
    next((copy / "_build/grids/g").glob("runs/*/results.json")).write_text("{")  # damaged
    (copy / "g.yaml").write_text(GOOD.replace("[0, 1]", "[0, 1, 2]"))
    assert well(copy, "grid", "g.yaml")[0].startswith("1 of 3 done")
    assert len(noted(copy, "end")) == 4
    (copy / "utils/sums.py").write_text(SUMS.replace("2 * x", "3 * x"))
    assert to_run(drive(copy, "grid", "g.yaml", "--dry-run")[1]) == 3


@pytest.mark.chapters
@pytest.mark.parametrize(
    "profile", sorted(path.name for path in (ROOT / "lab" / "profiles").iterdir())
)
def test_the_same_grid_is_planned_for_a_cluster(profile, tmp_path):
    place = repository(tmp_path / "place")
    status, lines, mistakes = drive(
        place, "grid", "g.yaml", "--dry-run", "--profile", f"lab/profiles/{profile}"
    )
    assert status == 0 and to_run(lines) == 2 and not noted(place, "begin"), mistakes


@pytest.mark.chapters
def test_a_record_is_tidy_and_names_its_commit(made):
    text = (made / "data/results/g.json").read_text()
    code = {"commit": git(made, "rev-parse", "HEAD").strip(), "threads": 1, "device": "cpu"}
    wanted = {
        "code": [code | {"products": "mkl", "runs": "all"}],
        "runs": 2,
        "notebook": "experiments/tiny.ipynb",
        "cheapest": {"SEED": 0, "START": "random"},
        "data_sha256_by_seed": {"0": ["ab"], "1": ["ab"]},
    }
    assert wanted.items() <= json.loads(text).items() and str(made) not in text
    lines = (made / "data/results/g.csv").read_text().splitlines()
    assert lines[0] == "START,name,seed,value,baseline"
    assert lines[2] == "random,certificate/needed,1,2.333333333333,0.25"
    with np.load(made / "data/results/g.npz") as archive:
        (name,) = archive
        assert name == "SEED=0 START=random/pictures" and archive[name].tolist() == [0, 1, 4]


@pytest.mark.chapters
def test_only_finished_runs_of_committed_code_are_recorded(copy):
    git(copy, "rm", "-q", "--cached", "requirements.lock")  # the same code, not the commit's
    status, _, said = drive(copy, "record", "g.yaml")
    assert status == 1
    assert "is not committed: commit it first, or record all the same with DIRTY=1" in said
    well(copy, "record", "g.yaml", "--dirty")
    (code,) = json.loads((copy / "data/results/g.json").read_text())["code"]
    assert code["commit"] == git(copy, "rev-parse", "HEAD").strip() + "-dirty"
    (copy / "g.yaml").write_text(GOOD.replace("[0, 1]", "[0, 1, 2]"))
    status, _, said = drive(copy, "record", "g.yaml")
    assert status == 1 and "1 of 3 runs are not finished: `make grid GRID=g.yaml` goes on." in said


AREA = "decoreco/signed/random/leak_auc"  # the seeds give 1 to 3.5, and a width of 2.5
NUMBERS = [
    (AREA, 2 + 1e-10, {"equal": 1}),
    (AREA, 5.9, {"in the spread": 1}),
    (AREA, 6.1, {"outside": 1}),
    (AREA, -1.4, {"in the spread": 1}),
    (AREA, -1.6, {"outside": 1}),
    ("certificate/needed", 2 + 1e-10, {"equal": 1}),
    ("certificate/needed", 2 + 1e-8, {"outside": 1}),
    ("decoreco/signed/random/seconds", 100, {}),  # the machine's
]


def rows_of(values, name, **more):
    common = {"name": name, "baseline": ""} | more
    return [common | {"seed": str(seed), "value": str(value)} for seed, value in enumerate(values)]


@pytest.mark.parametrize("name, again, counts", NUMBERS)
def test_a_number_is_equal_or_within_the_spread_of_its_quantity(name, again, counts):
    rows = rows_of([1, 2, 3.5], name, WIDTH="8") + rows_of([100, 200], name, WIDTH="16")
    now = [{"name": name, "seed": 1, "value": again}]
    found, why = verify.compare(rows, {"SEED": 1, "WIDTH": 8}, now)
    assert found == counts and len(why) == counts.get("outside", 0)


def test_recorded_names_must_stay_and_others_may_come():
    now = [{"name": "a/c", "seed": 0, "value": 10}]
    found, _ = verify.compare(rows_of([10], "certificate/needed"), {"SEED": 0}, now)
    assert found == {"outside": 1, "new": 1}


GRID, ABOUT, TABLE = "experiments/g.yaml", "data/results/g.json", "data/results/g.csv"
CIFAR = (GRID, "label: two", "label: two\nparameters: {DATASET: cifar10-subset}")
LACKING = "g was not computed: it needs CIFAR-10's images: DATASET=cifar10-subset downloads them"
ON_A_GPU = (ABOUT, '"cpu"\n ]', '"cuda"\n ]')
NUMBER = "0.3333333333333,0.25"
VERIFIED = [  # what is asked for, what is changed of the record, the status, and what is printed
    ("g", ("", "", ""), 0, "2 equal, 0 in the spread, 0 outside, 0 new: holds; no file changed since"),
    ("", (ABOUT, '"ab"', '"cd"'), 1, "its images are others than those recorded"),
    ("", (TABLE, NUMBER, "2.4,0.25"), 1, "certificate/needed is 0.333333, recorded 2.4"),
    ("", (TABLE, NUMBER, NUMBER[:-4]), 0, "1 equal, 0 in the spread, 0 outside, 1 new: holds"),

    ("", CIFAR, 0, LACKING),
    ("g", CIFAR, 1, LACKING),
    ("", ON_A_GPU, 0, "g was not computed: it was recorded on a GPU, and there is none here"),

]  # fmt: skip


def test_images_of_others_are_refused_where_a_record_has_its_own():
    chosen = argparse.Namespace(record="small", dataset="x.npz", all=False)
    assert "leave DATASET out" in refused(verify.lacking, False, {}, chosen)


@pytest.mark.chapters
@pytest.mark.parametrize("words, change, status, sentence", VERIFIED)
def test_a_record_is_verified(words, change, status, sentence, copy, monkeypatch, capsys):
    """The finished run stands in the place of a new one."""
    for module in (grid, verify):
        monkeypatch.setattr(module, "ROOT", copy)
    monkeypatch.setattr(verify, "RESULTS", copy / "data/results")
    monkeypatch.setattr(verify, "FOLDER", copy / "_build/verify")
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    done = [*map(run.results_of, copy.glob("_build/grids/g/runs/*/results.json"))]
    (content,) = (each for each in done if each["parameters"]["SEED"] == 0)
    monkeypatch.setattr(grid, "drive", lambda plan, _: (dict.fromkeys(plan["runs"], content), 0))
    path, old, new = change
    if path:
        text = (copy / path).read_text()
        assert old in text
        (copy / path).write_text(text.replace(old, new))
    assert verify.main(words.split()) == status and sentence in capsys.readouterr().out


@pytest.mark.chapters
def test_verifying_computes_a_run_again_each_time(copy):
    assert ": holds; no file changed" in well(copy, "verify", "g")[-1]
    (copy / "utils" / "sums.py").write_text(SUMS.replace("2 * x", "x + x"))
    assert ": holds; 1 file changed" in well(copy, "verify", "g")[-1]
    assert noted(copy, "end") == [0, 0, 0, 1]


@pytest.mark.chapters
def test_a_hanging_cell_is_ended(tmp_path):
    write_notebook(tmp_path / "a.ipynb", "import time\ntime.sleep(600)")
    said = refused(run.execute, tmp_path / "a.ipynb", tmp_path / "b.ipynb", {}, minutes=0.05)
    assert said.startswith("a cell took longer than 0.05 minutes and was ended. The notebook up to")


@pytest.mark.chapters
def test_a_chapter_is_given_numbers_leaves_no_trace_and_one_that_fails_stops_no_other(tmp_path):
    place = repository(tmp_path / "place")
    write_notebook(place / "a.ipynb", "N = 3", "print(N)")
    write_notebook(place / "b.ipynb", "N = 3", "assert not N")
    status, (line,), mistakes = drive(place, "run", "b.ipynb", "a.ipynb", "out", "N=1e-3")
    assert status == 1 and mistakes.startswith("b: AssertionError: ")
    written = place / "out" / "a.ipynb"
    assert sorted(place.glob("out/*")) == [written, place / "out" / "b.partial.ipynb"]
    text = written.read_text()
    assert line.startswith("a: ") and "N = 0.001" in text
    assert not any(trace in text for trace in ('"papermill"', 'execution"', str(place)))


@pytest.mark.chapters
def test_a_chapter_that_is_stopped_says_so_and_leaves_no_output_and_no_kernel(tmp_path):
    place = repository(tmp_path / "place")
    write_notebook(place / "a.ipynb", "open('begun', 'w').close()", "import time\ntime.sleep(600)")
    process = start(place, "run", "a.ipynb", "out")
    wait_until((place / "begun").exists)
    process.terminate()
    assert "the notebooks: stopped; run the same" in process.communicate(timeout=300)[1]
    assert process.returncode == 1
    wait_until(lambda: not processes(place))
    assert not (place / "out" / "a.ipynb").exists()
