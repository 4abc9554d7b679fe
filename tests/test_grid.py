"""A grid is checked before its first run, is never computed twice, and survives being killed."""

import contextlib
import csv
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import nbformat
import pytest

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "scripts"))
import grid  # noqa: E402
import grid_page  # noqa: E402
import grid_plan  # noqa: E402
import grid_run  # noqa: E402

DECLARED = """# Parameters of this chapter
DATASET = "photos"
SEED = 0
DEVICE = "auto"
RESULTS = ""
PICTURES = ""
START = "random"
RATE = 0.1
WAIT = 0.1
"""
BODY = """import json, time
def note(word):
    with open({notes!r}, "a") as file:
        file.write(f"{{word}} {{SEED}} {{START}}\\n")
note("begin")
time.sleep(WAIT)
assert SEED < 100, "The seed\\nis too large."
names = "DATASET SEED DEVICE RESULTS PICTURES START RATE WAIT".split()
content = dict(parameters={{name: globals()[name] for name in names}}, provenance={{}})
content["rows"] = [dict(name=f"a/{{START}}/b", seed=SEED, value=SEED + 0.5, baseline=0.25)]
open(PICTURES, "w").write(START)
with open(RESULTS, "w") as file:
    json.dump(content, file)
note("end")
"""
DRIVE = f"""import signal, sys
from pathlib import Path
sys.path.insert(0, {str(ROOT / "scripts")!r})
import grid
for number in (signal.SIGINT, signal.SIGTERM):  # a shell's background job is born deaf to the first
    signal.signal(number, signal.default_int_handler)
sys.exit(grid.main(sys.argv[1:], Path("book"), Path("grids")))
"""
GOOD = "chapter: tiny\ncross: {SEED: [0, 1], START: [random, partition]}\n"


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A folder with a book of one tiny chapter, which notes what it computes, and a grid; the tests work in it."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "book").mkdir()
    cells = [nbformat.v4.new_code_cell(text, id=f"cell-{len(text)}") for text in (DECLARED, chapter_of(tmp_path))]
    cells[0].metadata["tags"] = ["parameters"]
    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    notebook = nbformat.v4.new_notebook(cells=cells, metadata={"kernelspec": kernel})
    nbformat.write(notebook, tmp_path / "book" / "tiny.ipynb")
    (tmp_path / "drive.py").write_text(DRIVE)
    (tmp_path / "g.yaml").write_text(GOOD)
    return tmp_path


def chapter_of(folder):
    return BODY.format(notes=str(folder / "notes.txt"))


def planned(text, **given):
    return grid.plan_of(grid_plan.yaml_of(text), given, Path("book"))


def pretend_snakemake(monkeypatch):
    monkeypatch.setattr(grid, "snakemake_of", lambda profile: Path(sys.executable))


WRONG = [
    ("a: [1", [], "the file cannot be read as YAML (line 1, "),
    ("", [], "a grid needs chapter: and cross:"),
    ("- 1", [], "a grid needs chapter: and cross:"),
    (
        GOOD + "seeds: 3",
        [],
        "there is no key 'seeds'; a grid has chapter, about, parameters, cross, "
        "minutes, retries, label, full_size, pictures.",
    ),
    (GOOD + "chapter: tiny", [], "chapter is named twice"),
    ("chapter: tine\ncross: {SEED: [1]}", [], "chapter is 'tine', but it must be one of tiny."),
    ("cross: {SEED: [1]}", [], "chapter is None, but it must be one of tiny."),
    ("chapter: tiny", [], "there are no runs: say what to cross"),
    ("chapter: tiny\ncross: {}", [], "there are no runs: say what to cross"),
    ("chapter: tiny\ncross: [1]", [], "cross is [1]; it must be names with lists"),
    ("chapter: tiny\ncross: {SEED: []}", [], "SEED is []; under cross it must be a list of values"),
    ("chapter: tiny\ncross: {SEED: 3}", [], "SEED is 3; under cross it must be a list of values"),
    ("chapter: tiny\ncross: {SEED: [1, 2, 1]}", [], "SEED has 1 twice: take one out."),
    ("chapter: tiny\ncross: {SEED: [1, -1]}", [], "SEED is -1; it must be 0 or larger."),
    ("chapter: tiny\ncross: {SEED: [1, 0.5]}", [], "SEED is 0.5; it must be a whole number"),
    ("chapter: tiny\ncross: {SEED: [true]}", [], "SEED is True; it must be a whole number"),
    ("chapter: tiny\ncross: {SEED: [{}]}", [], "SEED is {}; it must be a whole number"),
    ("chapter: tiny\ncross: {SEEED: [1]}", [], "There is no parameter SEEED; this chapter has DATASET, SEED,"),
    ("chapter: tiny\ncross: {RESULTS: [a, b]}", [], "RESULTS is set for every run: take it out."),
    ("chapter: tiny\ncross: {DEVICE: [gpu]}", [], "DEVICE is 'gpu', but it must be one of 'auto', 'cpu', 'cuda'."),
    ("chapter: tiny\ncross: {DATASET: [/nowhere.npz]}", [], "There is no file /nowhere.npz: check the path"),
    ("chapter: tiny\ncross: {DATASET: [phtos]}", [], "DATASET is 'phtos', but it must be"),
    (GOOD + "minutes: 0", [], "minutes is 0; it must be a number larger than 0."),
    (GOOD + "minutes: soon", [], "minutes is 'soon'; it must be a number larger than 0."),
    (GOOD + "retries: -1", [], "retries is -1; it must be a whole number from 0 on."),
    (GOOD + "retries: 1.5", [], "retries is 1.5; it must be a whole number from 0 on."),
    (GOOD, ["SEED=3"], "SEED is crossed and has one value, too: take one of them out."),
    (GOOD, ["PICTURES=a.npz"], "PICTURES is set for every run: take it out."),
    (GOOD, ["RATE=fast"], "RATE is 'fast'; it must be a number, like its default 0.1."),
    (GOOD, ["RATE=inf"], "RATE is inf; it must be larger than 0."),
    (GOOD, ["--profile", "nowhere"], "there is no file nowhere/config.yaml: give the folder of a profile."),
    (f"chapter: tiny\ncross: {{SEED: {list(range(400))}, WAIT: {list(range(1, 400))}}}", [], "these are 159,600 runs"),
]


@pytest.mark.parametrize("text, words, sentence", WRONG, ids=lambda value: str(value)[-40:])
def test_a_mistake_is_one_sentence_that_names_the_file(text, words, sentence, place, monkeypatch):
    pretend_snakemake(monkeypatch)
    (place / "g.yaml").write_text(text)
    told = grid.main(["g.yaml", *words], Path("book"), Path("grids"))
    assert told.startswith(f"g.yaml: {sentence}") and "\n" not in told and told.endswith(".")
    assert sorted(path.name for path in place.iterdir()) == ["book", "drive.py", "g.yaml"]


def test_a_file_that_is_not_there_and_jobs_that_are_no_number(place, monkeypatch):
    told = grid.main(["h.yaml"], Path("book"), Path("grids"))
    assert told == "h.yaml: the file cannot be read (No such file or directory): check its path."
    monkeypatch.setenv("JOBS", "many")
    told = grid.main(["g.yaml"], Path("book"), Path("grids"))
    assert told == "g.yaml: JOBS is 'many'; it must be a whole number larger than 0."


@pytest.mark.parametrize("runs, jobs, threads", [(1, 1, 8), (2, 2, 4), (9, 2, 4)])
def test_one_run_has_all_cores(runs, jobs, threads, monkeypatch):
    monkeypatch.setattr("os.cpu_count", lambda: 8)
    for name in ("JOBS", "OMP_NUM_THREADS"):
        monkeypatch.delenv(name, raising=False)
    assert grid_plan.shares(runs) == {"jobs": jobs, "threads": threads}


def test_a_folder_that_cannot_be_written_is_one_sentence(place, monkeypatch):
    pretend_snakemake(monkeypatch)
    (place / "grids").write_text("in the way")
    told = grid.main(["g.yaml"], Path("book"), Path("grids"))
    assert told.startswith("g.yaml: ") and "cannot be written" in told and "\n" not in told


def test_without_snakemake_one_sentence_says_how_to_get_it(place, monkeypatch):
    monkeypatch.setattr(grid, "SNAKEMAKE", place / "nothing")
    told = grid.main(["g.yaml"], Path("book"), Path("grids"))
    assert told == "g.yaml: Snakemake is not set up: `make .snakemake-env/local/ready` does it."


def test_a_full_disk_is_one_sentence(place, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    pretend_snakemake(monkeypatch)
    monkeypatch.setattr(grid_run.os, "replace", full)
    told = grid.main(["g.yaml"], Path("book"), Path("grids"))
    assert told == "g.yaml: the disk is full: free some space, and run the same command again."
    assert not list(place.rglob("*.tmp"))


def test_every_combination_is_a_run_with_a_key_of_its_own(place):
    plan = planned(GOOD, RATE="1e-3")
    assert [run["label"] for run in plan["runs"].values()] == [
        f"SEED={seed} START={start}" for seed in (0, 1) for start in ("random", "partition")
    ]
    assert all(run["parameters"]["RATE"] == 0.001 for run in plan["runs"].values())
    assert all(len(key) == 16 for key in plan["runs"])
    assert plan["runs"] == planned(GOOD + "parameters: {RATE: 1e-3}\nminutes: 3")["runs"]


def test_other_code_data_or_parameters_have_other_keys(place):
    (place / "a.npz").write_text("1")
    text, cells = GOOD + "parameters: {DATASET: a.npz}", place / "book" / "tiny.ipynb"
    keys = [set(planned(text)["runs"]), set(planned(text, RATE="0.2")["runs"])]
    (place / "a.npz").write_text("2")
    grid_plan.contents.cache_clear()
    keys.append(set(planned(text)["runs"]))
    cells.write_text(cells.read_text().replace("0.25", "0.75"))
    keys.append(set(planned(text)["runs"]))
    assert len(set().union(*keys)) == 4 * 4
    grown = set(planned(text.replace("[0, 1]", "[0, 1, 2]"))["runs"])
    assert keys[3] < grown and len(grown) == 6


def test_only_whole_numbers_of_these_parameters_count_as_finished(place):
    path, content = place / "a.json", {"parameters": {"SEED": 1, "RATE": 0.1}, "rows": []}
    for text in ("", "[]", "{}", json.dumps(content)[:-3], json.dumps({"parameters": {"SEED": 1}, "rows": None})):
        path.write_text(text)
        assert grid_run.finished(path, {"SEED": 1}) is None
    path.write_text(json.dumps(content))
    assert grid_run.finished(path, {"SEED": 1}) == content and grid_run.finished(path, {"SEED": 2}) is None


def results(plan):
    """What the chapter would write for every run of a plan."""
    for key, run in plan["runs"].items():
        seed, start = run["crossed"]["SEED"], run["crossed"]["START"]
        rows = [{"name": f"a/{start}/b", "seed": seed, "value": seed + 0.5, "baseline": 0.25}]
        yield key, {"parameters": run["parameters"], "rows": rows}


def test_table_and_page_hold_every_number(place):
    plan = planned(GOOD + "about: 3 < 4")
    done = dict(results(plan))
    failed = [("SEED=9", "It <stopped>.")]
    grid_page.make(plan, done, failed, place, "make grid")
    rows = list(csv.DictReader((place / "table.csv").open()))
    assert len(rows) == 4 and rows[3] == {
        "SEED": "1", "START": "partition", "name": "a/partition/b", "seed": "1", "value": "1.5", "paper": "",
        "baseline": "0.25",
    }  # fmt: skip
    page = (place / "index.html").read_text()
    assert page.count('<img alt="a/&lt;START&gt;/b: mean') == 1 and "data:image/png;base64,iVBOR" in page
    assert "width=device-width" in page and "3 &lt; 4" in page and "It &lt;stopped&gt;." in page and "http" not in page
    assert "<td>START=partition<td>2<td>1<td>6.4<td>–<td>0.25" in page  # t(0.975, 1) · sd / √2 = 12.7 · 0.5
    grid_page.make(plan, {}, failed, place, "make grid")
    assert (place / "table.csv").read_text() == "SEED,START,name,seed,value,paper,baseline\n"


def test_the_page_gives_the_mean_and_half_of_students_interval():
    (line,) = grid_page.lines_of("q", {"all runs": {seed: {"value": seed + 1.0} for seed in range(3)}})
    assert line[2:5] == (3, "2", "2.5")
    (line,) = grid_page.lines_of("q", {"all runs": {0: {"value": 3.0}}})
    assert line[2:5] == (1, "3", "–")


def test_the_second_driver_says_so(place, monkeypatch):
    pretend_snakemake(monkeypatch)
    with grid.alone(place / "grids" / "g") as lock:
        told = grid.main(["g.yaml"], Path("book"), Path("grids"))
        assert told == f"g.yaml: another driver is at work in {place / 'grids' / 'g'}: wait until it has ended."
        assert not lock.closed
    with grid.alone(place / "grids" / "g"):
        pass


def test_batch_is_the_grid_of_some_seeds(place):
    told = grid.main(["--chapter", "tiny", "--seeds", "0 x"], Path("book"), Path("grids"))
    assert told == "batch-tiny: SEED is 'x'; it must be a whole number, like its default 0."
    command = ["make", "-n", "-o", ".venv/ready", "-o", ".snakemake-env/local/ready", "batch", "SEEDS=3 4"]
    ended = subprocess.run(
        [*command, "PARAMETERS=A=1", "DATASET=cifar10"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    words = "--chapter 05-random-initialisation --seeds \"3 4\" 'DATASET=cifar10' SEEDS=1 A=1"
    assert f"scripts/grid.py {words}" in ended.stdout


def start(place, *words):
    command, settings = [sys.executable, "drive.py", "g.yaml", *words], {"OMP_NUM_THREADS": "1", "JOBS": "2"}
    pipes = dict(stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    return subprocess.Popen(command, cwd=place, env={**os.environ, **settings}, start_new_session=True, **pipes)


def drive(place, *words):
    """Run a driver to its end: its status, and the lines of both streams."""
    process = start(place, *words)
    told, said = process.communicate(timeout=300)
    return process.returncode, told.splitlines(), said.splitlines()


def noted(place, word):
    """What the chapter noted when it began, or ended: 'SEED START' of each time."""
    lines = (place / "notes.txt").read_text().splitlines() if (place / "notes.txt").exists() else []
    return [line.removeprefix(f"{word} ") for line in lines if line.startswith(word)]


def processes(place):
    """{pid: command line} of all processes that name the folder, but for the drivers."""
    found = {}
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = path.read_bytes().replace(b"\0", b" ").decode()
        except OSError:  # it has just ended
            continue
        if str(place) in line:
            found[int(path.parent.name)] = line
    return found


def wait_until(condition):
    for _ in range(3000):
        if condition():
            return
        time.sleep(0.1)
    raise AssertionError("this took more than five minutes")


@pytest.mark.chapters
def test_what_is_finished_is_not_run_again(place):
    status, told, said = drive(place)
    assert (status, said) == (0, []) and sorted(noted(place, "end")) == sorted(noted(place, "begin"))
    assert len(noted(place, "end")) == 4 and told[0].startswith("0 of 4 done")
    assert "4 of 4 done, 0 failed, last: SEED=" in told[4] and told[5].startswith("4 of 4 done. The page: ")
    folder = place / "grids" / "g"
    results = sorted(folder.glob("[0-9a-f]*[0-9a-f].json"))
    content = json.loads(results[0].read_text())
    assert len(results) == 4 and content["parameters"]["RESULTS"] == str(results[0])
    assert content["parameters"]["PICTURES"] == str(results[0].with_suffix(".npz"))
    assert not list(folder.glob("*.part")) and not list(folder.glob("*.tmp"))
    results[1].write_text(results[1].read_text()[:50])
    (place / "g.yaml").write_text(GOOD.replace("[0, 1]", "[0, 1, 2]"))
    status, told, said = drive(place)
    assert (status, said, len(noted(place, "end"))) == (0, [], 7) and told[0].startswith("3 of 6 done")
    assert all(path.with_suffix(end).exists() for path in results for end in (".ipynb", ".log", ".npz"))
    assert len((folder / "table.csv").read_text().splitlines()) == 7


@pytest.mark.chapters
def test_failing_and_hanging_runs_say_why_in_one_sentence_each(place):
    text = "chapter: tiny\ncross: {SEED: [0, 100], WAIT: [0.1, 600]}\nminutes: 0.2\nretries: 1\n"
    (place / "g.yaml").write_text(text)
    status, told, said = drive(place)
    assert status == 1 and told[-1].startswith("1 of 4 done. The page: ") and len(said) == 3
    said = dict(line.split(" failed: ") for line in said)
    assert said["SEED=100 WAIT=0.1"].startswith("tiny stopped. AssertionError: The seed is too large. The notebook up")
    assert all(said[f"SEED={seed} WAIT=600"].startswith("a cell took longer than 0.2 minutes") for seed in (0, 100))
    assert noted(place, "begin").count("100 random") == 4 and Path(said["SEED=0 WAIT=600"].split()[-1]).exists()
    assert "The seed is too large." in (place / "grids" / "g" / "index.html").read_text()


@pytest.mark.chapters
def test_an_interrupt_stops_everything(place):
    process = start(place, "WAIT=600")
    wait_until(lambda: len(noted(place, "begin")) == 2)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=300)
    assert process.returncode == 1 and said == "g.yaml: stopped; run the same command again, and it goes on.\n"
    wait_until(lambda: not processes(place))


@pytest.mark.chapters
@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
def test_snakemake_dies_with_its_driver_and_an_orphan_is_waited_for(place):
    (place / "g.yaml").write_text("chapter: tiny\ncross: {SEED: [0]}\n")
    process = start(place, "WAIT=25")
    wait_until(lambda: noted(place, "begin"))
    process.kill()
    process.wait()
    wait_until(lambda: not [line for line in processes(place).values() if "--snakefile" in line])
    assert [line for line in processes(place).values() if "grid_run.py" in line]
    status, _, said = drive(place, "WAIT=25")
    assert (status, said) == (0, [])
    assert noted(place, "begin") == noted(place, "end") == ["0 random"]


@pytest.mark.chapters
@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
def test_kills_at_random_moments_lose_nothing(place):
    (place / "g.yaml").write_text("chapter: tiny\ncross: {SEED: [0, 1, 2, 3, 4]}\nretries: 3\n")
    draw = random.Random(os.urandom(8))
    for what in ("--snakefile", "grid_run.py", "the driver", ""):
        process = start(place, "WAIT=1")
        wait_until(lambda driver=process: driver.poll() == 0 or "grid_run.py" in str(processes(place)))
        time.sleep(draw.uniform(0, 5))
        for pid in [pid for pid, line in processes(place).items() if what in line] + [process.pid]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        process.communicate(timeout=300)
    status, _, said = drive(place, "WAIT=1")
    assert (status, said) == (0, [])
    ended = noted(place, "end")
    assert set(ended) == {f"{seed} random" for seed in range(5)}
    rows = csv.DictReader((place / "grids" / "g" / "table.csv").open())
    assert sorted(row["value"] for row in rows) == ["0.5", "1.5", "2.5", "3.5", "4.5"]


@pytest.mark.chapters
@pytest.mark.parametrize("profile", sorted(path.name for path in (ROOT / "grids" / "profiles").iterdir()))
def test_the_same_grid_is_planned_for_a_cluster(profile, place):
    words = "--dry-run", "--profile", str(ROOT / "grids" / "profiles" / profile)
    status, told, said = drive(place, *words)
    assert (status, said) == (0, []) and told[0] == "4 runs, 0 done; these would run:" and len(told) == 5
    assert not (place / "grids").exists()
    shutil.copytree(words[2], place / "wrong")
    with (place / "wrong" / "config.yaml").open("a") as file:
        file.write("\nslurm-nonsense: 3\n")
    status, _, said = drive(place, "--dry-run", "--profile", "wrong")
    assert status == 1 and len(said) == 1 and "slurm-nonsense" in said[0]
