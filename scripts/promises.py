"""Does every promise name a test that exists?

The tables of SECURITY.md with the heading `against | promise | test`, and those of
docs/explanation/attacks.md with `tests`, are read, and in SECURITY.md each point of a list that
begins with a bold name, `* **Against ...**`: it says what holds against somebody. Whatever any
sentence of SECURITY.md names must exist, and each of those must name something: a test's
file, a test's function, a folder below `tests`, a target of the Makefile, or a row of the
table of attacks (T5). Wildcards have to match something. Whether that test shows what the
promise says is for people to judge; a line of tests/mutants/ breaks what it should see.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from fnmatch import filter as matching
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
CELL = re.compile(r"(?<!\\)\|")
CODE = re.compile(r"`([^`]+)`")
POINT = re.compile(r"^\* \*\*(.+?)\*\*(?:.*\n)(?:  .*\n)*", re.MULTILINE)
TEST = re.compile(r"(?:tests/|unit/|test_|make )\S+")
ROW_NAME = re.compile(r"\b[A-Z]\d+\b")


def rows(page: Path, column: str) -> Iterator[tuple[int, str, str]]:
    """Line, first cell, and the cell below ``column``, of each table that has it."""
    at = None
    for number, line in enumerate(page.read_text("utf-8").splitlines(), 1):
        cells = [each.strip() for each in CELL.split(line)[1:-1]]
        if not line.startswith("|"):
            at = None
        elif column in cells:
            at = cells.index(column)
        elif at is not None and not set(line) <= set("|- "):
            yield number, cells[0], cells[at]


class Known:
    """What a promise may name."""

    def __init__(self, root: Path) -> None:
        tests = [path for path in (root / "tests").rglob("*") if path.exists()]
        self._paths = {str(path.relative_to(root)) for path in tests}
        files = [path for path in tests if path.suffix == ".py"]
        self._files = {path.stem for path in files if path.stem.startswith("test_")}
        self._functions = {
            name
            for path in files
            for name in re.findall(r"\bdef (test_\w+)\(", path.read_text("utf-8"))
        }
        self._targets = set(
            re.findall(r"^([a-z-]+):", (root / "Makefile").read_text(), re.MULTILINE)
        )
        attacks = root / "docs" / "explanation" / "attacks.md"
        self.attacks = {name for _, name, _ in rows(attacks, "tests")}

    def has(self, name: str) -> bool:
        """Is there anything that it names?"""
        if name.startswith("make "):
            return name.removeprefix("make ") in self._targets
        if name.startswith("python -m benchmarks"):
            return True  # a measurement besides the tests
        name = name.rstrip("/")
        if "/" in name:
            wanted = name.removeprefix("tests/")
            return any(
                matching(self._paths, f"tests/{wanted}{end}")
                for end in ("", ".py", "*.py")
            )
        stem = name.removesuffix(".py")
        return bool(matching(self._files, stem)) or stem in self._functions


def faults(root: Path) -> Iterator[str]:
    """Every promise without a test, and every test that is not there."""
    known = Known(root)
    pages = (("SECURITY.md", "test"), ("docs/explanation/attacks.md", "tests"))
    for name, column in pages:
        counted = 0
        for line, _, cell in rows(root / name, column):
            counted += 1
            named = CODE.findall(cell)
            attacks = ROW_NAME.findall(CODE.sub("", cell))
            if not named and not attacks:
                yield f"{name}:{line}: this promise names no test"
            yield from (
                f"{name}:{line}: there is no test {each}"
                for each in named
                if not known.has(each)
            )
            yield from (
                f"{name}:{line}: the table of attacks has no row {each}"
                for each in attacks
                if each not in known.attacks and column == "test"
            )
        if not counted:
            yield f"{name}: no table has a column {column!r}"
    yield from sentences(root / "SECURITY.md", known)


def sentences(page: Path, known: Known) -> Iterator[str]:
    """What is said outside of tables."""
    text = page.read_text("utf-8")
    for point in POINT.finditer(text):
        if not any(map(TEST.fullmatch, CODE.findall(point[0]))):
            yield f"{page.name}: the point {point[1]!r} names no test"
    for number, line in enumerate(text.splitlines(), 1):
        if not line.startswith("|"):
            yield from (
                f"{page.name}:{number}: there is no test {each}"
                for each in CODE.findall(line)
                if TEST.fullmatch(each) and not known.has(each)
            )


def main(root: Path = ROOT) -> int:
    """Print what is wrong; 1 if something is."""
    found = list(faults(root))
    for each in found:
        print(f"promises: {each}", file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
