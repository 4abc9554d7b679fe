"""Where the book starts elsewhere, it asks for what exists: containers, workflows, buttons, Colab, newer Pythons."""

import ast
import json
import os
import re
import shutil
import subprocess
import sys
import textwrap
import tomllib
from pathlib import Path

import pytest
import yaml
from packaging.specifiers import SpecifierSet

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "scripts"))

from rehearse import SETTINGS  # noqa: E402

MAKEFILE = (ROOT / "Makefile").read_text()
TARGETS = set(re.findall(r"^([\w./-]+):(?!=)", MAKEFILE, re.M))
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
README = (ROOT / "README.md").read_text()
SUPPORTED = SpecifierSet(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["requires-python"])
NEWEST = "3.14"


def targets(command):
    """What a command line asks make for; NAME=VALUE is no target."""
    calls = re.findall(r"\bmake((?: +[\w./=-]+)*)", command)
    return [word for call in calls for word in call.split() if "=" not in word]


def test_a_container_sets_the_environment_up():
    container = json.loads((ROOT / ".devcontainer" / "devcontainer.json").read_text())
    assert targets(container["postCreateCommand"]) == [".venv/ready"] and ".venv/ready" in TARGETS
    assert "TORCH=cpu" in container["postCreateCommand"]
    version = re.fullmatch(r"python:([\d.]+)-bookworm", container["image"])[1]  # this image has make and git, too
    assert version in SUPPORTED


def pythons(job):
    """The versions of Python that a job sets up; those of a matrix one by one."""
    for step in job["steps"]:
        version = step.get("with", {}).get("python-version")
        if version == "${{ matrix.python }}":
            yield from job["strategy"]["matrix"]["python"]
        elif version is not None:
            assert isinstance(version, str)  # 3.10 without quotes is 3.1
            yield version


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_a_workflow_asks_make_for_what_it_has(path):
    workflow = yaml.safe_load(path.read_text())
    assert workflow[True]  # YAML 1.1 reads `on` as a boolean
    steps = [step for job in workflow["jobs"].values() for step in job["steps"]]
    asked = [target for step in steps for target in targets(step.get("run", ""))]
    assert asked and set(asked) <= TARGETS
    assert all(re.fullmatch(r"actions/[\w-]+@v\d+", step["uses"]) for step in steps if "uses" in step)
    assert all("TORCH=cpu" in step["run"] for step in steps if "run" in step)
    versions = [version for job in workflow["jobs"].values() for version in pythons(job)]
    assert versions and all(version in SUPPORTED for version in versions)


def test_the_workflows_test_and_publish_what_make_makes():
    folder = ROOT / ".github" / "workflows"
    pages, test, nightly = (
        yaml.safe_load((folder / f"{name}.yml").read_text()) for name in ("pages", "test", "nightly")
    )
    published = [step["with"]["path"] for step in pages["jobs"]["build"]["steps"] if "upload" in step.get("uses", "")]
    assert published == ["_build/html"] and "open _build/html/index.html" in MAKEFILE
    assert "cd $(TO)/_build" in MAKEFILE and "build -q -W -n --keep-going source --path-output .." in MAKEFILE
    assert pages["jobs"]["deploy"]["needs"] == "build" and pages["permissions"]["pages"] == "write"
    asked = [
        target for job in test["jobs"].values() for step in job["steps"] for target in targets(step.get("run", ""))
    ]
    assert asked == ["check"] and test["jobs"]["check"]["strategy"]["matrix"]["python"] == ["3.11", NEWEST]
    jobs = nightly["jobs"].values()
    asked = [target for job in jobs for step in job["steps"] for target in targets(step.get("run", ""))]
    assert asked == ["test", "rehearse"]
    assert set(nightly["jobs"]["rehearse"]["strategy"]["matrix"]["setting"]) == SETTINGS.keys() - {"here"}


def test_the_newest_python_is_the_same_everywhere():
    assert f'requires-python = ">=3.11,<3.{int(NEWEST.split(".")[1]) + 1}"' in (ROOT / "pyproject.toml").read_text()
    assert f"for python in 3.12 3.13 {NEWEST};" in MAKEFILE and f"Python 3.11 to {NEWEST} is needed" in MAKEFILE
    assert f"Python 3.11 to {NEWEST}" in README


def test_conda_and_binder_install_what_the_rest_installs():
    environment = yaml.safe_load((ROOT / "environment.yml").read_text())
    python, _, pip = environment["dependencies"]
    assert python.removeprefix("python =") in SUPPORTED and pip == {"pip": ["-r requirements.lock"]}
    steps = (ROOT / "postBuild").read_text()
    assert steps.startswith("#!/bin/sh\n") and os.access(ROOT / "postBuild", os.X_OK)
    assert "pip install -q --no-deps -e ." in steps and "--no-deps -e ." in MAKEFILE


def test_no_address_but_a_forks_own():
    config = yaml.safe_load((ROOT / "_config.yml").read_text())
    assert config["repository"]["url"] == "" and config["launch_buttons"]["binderhub_url"]
    assert config["sphinx"]["config"]["html_context"]["github_user"] is None  # no URL, no buttons


COLAB = re.search(r"```python\n( *!git clone.*?)```", README, re.S)
HERE = "import utils.images as found; print(found.__file__, len(found.load('photos').images))"


@pytest.mark.skipif(not (ROOT / ".git").exists() or not shutil.which("git"), reason="not a clone")
def test_the_cell_for_colab_finds_the_code_in_the_clone(tmp_path):
    """As Colab's kernel would: IPython in an empty folder. pip installs nothing here, but must accept the package."""
    cell = textwrap.dedent(COLAB[1]).replace("https://github.com/OWNER/REPO", str(ROOT))
    (tmp_path / "cell.ipy").write_text(f"{cell}\n{HERE}\n")
    given = {"PIP_DRY_RUN": "1", "PIP_NO_INDEX": "1", "PIP_NO_BUILD_ISOLATION": "0", "HOME": str(tmp_path)}
    path = f"{Path(sys.executable).parent}:/usr/local/bin:/usr/bin:/bin"
    command = [sys.executable, "-m", "IPython", "--no-banner", "cell.ipy"]
    ended = subprocess.run(command, cwd=tmp_path, env=given | {"PATH": path}, capture_output=True, text=True)
    assert f"{tmp_path}" in ended.stdout and "utils/images.py 324" in ended.stdout, ended.stdout + ended.stderr


PREINSTALLED = [
    "IPython",
    "PIL",
    "ipywidgets",
    "matplotlib",
    "numpy",
    "scipy",
    "skimage",
    "sklearn",
    "torch",
    "torchvision",
    "tqdm",
    "yaml",
]


def test_colab_has_what_the_chapters_import():
    sources = [path.read_text() for path in (ROOT / "utils").rglob("*.py")]
    for path in (ROOT / "book").glob("*.ipynb"):
        cells = json.loads(path.read_text())["cells"]
        sources += ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    nodes = [node for source in sources for node in ast.walk(ast.parse(source))]
    named = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    named |= {node.module for node in nodes if isinstance(node, ast.ImportFrom)}
    assert {name.split(".")[0] for name in named} - {"utils", *sys.stdlib_module_names} <= set(PREINSTALLED)


STUB = '#!/bin/sh\nprintf "<%s>" "$@" >> calls\necho >> calls\ncase "$*" in *"pip install"*) exit 1;; esac\n'


@pytest.fixture
def checkout(tmp_path):
    """A folder with the Makefile and the contents of the book, and an environment whose Python only writes its calls.

    Returns the folder, and a function that calls make in it.
    """
    for name in ("Makefile", "_toc.yml", "requirements.lock", "pyproject.toml"):
        shutil.copy(ROOT / name, tmp_path)
    for name in ("book", "scripts", ".venv/bin", "_vendor"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "book" / "05-random-initialisation.ipynb").touch()
    for name in ("vendor.py", "widgets.js"):
        (tmp_path / "scripts" / name).touch()
    for name in ("python", "papermill"):
        (tmp_path / ".venv" / "bin" / name).write_text(STUB)
        (tmp_path / ".venv" / "bin" / name).chmod(0o755)
    (tmp_path / ".venv" / "ready").touch()

    def make(*words, ready=True):
        given = ["-o", ".venv/ready"] if ready else []
        environment = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS"))}
        command = ["make", "--no-print-directory", *given, *words]
        ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, env=environment, timeout=60)
        return ended.returncode, ended.stdout, ended.stderr

    return tmp_path, make


def calls(folder):
    """What the stub of Python was called with, a list of words for each call."""
    lines = (folder / "calls").read_text().splitlines() if (folder / "calls").exists() else []
    return [re.findall("<(.*?)>", line) for line in lines]


@pytest.mark.parametrize("dataset", ["it's.npz", 'a"b.npz', "a;b&c.npz", "a`b.npz", "(1)*.npz", "a%b.npz", "ä.npz"])
def test_a_path_of_images_may_hold_any_character_but_a_space(checkout, dataset):
    folder, make = checkout
    status, printed, errors = make("runs", f"DATASET={dataset}")
    assert (status, errors) == (0, "") and printed == f"Running the chapters on {dataset} …\n"
    _, module, _, runs, given = calls(folder)[-1]
    assert module == "workflow.chapters" and given == f"DATASET={dataset}"
    assert re.fullmatch(r"_build/runs/[\w.-]+-\d+", runs)


def test_what_was_vendored_comes_back_if_it_is_removed(checkout):
    folder, make = checkout
    make("html")
    assert ["scripts/vendor.py", "_vendor"] not in calls(folder)
    (folder / "_vendor").rmdir()
    for target in ("html", "pdf"):
        (folder / "calls").unlink()
        make(target)
        assert ["scripts/vendor.py", "_vendor"] in calls(folder)


def test_a_set_up_without_a_network_names_it(checkout):
    folder, make = checkout
    (folder / ".venv" / "ready").unlink()
    status, printed, errors = make(f"PYTHON={folder}/.venv/bin/python", "runs", ready=False)
    assert status == 2 and "without a network they cannot be" in printed.splitlines()[-1]
    assert calls(folder)[-1][:4] == ["-m", "pip", "install", "-qq"]  # and nothing after it


def test_a_folder_that_cannot_be_written_is_named(checkout):
    """A file in the place of _build stands for a folder that is read-only, which root does not feel."""
    folder, make = checkout
    (folder / "_build").touch()
    for target in ("runs", "lab", "lint"):
        status, printed, errors = make(target)
        assert status == 2 and not printed and not calls(folder)
        assert re.fullmatch(rf"Makefile:\d+: \*\*\* {folder}/_build cannot be written: .*  Stop.\n", errors)
    assert make("clean")[0] == 0 and make("runs")[0] == 0


@pytest.mark.parametrize("gone", ["python", "python, before it was ready", "packages", "shebang"])
def test_an_environment_that_is_no_longer_whole_ends_in_a_hint(checkout, gone):
    folder, make = checkout
    python, program = (folder / ".venv" / "bin" / name for name in ("python", "papermill"))
    if "ready" in gone:
        (folder / ".venv" / "ready").unlink()
    if "python" in gone:
        python.unlink()
        python.symlink_to("/nowhere/python3.11")
    elif gone == "packages":  # as of another version of Python
        python.write_text("#!/bin/sh\nexit 1\n")
    else:
        program.write_text("#!/nowhere/.venv/bin/python\n")
    status, printed, errors = make("runs")
    assert status == 2 and not printed and "make distclean, then the same again" in errors and errors.count("\n") == 1
    assert make("distclean")[0] == 0 and not (folder / ".venv").exists()
