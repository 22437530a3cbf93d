"""Refuse names that say nothing: `utils`, `manager`, `do_it`, `data` and their kin.

Looks at the names of files, classes and functions. The words we do use: CONTRIBUTING.md.
"""

from __future__ import annotations

import ast
import re
import sys
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
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
