"""Every error's stable name is explained, and nothing is explained that cannot occur."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import sealift
from sealift.cli.explain import explanations

SOURCE = Path(sealift.__file__).parent
NAME = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")
# Made from parts in the source, so that reading it does not find them.
ELSEWHERE = {"bug"}
DEFAULT = "default_code"


def codes_in(tree: ast.AST) -> Iterator[str]:
    """Literals given as ``code=``, also in either branch of a condition."""
    for node in ast.walk(tree):
        if isinstance(node, ast.keyword) and node.arg == "code":
            yield from literals(node.value)
        if isinstance(node, ast.AnnAssign) and ast.unparse(node.target) == DEFAULT:
            yield from literals(node.value or ast.Constant(None))


def literals(node: ast.expr) -> Iterator[str]:
    for part in ast.walk(node):
        text = part.value if isinstance(part, ast.Constant) else None
        if isinstance(text, str) and NAME.fullmatch(text):  # or it is a code bundle
            yield text


def codes_of_source() -> set[str]:
    found: set[str] = set()
    for path in SOURCE.rglob("*.py"):
        found.update(codes_in(ast.parse(path.read_text())))
    return found


def test_every_code_is_explained() -> None:
    missing = codes_of_source() - explanations().keys()
    assert not missing, f"add them to explanations.toml: {sorted(missing)}"


def test_every_explanation_has_its_code() -> None:
    """A name that stands nowhere in the source explains nothing."""
    text = "\n".join(path.read_text() for path in SOURCE.rglob("*.py"))
    unused = [
        name
        for name in explanations().keys() - ELSEWHERE
        if not re.search(rf'["\']{name}["\']', text)
    ]
    assert not unused


def test_the_search_finds_a_code() -> None:
    """Control: a code that nobody explained is found."""
    tree = ast.parse('raise PolicyError("x", code="never-explained" if a else "b-c")')
    assert set(codes_in(tree)) == {"never-explained", "b-c"}
    assert "never-explained" not in explanations()


def test_entries_are_text() -> None:
    for name, entry in explanations().items():
        assert NAME.fullmatch(name), name
        assert set(entry) == {"what", "do"}, name
        assert all(
            text.endswith((".", "?")) and text.isascii() for text in entry.values()
        )
