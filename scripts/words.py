"""Refuse names that say nothing (`utils`, `do_it`, `data`), and one name of two public classes.

Looks at the names of files, classes and functions. The words we do use: CONTRIBUTING.md.
"""

from __future__ import annotations

import ast
import re
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
ANYWHERE = {
    "common", "handler", "helper", "helpers", "manager", "misc", "util", "utils",
    "wrapper",
}  # fmt: skip
WHOLE_NAME = {"base", "data", "info", "new", "obj", "old", "res", "tmp", "v2"}
TERMS = {"process_group"}  # torch's own, which users type
FIRST = {"do", "handle", "my", "process", "safe", "secure", "trusted"}


def parts(name: str) -> list[str]:
    """Split `snake_case` and `CamelCase` into lower-case words."""
    return [word.lower() for word in re.findall(r"[A-Z]?[a-z0-9]+|[A-Z]+", name)]


def says_nothing(name: str) -> bool:
    """Tell whether a name holds a banned word where it is banned."""
    words = parts(name)
    return name not in TERMS and bool(
        ANYWHERE.intersection(words)
        or "_".join(words) in WHOLE_NAME
        or (len(words) > 1 and words[0] in FIRST)
    )


def names_in(path: Path) -> Iterator[tuple[int, str]]:
    """Yield line and name of the file itself and of all it defines."""
    if path.parent.name != "cli":  # there a file's name is the noun that users type
        yield 1, path.stem
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.lineno, node.name


def public_classes() -> dict[str, list[str]]:
    """The files of the product that define each public class, by its name."""
    where = defaultdict[str, list[str]](list)
    for path in sorted((ROOT / "src").rglob("*.py")):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                where[node.name].append(str(path.relative_to(ROOT)))
    return where


def main() -> int:
    """Print every bad name and return 1 when there is one."""
    found = [
        f"{path.relative_to(ROOT)}:{line} {name}"
        for top in ("src", "benchmarks", "scripts")
        for path in sorted((ROOT / top).rglob("*.py"))
        for line, name in names_in(path)
        if says_nothing(name)
    ]
    for place in found:
        print(f"words: {place}: a name that says nothing", file=sys.stderr)
    twice = [
        (name, where) for name, where in public_classes().items() if len(where) > 1
    ]
    for name, where in twice:
        print(f"words: class {name} is in {' and '.join(where)}", file=sys.stderr)
    return 1 if found or twice else 0


if __name__ == "__main__":
    sys.exit(main())
