"""The files at the top level agree with each other."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml

from utils import report

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


def test_conda_environment_installs_the_lock():
    environment = yaml.safe_load((ROOT / "environment.yml").read_text())
    python, _, pip = environment["dependencies"]
    assert python == "python " + PROJECT["project"]["requires-python"]
    assert pip == {"pip": ["-r requirements.lock", "-e ."]}


def test_lock_holds_every_dependency_with_a_hash():
    lock = (ROOT / "requirements.lock").read_text()
    entries = re.findall(r"^(\S+?)==(?:.*\\\n)((?:    --hash=sha256:.*\n)+)", lock, re.M)
    locked = {name for name, _ in entries}
    assert len(entries) == len(re.findall(r"^\S+==", lock, re.M))
    for requirement in PROJECT["project"]["dependencies"] + PROJECT["dependency-groups"]["test"]:
        assert re.match(r"[\w-]+", requirement)[0] in locked


def test_results_page_lists_every_name():
    page = (ROOT / "book" / "results.md").read_text()
    for name in report.NAMES:
        general = re.sub(r"/(random|ground_truth|partition)/", "/<start>/", name)
        general = re.sub(r"/(known|unknown)_theta0/", "/<knowledge>_theta0/", general)
        general = re.sub(r"^decoreco/\w+/", "decoreco/<rule>/", general)
        general = re.sub(r"^landscape/\w+/<number>/<number>/", "landscape/<formulation>/<λ₁>/<λ₂>/", general)
        general = re.sub(r"^kkt/\w+/", "kkt/<operation>/", general)
        general = general.replace("sphere/<number>", "sphere/<radius>").replace("shift/<number>", "shift/<shift>")
        general = re.sub(r"/(no_decay|decay)/", "/<decay>/", general)
        general = re.sub(r"distance_to_\w+", "distance_to_<set>", general)
        general = re.sub(r"/(noise|photographs|drawing)/", "/<what>/", general)
        assert f"`{general}`" in page


def test_every_chapter_file_is_in_the_table_of_contents():
    contents = (ROOT / "_toc.yml").read_text()
    for path in (ROOT / "book").glob("*.ipynb"):
        assert f"book/{path.stem}" in contents


@pytest.fixture
def run_chapter(tmp_path):
    """Run a two-cell notebook through scripts/run_chapter.py."""

    def run(source, *arguments, output="out.ipynb"):
        import nbformat

        kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
        cells = [nbformat.v4.new_code_cell(source)]
        notebook = nbformat.v4.new_notebook(cells=cells, metadata={"kernelspec": kernel})
        nbformat.write(notebook, tmp_path / "chapter.ipynb")
        script = [sys.executable, str(ROOT / "scripts" / "run_chapter.py"), "chapter.ipynb", output, *arguments]
        return subprocess.run(script, cwd=tmp_path, capture_output=True, text=True)

    return run


def test_a_finished_chapter_replaces_its_output(run_chapter, tmp_path):
    assert run_chapter("print(1)").returncode == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["chapter.ipynb", "out.ipynb"]


def test_a_failing_chapter_says_why_and_leaves_no_output(run_chapter, tmp_path):
    ended = run_chapter("from utils.errors import InputError\nraise InputError('Give more images.')")
    assert ended.returncode != 0 and not (tmp_path / "out.ipynb").exists()
    assert "chapter stopped. InputError: Give more images." in ended.stderr
    assert "Traceback" not in ended.stderr


def test_numbers_on_the_command_line_are_numbers(run_chapter, tmp_path):
    assert run_chapter("print(1)", "RATE=1e-3", "SEED=7", "DATASET=photos").returncode == 0
    text = (tmp_path / "out.ipynb").read_text()
    assert "RATE = 0.001" in text and "SEED = 7" in text and 'DATASET = \\"photos\\"' in text


def test_refreshing_leaves_no_trace_of_time(run_chapter, tmp_path):
    assert run_chapter("print(1)", output="chapter.ipynb").returncode == 0
    text = (tmp_path / "chapter.ipynb").read_text()
    assert "papermill" not in text and str(tmp_path) not in text
