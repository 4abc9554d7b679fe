"""Which pieces of `utils` a text of Python reaches, read from the files without running them.

A piece is what one name at the top level of a file stands for: a function, a class as a whole, a constant, an import.
What cannot be resolved counts as too much. Not seen: registries filled by decorators, imports for an effect alone.
"""

import ast
import hashlib
import inspect
from functools import lru_cache
from itertools import accumulate
from pathlib import Path

ROOT = Path(__file__).parent
DYNAMIC = {"globals", "eval", "exec", "__import__", "import_module"}  # these may reach everything
DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


@lru_cache
def files(root=ROOT):
    """The pieces of every file of the package in the folder `root`, read once in a process."""
    paths = {path: [root.name, *path.relative_to(root).with_suffix("").parts] for path in root.rglob("*.py")}
    return {".".join(p).removesuffix(".__init__"): pieces(path.read_text(), p[:-1]) for path, p in paths.items()}


def pieces(code, package=()):
    """{name: [statement, or dotted name of an import]}; what a file of a package does besides is listed under ""."""
    found = {"": []}
    for statement in parsed(code):
        stored = [node for node in ast.walk(statement) if isinstance(getattr(node, "ctx", None), ast.Store)]
        names = [] if isinstance(statement, ast.Import | ast.ImportFrom) else [""]
        if isinstance(statement, DEFINITIONS):
            names = [statement.name]
        elif isinstance(statement, ast.Assign | ast.AnnAssign | ast.AugAssign):
            names = {getattr(node, "id", "") for node in stored if not hasattr(node, "elts")}
        for name, item in [*((name, statement) for name in names), *imports(statement, package)]:
            found.setdefault(name, []).append(item)
    return found


def parsed(code):
    """The statements of a text of Python, without docstrings."""
    tree = ast.parse(code)
    for node in ast.walk(tree):
        if isinstance(node, (ast.Module, *DEFINITIONS)) and ast.get_docstring(node) is not None:
            node.body = node.body[1:] or [ast.Pass()]
    return tree.body


def imports(statement, package):
    """Yield (name, dotted name) of what is imported anywhere in a statement; a star is ("", "file.*")."""
    for node in ast.walk(statement):
        if isinstance(node, ast.Import | ast.ImportFrom):
            up = getattr(node, "level", 0)
            base = [*(package[: len(package) + 1 - up] if up else []), *filter(None, [getattr(node, "module", None)])]
            for alias in node.names:
                name = alias.name if base or alias.asname else alias.name.partition(".")[0]
                yield alias.asname or name.strip("*"), ".".join([*base, name])


@lru_cache(maxsize=None)
def mentions(node, *rest):
    """The dotted names in some code, as lists; a local name counts as the piece of the same name, if there is one."""
    if isinstance(node, ast.Attribute):
        return mentions(node.value, node.attr, *rest)
    if isinstance(node, ast.Name):
        return [[node.id, *rest]]
    return [found for child in ast.iter_child_nodes(node) for found in mentions(child)]


def reached(code, root=ROOT):
    """The set of (module, name) that a text of Python reaches; the name "" stands for the rest of the module."""
    known, seen = {**files(root), "": pieces(code)}, set()

    def see(module, name, *rest):
        """A piece, all that its statements mention, and (with the rest of a dotted name) what it imports."""
        if (module, name, *rest) in seen:
            return
        seen.add((module, name, *rest))
        for item in known[module].get(name, ()):
            for first, *more in [] if isinstance(item, str) else mentions(item):
                if first in DYNAMIC or "import_module" in more:
                    everything(root.name)
                elif first in known[module]:
                    see(module, first, *more)
            if isinstance(item, str):
                follow([*item.split("."), *rest])

    def follow(parts):
        """What a dotted name stands for; all of a file, if that is the file itself or not to be found in it."""
        inside = [name for name in accumulate(parts, "{}.{}".format) if name in known]
        for module in inside:
            see(module, "")
        if inside:
            rest = parts[module.count(".") + 1 :]
            see(module, *rest) if rest and rest[0] in known[module] else everything(module)

    def everything(package):
        """All pieces of a file, or of the files of a package, but not the other files that they import."""
        for module in [name for name in known if f"{name}.".startswith(f"{package}.")]:
            for name, items in known[module].items():
                if not known.keys() & {*items}:
                    see(module, name)

    everything("")
    return {(module, name) for module, name, *_ in seen if module}


def fingerprint(code, root=ROOT):
    """SHA-256 of a text of Python and of all that it reaches; comments, docstrings and layout do not count."""
    text = [ast.dump(node) for node in parsed(code)]
    for module, name in sorted(reached(code, root)):
        text += [module, name, *(i if isinstance(i, str) else ast.dump(i) for i in files(root)[module][name])]
    return hashlib.sha256("\n".join(text).encode()).hexdigest()


@lru_cache(maxsize=None)
def function_fingerprint(function, root=ROOT):
    """The fingerprint of a function of the package; of any other function, that of the whole file around it."""
    if function.__module__ in files(root):
        return fingerprint(f"from {function.__module__} import {function.__qualname__.partition('.')[0]}", root)
    return fingerprint(Path(inspect.getsourcefile(function)).read_text(), root)


files()  # as this process imports them: a later edit does not change what runs here
