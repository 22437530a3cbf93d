"""Every error's stable name stands once in the catalogue, and nothing that cannot occur."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import sealift
from sealift.errors import catalogue, remedy

SOURCE = Path(sealift.__file__).parent
CLONE = Path(__file__).parents[2]
# Their errors are explained by the same command.
BESIDE = ("benchmarks", "tests/attacks/scenarios", "tests/guest", "tests/worlds")
NAME = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")
# Made from parts in the source, so that reading it does not find them.
ELSEWHERE = {"bug"}
DEFAULT = "default_code"
# Places whose remedy is another one than what the catalogue says for their name.
MAX_OTHERS = 20


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


def trees() -> Iterator[ast.Module]:
    for path in SOURCE.rglob("*.py"):
        yield ast.parse(path.read_text())


def fixes_in(tree: ast.AST) -> Iterator[tuple[str, str]]:
    """Code and remedy, where a place gives both as literals."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            given = {each.arg: each.value for each in node.keywords}
            if isinstance(given.get("fix"), ast.Constant):
                fix = ast.literal_eval(given["fix"])
                yield from ((c, fix) for c in codes_in(ast.Tuple([*node.keywords])))


def test_every_code_is_explained() -> None:
    found = {code for tree in trees() for code in codes_in(tree)}
    missing = found - catalogue().keys()
    assert not missing, f"add them to errors.toml: {sorted(missing)}"


def test_every_explanation_has_its_code() -> None:
    """A name that stands nowhere in the source explains nothing."""
    places = (SOURCE, *(CLONE / each for each in BESIDE))
    files = (path for place in places for path in place.rglob("*.py"))
    text = "\n".join(path.read_text() for path in files)
    unused = [
        name
        for name in catalogue().keys() - ELSEWHERE
        if not re.search(rf'["\']{name}["\']', text)
    ]
    assert not unused


def test_no_place_says_what_the_catalogue_says() -> None:
    others = [each for tree in trees() for each in fixes_in(tree) if remedy(each[0])]
    assert not [each for each in others if remedy(each[0]) == each[1]]
    assert len(others) <= MAX_OTHERS, others


def test_the_search_finds_a_code() -> None:
    """Control: a code that nobody explained is found, and a remedy at its place."""
    tree = ast.parse('raise PolicyError("x", fix="y", code="never" if a else "b-c")')
    assert set(codes_in(tree)) == {"never", "b-c"}
    assert set(fixes_in(tree)) == {("never", "y"), ("b-c", "y")}
    assert "never" not in catalogue()


def test_entries_are_text() -> None:
    for name, entry in catalogue().items():
        assert NAME.fullmatch(name), name
        assert set(entry) in ({"what", "fix"}, {"what", "do"}), name
        assert all(
            text.endswith((".", "?")) and text.isascii() for text in entry.values()
        )
