"""Print files, lines and function lengths per room; fail over 800 lines a file.

Lines are what an editor shows. Code lines leave out blanks, comments and docstrings;
a function's length is its code lines with the signature, without nested functions.
"""

from __future__ import annotations

import ast
import io
import sys
import tokenize
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median, quantiles

ROOT = Path(__file__).resolve().parent.parent
MAX_FILE_LINES = 800
MAX_POSITIONAL = 5
SHOWN_LONGEST = 5
IGNORED_TOKENS = {
    tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT,
    tokenize.ENCODING, tokenize.ENDMARKER,
}  # fmt: skip

Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass
class Room:
    """What one folder holds."""

    files: list[tuple[int, Path]] = field(default_factory=list)
    code_lines: int = 0
    functions: list[tuple[int, str]] = field(default_factory=list)
    wide: list[str] = field(default_factory=list)


def docstring_lines(tree: ast.AST) -> set[int]:
    """Return the line numbers of every bare string statement."""
    return {
        line
        for node in ast.walk(tree)
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        if isinstance(node.value.value, str)
        for line in range(node.lineno, (node.end_lineno or node.lineno) + 1)
    }


def code_lines(source: str, tree: ast.AST) -> set[int]:
    """Return the line numbers that carry code."""
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    lines = {
        line
        for token in tokens
        if token.type not in IGNORED_TOKENS
        for line in range(token.start[0], token.end[0] + 1)
    }
    return lines - docstring_lines(tree)


def functions_of(tree: ast.AST) -> Iterator[tuple[Function, set[int]]]:
    """Yield every function with the lines of the functions inside it."""
    for node in ast.walk(tree):
        if isinstance(node, Function):
            yield (
                node,
                {
                    line
                    for inner in ast.walk(node)
                    if isinstance(inner, Function) and inner is not node
                    for line in range(inner.lineno, (inner.end_lineno or 0) + 1)
                },
            )


def positional(function: Function) -> int:
    """Count positional parameters, `self` and `cls` aside."""
    names = [a.arg for a in (*function.args.posonlyargs, *function.args.args)]
    return len([name for name in names if name not in ("self", "cls")])


def measure(path: Path, room: Room) -> None:
    """Add one file to its room."""
    source = path.read_text()
    tree = ast.parse(source)
    code = code_lines(source, tree)
    place = path.relative_to(ROOT)
    room.files.append((len(source.splitlines()), place))
    room.code_lines += len(code)
    for function, nested in functions_of(tree):
        span = set(range(function.lineno, (function.end_lineno or 0) + 1))
        label = f"{place}:{function.lineno} {function.name}"
        room.functions.append((len(span & code - nested), label))
        if positional(function) > MAX_POSITIONAL:
            room.wide.append(label)


def room_name(path: Path) -> str:
    """Return the table's row for a file: its room, or its top folder."""
    parts = path.relative_to(ROOT).parts
    if parts[:2] == ("src", "sealift"):
        return parts[2] if len(parts) > 3 else "(ground)"
    return f"{parts[0]}/"


def rooms() -> dict[str, Room]:
    """Measure every Python file of the project."""
    found: dict[str, Room] = defaultdict(Room)
    for top in ("src", "tests", "benchmarks", "scripts", "spec", "examples", "fuzz"):
        for path in sorted((ROOT / top).rglob("*.py")):
            measure(path, found[room_name(path)])
    return found


def percentile_90(lengths: list[int]) -> int:
    """Return the ninth decile, or the longest of few."""
    return round(quantiles(lengths, n=10)[-1]) if len(lengths) > 9 else max(lengths)


def row(name: str, room: Room) -> str:
    """Return one line of the table."""
    lengths = [length for length, _ in room.functions] or [0]
    lines = [count for count, _ in room.files]
    return (
        f"{name:<14}{len(lines):>6}{sum(lines):>8}{room.code_lines:>7}{max(lines):>9}"
        f"{len(room.functions):>11}{round(median(lengths)):>8}{percentile_90(lengths):>5}"
    )


def total(parts: list[Room]) -> Room:
    """Return several rooms as one."""
    whole = Room()
    for part in parts:
        whole.files += part.files
        whole.code_lines += part.code_lines
        whole.functions += part.functions
        whole.wide += part.wide
    return whole


def main() -> int:
    """Print the table and return 1 when a bound is broken."""
    found = rooms()
    source = total([room for name, room in found.items() if not name.endswith("/")])
    print(f"{'room':<14} files   lines   code  longest  functions  median  p90")
    for name, room in sorted(found.items(), key=lambda item: item[0].endswith("/")):
        print(row(name, room))
    print(row("src in all", source))
    print("longest functions in src:")
    for length, label in sorted(source.functions, reverse=True)[:SHOWN_LONGEST]:
        print(f"  {length:>4} {label}")
    faults = [
        f"{place}: {count} lines, more than {MAX_FILE_LINES}"
        for count, place in total([*found.values()]).files
        if count > MAX_FILE_LINES
    ] + [f"{label}: more than {MAX_POSITIONAL} positional" for label in source.wide]
    for fault in faults:
        print(f"sizes: {fault}", file=sys.stderr)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
