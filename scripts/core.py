"""The audited core: who has read it has read all that can lose a secret of a broker.

ARCHITECTURE.md names its modules, in one table, and nothing else does. This script holds
the code to it: inside, nothing of sealift from outside is imported, and nothing on
demand but by the one module that the table says; outside, nobody reads a plain key,
opens a vault, opens or writes an audit log, or reaches for what is private in the core.
It looks at names, so it finds whoever forgets, not whoever hides; reviews find that.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from sizes import ROOT, code_lines

MAX_CODE_LINES: Final = 10_300
HEADING: Final = "## The audited core"
ON_DEMAND: Final = "on demand"
ELSEWHERE: Final = "elsewhere"
# Names that give a key's bytes away, or what it takes to read them.
GIVING: Final = {
    ("sealift.crypto.keys", "TOKEN"),
    ("sealift.release.checkpoint", "deposit_of"),
}
REVEALING: Final = {"reveal", "_material"}
NAMES: Final = REVEALING | {name for _, name in GIVING}
MODULE_AND_NAME: Final = {(module.split(".")[-1], name) for module, name in GIVING}
# Calls that reach by a text what a name would reach.
BY_NAME: Final = {
    "getattr", "attrgetter", "methodcaller", "__getattribute__", "import_module",
    "__import__",
}  # fmt: skip
STORES: Final = {
    "Vault": "opens a vault",
    "AuditLog": "opens or writes a log",
    "VaultFile": "opens a vault",
}
# What lies under vault and log; `database` is anybody's SQLite.
STORE_MODULES: Final = {
    "sealift.release.vault.file": "opens a vault",
    "sealift.release.vault.checkpoints": "opens a vault",
    "sealift.release.log.auditlog": "opens or writes a log",
}


@dataclass(frozen=True)
class Table:
    """What ARCHITECTURE.md says.

    Attributes:
        core: Modules, packages above them included.
        on_demand: Of them, those that import on demand.
        elsewhere: Modules of other processes that read a plain key.
    """

    core: frozenset[str]
    on_demand: frozenset[str]
    elsewhere: frozenset[str]


@dataclass(frozen=True)
class Import:
    """One import of sealift's.

    Attributes:
        module: That is imported.
        name: Of it, or empty.
        late: Whether it stands in a function.
    """

    line: int
    module: str
    name: str
    late: bool


def modules_below(source: Path) -> dict[str, Path]:
    """Every module's dotted name and file."""
    found = {}
    for path in sorted((source / "sealift").rglob("*.py")):
        parts = path.relative_to(source).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def read_table(text: str, modules: Iterable[str]) -> Table:
    """The table below the heading; a name that ends in `.*` is a whole package."""
    section = text.partition(f"\n{HEADING}\n")[2].partition("\n## ")[0]
    known = sorted(modules)
    rows: dict[str, set[str]] = {"core": set(), ON_DEMAND: set(), ELSEWHERE: set()}
    for row in re.findall(r"^\| (?!-|part )([^|]+) \|([^|]+)\|", section, re.MULTILINE):
        kind = next((each for each in rows if row[0].startswith(each)), "core")
        rows[kind] |= {
            name
            for word in re.findall(r"`([^`]+)`", row[1])
            for name in expand(f"sealift.{word}".removesuffix(".sealift"), known)
        }
    core = rows["core"] | rows[ON_DEMAND]
    return Table(
        with_packages(core), frozenset(rows[ON_DEMAND]), frozenset(rows[ELSEWHERE])
    )


def expand(name: str, known: Iterable[str]) -> list[str]:
    """The modules that a word of the table means; itself, if there is none."""
    package = name.removesuffix(".*")
    if package == name:
        return [name]
    found = [
        each for each in known if each == package or each.startswith(f"{package}.")
    ]
    return found or [name]


def with_packages(names: Iterable[str]) -> frozenset[str]:
    """The names, and every package whose `__init__` runs before them."""
    parts = (name.split(".") for name in names)
    return frozenset(
        ".".join(each[:end]) for each in parts for end in range(1, len(each) + 1)
    )


def imports_of(tree: ast.Module, modules: Mapping[str, Path]) -> Iterator[Import]:
    """Every import of sealift's that runs, wherever it stands."""
    late = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        for inner in ast.walk(node)
    }
    typing = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING")
        for step in node.body
        for inner in ast.walk(step)
    }
    for node in ast.walk(tree):
        if id(node) in typing:
            continue
        if isinstance(node, ast.Import):
            pairs = [(alias.name, "") for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            pairs = [resolve(node.module, alias.name, modules) for alias in node.names]
        else:
            continue
        for module, name in pairs:
            if module.split(".")[0] == "sealift":
                yield Import(node.lineno, module, name, id(node) in late)


def resolve(module: str, name: str, modules: Mapping[str, Path]) -> tuple[str, str]:
    """`from package import module` imports the module."""
    whole = f"{module}.{name}"
    return (whole, "") if whole in modules else (module, name)


def faults_inside(
    name: str, tree: ast.Module, table: Table, modules: Mapping[str, Path]
) -> Iterator[tuple[int, str]]:
    """What a module of the core imports that it must not."""
    for found in imports_of(tree, modules):
        if found.module not in table.core and not (
            found.late and name in table.on_demand
        ):
            yield found.line, f"imports {found.module}, which is outside the core"
        elif found.late and name not in table.on_demand:
            yield found.line, f"imports {found.module} on demand"
    if name not in table.on_demand:
        yield from ((line, "imports by name") for line in imported_by_name(tree))


def faults_outside(
    name: str, tree: ast.Module, table: Table, modules: Mapping[str, Path]
) -> Iterator[tuple[int, str]]:
    """What a module outside the core touches that it must not."""
    if name not in table.elsewhere:
        for line in revealing(tree, modules):
            yield line, "reads a plain key"
    for found in imports_of(tree, modules):
        if what := STORE_MODULES.get(found.module):
            yield found.line, what
        if found.name == "*" and found.module in table.core:
            yield found.line, f"imports all of {found.module}, whatever it holds"
        if re.match("_[^_]", found.name) and found.module in table.core:
            yield found.line, f"imports {found.name}, private to {found.module}"
    yield from used_stores(tree)


def used_stores(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """A store's class anywhere but in an annotation, or what names one in a text."""
    said = {id(each) for each in in_annotations(tree)}
    for node in ast.walk(tree):
        if id(node) in said:
            continue
        words = [last_name(node), *named(node)]
        if isinstance(node, ast.ImportFrom):
            words = [alias.name for alias in node.names if alias.asname]
        for word in words:
            if what := STORES.get(word) or STORE_MODULES.get(word):
                yield getattr(node, "lineno", 0), what


def in_annotations(tree: ast.Module) -> Iterator[ast.AST]:
    """All that says of what type something is, and does nothing."""
    for node in ast.walk(tree):
        said: list[ast.expr | None] = []
        if isinstance(node, ast.arg | ast.AnnAssign):
            said = [node.annotation]
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            said = [node.returns]
        for each in said:
            if each is not None:
                yield from ast.walk(each)


def revealing(tree: ast.Module, modules: Mapping[str, Path]) -> Iterator[int]:
    """Lines that read a key's bytes, or hold what it takes."""
    for found in imports_of(tree, modules):
        if (found.module, found.name) in GIVING:
            yield found.line
    others = dict(renamed_modules(tree))
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            module = last_name(node.value)
            pair = others.get(module, module), node.attr
            if node.attr in REVEALING or pair in MODULE_AND_NAME:
                yield node.lineno
        elif isinstance(node, ast.expr | ast.pattern) and NAMES & {*named(node)}:
            yield node.lineno


def renamed_modules(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """What a module is called here, and the last part of its own name."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            for alias in node.names:
                if alias.asname:
                    yield alias.asname, alias.name.split(".")[-1]


def named(node: ast.AST) -> Iterator[str]:
    """What a pattern, or a call that reaches by a text, names."""
    if isinstance(node, ast.MatchClass):
        yield from node.kwd_attrs
    if isinstance(node, ast.Call) and called(node) in BY_NAME:
        for each in node.args:
            if isinstance(each, ast.Constant) and isinstance(each.value, str):
                yield each.value


def called(node: ast.AST) -> str:
    """Last part of the name that a call calls."""
    return last_name(node.func) if isinstance(node, ast.Call) else ""


def last_name(node: ast.AST) -> str:
    """`c` of `a.b.c`."""
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


def imported_by_name(tree: ast.Module) -> Iterator[int]:
    """Lines that import what a text names."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and called(node) in {
            "import_module",
            "__import__",
        }:
            yield node.lineno


def faults_of_table(
    table: Table, trees: Mapping[str, ast.Module], modules: Mapping[str, Path]
) -> Iterator[str]:
    """What the table names in vain."""
    for name in sorted((table.core | table.elsewhere) - trees.keys()):
        yield f"{name}: the table names it, and there is no such module"
    for name in sorted(table.elsewhere & trees.keys()):
        if not any(revealing(trees[name], modules)):
            yield f"{name}: the table lets it read plain keys, and it reads none"
    for name in sorted(table.on_demand & trees.keys()):
        late = [each for each in imports_of(trees[name], modules) if each.late]
        if not late and not any(imported_by_name(trees[name])):
            yield f"{name}: the table lets it import on demand, and it does not"
    if not table.core:
        yield f"ARCHITECTURE.md has no table below {HEADING!r}"


def check(root: Path) -> tuple[list[str], int]:
    """All faults, and how many code lines the core has."""
    modules = modules_below(root / "src")
    table = read_table((root / "ARCHITECTURE.md").read_text(), modules)
    sources = {name: path.read_text() for name, path in modules.items()}
    trees = {name: ast.parse(source) for name, source in sources.items()}
    faults = list(faults_of_table(table, trees, modules))
    for name, tree in trees.items():
        look = faults_inside if name in table.core else faults_outside
        place = modules[name].relative_to(root)
        found = sorted(set(look(name, tree, table, modules)))
        faults += [f"{place}:{line}: {what}" for line, what in found]
    lines = sum(
        len(code_lines(sources[name], trees[name]))
        for name in table.core & trees.keys()
    )
    return faults, lines


def main(root: Path = ROOT) -> int:
    """Print what is wrong, and how large the core is; 1 if something is wrong."""
    faults, lines = check(root)
    if lines > MAX_CODE_LINES:
        faults.append(f"the core has more than {MAX_CODE_LINES} code lines")
    for fault in faults:
        print(f"core: {fault}", file=sys.stderr)
    print(f"audited core: {lines} code lines of at most {MAX_CODE_LINES}")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT))
