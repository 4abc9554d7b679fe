"""The files at the top level agree with each other."""

import os
import re
import runpy
import shutil
import signal
import subprocess
import sys
import tomllib
from pathlib import Path

import nbformat
import pytest
import yaml
from test_workflow import processes, wait_until

from utils import kept
from workflow import chapters

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


def test_conda_gives_pip_what_pip_takes(tmp_path):
    """conda writes the list under `pip:` into a file; pip must accept all of it, hashes included."""
    environment = yaml.safe_load((ROOT / "environment.yml").read_text())
    python, name, pip = environment["dependencies"]
    assert python == "python =3.11" and name == "pip"
    for file in ("requirements.lock", "pyproject.toml"):
        shutil.copy(ROOT / file, tmp_path)
    (tmp_path / "condaenv.requirements.txt").write_text("\n".join(pip["pip"]))
    pip = [sys.executable, "-m", "pip", "install", "--dry-run", "--no-index", "--exists-action=b", "-U"]
    ended = subprocess.run([*pip, "-r", "condaenv.requirements.txt"], cwd=tmp_path, capture_output=True, text=True)
    assert ended.returncode == 0 and "Would install" not in ended.stdout, ended.stderr


def test_every_folder_of_utils_is_in_the_package():
    folders = [path.parent.relative_to(ROOT) for path in (ROOT / "utils").rglob("__init__.py")]
    assert sorted(".".join(folder.parts) for folder in folders) == sorted(PROJECT["tool"]["setuptools"]["packages"])


def test_lock_holds_every_dependency_with_a_hash():
    lock = (ROOT / "requirements.lock").read_text()
    entries = re.findall(r"^(\S+?)==(?:.*\\\n)((?:    --hash=sha256:.*\n)+)", lock, re.M)
    locked = {name for name, _ in entries}
    assert len(entries) == len(re.findall(r"^\S+==", lock, re.M))
    for requirement in PROJECT["project"]["dependencies"] + PROJECT["dependency-groups"]["test"]:
        assert re.match(r"[\w-]+", requirement)[0] in locked


def test_the_version_is_the_same_everywhere():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    versions = re.findall(r"^## \[(\S+)\]", (ROOT / "CHANGELOG.md").read_text(), re.M)
    assert versions[:2] == ["Unreleased", PROJECT["project"]["version"]] and citation["version"] == versions[1]
    assert citation["license"] == PROJECT["project"]["license"]
    bibliography = (ROOT / "book" / "references.bib").read_text()
    assert all(f"{{{paper['title']}}}" in bibliography for paper in citation["references"])


def test_every_chapter_file_is_in_the_table_of_contents():
    contents = (ROOT / "_toc.yml").read_text()
    for path in (ROOT / "book").glob("*.ipynb"):
        assert f"book/{path.stem}" in contents


def test_an_edited_function_is_called_again_and_one_with_a_new_comment_is_not(tmp_path, monkeypatch):
    monkeypatch.setattr(kept, "FOLDER", tmp_path / "cache")
    monkeypatch.setattr(kept, "SECONDS", 0.0)
    path, calls = tmp_path / "slow.py", []
    head = "from utils.kept import kept\n\n\n@kept\ndef slow(x):\n    calls.append(x)\n"
    for line in ("    return x", "    return x  # as it is", "    return 2 * x", "    return x"):
        path.write_text(f"{head}{line}\n")
        slow = runpy.run_path(str(path), {"calls": calls})["slow"]
        assert slow(3) == (6 if "2" in line else 3)
    assert calls == [3, 3]
    slow(4)
    assert calls == [3, 3, 4]


def test_the_cache_can_be_left_aside():
    code = "import sys; from utils import kept; sys.exit(kept.FOLDER is not None)"
    for settings, status in (({"NO_CACHE": "1"}, 0), ({}, 1)):
        environment = {name: value for name, value in os.environ.items() if name != "NO_CACHE"} | settings
        assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=environment).returncode == status


CHAPTERS = "01-a.ipynb", "table-1.ipynb"


@pytest.fixture
def book(tmp_path):
    """A folder with the workflow, a small utils and two chapters; a function that runs chapters there."""
    shutil.copytree(ROOT / "workflow", tmp_path / "workflow")
    (tmp_path / "utils" / "notebook").mkdir(parents=True)
    for name in ("__init__", "errors", "choices", "fingerprint", "kept", "notebook/__init__", "notebook/parameters"):
        shutil.copy(ROOT / "utils" / f"{name}.py", tmp_path / "utils" / f"{name}.py")
    sums = "def double(x):\n    return 2 * x\n\n\ndef half(x):\n    return x / 2\n"
    (tmp_path / "utils" / "sums.py").write_text(sums)
    (tmp_path / "requirements.lock").write_text("x==1\n")
    write(tmp_path / "01-a.ipynb", "from utils import sums\nprint(sums.double(4))")
    write(tmp_path / "table-1.ipynb", "N = 3", "print(N)")

    def run(*arguments):
        command = [sys.executable, "-m", "workflow.chapters", *arguments]
        settings = dict(env={**os.environ, "JOBS": "2"}, timeout=300)
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, **settings)

    return run


def write(path, *cells):
    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    cells = [nbformat.v4.new_code_cell(cell, id=f"cell-{number}") for number, cell in enumerate(cells)]
    if len(cells) > 1:
        cells[0].metadata["tags"] = ["parameters"]
    nbformat.write(nbformat.v4.new_notebook(cells=cells, metadata={"kernelspec": kernel}), path)


def replace(path, old, new):
    assert old in path.read_text()
    path.write_text(path.read_text().replace(old, new))


def ran(ended):
    """The chapters that were executed, when all went well; each line says how many are left."""
    assert (ended.returncode, ended.stderr) == (0, "")
    first, *lines = ended.stdout.splitlines()
    assert first.startswith(f"{2 - len(lines)} of 2 chapters are unchanged, {len(lines)} left")
    assert [line.split("; ")[1][:6] for line in lines] == [f"{left} left" for left in reversed(range(len(lines)))]
    return sorted(line.split(": ")[0] for line in lines)


@pytest.mark.chapters
def test_only_changed_chapters_run(book, tmp_path):
    """By content, not by time; and a function of utils counts only for the chapters that reach it."""
    assert ran(book(*CHAPTERS, "out")) == ["01-a", "table-1"]
    sums, lock = tmp_path / "utils" / "sums.py", tmp_path / "requirements.lock"
    replace(sums, "2 * x", "(2 * x)  # twice")
    replace(sums, "x / 2", "x / 3")  # which no chapter reaches
    for path in tmp_path.rglob("*.*"):
        path.touch()
    assert ran(book(*CHAPTERS, "out")) == []
    for chapter in CHAPTERS:  # outputs do not count, so that they can be committed
        shutil.copy(tmp_path / "out" / chapter, tmp_path)
    assert ran(book(*CHAPTERS, "out")) == []
    replace(sums, "(2 * x)", "3 * x")
    assert ran(book(*CHAPTERS, "out")) == ["01-a"]
    assert "12\\n" in (tmp_path / "out" / "01-a.ipynb").read_text()
    write(tmp_path / "table-1.ipynb", "N = 3", "print(N + 1)")
    assert ran(book(*CHAPTERS, "out")) == ["table-1"]
    lock.write_text("x==2\n")
    assert ran(book(*CHAPTERS, "out")) == ["01-a", "table-1"]


@pytest.mark.chapters
def test_parameters_and_data_count(book, tmp_path):
    (tmp_path / "a.npz").write_text("1")
    given = "table-1.ipynb", "out", "N=1e-3", "DATASET=a.npz"
    assert "table-1: " in book(*given).stdout and "N = 0.001" in (tmp_path / "out" / "table-1.ipynb").read_text()
    assert "table-1: " not in book(*given).stdout
    (tmp_path / "a.npz").write_text("2")
    assert "table-1: " in book(*given).stdout
    assert "table-1: " in book(*given, "N=2").stdout


def test_how_long_the_chapters_take_is_told_by_the_last_time():
    assert chapters.left(["a", "b"], {"a": None, "b": None}, jobs=2) == "2 left"
    assert chapters.left(["a", "b"], {"a": 100, "b": None, "c": 300}, jobs=1) == "2 left, about 5 min"  # b is average
    assert chapters.left(["a"], {"a": 1}, jobs=2) == "1 left, about 1 min"


@pytest.mark.parametrize("jobs", ["abc", "-1"])
def test_jobs_must_be_a_number(jobs, monkeypatch, tmp_path):
    monkeypatch.setenv("JOBS", jobs)
    said = chapters.main([str(ROOT / "book" / "recorded.ipynb"), str(tmp_path)])
    assert said == f"JOBS is {jobs!r}; it must be a whole number larger than 0."


@pytest.mark.chapters
@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
def test_an_interrupt_ends_all_chapters_in_one_sentence_under_nohup_too(book, tmp_path):
    write(tmp_path / "01-a.ipynb", "open('begun', 'w').close()", "import time\ntime.sleep(600)")
    command = [sys.executable, "-m", "workflow.chapters", *CHAPTERS, "out"]
    deaf = dict(preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_IGN))  # as a shell's background job is
    process = subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True, **deaf)
    wait_until((tmp_path / "begun").exists)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=300)
    assert process.returncode == 1 and said == "stopped; run the same command again, and it goes on.\n"
    wait_until(lambda: not processes(tmp_path))


@pytest.mark.chapters
def test_one_failing_chapter_says_why_and_stops_no_other(book, tmp_path):
    write(tmp_path / "01-a.ipynb", "from utils.errors import InputError\nraise InputError('Give more images.')")
    ended = book(*CHAPTERS, "out")
    assert ended.returncode != 0 and "table-1: " in ended.stdout
    assert ended.stderr.startswith("01-a stopped. InputError: Give more images. The notebook up to there is ")
    assert ended.stderr.count("\n") == 1
    assert not (tmp_path / "out" / "01-a.ipynb").exists()


@pytest.mark.chapters
def test_an_executed_chapter_holds_no_trace_of_time_or_place(book, tmp_path):
    assert ran(book(*CHAPTERS, "out")) == ["01-a", "table-1"]
    for path in (tmp_path / "out").glob("*.ipynb"):
        text = path.read_text()
        assert '"papermill"' not in text and 'execution"' not in text and str(tmp_path) not in text


@pytest.mark.parametrize("one, other", [("a/b.npz", "a_b.npz"), ("a/b.npz", "c/b.npz"), ("x.npz", "photos")])
def test_two_data_sets_never_share_a_folder(one, other):
    folders = []
    for dataset in (one, other):
        command = ["make", "-n", "-o", ".venv/ready", "runs", f"DATASET={dataset}"]
        planned = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
        folders += re.findall(r" (_build/runs/\S+)", planned)
    assert len(set(folders)) == 2
