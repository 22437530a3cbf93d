"""Print every text of the product that a person can read, in one list to be proofread.

`make messages` prints all of it; `ARGS=cli/meeting` only what lies below
`src/sealift/cli/meeting`. Sources are parsed and never imported, so the list has what no
run reaches. A text is shown as it stands in the source, with `{expressions}` where it is
filled in, and `a | b` where the code chooses between two. The kinds are:

* `error`: what the line of an error says, `what: why. fix [code]`
* `help`: what `--help` shows
* `line`: what is printed, said or asked
* `text`: any other string of three words or more, such as a sentence in a table
* `codes`: an entry of `errors.toml`, which `sealift explain CODE` shows
"""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

SOURCE = Path(__file__).resolve().parent.parent / "src/sealift"
PRINTING = {
    "ask_afresh", "ask_line", "ask_terminal", "ask_words", "confirm", "print",
    "print_result", "say", "write",
}  # fmt: skip
HELP = {"description", "epilog", "help", "title", "usage"}
WORDS = re.compile(r"[A-Za-z][\w'-]*[,:;]? +[\w{'`\"(-]+[^ ]* +[\w{'`\"(]")
CODE = re.compile(r"\s*(SELECT|INSERT|CREATE|DELETE|UPDATE|PRAGMA|DROP|#include)\b")


class Message(NamedTuple):
    """One text, and where it stands."""

    line: int
    kind: str
    text: str


def render(node: ast.AST | None) -> str:
    """Return the text that an expression makes; empty if no word of it stands there."""
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else ""
    if isinstance(node, ast.JoinedStr):
        return "".join(
            f"{{{ast.unparse(part.value)}}}"
            if isinstance(part, ast.FormattedValue)
            else render(part)
            for part in node.values
        )
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        both = [(render(side), ast.unparse(side)) for side in (node.left, node.right)]
        known = any(text for text, _ in both)
        return "".join(text or f"{{{code}}}" for text, code in both) if known else ""
    if isinstance(node, ast.IfExp):
        return " | ".join(filter(None, map(render, (node.body, node.orelse))))
    return ""


def called(node: ast.Call) -> str:
    """Return the last name of what is called."""
    function = node.func
    return getattr(function, "attr", "") or getattr(function, "id", "")


def error_makers(trees: Iterable[ast.AST]) -> set[str]:
    """Return the names of the functions that raise or return an error made of their arguments."""
    return {
        node.name
        for tree in trees
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef) and node.returns is not None
        if re.search(r"(Error|NoReturn)$", ast.unparse(node.returns))
    }


def messages(tree: ast.AST, makers: set[str]) -> Iterator[Message]:
    """Yield the texts of one module, in the order of its lines."""
    listed = {
        id(node.value)
        for node in ast.walk(tree)  # docstrings are for readers of the source
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    }
    for node in ast.walk(tree):  # from the outside in: a whole comes before its parts
        kind, code = "text", ""
        parts: Sequence[ast.expr | None] = [node] if isinstance(node, ast.expr) else []
        if isinstance(node, ast.Call):
            name = called(node)
            named = {word.arg or "": word.value for word in node.keywords}
            if name.endswith("Error") or name in makers:
                kind, code = "error", render(named.get("code"))
                parts = [*node.args, named.get("why"), named.get("fix")]
            elif name in PRINTING:
                kind, parts = "line", [*node.args, *named.values()]
            elif name == "add_flag":
                kind, parts = "help", node.args[1:]
            else:
                kind, parts = "help", [named[word] for word in named if word in HELP]
        text = ": ".join(filter(None, map(render, parts)))
        if not text or id(node) in listed or not isinstance(node, ast.expr):
            continue
        listed |= {id(inner) for part in parts if part for inner in ast.walk(part)}
        if kind == "text" and (not WORDS.search(text) or CODE.match(text)):
            continue
        text = f"{text} [{code}]" if code else text
        yield Message(node.lineno, kind, " ".join(text.split()))


def main(below: str = "") -> None:
    """Print the list, grouped by room and file."""
    paths = sorted(SOURCE.rglob("*.py"))
    trees = {path: ast.parse(path.read_text("utf-8")) for path in paths}
    makers = error_makers(trees.values())
    for path, tree in trees.items():
        place = path.relative_to(SOURCE)
        texts = sorted(messages(tree, makers)) if place.is_relative_to(below) else []
        if texts:
            print(f"\n{place}")
        for message in texts:
            print(f"{message.line:>5} {message.kind:<6} {message.text}")
    if not below or below == "errors.toml":
        print("\nerrors.toml")
        for code, entry in tomllib.loads((SOURCE / "errors.toml").read_text()).items():
            print(f"      codes  {code}: {' '.join(entry.values())}")


if __name__ == "__main__":
    main(*sys.argv[1:2])
