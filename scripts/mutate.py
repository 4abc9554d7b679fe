"""Plant bugs in utils/, one at a time, and count how many the tests catch.

    .venv/bin/python scripts/mutate.py [--each 10] [--seed 0] [FILE …]

A bug is a changed operator, comparison, number or sign, or `min` for `max` and the like, in a function of utils/, drawn
at random for each file. The tests that run no notebook run on a copy of the project, those of the same name first,
until one fails; a planted bug for which all pass has survived. Prints every survivor, and the share that is caught.
"""

import argparse
import ast
import copy
import os
import random
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
OPERATORS = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.Pow: ast.Mult, ast.MatMult: ast.Mult,
    ast.FloorDiv: ast.Mult, ast.Mod: ast.Mult, ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd,
    ast.Lt: ast.GtE, ast.Gt: ast.LtE, ast.LtE: ast.Gt, ast.GtE: ast.Lt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.And: ast.Or, ast.Or: ast.And, ast.In: ast.NotIn, ast.NotIn: ast.In, ast.Is: ast.IsNot, ast.IsNot: ast.Is,
}  # fmt: skip
NAMES = {"min": "max", "max": "min", "amin": "amax", "amax": "amin", "argmin": "argmax", "argmax": "argmin",
         "sum": "mean", "mean": "sum", "clamp_min": "clamp_max", "sqrt": "square", "any": "all", "all": "any",
         "sin": "cos", "cos": "sin", "exp": "log", "log": "exp"}  # fmt: skip
LEFT_OUT = (
    "test_chapters.py",
    "test_toy_runs.py",
    "test_browser.py",
    "test_house.py",
    "test_workflow.py",
)  # slow, or about other things
FIRST = {"utils/attacks/contract.py": ["test_decoreco", "test_bilevel"], "utils/kernels/layers.py": ["test_residual"]}


def places(tree):
    """Where a bug can be planted in the functions of a file, and how: a node's position in a walk, and a word."""
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    inside = {id(node) for function in functions for part in function.body for node in ast.walk(part)}
    for position, node in enumerate(ast.walk(tree)):
        if id(node) not in inside:
            continue
        if isinstance(node, (ast.BinOp, ast.AugAssign, ast.BoolOp)) and type(node.op) in OPERATORS:
            yield position, "operator"
        elif isinstance(node, ast.Compare) and type(node.ops[0]) in OPERATORS:
            yield position, "comparison"
        elif isinstance(node, ast.Constant) and type(node.value) in (int, float):
            yield position, "number"
        elif isinstance(node, ast.UnaryOp) and isinstance(node.op, (ast.USub, ast.Not)):
            yield position, "sign"
        elif isinstance(node, ast.Attribute) and node.attr in NAMES:
            yield position, "name"


def planted(tree, position, word):
    """The tree with one bug, and the line that has it."""
    tree = copy.deepcopy(tree)
    node = list(ast.walk(tree))[position]
    if word == "operator":
        node.op = OPERATORS[type(node.op)]()
    elif word == "comparison":
        node.ops[0] = OPERATORS[type(node.ops[0])]()
    elif word == "number":
        node.value = node.value + 1 if isinstance(node.value, int) else node.value * 2 + 0.5
    elif word == "sign":
        node.op = ast.UAdd() if isinstance(node.op, ast.USub) else ast.Not()
        node.operand = node.operand if isinstance(node.op, ast.UAdd) else ast.UnaryOp(ast.Not(), node.operand)
    else:
        node.attr = NAMES[node.attr]
    return tree, node.lineno


def tests_of(file):
    """The files of tests, those that are about this file first."""
    found = sorted(path.name for path in (ROOT / "tests").glob("test_*.py"))
    found = [name for name in found if name not in LEFT_OUT]
    stem = Path(file).stem
    near = [f"{name}.py" for name in FIRST.get(file, [f"test_{stem}"])]
    source = {name: (ROOT / "tests" / name).read_text() for name in found}
    return sorted(found, key=lambda name: (name not in near, stem not in source[name], name))


def caught(folder, file):
    """Whether a test fails, or runs for more than five minutes, on the copy of the project in a folder."""
    command = [sys.executable, "-m", "pytest", "-qxp", "no:cacheprovider", "-m", "not chapters and not browser"]
    quiet = {"OMP_NUM_THREADS": "1", "TQDM_DISABLE": "1", "PYTHONPATH": str(folder), "PYTHONDONTWRITEBYTECODE": "1"}
    for some in (tests_of(file)[:3], tests_of(file)[3:]):
        try:
            ended = subprocess.run(
                [*command, *(f"tests/{name}" for name in some)], cwd=folder, env=os.environ | quiet, timeout=300,
                capture_output=True,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            return True
        if ended.returncode:
            return True
    return False


def tried(folder, file, each, seed):
    """Plant `each` bugs in a file: how many were caught, how many were planted, and the survivors as sentences."""
    text = (ROOT / file).read_text()
    tree = ast.parse(text)
    chosen = list(places(tree))
    random.Random(f"{seed} {file}").shuffle(chosen)
    survivors = []
    for position, word in chosen[:each]:
        bug, line = planted(tree, position, word)
        (folder / file).write_text(ast.unparse(bug))
        if not caught(folder, file):
            survivors.append(f"{file}:{line} {word}: {text.splitlines()[line - 1].strip()}")
            print(f"survived: {survivors[-1]}", flush=True)
    (folder / file).write_text(text)
    planted_here = min(each, len(chosen))
    return planted_here - len(survivors), planted_here


def main(arguments):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--each", type=int, default=10, help="bugs for each file")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("files", nargs="*", help="such as utils/images.py; all of utils/ if none is named")
    given = parser.parse_args(arguments)
    files = given.files or [str(path.relative_to(ROOT)) for path in sorted((ROOT / "utils").rglob("*.py"))]
    counts = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for part in ("utils", "tests", "scripts", "benchmarks", "book", "data", "experiments", "workflow"):
            shutil.copytree(ROOT / part, folder / part)
        for path in [*ROOT.glob("*.*"), ROOT / "Makefile", ROOT / "LICENSE"]:
            if path.is_file():
                shutil.copy(path, folder)
        for file in files:
            counts[file] = tried(folder, file, given.each, given.seed)
            print(f"{file}: {counts[file][0]} of {counts[file][1]} caught", flush=True)
    found, all_of_them = (sum(column) for column in zip(*counts.values()))
    print(f"in all: {found} of {all_of_them} caught, {found / max(1, all_of_them):.0%}")


if __name__ == "__main__":
    main(sys.argv[1:])
