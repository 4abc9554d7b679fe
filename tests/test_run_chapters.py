"""Chapters run again only if something that they depend on has changed, and say why they stop."""

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from conftest import processes, small_project, wait_until, write_notebook
from utils import fingerprint
from workflow import chapters

ROOT = Path(__file__).parent.parent
CHAPTERS = "01-a.ipynb", "table-1.ipynb"


@pytest.fixture
def book(tmp_path):
    """A small project with two chapters; a function that runs chapters there."""
    small_project(tmp_path)
    write_notebook(tmp_path / "01-a.ipynb", "from utils import sums\nprint(sums.double(4))")
    write_notebook(tmp_path / "table-1.ipynb", "N = 3", "print(N)")

    def run(*arguments):
        command = [sys.executable, "-m", "workflow.chapters", *arguments]
        settings = dict(env={**os.environ, "JOBS": "2"}, timeout=1200)
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, **settings)

    return run


def replace(path, old, new):
    assert old in path.read_text()
    path.write_text(path.read_text().replace(old, new))


def ran(ended):
    """The chapters that were executed, when all went well; each line says how many are left.

    What kernels write as they end, where the machine is busy, is no mistake.
    """
    assert ended.returncode == 0, ended.stderr
    first, *lines = ended.stdout.splitlines()
    assert first.startswith(f"{2 - len(lines)} of 2 chapters are unchanged, {len(lines)} left")
    assert [line.split("; ")[1][:6] for line in lines] == [f"{left} left" for left in reversed(range(len(lines)))]
    return sorted(line.split(": ")[0] for line in lines)


@pytest.mark.chapters
def test_only_changed_chapters_run(book, tmp_path):
    assert ran(book(*CHAPTERS, "out")) == ["01-a", "table-1"]
    for chapter in CHAPTERS:  # outputs do not count, so that they can be committed, without a trace of time or place
        text = Path(shutil.copy(tmp_path / "out" / chapter, tmp_path)).read_text()
        assert '"papermill"' not in text and 'execution"' not in text and str(tmp_path) not in text
    assert ran(book(*CHAPTERS, "out")) == []
    replace(tmp_path / "utils" / "sums.py", "2 * x", "3 * x")
    assert ran(book(*CHAPTERS, "out")) == ["01-a"]
    assert "12\\n" in (tmp_path / "out" / "01-a.ipynb").read_text()


def test_a_chapter_depends_on_what_it_reaches_by_content_and_not_by_time(book, tmp_path, monkeypatch):
    sums, images = tmp_path / "utils" / "sums.py", tmp_path / "a.npz"
    images.write_text("1")

    def keys(**given):
        monkeypatch.setattr(fingerprint, "here", lambda: fingerprint.Code(tmp_path))
        return [chapters.key_of(tmp_path / name, given) for name in CHAPTERS]

    first, given = keys(), keys(DATASET=str(images))
    replace(sums, "2 * x", "(2 * x)  # twice")
    replace(sums, "x / 2", "x / 3")  # which no chapter reaches
    for path in tmp_path.rglob("*.*"):
        path.touch()
    assert keys() == first and keys(DATASET=str(images)) == given
    images.write_text("2")
    every = [first, given, keys(DATASET=str(images)), keys(N="1"), keys(N="2")]
    replace(sums, "(2 * x)", "3 * x")
    reached = keys()
    assert reached[0] != first[0] and reached[1] == first[1]
    write_notebook(tmp_path / "table-1.ipynb", "N = 3", "print(N + 1)")
    edited = keys()
    assert edited[0] == reached[0] and edited[1] != reached[1]
    (tmp_path / "requirements.lock").write_text("x==2\n")
    every += [edited, keys()]
    assert all(len(set(of)) == len(every) for of in zip(*every))


@pytest.mark.chapters
def test_a_chapter_is_given_numbers(book, tmp_path):
    output = tmp_path / "out" / "table-1.ipynb"
    assert chapters.run(tmp_path / "table-1.ipynb", output, {"N": "1e-3"}) is None
    assert "N = 0.001" in output.read_text()


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
    write_notebook(tmp_path / "01-a.ipynb", "open('begun', 'w').close()", "import time\ntime.sleep(600)")
    command = [sys.executable, "-m", "workflow.chapters", *CHAPTERS, "out"]
    deaf = dict(preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_IGN))  # as a shell's background job is
    process = subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True, **deaf)
    wait_until((tmp_path / "begun").exists)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=1200)
    assert process.returncode == 1 and "stopped; run the same command again, and it goes on.\n" in said
    wait_until(lambda: not processes(tmp_path))


@pytest.mark.chapters
def test_one_failing_chapter_says_why_and_stops_no_other(book, tmp_path):
    write_notebook(
        tmp_path / "01-a.ipynb", "from utils.errors import InputError\nraise InputError('Give more images.')"
    )
    ended = book(*CHAPTERS, "out")
    assert ended.returncode != 0 and "table-1: " in ended.stdout
    (said,) = (line for line in ended.stderr.splitlines() if " stopped. " in line)
    assert said.startswith("01-a stopped. InputError: Give more images. The notebook up to there is ")
    assert not (tmp_path / "out" / "01-a.ipynb").exists()
