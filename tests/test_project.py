"""The files at the top level agree with each other."""

import ast
import os
import re
import runpy
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import nbformat
import pytest
import yaml

from utils import kept

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


FILES = {
    "utils.constants": '"""Rates."""\nRATE = 0.1\n',
    "utils.kernels": "from utils.kernels import affine\n",
    "utils.kernels.affine": (
        'from utils import constants\n\n\ndef energy(x):\n    """E."""\n    return constants.RATE * x\n'
    ),
    "utils.style": "import utils.kernels.affine\nWIDE = 3\n",
}
CODE = "def f():\n    from utils.kernels import affine as a\n    return a.energy(1)\n"
CHANGES = {
    "a comment": ("utils.constants", "0.1", "0.1  # per step", True),
    "a docstring": ("utils.kernels.affine", "E.", "Energy.", True),
    "a docstring less": ("utils.kernels.affine", '    """E."""\n', "", True),
    "the layout": ("utils.kernels.affine", "constants.RATE * x", "(\n        constants.RATE * x\n    )", True),
    "a file that is not imported": ("utils.style", "3", "4", True),
    "a function": ("utils.kernels.affine", "* x", "/ x", False),
    "a default": ("utils.kernels.affine", "energy(x)", "energy(x=1)", False),
    "an import": ("utils.kernels", "affine", "affine as energies", False),
    "a constant that is imported by what is imported": ("utils.constants", "0.1", "0.2", False),
}


@pytest.mark.parametrize("what", CHANGES)
def test_only_what_runs_changes_the_fingerprint(what, monkeypatch):
    name, old, new, same = CHANGES[what]
    fingerprints = []
    for text in (FILES[name], FILES[name].replace(old, new)):
        trees = {other: kept.parsed(code) for other, code in {**FILES, name: text}.items()}
        monkeypatch.setattr(kept, "FILES", trees)
        fingerprints.append(kept.fingerprint(CODE))
    assert text != FILES[name] and (fingerprints[0] == fingerprints[1]) == same


@pytest.mark.parametrize(
    "code", ["import utils.style", "import utils.style as s", "from utils import style", "from utils.style import *"]
)
def test_every_way_to_import_counts(code, monkeypatch):
    monkeypatch.setattr(kept, "FILES", {name: kept.parsed(text) for name, text in FILES.items()})
    before = kept.fingerprint(code)
    monkeypatch.setitem(kept.FILES, "utils.constants", kept.parsed("RATE = 0.2"))
    assert kept.fingerprint(code) != before


def test_no_file_imports_in_a_way_that_the_fingerprint_does_not_see():
    for name, tree in kept.FILES.items():
        for node in ast.walk(tree):
            assert not getattr(node, "level", 0), name
            assert getattr(node, "id", "") not in ("__import__", "import_module", "exec", "eval"), name
            assert getattr(node, "attr", "") != "import_module", name


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


def test_a_fingerprint_needs_no_torch():
    code = "import sys; from utils import kept; kept.fingerprint('from utils.notebook import figures'); "
    ended = subprocess.run([sys.executable, "-c", code + "sys.exit('torch' in sys.modules)"], cwd=ROOT)
    assert ended.returncode == 0


CHAPTERS = "01-a.ipynb", "table-1.ipynb"


@pytest.fixture
def book(tmp_path):
    """A repository of this project's script, a small utils and two chapters; a function that runs the script there."""
    (tmp_path / "scripts").mkdir()
    shutil.copy(ROOT / "scripts" / "run_chapters.py", tmp_path / "scripts")
    (tmp_path / "utils").mkdir()
    for name in ("__init__.py", "errors.py", "kept.py"):
        shutil.copy(ROOT / "utils" / name, tmp_path / "utils")
    sums = "def double(x):\n    return 2 * x\n\n\ndef half(x):\n    return x / 2\n"
    (tmp_path / "utils" / "sums.py").write_text(sums)
    (tmp_path / "requirements.lock").write_text("x==1\n")
    write(tmp_path / "01-a.ipynb", "from utils import sums\nprint(sums.double(4))")
    write(tmp_path / "table-1.ipynb", "N = 3", "print(N)")

    def run(*arguments):
        command = [sys.executable, "scripts/run_chapters.py", *arguments]
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
    """The chapters that were executed, and those that were not."""
    assert ended.returncode == 0, ended.stderr
    lines = dict(line.split(": ") for line in ended.stdout.splitlines())
    assert sorted(lines) == ["01-a", "table-1"]
    return [stem for stem in sorted(lines) if lines[stem] != "unchanged"]


@pytest.mark.chapters
def test_only_changed_chapters_run(book, tmp_path):
    """By content, not by time; and a file of utils counts only for the chapters that import it."""
    assert ran(book(*CHAPTERS, "out")) == ["01-a", "table-1"]
    sums, lock = tmp_path / "utils" / "sums.py", tmp_path / "requirements.lock"
    replace(sums, "2 * x", "(2 * x)  # twice")
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
    given = "table-1.ipynb", "out,N=1/seed.ipynb", "N=1e-3", "DATASET=a.npz", "RESULTS=r.json"
    assert book(*given).stdout.startswith("table-1: ") and "N = 0.001" in (tmp_path / given[1]).read_text()
    assert "unchanged" not in book(*given).stdout  # there are no results
    (tmp_path / "r.json").touch()
    assert "unchanged" in book(*given).stdout
    (tmp_path / "a.npz").write_text("2")
    assert "unchanged" not in book(*given).stdout
    assert "unchanged" not in book(*given, "N=2").stdout


@pytest.mark.chapters
def test_one_failing_chapter_says_why_and_stops_no_other(book, tmp_path):
    write(tmp_path / "01-a.ipynb", "from utils.errors import InputError\nraise InputError('Give more images.')")
    ended = book(*CHAPTERS, "out")
    assert ended.returncode != 0 and "table-1: " in ended.stdout
    assert "01-a stopped. InputError: Give more images." in ended.stderr and "Traceback" not in ended.stderr
    assert not (tmp_path / "out" / "01-a.ipynb").exists()


@pytest.mark.chapters
def test_an_executed_chapter_holds_no_trace_of_time_or_place(book, tmp_path):
    assert ran(book(*CHAPTERS, "out")) == ["01-a", "table-1"]
    for path in (tmp_path / "out").glob("*.ipynb"):
        text = path.read_text()
        assert '"papermill"' not in text and 'execution"' not in text and str(tmp_path) not in text


@pytest.mark.parametrize("deaths, said", [(2, None), (3, "before replying")])
def test_a_kernel_that_finds_its_port_taken_is_begun_again(deaths, said, monkeypatch):
    import papermill

    script = runpy.run_path(str(ROOT / "scripts" / "run_chapters.py"))
    answers = iter([RuntimeError("Kernel died before replying to kernel_info")] * deaths + ["done"])

    def execute(*paths, **settings):
        answer = next(answers)
        if isinstance(answer, Exception):
            raise answer
        return answer

    monkeypatch.setattr(papermill, "execute_notebook", execute)
    if said:
        with pytest.raises(RuntimeError, match=said):
            script["execute"]("a.ipynb", "b.ipynb")
    else:
        assert script["execute"]("a.ipynb", "b.ipynb") == "done"


@pytest.mark.parametrize("one, other", [("a/b.npz", "a_b.npz"), ("a/b.npz", "c/b.npz"), ("x.npz", "photos")])
def test_two_data_sets_never_share_a_folder(one, other):
    folders = []
    for dataset in (one, other):
        command = ["make", "-n", "-o", ".venv/ready", "runs", f"DATASET={dataset}"]
        planned = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
        folders += re.findall(r" (_build/runs/\S+)", planned)
    assert len(set(folders)) == 2
