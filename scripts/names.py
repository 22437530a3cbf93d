"""Find names that tests and examples take from modules which do not have them.

mypy does not read most tests, and a test whose import is wrong fails only when it runs.
Nothing is imported here: a module's names are those that it binds at its top level, its
submodules, and what its ``__all__`` lists. Four ways to take a name are read:
``from module import name``, ``module.name`` after an import, ``setattr(module, "name")``,
and texts like ``"sealift.module.name"`` that a test gives to ``setattr`` or
``import_module``.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent
# Where modules stand, and what comes before their names; scripts and specs import by folder.
MODULES: Final = {"src": "", "tests": "tests.", "benchmarks": "benchmarks."}
PACKAGES: Final = ("sealift", "tests", "benchmarks")
READERS: Final = ("tests", "examples")  # mypy reads the others
TAKERS: Final = {"setattr", "delattr", "import_module"}
EVERY_MODULE: Final = {"__name__", "__file__", "__doc__", "__dict__", "__path__"}


class Module:
    """One file and what it offers.

    Args:
        path: Of the file.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    def has(self, name: str) -> bool:
        """Tell whether it binds a name; parsed only where its lines do not say so."""
        plain = rf"^(?:(?:async )?def|class) {name}\b|^{name}\b *[:=]"
        return bool(re.search(plain, self._source, re.MULTILINE)) or name in self._bound

    @cached_property
    def _source(self) -> str:
        return self._path.read_text()

    @cached_property
    def _bound(self) -> set[str]:
        return {*bound_by(ast.parse(self._source).body), *EVERY_MODULE}


def bound_by(body: list[ast.stmt]) -> Iterator[str]:
    """Yield what statements bind, without the insides of functions and classes."""
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name
            continue
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            yield from ast.literal_eval(node.value)
        for each in ast.walk(node):
            if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store):
                yield each.id
            elif isinstance(each, ast.alias):
                yield each.asname or each.name.partition(".")[0]
            elif isinstance(each, ast.FunctionDef | ast.ClassDef):
                yield each.name


def modules() -> dict[str, Module | None]:
    """Every file by the name that imports give it, and None for folders of files."""
    found: dict[str, Module | None] = {}
    for top, prefix in MODULES.items():
        for path in sorted((ROOT / top).rglob("*.py")):
            inside = path.relative_to(ROOT / top).with_suffix("").parts
            name = (prefix + ".".join(inside)).removesuffix(".__init__")
            found[name] = Module(path)
            while name := name.rpartition(".")[0]:
                found.setdefault(name, None)
    return found


class Reader:
    """Looks at what one file takes of the others.

    Args:
        known: Modules by name.
        tree: Of the file.
    """

    def __init__(self, known: dict[str, Module | None], tree: ast.Module) -> None:
        self._known = known
        self._nodes = list(ast.walk(tree))
        self._aliases = self._module_aliases()

    def faults(self) -> Iterator[tuple[int, str]]:
        """Yield the line and the name of each that is not there."""
        for node in self._nodes:
            for module, name in self._taken(node):
                if self._lacks(module, name):
                    yield getattr(node, "lineno", 0), f"{module} has no {name}"

    def _taken(self, node: ast.AST) -> Iterator[tuple[str, str]]:
        if isinstance(node, ast.ImportFrom) and node.module:
            yield from ((node.module, each.name) for each in node.names)
        elif isinstance(node, ast.Import):
            for each in node.names:
                module, _, name = each.name.rpartition(".")
                yield module, name
        elif isinstance(node, ast.Attribute):
            yield self._module_of(node.value), node.attr
        elif isinstance(node, ast.Call) and called(node) in TAKERS:
            yield from self._taken_by_text(node)

    def _taken_by_text(self, call: ast.Call) -> Iterator[tuple[str, str]]:
        """What a test puts something else in place of, or imports late."""
        first, second = text(call, 0), text(call, 1)
        if any(each.arg == "raising" for each in call.keywords):
            return
        if first:
            module, _, name = first.rpartition(".")
            while module and module not in self._known:  # a name within a class
                module, _, name = module.rpartition(".")
            yield module, name
        elif second:
            yield self._module_of(call.args[0]), second

    def _module_of(self, value: ast.expr) -> str:
        """The module that an expression is; empty for all others."""
        if isinstance(value, ast.Name):
            return self._aliases.get(value.id, "")
        if isinstance(value, ast.Call) and called(value) == "import_module":
            return text(value, 0)
        return ""

    def _module_aliases(self) -> dict[str, str]:
        """Names in this file that are a module, and are bound to nothing else in it."""
        found, others = {}, set()
        for node in self._nodes:
            if isinstance(node, ast.arg):
                others.add(node.arg)
            elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                others.add(node.id)
            elif isinstance(node, ast.ImportFrom) and node.module:
                for each in node.names:
                    inner = f"{node.module}.{each.name}"
                    if inner in self._known:
                        found[each.asname or each.name] = inner
        return {alias: module for alias, module in found.items() if alias not in others}

    def _lacks(self, module: str, name: str) -> bool:
        if (
            module.partition(".")[0] not in PACKAGES
            or f"{module}.{name}" in self._known
        ):
            return False
        found = self._known.get(module)
        return found is None or not found.has(name)


def called(call: ast.Call) -> str:
    """The last word of what is called."""
    return getattr(call.func, "attr", getattr(call.func, "id", ""))


def text(call: ast.Call, place: int) -> str:
    """An argument that is a text; empty for all others."""
    given = call.args[place] if len(call.args) > place else None
    value = given.value if isinstance(given, ast.Constant) else ""
    return value if isinstance(value, str) else ""


def main() -> int:
    """Print every name that is not there; 1 if there is one."""
    known = modules()
    found = [
        f"{path.relative_to(ROOT)}:{line}: {fault}"
        for top in READERS
        for path in sorted((ROOT / top).rglob("*.py"))
        for line, fault in Reader(known, ast.parse(path.read_text())).faults()
    ]
    for fault in found:
        print(f"names: {fault}", file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
