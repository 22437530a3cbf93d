"""The budget of each room, and what is public without a user.

`walls.toml` says for each room its code lines and its public names. More than it says is
a fault, and so is less by a tenth: then the budget becomes smaller. A larger number
needs its reason in the same commit. Two things need a line with their
reason in the table: a protocol that fewer than two classes implement, and a public
function that only its own module uses (tests and benchmarks count as users).
"""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from sizes import ROOT, code_lines

TABLE: Final = Path(__file__).with_name("walls.toml")
SLACK: Final = 0.9
# Modules that are run or named in a text, not imported: nobody's users are counted.
USERS_OF_NAMES: Final = ("tests", "benchmarks", "examples", "spec", "scripts")


@dataclass
class Module:
    """One file of the product, parsed."""

    name: str
    path: Path
    tree: ast.Module
    code: int
    used: set[tuple[str, str]] = field(default_factory=set)  # (module, name) of others

    @property
    def room(self) -> str:
        """The first folder below the product, or the ground."""
        parts = self.name.split(".")
        return parts[1] if self.path.parent.name != "sealift" else "ground"

    @property
    def public(self) -> list[ast.ClassDef | ast.FunctionDef]:
        """Classes and functions without an underscore."""
        kinds = (ast.ClassDef, ast.FunctionDef)
        found = [node for node in self.tree.body if isinstance(node, kinds)]
        return [node for node in found if not node.name.startswith("_")]


def modules() -> dict[str, Module]:
    """Parse the product, and note who uses which names of whom."""
    found = {}
    for path in sorted((ROOT / "src" / "sealift").rglob("*.py")):
        name = ".".join(path.relative_to(ROOT / "src").with_suffix("").parts)
        source = path.read_text()
        tree = ast.parse(source)
        name = name.removesuffix(".__init__")
        found[name] = Module(name, path, tree, len(code_lines(source, tree)))
    for module in found.values():
        note_uses(module, found)
    return found


def note_uses(module: Module, known: dict[str, Module]) -> None:
    """Fill ``module.used``; the name of a module that is used whole is ``""``."""
    whole = {}
    for node in ast.walk(module.tree):
        if isinstance(node, ast.ImportFrom) and node.module:
            for each in node.names:
                inner = f"{node.module}.{each.name}"
                if inner in known:
                    whole[each.asname or each.name] = inner
                    module.used.add((inner, ""))
                else:
                    module.used.add((node.module, each.name))
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            module.used.add((whole.get(node.value.id, ""), node.attr))


def measured(product: dict[str, Module]) -> dict[str, dict[str, int]]:
    """Return the table as it is."""
    rooms: dict[str, Counter[str]] = defaultdict(Counter)
    for module in product.values():
        room = rooms[module.room]
        room["code"] += module.code
        room["public"] += len(module.public)
    return {name: dict(room) for name, room in sorted(rooms.items())}


def alone(product: dict[str, Module]) -> Iterator[str]:
    """Yield what is public without a reason, as `walls.toml` names it."""
    yield from lone_protocols(product)
    used = {each for module in product.values() for each in module.used}
    outside = set(re.findall(r"\w+", "".join(texts_of_users())))
    for module in product.values():
        for node in module.public:
            users = node.name in outside or (module.name, node.name) in used
            if isinstance(node, ast.FunctionDef) and not users:
                yield f"function {module.name}.{node.name}"


def texts_of_users() -> Iterator[str]:
    """Yield what may use a name from outside, texts that name `module:function` too."""
    for top in USERS_OF_NAMES:
        for path in (ROOT / top).rglob("*.py"):
            yield path.read_text()
    for path in (ROOT / "src").rglob("*.py"):
        yield " ".join(re.findall(r"sealift[\w.]*:(\w+)", path.read_text()))


def lone_protocols(product: dict[str, Module]) -> Iterator[str]:
    """Yield protocols whose members one class at most has."""
    members, protocols = [], {}
    for module in product.values():
        for node in ast.walk(module.tree):
            if isinstance(node, ast.ClassDef):
                names = set(members_of(node))
                if any(ast.unparse(base) == "Protocol" for base in node.bases):
                    protocols[f"{module.name}.{node.name}"] = names
                else:
                    members.append(names)
    for name, wanted in sorted(protocols.items()):
        if wanted and sum(wanted <= each for each in members) < 2:
            yield f"protocol {name}"


def members_of(node: ast.ClassDef) -> Iterator[str]:
    """Yield methods and attributes, those that ``self`` is given among them."""
    for each in ast.walk(node):
        if isinstance(each, ast.FunctionDef) and not each.name.startswith("_"):
            yield each.name
        elif isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name):
            yield each.target.id
        elif isinstance(each, ast.Attribute) and isinstance(each.ctx, ast.Store):
            yield each.attr


def faults(product: dict[str, Module], table: dict[str, Any]) -> Iterator[str]:
    """Compare the house with its table."""
    rooms, reasons = table["rooms"], table["alone"]
    found = measured(product)
    for name in sorted(found.keys() | rooms.keys()):
        for what in ("code", "public"):
            now = found.get(name, {}).get(what, 0)
            most = rooms.get(name, {}).get(what, 0)
            if now > most:
                yield f"{name}: {what} {now}, the table says at most {most}"
            elif now < SLACK * most:
                yield f"{name}: {what} {now}, and the table still says {most}"
    standing = set(alone(product))
    for name in sorted(standing - reasons.keys()):
        yield f"{name} has one user: remove it, or say why not in {TABLE.name}"
    for name in sorted(reasons.keys() - standing):
        yield f"{name} has other users now: take its line out of {TABLE.name}"


def main() -> int:
    """Print what does not fit; 1 if there is something."""
    found = list(faults(modules(), tomllib.loads(TABLE.read_text())))
    for fault in found:
        print(f"walls: {fault}", file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
