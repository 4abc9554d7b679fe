"""Which functions a text of Python reaches, on small packages of a few lines."""

import subprocess
import sys
from pathlib import Path

import pytest

from utils import source

FILES = {
    "__init__.py": "",
    "constants.py": "RATE = 0.1\nOTHER = 1\nfirst, second = 2, 3\n",
    "style.py": (
        "from external import settings\nsettings.update(size=7)\nWIDE = 3\n\n\ndef show(x):\n    return x * WIDE\n"
    ),
    "kernels/__init__.py": "",
    "kernels/affine.py": (
        '"""Affine."""\nimport numpy as np\nfrom house import constants\n\n\ndef energy(x):\n    """E."""\n'
        "    return np.sum(x) * constants.RATE\n\n\ndef other(x):\n    return x\n\n\n"
        "class Solved:\n    limit = 3\n\n    def step(self):\n        return other(self.limit)\n"
    ),
    "attacks/__init__.py": 'from house.attacks import bilevel\n\nATTACKS = {"bilevel": bilevel.attack}\n',
    "attacks/bilevel.py": (
        "from ..kernels.affine import energy as loss\n\n\ndef attack(x):\n    return helper(x)\n\n\n"
        "def helper(x):\n    return loss(x) + x.size\n\n\ndef unused():\n    return 1\n"
    ),
}


@pytest.fixture
def house(tmp_path):
    """Write the package `house`, with changed files where given; return its folder."""

    def write(**changed):
        root = tmp_path / str(len(list(tmp_path.iterdir()))) / "house"
        for name, text in (FILES | {name.replace("__", "/") + ".py": text for name, text in changed.items()}).items():
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_text(text)
        return root

    return write


REACHED = {
    "from house.kernels import affine\naffine.other(1)": {"affine.other"},
    "from house.kernels import affine as a\na.other(1)": {"affine.other"},
    "import house.kernels.affine\nhouse.kernels.affine.other(1)": {"affine.other"},
    "import house.kernels.affine as a\na.other(1)": {"affine.other"},
    "from house.kernels.affine import other": {"affine.other"},
    "def f():\n    from house.kernels.affine import other as o\n    return o": {"affine.other"},
    "from house.kernels import affine\naffine.Solved": {"affine.Solved", "affine.other"},
    "from house import attacks\nattacks.bilevel.attack": {
        *("bilevel.attack", "bilevel.helper", "bilevel.loss", "affine.energy"),
        *("affine.np", "affine.constants", "constants.RATE"),
    },
    "from house import constants\nconstants.second": {"constants.first", "constants.second"},
    "def f(x, n):\n    from house import constants\n    return getattr(constants, n)": {
        f"constants.{name}" for name in ("RATE", "OTHER", "first", "second")
    },
    "from house.constants import *": {f"constants.{name}" for name in ("RATE", "OTHER", "first", "second")},
    "import numpy": set(),
}


@pytest.mark.parametrize("code", REACHED)
def test_what_is_reached(house, code):
    found = source.reached(code, house())
    assert {f"{module.split('.')[-1]}.{name}" for module, name in found if name} == REACHED[code]


def test_statements_that_bind_nothing_belong_to_every_piece_of_their_file(house):
    code = "from house import style\nstyle.show(1)"
    assert ("house.style", "") in source.reached(code, house())
    changed = house(style=FILES["style.py"].replace("size=7", "size=8"))
    assert source.fingerprint(code, changed) != source.fingerprint(code, house())


CODE = "from house.attacks import ATTACKS\nATTACKS['bilevel'](1)"
AFFINE, BILEVEL = FILES["kernels/affine.py"], FILES["attacks/bilevel.py"]
CHANGES = {
    "a comment": (dict(kernels__affine="# new\n" + AFFINE), True),
    "a docstring": (dict(kernels__affine=AFFINE.replace('"""E."""', '"""The energy."""')), True),
    "a docstring less": (dict(kernels__affine=AFFINE.replace('    """E."""\n', "")), True),
    "layout": (dict(kernels__affine=AFFINE.replace("np.sum(x)", "np.sum(\n        x,\n    )")), True),
    "a function that is not reached": (dict(kernels__affine=AFFINE.replace("return x\n", "return -x\n")), True),
    "a constant that is not reached": (dict(constants=FILES["constants.py"].replace("OTHER = 1", "OTHER = 2")), True),
    "a file that is not reached": (dict(style="WIDE = 4\n"), True),
    "a new file": (dict(new="X = 1\n"), True),
    "a constant": (dict(constants=FILES["constants.py"].replace("0.1", "0.2")), False),
    "a function that is called": (dict(attacks__bilevel=BILEVEL.replace("+ x.size", "- x.size")), False),
    "a function that is called by one in another file": (dict(kernels__affine=AFFINE.replace("* con", "/ con")), False),
    "the meaning of an import": (dict(kernels__affine=AFFINE.replace("numpy as np", "torch as np")), False),
    "a default": (dict(attacks__bilevel=BILEVEL.replace("attack(x)", "attack(x=1)")), False),
    "a constant that grows": (dict(constants=FILES["constants.py"] + "RATE += 1\n"), False),
}


@pytest.mark.parametrize("what", CHANGES)
def test_only_what_runs_changes_the_fingerprint(house, what):
    changed, same = CHANGES[what]
    assert (source.fingerprint(CODE, house(**changed)) == source.fingerprint(CODE, house())) == same


def test_the_code_itself_counts_but_not_its_comments(house):
    root = house()
    assert source.fingerprint("x = 1  # one", root) == source.fingerprint("x = (1)\n", root)
    assert source.fingerprint("x = 1", root) != source.fingerprint("x = 2", root)


@pytest.mark.parametrize("code", ["eval('1')", "import importlib\nimportlib.import_module('house.style')"])
def test_what_cannot_be_read_reaches_everything(house, code):
    assert {"show", "attack", "Solved", "RATE"} <= {name for _, name in source.reached(code, house())}


def test_packages_that_import_each_other_with_a_star_end(house):
    root = house(one="from house.two import *\nA = 1\n", two="from house.one import *\nB = A\n")
    assert {("house.one", "A"), ("house.two", "B")} <= source.reached("from house.one import B", root)


def test_a_function_has_the_fingerprint_of_its_name():
    from utils.errors import InputError, choose

    one, two = source.function_fingerprint(choose), source.function_fingerprint(InputError._render_traceback_)
    assert one == source.fingerprint("from utils.errors import choose") != two
    assert source.function_fingerprint(test_a_function_has_the_fingerprint_of_its_name) == source.fingerprint(
        Path(__file__).read_text()
    )


def test_reading_the_files_needs_no_torch():
    code = "import sys; from utils import source; source.fingerprint('from utils import figures'); "
    ended = subprocess.run([sys.executable, "-c", code + "sys.exit('torch' in sys.modules)"])
    assert ended.returncode == 0
