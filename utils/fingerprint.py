"""What code depends on, as one hash: its own statements, what they reach in `utils`, the locked versions. No torch.

Comments, docstrings and layout change nothing, nor does a function that is not reached. Where it cannot be seen what is
reached, as of a module that is handed on as a value, all of it counts. Python 3.11 to 3.14 give the same hash.
"""

import ast
import functools
import hashlib
import json
import re
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parent.parent
DEFINITIONS, IMPORTS = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef, ast.Import | ast.ImportFrom
# Decorators that register nothing; `kept` is what `cached` was called before.
WRAPPERS = {"cache", "cached", "contextmanager", "dataclass", "kept", "lru_cache"}
DYNAMIC = "__import__", "eval", "exec", "globals", "import_module", "importlib.import_module"  # may reach anything


class Statement(NamedTuple):
    """A statement at the top of a module."""

    module: str
    place: int  # in the module
    text: str
    names: frozenset  # that it binds
    paths: frozenset  # that it reaches: "utils.images.load"; "utils.images." is an import alone, "." may be anything
    acts: bool  # whether it does more than bind names when the module is imported

    @property
    def imports(self):
        """Whether it binds an imported name; then its text is the path that this stands for."""
        return self.text in self.paths


def parsed(source):
    """The syntax tree of a text of Python, without docstrings."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, DEFINITIONS | ast.Module) and ast.get_docstring(node, clean=False) is not None:
            del node.body[0]
    return tree


def notebook(path, given=()):
    """The syntax tree of a notebook's code, without the values of those of its parameters that a run is given."""
    body = []
    for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
        source = "".join(cell["source"]) if cell["cell_type"] == "code" else ""
        try:
            tree = parsed(re.sub(r"^(\s*)([%!].*)", lambda line: f"{line[1]}magic({line[2]!r})", source, flags=re.M))
        except SyntaxError:  # the run will say where; until then, it may reach anything
            tree = ast.parse(f"eval({source!r})")
        for node in tree.body if "parameters" in cell["metadata"].get("tags", ()) else ():
            if isinstance(node, ast.Assign) and {getattr(target, "id", None) for target in node.targets} <= set(given):
                node.value = ast.Constant(None)
        body += tree.body
    return ast.Module(body, [])


def text(node):
    """A syntax tree as a text without places; that of `ast.dump` depends on the version of Python."""
    if isinstance(node, ast.AST):
        fields = [(name, value) for name, value in ast.iter_fields(node) if name not in ("ctx", "kind", "type_comment")]
        parts = (f"{name}={text(value)}" for name, value in fields if value is not None and value != [])
        return f"{type(node).__name__}({', '.join(parts)})"
    return f"[{', '.join(map(text, node))}]" if isinstance(node, list) else ascii(node)


def executed(node):
    """A node and what runs with it: not the bodies of lambdas."""
    yield node
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, ast.Lambda):
            yield from executed(child)


def acts(node):
    """Whether a statement, but for an import, does more than bind names."""
    if isinstance(node, DEFINITIONS):
        return any(WRAPPERS.isdisjoint(chain) for decorator in node.decorator_list for chain in chains(decorator))
    if isinstance(node, ast.Assign | ast.AnnAssign):
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        plain = all(isinstance(target, ast.Name | ast.Tuple) for target in targets)
        return not plain or any(isinstance(part, ast.Call) for part in executed(node))
    return True


def chains(node):
    """The names below a node, each with the attributes that are taken of it: a.b.c is ["a", "b", "c"]."""
    attributes = []
    while isinstance(node, ast.Attribute):
        attributes, node = [node.attr, *attributes], node.value
    if isinstance(node, ast.Name):
        yield [node.id, *attributes]
    for child in ast.iter_child_nodes(node):
        yield from chains(child)


def imported(node):
    """Of all imports below a node: what is loaded, as a dotted path, the name that is bound, the path it stands for."""
    for part in (part for part in ast.walk(node) if isinstance(part, IMPORTS)):
        base = f"{'.' * part.level}{part.module or ''}." if isinstance(part, ast.ImportFrom) else ""
        for alias in part.names:
            name = alias.name if base or alias.asname else alias.name.split(".")[0]  # `import a.b` binds a
            yield f"{base}{alias.name}.", alias.asname or name, f"{base}{name}"


def bound(node):
    """The names that a statement binds, imports aside."""
    for part in [node] if isinstance(node, DEFINITIONS) else ast.walk(node):
        if isinstance(part, DEFINITIONS) or isinstance(getattr(part, "ctx", None), ast.Store):
            yield getattr(part, "name", getattr(part, "id", None))


def statements(module, tree):
    """The statements of a module; each import gives one that acts, and one for each name that others may reach."""
    own = {name for node in tree.body for name in bound(node)}
    top = [each for node in tree.body if not isinstance(node, DEFINITIONS) for each in imported(node)]
    for place, node in enumerate(tree.body):
        inside = [*imported(node)]
        paths = {path for path, _, _ in inside}
        if isinstance(node, IMPORTS):
            yield Statement(module, place, "", frozenset(), frozenset(paths), True)
            for _, name, path in inside:
                yield Statement(module, place, path, frozenset([name]), frozenset([path]), False)
        else:
            for head, *rest in chains(node):
                stands = {path for _, name, path in [*inside, *top] if name == head}
                stands |= {f"{module}.{head}"} if head in own else set()
                paths |= {".".join([path, *rest]) for path in stands}
                paths |= {"."} if ".".join([head, *rest]) in DYNAMIC else set()
            line = f"{text(node)} {sorted(paths)}"
            yield Statement(module, place, line, frozenset(bound(node)), frozenset(paths), acts(node))


def steps(path, modules):
    """The statements that a dotted path reaches in {module: statements}."""
    parts = path.split(".")
    if not parts[0]:  # anything, or a relative import
        yield from (statement for module in modules.values() for statement in module)
    known = [n for n in range(1, len(parts) + 1) if ".".join(parts[:n]) in modules]
    for n in known:
        module, rest = modules[".".join(parts[:n])], parts[n:]
        named = [statement for statement in module if rest and rest[0] in statement.names]
        whole = n == known[-1] and not named and rest != [""]
        yield from (statement for statement in module if whole or statement.acts)
        for each in named:  # an imported name goes on with its attributes
            yield each._replace(paths=frozenset([".".join([each.text, *rest[1:]])])) if each.imports else each


class Code:
    """The modules of `utils` and the locked versions in a folder, as they are now."""

    def __init__(self, root=ROOT):
        paths = {path: path.relative_to(root).with_suffix("").parts for path in (root / "utils").rglob("*.py")}
        named = {".".join(parts).removesuffix(".__init__"): path for path, parts in paths.items()}
        self.modules = {name: [*statements(name, parsed(path.read_bytes()))] for name, path in named.items()}
        lock = (root / "requirements.lock").read_text(encoding="utf-8")
        self.versions = sorted(re.findall(r"^\S+==\S+", lock, re.M))

    def fingerprint(self, tree):
        """SHA-256 of a syntax tree, of what it reaches, and of the locked versions."""
        modules = {**self.modules, "__main__": [*statements("__main__", tree)]}
        found = {each for each in modules["__main__"] if not each.imports}  # a name alone reaches nothing
        seen: set[str] = set()
        while todo := {path for statement in found for path in statement.paths} - seen:
            seen |= todo
            found |= {statement for path in todo for statement in steps(path, modules)}
        texts = [(each.module, each.text) for each in sorted(found, key=lambda each: each[:3])]
        return hashlib.sha256(json.dumps([texts, self.versions]).encode()).hexdigest()


here = functools.cache(Code)  # as this process found them


def of(path, given=()):
    """The fingerprint of a notebook when it is run with some parameters given."""
    return here().fingerprint(notebook(Path(path), given))
