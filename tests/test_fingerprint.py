"""A fingerprint changes with all that code reaches, and with nothing else."""

import ast
import hashlib
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest

from conftest import write_notebook
from utils import fingerprint

ROOT = Path(__file__).parent.parent
FILES = {
    "__init__": "",
    "constants": '"""Rates."""\nRATE = 0.1\nOTHER = 1\n',
    "kernels/__init__": "from utils.kernels import affine\n",
    "kernels/affine": (
        "import numpy as np\n\nfrom utils import constants\n\n\n"
        'def energy(x):\n    """E."""\n    return constants.RATE * np.abs(x)\n\n\n'
        "def slope(x):\n    return constants.OTHER * x\n"
    ),
    "rules": (
        "from utils.constants import OTHER as other\n\nRULES = {}\n\n\nclass Rule:\n    def f(self):\n"
        '        return other\n\n\nRULES["one"] = Rule\n\n\ndef unused():\n    return 0\n'
    ),
    "registry": "NAMES = []\n\n\ndef register(f):\n    NAMES.append(f)\n    return f\n",
    "named": (
        "from utils.registry import register\n\n\n@register\ndef one():\n    return 1\n\n\ndef two():\n    return 2\n"
    ),
    "style": "import utils.kernels.affine\n\nWIDE = 3\n",
}
CODE = "from utils import rules, style\ndef f():\n    from utils.kernels import affine as a\n    return a.energy(1)\n"


def code_of(folder, **changed):
    """The code of a folder with these files."""
    for name, text in (FILES | changed).items():
        (folder / "utils" / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / "utils" / f"{name}.py").write_text(text)
    (folder / "requirements.lock").write_text("x==1 \\\n    --hash=sha256:0\n")
    return fingerprint.Code(folder)


def changes(folder, source, name, old, new):
    """Whether a change of one file changes the fingerprint of a source."""
    assert old in FILES[name]
    trees = [fingerprint.parsed(source), fingerprint.parsed(source)]
    before = code_of(folder).fingerprint(trees[0])
    return code_of(folder, **{name: FILES[name].replace(old, new)}).fingerprint(trees[1]) != before


SAME = {
    "a comment": ("constants", "0.1", "0.1  # per step"),
    "a docstring": ("kernels/affine", "E.", "Energy."),
    "a docstring less": ("kernels/affine", '    """E."""\n', ""),
    "the layout": ("kernels/affine", "constants.RATE * np.abs(x)", "(\n        constants.RATE * np.abs(x)\n    )"),
    "a function that is not reached": ("kernels/affine", "OTHER * x", "OTHER / x"),
    "a constant that is not reached": ("style", "3", "4"),
    "a function of a module of which another is reached": ("rules", "return 0", "return 1"),
}
OTHER = {
    "a function": ("kernels/affine", "* np", "/ np"),
    "a default": ("kernels/affine", "energy(x)", "energy(x=1)"),
    "an import": ("kernels/affine", "import numpy as np", "import torch as np"),
    "a constant behind a function": ("constants", "0.1", "0.2"),
    "what a module does when it is imported": ("rules", 'RULES["one"]', 'RULES["two"]'),
    "a class that is registered": ("rules", "return other", "return -other"),
    "an alias of what a registered class names": ("rules", "OTHER as other", "RATE as other"),
}


@pytest.mark.parametrize("what", SAME)
def test_what_is_not_reached_changes_nothing(what, tmp_path):
    assert not changes(tmp_path, CODE, *SAME[what])


@pytest.mark.parametrize("what", OTHER)
def test_what_is_reached_changes_the_fingerprint(what, tmp_path):
    assert changes(tmp_path, CODE, *OTHER[what])


@pytest.mark.parametrize(
    "code",
    [
        "import utils.style\nutils.style.WIDE",
        "import utils.style as s\ns.WIDE",
        "from utils import style\nstyle.WIDE",
        "from utils.style import WIDE as w\nw",
        "from utils.style import *",
        "from utils import style\nvars(style)",
        "from utils import style\ngetattr(style, name)",
        "try:\n    from utils import style\nexcept ImportError:\n    import math as style\nstyle.WIDE",
        "def f():\n    from utils import style\n    return style.WIDE",
        "from . import style",
        "exec(text)",
        "import importlib\nimportlib.import_module(name)",
    ],
)
def test_every_way_to_reach_counts(code, tmp_path):
    assert changes(tmp_path, code, "style", "3", "4")


def test_a_decorator_that_may_register_counts_without_a_call(tmp_path):
    assert changes(tmp_path, "from utils import named\nnamed.two()", "named", "return 1", "return 0")
    assert changes(tmp_path, "from utils import named\nnamed.two()", "registry", "append(f)", "extend([f])")
    assert not changes(tmp_path, "from utils import named\nnamed.one()", "named", "return 2", "return 0")


def test_the_lock_counts_by_its_versions(tmp_path):
    tree = fingerprint.parsed("1")
    prints = []
    for lock in (
        "x==1 \\\n    --hash=sha256:0\n",
        "# twice\nx==1 \\\n    --hash=sha256:1\n",
        "x==2 \\\n    --hash=sha256:0\n",
    ):
        code_of(tmp_path)
        (tmp_path / "requirements.lock").write_text(lock)
        prints.append(fingerprint.Code(tmp_path).fingerprint(tree))
    assert prints[0] == prints[1] != prints[2]


def test_of_a_notebook_count_its_code_and_the_parameters_that_are_not_given(tmp_path):
    code = code_of(tmp_path)

    def fingerprint_of(*cells, markdown=""):
        path = tmp_path / "a.ipynb"
        write_notebook(path, *cells)
        notebook = nbformat.read(path, as_version=4)
        notebook.cells.insert(1, nbformat.v4.new_markdown_cell(markdown))
        notebook.cells[0].outputs = [nbformat.v4.new_output("stream", text=markdown)]
        nbformat.write(notebook, path)
        return code.fingerprint(fingerprint.notebook(path, {"SEED"}))

    first = fingerprint_of("SEED = 0\nRATE = 1", "%matplotlib inline\nx = SEED")
    assert fingerprint_of("SEED = 7  # other\nRATE = 1", "%matplotlib inline\nx = SEED", markdown="A word.") == first
    others = [
        ("SEED = 0\nRATE = 2", "%matplotlib inline\nx = SEED"),
        ("SEED = 0\nRATE = 1", "%matplotlib agg\nx = SEED"),
        ("SEED = 0\nRATE = 1", "%matplotlib inline\nx = -SEED"),
        ("SEED = 0\nRATE = 1", "%matplotlib inline\nx ="),
    ]
    assert len({first, *(fingerprint_of(*cells) for cells in others)}) == 5


SAMPLE = r"""@d(1)
async def f(a, /, b: int = 1_000, *c, d=-1e-9, **e) -> "x":
    "Doc."
    async with a as b, c: ...
    return f'{a!r:>{b}} {c=} {{}}' f"é" '☃' "'" + b"\x00" % x[1:2, ..., (1, 2)]
class C(B, k=1):
    x: int
try:
    x = lambda *a: (yield)
except* (E, F) as g:
    del x, y[0]
match x:
    case [1, *_, {"a": b}] if (z := 2): pass
print(f"{a['b']:{c}.{d}}", 1j, None, True, {**a, "b": [*c]}, not a if b else c, a < b <= c, u"x", 1e400)
"""


def test_every_python_gives_the_same_text():
    """The hash is pinned, so that CI compares its versions of Python by it."""
    text = fingerprint.text(fingerprint.parsed(SAMPLE))
    assert hashlib.sha256(text.encode()).hexdigest().startswith("3760d6ab46d5b594"), text


def test_a_fingerprint_needs_no_torch():
    code = (
        "import sys; from utils import fingerprint as f; f.here().fingerprint(f.parsed('from utils import figures')); "
    )
    ended = subprocess.run([sys.executable, "-c", code + "sys.exit('torch' in sys.modules)"], cwd=ROOT)
    assert ended.returncode == 0


def test_no_class_of_utils_registers_its_heirs():
    """A class that is defined and never named would then count; the fingerprint does not see that."""
    for path in (ROOT / "utils").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            assert not isinstance(node, ast.FunctionDef) or node.name != "__init_subclass__", path
