"""Every kind of bug that is planted changes what a function computes."""

import ast
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent.parent / "scripts"))

import mutate  # noqa: E402

CODE = """
LIMIT = 3

def f(x):
    if x < 4 and not x == 2:
        return -x + 5
    return x * 2.5 / 3
"""


def values(tree):
    names = {}
    exec(compile(ast.fix_missing_locations(tree), "planted", "exec"), names)
    found = []
    for x in (0, 1, 2, 3, 4, 9):
        try:
            found.append(names["f"](x))
        except Exception as error:  # a bug may end in any
            found.append(type(error).__name__)
    return found


def test_bugs_of_every_kind_change_a_function():
    tree = ast.parse(CODE)
    bugs = [mutate.planted(tree, *place) for place in mutate.places(tree)]
    assert len(bugs) > 8 and all(values(bug) != values(tree) for bug, _ in bugs)
    assert {word for _, word in mutate.places(tree)} >= {"operator", "comparison", "number", "sign"}
    assert all(line > 4 for _, line in bugs) and ast.unparse(tree) == ast.unparse(ast.parse(CODE))


@pytest.mark.parametrize("before, after", [("a.min()", "a.max()"), ("a.sqrt()", "a.square()")])
def test_a_name_is_exchanged(before, after):
    tree = ast.parse(f"def f(a):\n    return {before}")
    [place] = mutate.places(tree)
    assert ast.unparse(mutate.planted(tree, *place)[0]).endswith(f"return {after}")


def test_the_tests_of_a_file_come_first():
    assert mutate.tests_of("utils/images.py")[0] == "test_images.py"
    assert not set(mutate.LEFT_OUT) & set(mutate.tests_of("utils/images.py"))
